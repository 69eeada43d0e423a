"""The deadline of an explanation of a gang ends somewhere: the explanation has what was found before."""

from __future__ import annotations

import pytest

from extender.base.deadline import Deadline
from tests.worlds.evaluation_worlds import steps
from tests.worlds.explained_gangs import apply, explained, members, occupy, racked
from tests.worlds.gang_worlds import RACK
from tests.worlds.running_berth import claim


@pytest.mark.parametrize("number", range(0, 400, 7))
def test_a_budget_that_ends_leaves_the_near_misses_found_before(number: int) -> None:
    world = racked("a1", "a2", "b1", "b2")
    occupy(world, "middle", "a2", 1, 4)
    occupy(world, "large", "b2", 0, 8)
    members(world, 2, topology="required")
    deadline = steps(number)
    found, whole = explained(world, deadline), explained(world)
    assert found.outcome in ("unfinished", "refused")
    assert set(found.misses) <= set(whole.misses)
    if found.outcome == "refused" and found.misses != whole.misses:
        assert found.cut_short
    assert len(found.members) == 2


class EndsAt(Deadline):
    """Its seconds end at a check of the time, counted from 1."""

    __slots__ = ("checks", "last")

    def __init__(self, last: int) -> None:
        self.checks, self.last = 0, last
        super().__init__(1.0, lambda: float(self.checks >= self.last))

    def check_time(self) -> None:
        self.checks += 1
        super().check_time()


@pytest.mark.parametrize("nodes", [("a1", "a2", "b1", "b2"), ("a1", "b1")], ids=["other pods in the way", "never"])
def test_seconds_that_end_at_any_check_leave_out_a_part_of_the_explanation(nodes: tuple[str, ...]) -> None:
    world = racked("c1", *nodes)
    occupy(world, "large", "b1", 0, 8)
    notes = {"berth.dev/group": "job", "berth.dev/group-min": "2", "berth.dev/group-topology": "required"}
    for name in ("p0", "p1"):
        world.add_claim(claim(name, 8))
        apply(world, name, name, annotations=notes, nodeSelector={RACK: "rack-b"})
    whole, outcomes = explained(world), list[str]()
    while "all checks passed" not in outcomes:
        deadline = EndsAt(len(outcomes) + 1)
        found = explained(world, deadline)
        assert len(found.members) == 2
        assert set(found.misses) <= set(whole.misses)
        assert deadline.checks >= deadline.last or found == whole
        outcomes.append(found.outcome if deadline.checks >= deadline.last else "all checks passed")
    assert outcomes == sorted(outcomes, reverse=True), "the plan comes first"
    assert {"unfinished", "refused"} <= set(outcomes)
