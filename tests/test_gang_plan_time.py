"""A plan ends in time, also if it needs no new evaluation. Time is counted work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from extender.gangs.gang_problem import GangMember, GangPlan, GangProblem, GangShortage
from extender.gangs.gang_trial import GangTrial
from extender.model import Deadline, DeadlineExceeded
from extender.scheduling import Placement
from tests.evaluation_worlds import TICK, Clock
from tests.gang_worlds import CLIQUE, RACK, SPINE, GangWorld, cluster, nets
from tests.running_berth import claim

READINGS = 100  # of the clock, in the time of these tests


def classes(world: GangWorld, size: int, number: int, device_class: str = "gpu.nvidia.com") -> tuple[GangMember, ...]:
    """Members with a device each, in so many equivalence classes."""
    for i in range(size):
        obj = claim(f"w-{i}")
        asked = {
            "deviceClassName": device_class,
            "selectors": [{"cel": {"expression": f"{i % number} == {i % number}"}}],
        }
        obj["spec"]["devices"]["requests"][0]["exactly"] = asked
        world.add_claim(obj)
        world.add_pod(f"w-{i}", f"w-{i}")
    return tuple(world.member(f"w-{i}", i) for i in range(size))


def filled() -> tuple[GangWorld, tuple[GangMember, ...]]:
    world = cluster("s/r/c:8 s/r/d:8 s/q/e:8")
    return world, classes(world, 90, 30)


def many_domains() -> tuple[GangWorld, tuple[GangMember, ...]]:
    world = cluster(" ".join(f"s{i}/r{i}/c{i}:2" for i in range(80)))
    return world, classes(world, 9, 1)


def too_large() -> tuple[GangWorld, tuple[GangMember, ...]]:
    world = cluster("s/r/c:8 s/r/d:8 s/q/e:8")
    return world, classes(world, 97, 30)


def searched() -> tuple[GangWorld, tuple[GangMember, ...]]:
    """All nodes share the devices, so the planner searches them together; there is one too few."""
    world = cluster("s/r/c:4")
    nets(world, 20)
    return world, classes(world, 21, 7, "net")


@pytest.mark.parametrize("made", [filled, many_domains, too_large, searched])
def test_a_plan_whose_evaluations_are_all_known_ends_in_time(
    made: Callable[[], tuple[GangWorld, tuple[GangMember, ...]]],
) -> None:
    """Attack: stall scheduling with a gang whose plan needs a long search."""
    world, members = made()
    problem = GangProblem(members, (CLIQUE, RACK, SPINE), "preferred")
    found = world.plan_problem(problem)
    clock = Clock()
    with pytest.raises(DeadlineExceeded):
        world.plan_problem(problem, Deadline(READINGS * TICK, clock))
    assert clock.now <= (READINGS + 2) * TICK
    again = world.plan_problem(problem, Deadline(100.0, Clock()))
    assert isinstance(again, GangPlan) == isinstance(found, GangPlan)
    assert not isinstance(again, GangShortage) or again == found


# -- what a trial has taken ----------------------------------------------------------------------------------------


def placements(world: GangWorld, size: int, node: str) -> list[Placement]:
    """The placements of members with one GPU each, one beside the other."""
    members = world.gang(size)
    plan = world.plan([world.member(member.uid, i, frozenset({node})) for i, member in enumerate(members)])
    assert isinstance(plan, GangPlan), plan
    return [placement for _, placement in plan.placements.values()]


def test_trials_have_one_key_if_and_only_if_they_have_taken_the_same() -> None:
    world = cluster("s/r/c:2")
    trial, (a, b, c) = GangTrial(world.cache.snapshot()), placements(world, 3, "n0")
    keys = {trial.key}
    for chosen in ([a], [b], [a, b], [a, c], [a, b, c]):
        for order in (chosen, chosen[::-1]):
            for placement in order:
                trial.add("n0", placement)
            keys.add(trial.key)
            trial.undo_to(0)
    assert len(keys) == 6
    trial.add("n1", a)
    assert trial.key not in keys
    trial.undo()
    assert trial.key in keys


def test_the_key_of_a_trial_costs_the_same_whatever_the_plan_has_taken() -> None:
    """A search of a gang reads it at each step."""
    world = cluster("s/r/c:2", "hgx-h100-8")
    trial, found = GangTrial(world.cache.snapshot()), placements(world, 8, "n0")
    calls: list[int] = []

    def count(_frame: FrameType, event: str, _what: object) -> None:
        calls[-1] += event in ("call", "c_call")

    for placement in found:
        trial.add("n0", placement)
        calls.append(0)
        sys.setprofile(count)
        hash(trial.key)
        sys.setprofile(None)
    assert len(set(calls)) == 1, calls
