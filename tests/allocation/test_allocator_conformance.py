"""Allocations equal those of the reference implementation, in the reference's order."""

from __future__ import annotations

from typing import Any

import pytest

from extender.api.fields import Json
from extender.api.quantity import parse_quantity
from extender.cli.allocate_command import answer, load_cases
from tests.recorded import worlds
from tests.worlds.shared_folder import SHARED, needs

FOLDER = SHARED / "conformance" / "allocator"
WORLDS = 1000
MIXED, EDGE = 240, 399
BATCH = 100


def comparable(allocations: list | None) -> list | None:
    """Share identifiers are random; quantities are compared by value."""
    for allocation in allocations or []:
        for result in allocation["devices"]["results"]:
            if "shareID" in result:
                result["shareID"] = "-"
            if "consumedCapacity" in result:
                result["consumedCapacity"] = {k: parse_quantity(v).nanos for k, v in result["consumedCapacity"].items()}
    return allocations or None


# Beginnings of errors that are none of reading a case.
SOLVED = ("claim ", "class ", "request ", "invalid resource pools", "gave up")


def difference(case: Json) -> str:
    """The difference between Berth's answer and the recorded one; '' if they are equal."""
    found, preferred, expect = answer(case, "in-tree"), answer(case, "preferred"), case["expect"]
    if bool(found["error"]) != bool(expect["error"]):
        return f"error {found['error']!r}, recorded {expect['error']!r}"
    if found["error"] and not found["error"].startswith(SOLVED):
        return found["error"]
    if bool(found["allocations"]) != bool(preferred["allocations"]):
        return "the preferred order does not fit where the reference's does, or the other way round"
    have, recorded = comparable(found["allocations"]), comparable(expect["allocations"])
    return "" if have == recorded else f"{have}, recorded {recorded}"


def differing(cases: list[Json]) -> list[str]:
    return [f"{case['name']}: {found}" for case in cases if (found := difference(case))]


def test_all_worlds_are_there() -> None:
    assert len(worlds()) == WORLDS


@pytest.mark.parametrize("start", range(0, WORLDS, BATCH))
def test_random_worlds_as_in_the_reference(start: int) -> None:
    assert differing(worlds()[start : start + BATCH]) == []


@pytest.mark.parametrize(("name", "count"), [("mixed", MIXED), ("edge", EDGE)])
def test_worlds_with_features_mixed_as_in_the_reference(name: str, count: int) -> None:
    """Worlds in which the known differences (docs/decisions/0010-differences.md) do not matter."""
    mixed = worlds(name)
    assert len(mixed) == count
    assert differing(mixed) == []


@needs("conformance", "allocator")
def test_named_cases_as_in_the_reference() -> None:
    """The reference's own cases, which a clone elsewhere does not have."""
    cases: list[Any] = [case for path in sorted(FOLDER.glob("*.json")) for _, case in load_cases(path)]
    assert len(cases) > BATCH
    assert differing(cases) == []
