"""Selectors judged by the answers of the reference implementation."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from extender.cli.select import answer
from tests.shared import SHARED, needs

KINDS = ("match", "compile_error", "runtime_error")


def cases() -> Iterator[object]:
    for name in ("reference", "field", "probes"):
        path = SHARED / "conformance" / "cel" / f"{name}.json"
        for case in json.loads(path.read_text()) if path.exists() else ():
            yield pytest.param(case, id=f"{name}:{case['name']}")


@needs("conformance", "cel")
@pytest.mark.parametrize("case", list(cases()) or [pytest.param({}, id="absent")])
def test_same_kind_and_match(case: dict) -> None:
    expected = next(kind for kind in KINDS if kind in case["expect"])
    found = answer(case)
    assert [kind for kind in KINDS if found[kind] is not None] == [expected], found
    if expected == "match":
        assert found["match"] is case["expect"]["match"]
