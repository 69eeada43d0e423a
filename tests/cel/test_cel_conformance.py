"""Results of selectors equal those of the reference implementation."""

from __future__ import annotations

import json

import pytest

from extender.cli.select_command import answer
from tests.recorded import selectors
from tests.worlds.shared_folder import SHARED, needs

KINDS = ("match", "compile_error", "runtime_error")
FOLDER = SHARED / "conformance" / "cel"


def difference(case: dict) -> str:
    """The difference between Berth's answer and the recorded one in kind or match; '' if there is none."""
    expected = next(kind for kind in KINDS if kind in case["expect"])
    found = answer(case, "case")
    if [kind for kind in KINDS if found[kind] is not None] != [expected]:
        return f"{found}, recorded {case['expect']}"
    same = expected != "match" or found["match"] is case["expect"]["match"]
    return "" if same else f"match is {found['match']}"


def differing(cases: list[dict]) -> list[str]:
    return [f"{case['name']} {case['expression']}: {found}" for case in cases if (found := difference(case))]


@pytest.mark.parametrize(("name", "count"), [("probes", 526), ("odd_selectors", 998), ("more_selectors", 1754)])
def test_recorded_selectors_as_in_the_reference(name: str, count: int) -> None:
    cases = selectors(name)
    assert len(cases) == count
    assert differing(cases) == []


@needs("conformance", "cel")
@pytest.mark.parametrize("name", ["reference", "field"])
def test_other_cases_as_in_the_reference(name: str) -> None:
    """The reference's own table and selectors of public manifests, which a clone elsewhere does not have."""
    assert differing(json.loads((FOLDER / f"{name}.json").read_text())) == []
