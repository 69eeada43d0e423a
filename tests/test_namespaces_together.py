"""All namespaces together have a share of the evaluation time. Time is counted work."""

from __future__ import annotations

import pytest

from extender.extension.evaluation_throttle import EvaluationLimits, EvaluationThrottle
from extender.scheduling import PodRequirements, requirements_of
from tests.budget_worlds import MACHINES, Clock, Fleet


def spend(throttle: EvaluationThrottle, clock: Clock, namespaces: list[str], seconds: float) -> float:
    """Evaluate all the time for each namespace in turn, as far as it has tokens. Returns the time that this took."""
    used, until = 0.0, clock.now + seconds
    while clock.now < until:
        for namespace in namespaces:
            budget = throttle.budget(namespace, 0.1, 0.1)
            if budget.seconds >= 0.05:
                clock.now += budget.seconds
                used += clock.now - budget.began
                budget.exhausted = True
                throttle.charge(namespace, budget, 0.1)
        clock.now += 0.01
    return used


@pytest.mark.parametrize("count", [1, 3, 20, 200])
def test_all_namespaces_together_have_a_share_of_the_time(count: int) -> None:
    """20 namespaces with costly pods left new pods of others 18 % of their rate: each had a twentieth of the time."""
    clock, limits = Clock(), EvaluationLimits()
    throttle, namespaces = EvaluationThrottle(limits, clock), [f"n{number}" for number in range(count)]
    spend(throttle, clock, namespaces, 10.0 + count)
    began, used = clock.now, spend(throttle, clock, namespaces, 400.0)
    share = min(limits.total_share, count * limits.share) * (clock.now - began)
    assert 0.8 * share < used < 1.2 * share
    assert throttle.budget("new", 0.1, 0.1).seconds == 0.1


def test_namespaces_that_stop_spending_leave_their_part_to_others() -> None:
    clock, limits = Clock(), EvaluationLimits()
    throttle, namespaces = EvaluationThrottle(limits, clock), [f"n{number}" for number in range(20)]
    spend(throttle, clock, namespaces, 100.0)
    one = namespaces[:1]
    spend(throttle, clock, one, (limits.burst + limits.finished_burst) * 0.1 * 20 / limits.total_share)
    assert spend(throttle, clock, one, 100.0) > 0.9 * limits.share * 100


def test_a_namespace_that_binds_pods_needs_no_part_of_the_sum() -> None:
    clock, limits = Clock(), EvaluationLimits()
    throttle, namespaces = EvaluationThrottle(limits, clock), [f"n{number}" for number in range(50)]
    for _ in range(200):
        spend(throttle, clock, namespaces, 0.01)
        budget = throttle.budget("honest", 0.1, 0.1)
        assert budget.seconds == 0.1
        clock.now += 0.9 * limits.bound_seconds
        throttle.charge("honest", budget, 0.1)
        throttle.earn("honest", 0.1)


def waste(throttle: EvaluationThrottle, clock: Clock, namespaces: list[str]) -> float:
    """Evaluate in vain as long as one of the namespaces has tokens. Returns the time that this took."""
    began, active = clock.now, namespaces
    while active:
        active = [name for name in active if (throttle.budget(name, 0.1, 0.1)).seconds > 0]
        for namespace in active:
            budget = throttle.budget(namespace, 0.1, 0.1)
            clock.now += max(0.0, budget.seconds)
            budget.exhausted = True
            throttle.charge(namespace, budget, 0.1)
    return clock.now - began


def test_the_bursts_of_many_namespaces_have_a_sum() -> None:
    """100 costly pods in 20 namespaces kept all other pods waiting for 7 s, again every 80 s."""
    clock, limits = Clock(), EvaluationLimits()
    throttle, namespaces = EvaluationThrottle(limits, clock), [f"n{number}" for number in range(20)]
    for _ in range(3):
        assert waste(throttle, clock, namespaces) < 0.1 * (20 + limits.wasted_burst)
        assert not any(throttle.has_tokens(name, 0.0, 0.1) for name in namespaces)
        assert throttle.budget("honest", 0.1, 0.1).seconds == 0.1
        assert throttle.has_tokens("honest", 0.1, 0.1)
        clock.now += 80


def test_a_namespace_with_few_tokens_gets_time_again_when_the_wasted_work_is_paid_for() -> None:
    clock, limits = Clock(), EvaluationLimits()
    throttle, others = EvaluationThrottle(limits, clock), [f"n{number}" for number in range(20)]
    wasted = waste(throttle, clock, ["few"]) + waste(throttle, clock, others)
    assert throttle.budget("few", 0.1, 0.1).seconds == 0
    clock.now += wasted / limits.total_share
    assert throttle.budget("few", 0.1, 0.1).seconds > 0


def test_a_call_that_got_no_time_pays_nothing() -> None:
    """The retries of many pods once used up the part of their namespace that the others left it."""
    clock, limits = Clock(), EvaluationLimits()
    throttle, namespaces = EvaluationThrottle(limits, clock), [f"n{number}" for number in range(60)]
    waste(throttle, clock, namespaces)
    for _ in range(3000):
        budget = throttle.budget("n59", 0.1, 0.1)
        assert budget.seconds == 0
        budget.exhausted = True
        throttle.charge("n59", budget, 0.1)
    clock.now += 0.1 * (60 - limits.wasted_burst) / limits.total_share
    assert throttle.budget("n59", 0.1, 0.1).seconds == 0.1


@pytest.mark.parametrize("count", [1, 2])
def test_a_few_namespaces_have_their_whole_bursts(count: int) -> None:
    clock, limits = Clock(), EvaluationLimits()
    throttle, namespaces = EvaluationThrottle(limits, clock), [f"n{number}" for number in range(count)]
    assert waste(throttle, clock, namespaces) > 0.9 * count * (limits.burst + 0.5) * 0.1


def test_new_shapes_that_are_bound_are_not_slowed_down_by_many_namespaces_that_spend_all() -> None:
    """One namespace bound 83 of 300 pods of new shapes of 16 ms, because 20 others left it 0.7 % of the time."""
    clock, limits = Clock(), EvaluationLimits()
    throttle, others = EvaluationThrottle(limits, clock), [f"n{number}" for number in range(20)]
    for _ in range(300):
        waste(throttle, clock, others)
        budget = throttle.budget("honest", 0.1, 0.1)
        assert budget.seconds >= 0.05
        clock.now += 0.8 * limits.bound_seconds
        throttle.charge("honest", budget, 0.1)
        throttle.earn("honest", 0.1)
        clock.now += 0.2


def test_one_costly_pod_of_a_namespace_stops_none_of_its_known_shapes_while_others_waste() -> None:
    """It had no tokens for a full call after one call that did not end. None of its other pods was bound for 13 s."""
    fleet, others = Fleet(), [f"n{number}" for number in range(20)]
    service, known = fleet.filter_service, fleet.pod("honest")
    assert service.filter(known, fleet.names).passed
    costly = fleet.pod("honest", *(f'device.attributes["gpu.nvidia.com"].uuid != "{number}"' for number in range(50)))
    waste(service.throttle, fleet.clock, others)
    assert service.filter(costly, fleet.names).error
    assert not service.has_time("honest")
    fleet.add_node("new", MACHINES[1])
    requirements = requirements_of(known, fleet.cache.snapshot(), fleet.policy)
    assert isinstance(requirements, PodRequirements)
    with service.evaluation("honest", for_bind=requirements) as bind, service.evaluation("honest") as search:
        assert bind.budget.seconds > 0
        assert search.budget.seconds > 0
    assert service.filter(known, fleet.names).passed
    replaced = requirements_of(costly, fleet.cache.snapshot(), fleet.policy)
    assert isinstance(replaced, PodRequirements)
    with service.evaluation("honest", for_bind=replaced) as bind:
        assert bind.budget.seconds == 0, "nothing shows that its evaluation ends"


def test_time_that_bound_pods_earn_and_that_is_wasted_does_not_crowd_others_out_for_long() -> None:
    """A tenant bound and deleted 20 pods a second for five minutes: others had to wait for ten minutes after that."""
    clock = Clock()
    throttle = EvaluationThrottle(EvaluationLimits(), clock)
    while clock.now < 300:
        throttle.earn("hostile", 0.1)
        waste(throttle, clock, ["hostile"])
        clock.now += 0.02
    clock.now += 30
    budget = throttle.budget("honest", 0.1, 0.1)
    clock.now += 0.1
    budget.exhausted = True
    throttle.charge("honest", budget, 0.1)
    assert throttle.budget("honest", 0.1, 0.1).seconds > 0
