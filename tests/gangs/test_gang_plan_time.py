"""A plan ends in time, also if it needs no new evaluation. Time is counted work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extender.base.deadline import Deadline, DeadlineExceeded
from extender.gangs.gang_problem import GangMember, GangPlan, GangProblem, GangShortage
from tests.worlds.evaluation_worlds import TICK, Clock
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, GangWorld, cluster, nets
from tests.worlds.running_berth import claim

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
