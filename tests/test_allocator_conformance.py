"""Allocations judged by the answers of the reference implementation, in its own order."""

from __future__ import annotations

import pytest

from extender.cli.allocate import answer
from extender.cli.cases import Case, CaseError, load_cases
from extender.model.quantity import parse_quantity
from tests.shared import SHARED, needs

FOLDER = SHARED / "conformance" / "allocator"
CASES = list(load_cases(FOLDER)) if FOLDER.exists() else []


def comparable(allocations: list | None) -> list | None:
    """Share identifiers are random; quantities are compared by value."""
    for allocation in allocations or []:
        for result in allocation["devices"]["results"]:
            if "shareID" in result:
                result["shareID"] = "-"
            if "consumedCapacity" in result:
                result["consumedCapacity"] = {k: parse_quantity(v).nanos for k, v in result["consumedCapacity"].items()}
    return allocations or None


@needs("conformance", "allocator")
@pytest.mark.parametrize("case", CASES or [None], ids=lambda case: getattr(case, "name", "absent"))
def test_same_as_reference(case: Case | CaseError) -> None:
    assert isinstance(case, Case), case
    found = answer(case, "in-tree")
    assert bool(found["error"]) == bool(case.expect["error"]), found["error"]
    assert comparable(found["allocations"]) == comparable(case.expect["allocations"])


@needs("conformance", "allocator")
@pytest.mark.parametrize("case", CASES or [None], ids=lambda case: getattr(case, "name", "absent"))
def test_preference_never_finds_fewer(case: Case | CaseError) -> None:
    in_tree, preferred = answer(case, "in-tree"), answer(case, "preferred")
    assert bool(in_tree["allocations"]) == bool(preferred["allocations"])
