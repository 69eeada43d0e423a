"""Every write of Berth has its guard, and its row in SECURITY.md with a test that exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extender.cluster import Writer
from tests.worlds.guarded_writes import GUARDS, metadata_in, success

ROOT = Path(__file__).resolve().parents[2]

# The precondition of each request.
UNGUARDED = {"create_special_claim", "touch_class", "create_event"}  # new objects, and one annotation


def writes() -> set[str]:
    names = {name for name in vars(Writer) if not name.startswith("_")}
    return {name for name in names if not name.startswith("read_")}


class Recording:
    """An API client that keeps the preconditions of each request and answers with the next version of the claim."""

    def __init__(self) -> None:
        self.guards: list[dict[str, str]] = []

    def __getattr__(self, _: str) -> Any:
        async def call(path: str, body: dict[str, Any], *__: object) -> dict[str, Any]:
            sent = ("preconditions" in body and body["preconditions"]) or metadata_in(body)
            self.guards.append({key: sent[key] for key in ("uid", "resourceVersion") if key in sent})
            return success(path, body)

        return call


@pytest.mark.parametrize("name", sorted(GUARDS))
async def test_every_write_is_guarded(name: str) -> None:
    """Attack: make Berth delete or overwrite by replacing an object under the same name."""
    client, (arguments, guards) = Recording(), GUARDS[name]
    await getattr(Writer(client), name)(*arguments)  # type: ignore[arg-type]  # a fake
    assert client.guards == guards
    assert all("uid" in guard for guard in guards) or name in UNGUARDED


def rows() -> Iterator[tuple[str, set[str], str]]:
    """Each row of the table of writes: the write, the modules that call it, and the cell of the tests."""
    section = (ROOT / "SECURITY.md").read_text().split("## Writes, and the proof for each")[1].split("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            yield cells[0].strip("`"), set(re.findall(r"`(\w+)`", cells[1])), cells[4]


def uses(names: set[str]) -> Iterator[tuple[str, str, str]]:
    """Each attribute of the code with one of these names: its name, its module, and the name of its object."""
    for path in (ROOT / "extender").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text if any(f".{name}" in text for name in names) else "")):
            if isinstance(node, ast.Attribute) and node.attr in names:
                of = node.value
                name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
                yield node.attr, path.stem, name


def test_every_write_has_its_row_with_tests_that_exist() -> None:
    assert {name for name, _, _ in rows()} == writes() == set(GUARDS)
    texts = [path.read_text() for path in ROOT.glob("tests/**/test_*.py")]
    known = {name for text in texts for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)}
    for name, _, tests in rows():
        named = set(re.findall(r"`(test_\w+)`", tests))
        assert named, (name, named - known)
        assert named <= known, (name, named - known)


def test_every_call_of_a_write_has_its_row() -> None:
    called = {(name, module) for name, module, of in uses(writes()) if of.endswith("writer")}
    assert called == {(name, module) for name, modules, _ in rows() for module in modules}


def test_no_other_module_sends_requests_that_write() -> None:
    section = (ROOT / "SECURITY.md").read_text().split("## Writes, and the proof for each")[1].split("\n## ")[0]
    found = {module for _, module, of in uses({"post", "put", "patch", "delete"}) if of.endswith("client")}
    assert found == {"writer", "slice_publisher", "doctor_command"}
    assert all(f"`{module}`" in section for module in found - {"writer"})
