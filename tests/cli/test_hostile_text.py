"""Text from the cluster or from files can neither control the user's terminal nor break the output of a command."""

from __future__ import annotations

import ast
import io
from collections import Counter
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import orjson
import pytest
import yaml
from pydantic import BaseModel
from rich.text import Text

from extender.api.resource_slices import SliceDecoder
from extender.base.text_limits import USER_BYTES, visible
from extender.cli.console_client import ClaimReply, FleetReply, PolicyStatusReply
from extender.cli.explain_command import ExplanationReply
from extender.cli.output import Screen
from extender.explain import GangExplanation
from extender.explain.selector_stats import TermStats
from extender.sandbox import Cluster, carried_machines, fabric_slice, listening, write_kubeconfig
from extender.sandbox.machines import GPU_DRIVER, gpu_slice
from extender.topology.agent_slices import fabric_of
from extender.topology.sources import choose_fabric
from tests.worlds.bad_values import honest
from tests.worlds.commands import berth, berth_beside
from tests.worlds.running_berth import claim, pod
from tests.worlds.vendor_worlds import whole_gpus

Json = dict[str, Any]
CLI = Path(__file__).resolve().parents[2] / "extender" / "cli"
# Markup of rich, an emoji code, a window title, a C1 sequence that clears the screen, and two direction marks.
EVIL = "[/x][red]:bomb:\x1b]0;pwned\x07\x1b[2J\x9b2J\u202eabc\u2066\u2028"
REPLIES: dict[str, Any] = {
    "/v1/fleet": FleetReply,
    "/v1/claims": list[ClaimReply],
    "/v1/policy": PolicyStatusReply,
    "/v1/explain": list[ExplanationReply],
    "/v1/explain/group/a/b": list[GangExplanation],
}


def hostile(shape: Any) -> Any:
    """A value of this shape, with EVIL as each text."""
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        return {name: hostile(field.annotation) for name, field in shape.model_fields.items()}
    if is_dataclass(shape):
        return {name: hostile(kind) for name, kind in get_type_hints(shape).items()}
    if get_origin(shape) in (list, tuple):
        return [hostile(one) for one in get_args(shape) if one is not ...]
    if get_origin(shape) is dict:
        return {EVIL: EVIL}
    if get_origin(shape) is UnionType:
        return hostile(get_args(shape)[0])
    return {str: EVIL, int: 1, float: 1.5, bool: True}[shape]


async def hostile_console(scope: Json, _: Any, send: Any) -> None:
    content = orjson.dumps(hostile(REPLIES[scope["path"]]))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": content})


def check(code: int, out: str, err: str) -> None:
    assert code in (0, 1, 2)
    for line in f"{out}\n{err}".split("\n"):
        assert line.isprintable(), ascii(line)
        assert "💣" not in line


ASKING = [
    ["nodes"],
    ["claims"],
    ["top", "--once"],
    ["explain", "pod", "a/b"],
    ["explain", "pod", "a/b", "--narrate", "n"],
    ["explain", "group", "a/b"],
    ["policy", "status"],
]


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
@pytest.mark.parametrize("output", ["table", "wide", "json"])
async def test_commands_that_ask_the_console(words: list[str], output: str) -> None:
    """Attack: control the user's terminal, or break a command, with a name, a selector or a product."""
    async with listening(hostile_console, "127.0.0.1", 0) as url:
        more = [] if words[0] == "top" and output == "wide" else ["--output", output]
        code, out, err = await berth_beside([*words, *more, "--server", url])
    check(code, out, err)
    if output == "json":
        assert EVIL in strings_in([orjson.loads(line) for line in out.splitlines()])
    else:
        assert "[/x][red]:bomb:" in "".join(out.split())


def strings_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in strings_in(one)]
    if isinstance(value, list):
        return [text for one in value for text in strings_in(one)]
    return [value] if isinstance(value, str) else []


def files(folder: Path) -> dict[str, str]:
    """Files with EVIL in the places of texts that Berth prints."""
    given = honest()
    given["machine"]["name"] = given["machine"]["gpu_product"] = EVIL
    for name, value in given.items():
        for obj in value.get("items", ()) if isinstance(value, dict) else ():
            metadata = obj["metadata"]
            metadata["name"] = f"{metadata['name']}{EVIL}"
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(value))
    (folder / "bad-policy.yaml").write_text(yaml.safe_dump({EVIL: EVIL, "weights": {"link": EVIL}}))
    return {name: str(folder / f"{name}.yaml") for name in (*given, "bad-policy")}


OFFLINE = [
    ["allocate", "objects"],
    ["select", "true", "-f", "objects"],
    ["select", EVIL, "-f", "objects"],
    ["fabric", "machine"],
    ["fabric", EVIL],
    ["lint", "objects"],
    ["lint", "--fix", "objects"],
    ["explain", "--snapshot", "objects", "-f", "objects"],
    ["explain", "--snapshot", "objects", "pod", f"a/{EVIL}"],
    ["policy", "check", "bad-policy"],
    ["policy", "show", "bad-policy"],
    ["nodes", "--server", EVIL],
    [EVIL],
]


@pytest.mark.parametrize("words", OFFLINE, ids=lambda words: ascii(" ".join(words)))
def test_commands_that_read_files(words: list[str], tmp_path: Path) -> None:
    known = files(tmp_path)
    check(*berth([known.get(word, word) for word in words]))


def test_allocate_prints_a_pattern_of_a_selector_as_it_is(tmp_path: Path) -> None:
    objects = honest()["objects"]["items"]
    (asked,) = [obj for obj in objects if obj["kind"] == "ResourceClaim"]
    request = asked["spec"]["devices"]["requests"][0]["exactly"]
    pattern = "device.attributes['gpu.nvidia.com'].uuid.matches('[/a-z]+') && foo"
    request["selectors"] = [{"cel": {"expression": pattern}}]
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(objects))
    code, out, err = berth(["allocate", str(tmp_path / "objects.yaml")])
    assert code == 1
    assert "[/a-z]+" in out + err
    check(code, out, err)


@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--output", "json"], ["snapshot"]], ids=" ".join)
async def test_commands_that_read_the_cluster(words: list[str], tmp_path: Path) -> None:
    """Attack: control the user's terminal, or break a command, with a name, a selector or a product."""
    cluster = Cluster()
    cluster.add_node("n1", carried_machines()["t4-4"])
    for table, obj in (
        ("pods", pod("p", "c", schedulerName="other")),
        ("resourceclaims", claim("c")),
        ("deviceclasses", claim("d")),
    ):
        obj["metadata"]["name"] = EVIL
        cluster.store.put(table, ("default", EVIL), obj)
    async with cluster.serving() as api:
        write_kubeconfig(tmp_path, api)
        code, out, err = await berth_beside([*words, "--kubeconfig", str(tmp_path / "kubeconfig")])
    check(code, out, err)
    assert "pwned" in out
    if words != ["doctor"]:
        assert EVIL in "".join(strings_in(orjson.loads(out if words == ["snapshot"] else out.splitlines()[-1])))


def test_one_module_prints() -> None:
    for path in CLI.glob("*.py"):
        if path.name == "output.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute | ast.Name):
                assert ast.unparse(node) not in ("typer.echo", "print", "sys.stdout.buffer"), (
                    f"{path.name}: {node.lineno}"
                )
            if isinstance(node, ast.ImportFrom):
                assert node.module != "rich.markup", f"{path.name}: the output has no markup"
                assert (node.module, node.names[0].name) != ("rich.console", "Console"), path.name


def test_visible_text_is_printable_and_keeps_lines() -> None:
    assert visible("a\nb\x1b\u202e\x9b\t") == "a\nb\\x1b\\u202e\\x9b\\t"
    assert visible("äöü ━ 💣\n") == "äöü ━ 💣\n"


def test_a_text_with_a_style_is_escaped_on_a_terminal() -> None:
    shown = io.StringIO()
    screen = Screen(file=shown, force_terminal=True)
    screen.print(Text.assemble((EVIL, "red")))
    assert shown.getvalue().rstrip("\n").isprintable()


def test_a_sentence_about_a_selector_quotes_a_printable_beginning() -> None:
    stats = TermStats("request r", EVIL * 50, asked=1, instead=Counter({EVIL * 50: 1}), published={EVIL * 50: 0})
    assert stats.sentence().isprintable()
    assert len(stats.sentence()) < 4 * USER_BYTES


@pytest.mark.parametrize("by_agent", [True, False])
def test_the_product_of_a_fabric_is_printable(*, by_agent: bool) -> None:
    product, machine = "Tesla\x1b[2J\u202e T4", carried_machines()["t4-4"]
    readings = tuple(replace(one, product=product) for one in machine.readings)
    machine = replace(machine, product=product, readings=readings)
    if by_agent:
        found = fabric_of(SliceDecoder().decode(fabric_slice("n", machine)).devices)
    else:
        found = choose_fabric(None, GPU_DRIVER, whole_gpus(gpu_slice("n", machine), GPU_DRIVER))
    assert found is not None
    assert found.product == "Tesla\\x1b[2J\\u202e T4"
