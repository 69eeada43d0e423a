"""Each namespace has its share of the evaluation time. Time is counted work."""

from __future__ import annotations

from contextlib import suppress

import pytest

from extender.extension.evaluation_throttle import EvaluationLimits, EvaluationThrottle
from extender.model import CallBudget, CallBudgetSpent
from extender.scheduling import PodRequirements, requirements_of
from tests.budget_worlds import TICK, Clock, Fleet
from tests.running_berth import berthing, claim, pod


def test_a_namespace_has_a_share_of_the_time_and_a_small_burst() -> None:
    clock = Clock()
    limits = EvaluationLimits()
    throttle, used, began = EvaluationThrottle(limits, clock), 0.0, clock.now
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
    assert limits.share * 100 < used < limits.share * 100 + 5 * 0.1 + 1, "its share, the burst, and the checks"
    assert throttle.budget("honest", 0.1, 0.1).seconds == 0.1, "others are not touched"
    assert began < 1


def test_short_calls_that_finish_their_work_are_free() -> None:
    clock = Clock()
    limits = EvaluationLimits()
    throttle = EvaluationThrottle(limits, clock)
    for _ in range(1000):
        budget = throttle.budget("busy", 0.1, 0.1)
        clock.now += 0.7 * limits.free_seconds  # and the looks at the clock
        throttle.charge("busy", budget, 0.1)
    assert throttle.budget("busy", 0.1, 0.1).seconds == 0.1
    assert len(throttle) == 0


def test_long_calls_that_finish_their_work_use_up_a_large_burst() -> None:
    """A namespace may evaluate many new shapes when Berth starts, and then gets its share."""
    clock, limits = Clock(), EvaluationLimits()
    throttle, used = EvaluationThrottle(limits, clock), 0.0
    burst = (limits.finished_burst + limits.burst) * 0.1
    while clock.now < 200:
        budget = throttle.budget("busy", 0.1, 0.1)
        if budget.seconds == 0.1:
            clock.now += 0.03
            throttle.charge("busy", budget, 0.1)
            used += 0.03 - limits.free_seconds
        else:
            assert used > 0.9 * limits.finished_burst * 0.1
            clock.now += 0.01
    assert burst < used < burst + limits.share * 200 + 0.1
    assert throttle.budget("other", 0.1, 0.1).seconds == 0.1


def test_finished_work_leaves_the_burst_of_unfinished_work_as_it_is() -> None:
    clock, limits = Clock(), EvaluationLimits(share=0.0)
    throttle = EvaluationThrottle(limits, clock)
    for _ in range(10):
        budget = throttle.budget("busy", 0.1, 0.1)
        clock.now += 0.09 * limits.finished_burst * 0.1
        throttle.charge("busy", budget, 0.1)
    assert throttle.has_tokens("busy", limits.burst * 0.1, 0.1)
    assert not throttle.has_tokens("busy", limits.burst * 0.1 + 0.01, 0.1)


def test_finished_work_uses_its_burst_also_after_the_first_calls_did_not_finish() -> None:
    """In a simulation of 100 pods of new shapes, two costly first calls caused 400 errors and took 25 s; now 3.6 s."""
    clock, limits = Clock(), EvaluationLimits(share=0.0)
    throttle = EvaluationThrottle(limits, clock)
    while throttle.has_tokens("starts", 0.0, 0.1):
        budget = throttle.budget("starts", 0.1, 0.1)
        clock.now += 0.1
        budget.exhausted = True
        throttle.charge("starts", budget, 0.1)
    finished = 0
    while (budget := throttle.budget("starts", 0.1, 0.1)).seconds >= 0.03:
        clock.now += 0.03
        throttle.charge("starts", budget, 0.1)
        finished += 1
    assert finished >= 0.8 * limits.finished_burst * 0.1 / 0.03


def test_work_that_does_not_finish_gets_one_call_of_the_burst_of_finished_work() -> None:
    clock, limits = Clock(), EvaluationLimits(share=0.0)
    throttle, used = EvaluationThrottle(limits, clock), 0.0
    while (budget := throttle.budget("hostile", 0.1, 0.1)).seconds > 0:
        clock.now += budget.seconds
        used += budget.seconds
        budget.exhausted = True
        throttle.charge("hostile", budget, 0.1)
    assert used <= (limits.burst + 1) * 0.1


def test_the_burst_of_finished_work_fills_up_again() -> None:
    clock, limits = Clock(), EvaluationLimits()
    throttle = EvaluationThrottle(limits, clock)

    def finished_calls() -> int:
        calls = 0
        while throttle.has_tokens("busy", 0.1, 0.1):
            budget = throttle.budget("busy", 0.1, 0.1)
            clock.now += 0.09
            throttle.charge("busy", budget, 0.1)
            calls += 1
        return calls

    first = finished_calls()
    clock.now += (limits.finished_burst + limits.burst + 1) * 0.1 / limits.share
    assert abs(finished_calls() - first) <= 1


def tokens(throttle: EvaluationThrottle, namespace: str) -> float:
    return throttle.budget(namespace, 1.0, 0.1).seconds


def test_a_namespace_whose_pods_are_bound_is_not_slowed_down() -> None:
    """Each pod has another shape, as after a restart, or on a large fleet that changes all the time."""
    clock, limits = Clock(), EvaluationLimits()
    throttle = EvaluationThrottle(limits, clock)
    for _ in range(1000):
        for namespace in ("honest", "hostile"):
            budget = throttle.budget(namespace, 0.1, 0.1)
            clock.now += 0.9 * limits.bound_seconds
            throttle.charge(namespace, budget, 0.1)
        throttle.earn("honest", 0.1)
    assert throttle.budget("honest", 0.1, 0.1).seconds == 0.1
    assert tokens(throttle, "hostile") <= 0, "none of its pods is bound"


def test_a_namespace_earns_no_more_than_a_full_bucket() -> None:
    clock, limits = Clock(), EvaluationLimits(share=0.0)
    throttle = EvaluationThrottle(limits, clock)
    budget = throttle.budget("busy", 0.1, 0.1)
    clock.now += 0.1
    budget.in_vain = True
    throttle.charge("busy", budget, 0.1)
    assert not throttle.has_tokens("busy", limits.burst * 0.1, 0.1)
    for _ in range(1000):
        throttle.earn("busy", 0.1)
        throttle.earn("never seen", 0.1)
    for namespace in ("busy", "never seen"):
        assert throttle.has_tokens(namespace, limits.burst * 0.1, 0.1)
        assert not throttle.has_tokens(namespace, limits.burst * 0.1 + 0.001, 0.1)
    assert len(throttle) == 1


def test_pods_just_below_the_budget_leave_the_time_to_others() -> None:
    """Every pod has selectors that no pod had before, and its evaluation ends within the budget of one call."""
    fleet = Fleet(nodes=20)
    honest, hostile, errors, placed = fleet.pod("honest"), 0.0, 0, 0
    assert fleet.filter_service.filter(honest, fleet.names).passed
    first = fleet.hostile(4)
    start = fleet.clock.now
    assert not fleet.error(first)
    assert 0.02 < fleet.clock.now - start < fleet.policy.evaluation_seconds, "the attack stays below the budget"
    began = fleet.clock.now
    while fleet.clock.now - began < 20:
        pod, start = fleet.hostile(4), fleet.clock.now
        result = fleet.filter_service.filter(pod, fleet.names)
        assert result.passed or result.error, "spent tokens are an error, never a reason"
        errors += bool(result.error)
        hostile += fleet.clock.now - start
        fleet.gone(pod)
        placed += bool(fleet.filter_service.filter(honest, fleet.names).passed)
        fleet.clock.now += 0.05
    assert hostile < 0.2 * (fleet.clock.now - began)
    assert errors > 20
    assert placed > 200


def test_work_in_vain_is_charged_however_short_it_is() -> None:
    """A plan of a gang that failed keeps no result, and is made again."""
    clock = Clock()
    throttle = EvaluationThrottle(EvaluationLimits(), clock)
    for _ in range(20):
        budget = throttle.budget("busy", 0.1, 0.1)
        clock.now += 0.01
        budget.in_vain = True
        throttle.charge("busy", budget, 0.1)
    assert not throttle.has_tokens("busy", 0.1, 0.1)
    assert throttle.has_tokens("busy", 0.0, 0.1) == (throttle.budget("busy", 0.1, 0.1).seconds > 0)
    assert throttle.has_tokens("other", 0.1, 0.1)


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
    assert longest < 1.2 * (fleet.policy.evaluation_seconds + EvaluationLimits().stretch_seconds)
    assert placed > 1000


def test_binds_of_claims_that_became_costly_leave_the_time_to_others() -> None:
    """A tenant replaces the cheap claim that filter has seen by a costly one before the bind, for each pod."""
    fleet, limits = Fleet(nodes=12), EvaluationLimits()
    used, began = 0.0, fleet.clock.now
    for _ in range(200):
        requirements = requirements_of(fleet.hostile(500), fleet.cache.snapshot(), fleet.policy)
        assert isinstance(requirements, PodRequirements)
        start = fleet.clock.now
        with suppress(CallBudgetSpent), fleet.filter_service.evaluation("hostile", for_bind=requirements) as context:
            fleet.filter_service.evaluate_node(requirements, "n1", fleet.cache.snapshot(), context.budget)
        used += fleet.clock.now - start
        fleet.clock.now += 0.05
    share = limits.share * (fleet.clock.now - began)
    assert used < share + (2 * limits.burst + 1) * fleet.policy.evaluation_seconds + 0.2, "and what the calls read"


def test_a_namespace_pays_for_its_searches_from_the_first_step() -> None:
    """A step takes less than a call that is free. But 100 waiting pods cause thousands of steps when nodes change."""
    fleet, limits = Fleet(), EvaluationLimits()
    requirements = requirements_of(fleet.pod("busy"), fleet.cache.snapshot(), fleet.policy)
    assert isinstance(requirements, PodRequirements)
    for _ in range(4000):
        with fleet.filter_service.evaluation("hostile"):
            fleet.clock.now += 0.3 * limits.free_seconds
        with fleet.filter_service.evaluation("busy", for_bind=requirements):
            fleet.clock.now += 0.3 * limits.free_seconds
    assert not fleet.filter_service.has_time("hostile")
    assert fleet.filter_service.has_time("busy", for_plan=True)


def test_a_namespace_pays_for_searches_that_find_no_room_in_each_filter_request() -> None:
    """The requests are shorter than 5 ms, which once were free: 100 such pods took a fifth of the time."""
    fleet, took = Fleet(nodes=3), list[float]()
    for _ in range(600):
        start = fleet.clock.now
        fleet.filter_service.filter(fleet.searching("hostile", 2), fleet.names)
        took.append(fleet.clock.now - start)
        fleet.clock.now += 0.01
    assert max(took) < 0.005
    assert sum(took[300:]) < 0.5 * 300 * took[0], "after the burst"


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_a_namespace_without_tokens_gets_no_evaluation(verb: str) -> None:
    fleet = Fleet(nodes=60)
    throttle, most = fleet.filter_service.throttle, fleet.policy.evaluation_seconds
    long = throttle.budget("hostile", most, most)
    fleet.clock.now += 10.0
    long.in_vain = True
    throttle.charge("hostile", long, most)
    pods, began = [fleet.hostile() for _ in range(100)], fleet.clock.now
    for one in pods:
        if verb == "filter":
            assert fleet.error(one)
        else:
            assert set(fleet.filter_service.prioritize(one, fleet.names)) == {(name, 0) for name in fleet.names}
    assert not fleet.filter_service.rankings.evaluations
    assert fleet.clock.now - began < 100 * 15 * TICK, "a few looks at the clock for each pod"
    assert fleet.filter_service.filter(fleet.pod("honest"), fleet.names).passed


def test_a_pod_whose_budget_ended_is_evaluated_again_a_few_seconds_later_at_the_earliest() -> None:
    """Its namespace still has tokens."""
    fleet, limits, looks = Fleet(nodes=60), EvaluationLimits(), list[int]()
    one = fleet.hostile()
    for pause in (limits.retry_seconds / 2, limits.retry_seconds / 2, 0.0):
        start = fleet.clock.now
        assert fleet.error(one)
        looks.append(round((fleet.clock.now - start) / TICK))
        fleet.clock.now += pause
    assert looks[1] < 15 < looks[2], "the second call only looks at the clock"


@pytest.mark.parametrize(("buckets", "bound"), [(1.5, True), (3.0, False)])
async def test_a_bind_uses_the_credit_of_its_namespace(buckets: float, bound: bool) -> None:
    """A debt of half a bucket stops no bind, a debt of two buckets does; the claim is not evaluated before."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(claim("c"))
        b.cluster.apply(pod("p", "c"))
        await b.settled()
        service = b.app.service.filter_service
        seconds = service.policy.evaluation_seconds
        owed = buckets * EvaluationLimits().burst * seconds
        budget = CallBudget(seconds, 0, lambda: b.app.service.clock() - owed)
        budget.exhausted = True
        service.throttle.charge("default", budget, seconds)
        assert not service.has_time("default")
        assert (await b.bind("p", "n1") == "") is bound
