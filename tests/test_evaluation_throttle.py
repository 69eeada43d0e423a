"""Each namespace has its share of the evaluation time. Time is counted work."""

from __future__ import annotations

from contextlib import suppress

import pytest

from extender.extension.evaluation_throttle import EvaluationLimits, EvaluationThrottle
from extender.model import CallBudgetSpent
from tests.budget_worlds import Clock, Fleet


def test_a_namespace_has_a_share_of_the_time_and_a_small_burst() -> None:
    clock = Clock()
    throttle, used, began = EvaluationThrottle(EvaluationLimits(), clock), 0.0, clock.now
    while clock.now < 100:
        budget = throttle.budget("hostile", 0.1, 0.1)
        start = clock.now
        with suppress(CallBudgetSpent):
            while True:
                budget.check()
                budget.mark_progress()
        throttle.charge("hostile", budget, 0.1)
        used += clock.now - start
        clock.now += 0.01
    assert 0.1 * 100 < used < 0.1 * 100 + 5 * 0.1 + 1, "its share, the burst, and what the looks themselves take"
    assert throttle.budget("honest", 0.1, 0.1).seconds == 0.1, "others are not touched"
    assert began < 1


def test_calls_that_come_to_their_end_count_for_nothing() -> None:
    clock = Clock()
    throttle = EvaluationThrottle(EvaluationLimits(), clock)
    for _ in range(1000):
        budget = throttle.budget("busy", 0.1, 0.1)
        clock.now += 0.09
        throttle.charge("busy", budget, 0.1)
    assert throttle.budget("busy", 0.1, 0.1).seconds == 0.1
    assert len(throttle) == 0


def test_a_call_that_ends_later_than_its_budget_is_charged() -> None:
    """The search of a gang plan checks no budget while it needs no new evaluation, and may be repeated."""
    clock = Clock()
    throttle = EvaluationThrottle(EvaluationLimits(), clock)
    budget = throttle.budget("busy", 0.1, 0.1)
    clock.now += 1
    throttle.charge("busy", budget, 0.1)
    assert not throttle.has_tokens("busy", 0.1)
    assert throttle.has_tokens("other", 0.1)


def test_namespaces_remembered_are_bounded() -> None:
    clock = Clock()
    throttle = EvaluationThrottle(EvaluationLimits(namespaces=4), clock)
    for number in range(20):
        budget = throttle.budget(f"n{number}", 0.1, 0.1)
        budget.mark_progress()
        clock.now += 1
        with pytest.raises(CallBudgetSpent):
            budget.check()
        throttle.charge(f"n{number}", budget, 0.1)
    assert len(throttle) == 4


def test_many_hostile_pods_of_one_namespace_leave_the_time_to_others() -> None:
    """Counted work: however often the hostile pods are tried, calls and background together take less than a fifth."""
    fleet = Fleet(nodes=60)
    pods = [fleet.hostile() for _ in range(30)]
    honest = [fleet.pod("honest") for _ in range(30)]
    for one in honest:
        assert fleet.filter_service.filter(one, fleet.names).passed
    hostile, longest, placed, next_slice, began = 0.0, 0.0, 0, 0.0, fleet.clock.now
    retry = dict.fromkeys(range(30), 0.0)
    while fleet.clock.now - began < 20:
        start = fleet.clock.now
        due = [number for number, at in retry.items() if at <= start][:1]
        for number in due:
            fleet.filter_service.filter(pods[number], fleet.names)
            retry[number] = fleet.clock.now + 2  # kube-scheduler's backoff
        if fleet.clock.now >= next_slice:
            slice_began = fleet.clock.now
            fleet.filter_service.continue_evaluation()
            next_slice = fleet.clock.now + 9 * (fleet.clock.now - slice_began)
        hostile, longest = hostile + fleet.clock.now - start, max(longest, fleet.clock.now - start)
        placed += bool(fleet.filter_service.filter(honest[placed % 30], fleet.names).passed)
        fleet.clock.now += 0.01
    assert hostile < 0.2 * (fleet.clock.now - began)
    assert longest < 1.2 * (fleet.policy.evaluation_seconds + EvaluationLimits().slice_seconds)
    assert placed > 1000
