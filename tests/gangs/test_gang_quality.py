"""The trace of `make bench-gang-quality`, with few jobs: the rules that every placement and every gang must keep."""

from __future__ import annotations

import pytest

from benchmarks import whole_racks
from benchmarks.gang_quality import (
    PATIENCE,
    SCHEDULERS,
    Fleet,
    Outcome,
    Place,
    Scheduler,
    Simulation,
    emptiest,
    first_fit,
    gang_planner,
    pod_by_pod,
)
from benchmarks.gang_traces import Job, Kind, created, trace
from tests.worlds.gang_worlds import TRAY

BY_NAME = {scheduler.place: scheduler for scheduler in SCHEDULERS}
TRAYS = Kind("trays", TRAY, gpus=4, nodes=4, cliques=8)
FOUR = Kind("four trays", TRAY, gpus=4, nodes=2, cliques=2)


def outcome_of(kind: Kind, scheduler: Scheduler, jobs: list[list[Job]]) -> Outcome:
    """The fleet asserts that no device is used twice. After the last job, all of them are free."""
    fleet = Fleet(kind, seed=1)
    found = Simulation(fleet, scheduler).run(jobs)
    assert not fleet.devices
    assert set(fleet.free.values()) == {kind.gpus}
    assert sum(map(len, found.waits.values())) == sum(map(len, jobs))
    assert all(least <= cliques for cliques, least in found.cliques)
    return found


def share_inside(outcome: Outcome) -> float:
    inside = [found == 1 for found, least in outcome.cliques if least == 1]
    return sum(inside) / len(inside)


def test_only_pods_that_are_placed_alone_leave_a_gang_half_placed() -> None:
    jobs = trace(TRAYS, 16, seed=2)  # few, and each of the three leaves a gang half placed
    found = {place: outcome_of(TRAYS, BY_NAME[place], jobs) for place in BY_NAME}
    for place in (emptiest, first_fit, pod_by_pod):
        assert found[place].half_placed
        assert found[place].held > 0
    gangs = found[gang_planner]
    assert (gangs.half_placed, gangs.held, gangs.failures) == (set(), 0, 0)
    assert gangs.stranded >= gangs.too_small
    assert share_inside(gangs) >= share_inside(found[first_fit])


def test_a_trace_is_the_same_for_the_same_seed() -> None:
    jobs = trace(TRAYS, 24, seed=1)
    assert jobs == trace(TRAYS, 24, seed=1) != trace(TRAYS, 24, seed=2)
    first, again = (outcome_of(TRAYS, BY_NAME[emptiest], jobs) for _ in range(2))
    assert first == again


def test_pods_of_jobs_that_are_created_together_alternate() -> None:
    jobs = [Job("a", 0, 4, 4, 1), Job("b", 0, 2, 4, 1)]
    assert [pod for _, pod in created(jobs)] == ["a-0", "b-0", "a-1", "a-2", "b-1", "a-3"]


@pytest.mark.parametrize("place", [emptiest, first_fit, pod_by_pod])
def test_two_half_placed_gangs_wait_until_one_fails(place: Place) -> None:
    """Four nodes: a gets three of them, b one. After the patience a fails, b runs, and a after b."""
    found = outcome_of(FOUR, BY_NAME[place], [[Job("a", 0, 4, 4, 5), Job("b", 0, 4, 4, 3)]])
    assert found.half_placed == {"a", "b"}
    assert found.failures == 1
    assert found.waits == {4: [PATIENCE / 60, PATIENCE / 60 + 3]}


def test_planned_gangs_run_one_after_the_other() -> None:
    found = outcome_of(FOUR, BY_NAME[gang_planner], [[Job("a", 0, 4, 4, 5), Job("b", 0, 4, 4, 3)]])
    assert found.waits == {4: [0, 5]}


def test_free_devices_are_stranded_while_a_gang_waits() -> None:
    """Pods on two of four nodes leave one GPU each; a gang of four whole nodes waits half of the time."""
    singles = [[Job("x", 0, 1, 3, 1)], [Job("y", 0, 1, 3, 1)], [Job("gang", 0, 4, 4, 2)], [Job("z", 2, 1, 1, 1)]]
    found = outcome_of(FOUR, BY_NAME[gang_planner], singles)
    assert found.waits[4] == [1]
    assert found.stranded == pytest.approx(10 / 16 / 2)
    assert found.too_small == pytest.approx(2 / 16 / 2)


@pytest.mark.parametrize("load", whole_racks.LOADS, ids=lambda load: load.name)
def test_whole_racks_are_kept_whatever_the_names(load: whole_racks.Load) -> None:
    """As many whole-rack gangs start as by the rule, but for the noise: equal choices lead to other states."""
    started = dict.fromkeys(("fullest rack first", "Berth"), 0)
    for seed in range(3):
        jobs = whole_racks.jobs_of(load, seed)
        for name in started:
            scheduler = whole_racks.SCHEDULERS[name](whole_racks.Names.shuffled(seed))
            started[name] += whole_racks.simulate(jobs, scheduler).whole
    assert started["Berth"] >= 0.97 * started["fullest rack first"] > 0
