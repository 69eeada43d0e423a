"""Planning a gang has the budget of one call, and its namespace's share of the evaluation time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from extender.extension.bound_members import BoundMembers
from extender.extension.evaluation_throttle import EvaluationLimits
from extender.extension.gang_hints import GangHints
from extender.extension.gang_monitor import GangMonitor
from extender.extension.gang_planning import GangPlanning
from extender.extension.gang_scheduler import GangScheduler
from extender.extension.sinks import FilterSink
from extender.model import (
    CallBudgetSpent,
    Code,
    GroupKey,
    GroupPolicy,
    GroupSource,
    Membership,
    NodeSelector,
    Pod,
    Reason,
    Requirement,
    Term,
    Toleration,
)
from extender.runtime import Supervisor
from extender.sandbox.machines import node_object
from extender.scheduling import MOST_TOGETHER, gang_of
from extender.wire import decode_node
from tests.budget_worlds import MACHINES, Fleet
from tests.skipping_loop import SkippingLoop
from tests.test_unpaid_work import allocated, apply, lines_of


async def no_bound_members(_: str) -> Mapping[GroupKey, Mapping[str, str]]:
    return {}


class Gangs(Fleet):
    """The same fleet with a gang scheduler."""

    planning_class = GangPlanning

    def __post_init__(self) -> None:
        super().__post_init__()
        self.planning = planning = self.planning_class(self.cache, self.filter_service)
        bound = BoundMembers(self.cache, no_bound_members, self.clock)
        sink = FilterSink()
        self.gangs = GangScheduler(self.cache, self.filter_service, planning, bound, sink, self.clock)
        self.monitor = GangMonitor(self.gangs, self.cache, bound, sink, self.clock)
        self.hints = GangHints(self.gangs, self.cache, planning, self.filter_service)

    def gang(self, name: str, size: int) -> list[Pod]:
        """Members in the namespace `hostile` whose claims all differ and are costly."""
        return self.joined(name, [self.hostile() for _ in range(size)])

    def too_large(self, namespace: str, name: str) -> list[Pod]:
        """Members that each fit on a node of the larger machines, one more than there are such nodes."""
        return self.joined(name, [self.pod(namespace, count=5) for _ in range(self.nodes // 3 * 2 + 1)])

    def joined(self, name: str, pods: list[Pod]) -> list[Pod]:
        """The pods as a gang."""
        key = GroupKey(pods[0].key.namespace, GroupSource.BERTH, name)
        found = [replace(pod, membership=Membership(key, len(pods), rank)) for rank, pod in enumerate(pods)]
        for member in found:
            self.cache.apply_pod(member.uid, member)
        return found

    def reasons(self, pods: list[Pod]) -> Iterator[str]:
        for pod in pods:
            yield from set(self.gangs.filter(pod, self.names).failed.values())


def unfinished(name: str) -> str:
    return str(Reason(Code.GANG_UNFINISHED, (name,)))


def test_a_gang_with_costly_claims_costs_one_budget_for_all_its_members() -> None:
    fleet = Gangs(nodes=60)
    members = fleet.gang("g", 20)
    began = fleet.clock.now
    assert set(fleet.reasons(members)) == {unfinished("g")}
    assert fleet.clock.now - began < 2 * fleet.policy.evaluation_seconds, "one budget, and what the calls read"


def test_no_gang_is_planned_while_its_namespace_has_no_time_left() -> None:
    fleet = Gangs(nodes=60)
    throttle, seconds = fleet.filter_service.throttle, fleet.policy.evaluation_seconds
    long = throttle.budget("hostile", seconds, seconds)
    fleet.clock.now += 1.0
    long.in_vain = True
    throttle.charge("hostile", long, seconds)
    assert set(fleet.reasons(fleet.gang("g", 20))) == {unfinished("g")}
    assert not fleet.filter_service.remembered()["rankings"]
    fleet.clock.now += 20.0
    assert set(fleet.reasons(fleet.gang("other", 2))) == {unfinished("other")}
    assert fleet.filter_service.remembered()["rankings"]


def test_a_hundred_gangs_of_one_namespace_leave_the_time_to_others() -> None:
    """Counted work: however often the members are tried, they take less than a fifth of the time."""
    fleet = Gangs(nodes=60)
    gangs = [fleet.gang(f"g{i}", 10) for i in range(100)]
    began = used = 0.0
    for _ in range(20):
        start = fleet.clock.now
        for members in gangs:
            list(fleet.reasons(members))
        used += fleet.clock.now - start
        fleet.clock.now += 5.0
    assert used < 0.2 * (fleet.clock.now - began)


# -- plans that fail -----------------------------------------------------------------------------------------------


def test_a_namespace_pays_for_plans_that_fail_and_waits_without_tokens() -> None:
    """Each of its plans is shorter than a budget, and all their evaluations are known after the first."""
    fleet, limits = Gangs(nodes=30), EvaluationLimits()
    gangs = [fleet.too_large("busy", f"g{i}") for i in range(300)]
    other = fleet.too_large("other", "job")
    began, used, told = fleet.clock.now, 0.0, set[str]()
    for members in gangs:
        start = fleet.clock.now
        told.update(fleet.reasons(members[:1]))
        used += fleet.clock.now - start
        fleet.clock.now += 0.01
    assert str(Reason(Code.GANG_NO_ROOM, ("g0",))) in told
    assert unfinished("g299") in told
    share = limits.share * (fleet.clock.now - began)
    assert used < share + (limits.burst + 1) * fleet.policy.evaluation_seconds
    assert set(fleet.reasons(other[:1])) == {str(Reason(Code.GANG_NO_ROOM, ("job",)))}


def test_the_requeuer_plans_no_gang_of_a_namespace_without_time_and_has_it_asked_about_later() -> None:
    fleet = Gangs(nodes=30)
    gangs = [fleet.too_large("busy", f"g{i}") for i in range(10)]
    for members in gangs:
        list(fleet.reasons(members[:1]))
        fleet.clock.now += 1.0
    throttle, seconds = fleet.filter_service.throttle, fleet.policy.evaluation_seconds
    began = fleet.clock.now
    for change in range(30):
        fleet.cache.apply_node("n1", decode_node(node_object("n1", MACHINES[1], {"changed": str(change)})))
        assert not any(fleet.hints.find_schedulable())
    assert not throttle.has_tokens("busy", seconds, seconds)
    assert fleet.clock.now - began < 3 * seconds
    assert fleet.gangs.waiting.next_deadline > fleet.clock.now
    fleet.clock.now = fleet.gangs.waiting.next_deadline
    assert fleet.gangs.waiting.requeue_due(fleet.cache.snapshot().version)
    assert set(fleet.reasons(gangs[0][:1])) == {str(Reason(Code.GANG_NO_ROOM, ("g0",)))}


def test_pods_outside_of_gangs_keep_some_time_of_their_namespace() -> None:
    """A plan needs a full budget, so the plans that fail leave less than that to others."""
    fleet = Gangs(nodes=30)
    for i in range(100):
        list(fleet.reasons(fleet.too_large("busy", f"g{i}")[:1]))
    assert not fleet.filter_service.has_time("busy", for_plan=True)
    assert fleet.filter_service.has_time("busy")
    assert fleet.filter_service.filter(fleet.pod("busy", count=2), fleet.names).passed


def test_the_nodes_that_members_may_use_are_read_within_the_budget() -> None:
    """They were read in one piece before: with affinities of 10,000 conditions 1 s for 500 nodes."""
    fleet = Gangs(nodes=60)
    terms = [Term((Requirement(f"k{i}", "DoesNotExist"),)) for i in range(20)]  # 1,200 looks at a node
    members = fleet.joined("g", [replace(fleet.pod("slow"), node_selectors=(NodeSelector((term,)),)) for term in terms])
    began = fleet.clock.now
    assert set(fleet.reasons(members)) == {unfinished("g")}
    assert fleet.clock.now - began < 2 * fleet.policy.evaluation_seconds
    fleet.clock.now += 20.0
    assert not set(fleet.reasons(members)) & {unfinished("g")}, "the next plan continues from there"


def test_members_with_large_equal_constraints_are_compared_within_the_budget() -> None:
    """A hundred members with 30,000 tolerations each took 3 s of CPU time: each was hashed without a budget check."""
    fleet = Gangs(nodes=6)

    class Large(Toleration):
        """Its hash takes as long as that of thousands of tolerations."""

        __slots__ = ()

        def __hash__(self) -> int:
            fleet.clock.now += 0.01
            return super().__hash__()

    pods = [replace(fleet.pod("large"), tolerations=(Large("k", "Exists"),)) for _ in range(100)]
    members = fleet.joined("g", pods)
    began = fleet.clock.now
    assert set(fleet.reasons(members[:1])) == {unfinished("g")}
    assert fleet.clock.now - began < 2 * fleet.policy.evaluation_seconds


def slow(fleet: Gangs, size: int) -> list[Pod]:
    """A gang whose members' requirements take as long to read as those with many claims."""

    class Slow(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            fleet.clock.now += 0.001
            return super().get(name, default)

    return fleet.joined("g", [replace(fleet.pod("slow"), annotations=Slow()) for _ in range(size)])


def test_what_a_gang_needs_is_found_within_one_budget_with_the_requirements_of_its_members() -> None:
    """400 members with 64 claims each took 75 ms before the budget began, and the namespace did not pay for them."""
    fleet = Gangs(nodes=6)
    members = slow(fleet, 100)
    assert members[0].membership is not None
    with pytest.raises(CallBudgetSpent):
        fleet.planning.needs(gang_of(members[0], members[0].membership, fleet.cache.snapshot()))
    throttle, seconds = fleet.filter_service.throttle, fleet.policy.evaluation_seconds
    assert not throttle.has_tokens("slow", seconds, seconds)


def test_a_namespace_pays_when_it_changes_the_minimum_of_a_gang_again_and_again() -> None:
    """Each change had Berth look for allocations that an earlier attempt left: 50 ms for 400 members with 64 claims."""
    fleet, limits = Gangs(nodes=6), EvaluationLimits()
    key = GroupKey("slow", GroupSource.SCHEDULER_PLUGINS, "g")
    members = [replace(member, membership=Membership(key, 0, owner="g")) for member in slow(fleet, 30)]
    for member in members:
        fleet.cache.apply_pod(member.uid, member)
    began, used = fleet.clock.now, 0.0
    for change in range(100):
        fleet.cache.apply_group_policy(key, GroupPolicy(minimum=40 + change % 2))
        start = fleet.clock.now
        assert "waits until at least 4" in " ".join(fleet.reasons(members[:1]))
        used += fleet.clock.now - start
        fleet.clock.now += 0.1
    share = limits.share * (fleet.clock.now - began)
    assert used < share + (limits.burst + limits.finished_burst + 1) * fleet.policy.evaluation_seconds


def test_a_namespace_pays_for_the_reading_of_a_huge_group() -> None:
    """Each filter request for a pod of a group of 5,000 took 3 ms, without end, if the first pod is invalid."""
    fleet, limits = Gangs(nodes=6), EvaluationLimits()

    class Name(str):
        """A scheduler's name whose comparison takes as long as the reading of many members."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            fleet.clock.now += 0.00005
            return str(self) == other

    key = GroupKey("huge", GroupSource.CORE, "g")
    pods = [replace(fleet.pod("huge"), scheduler=Name("berth-scheduler")) for _ in range(MOST_TOGETHER + 1)]
    members = [replace(pod, membership=Membership(key, 2, rank)) for rank, pod in enumerate(pods)]
    members[0] = replace(members[0], problem="spec.containers: are too large")
    for member in members:
        fleet.cache.apply_pod(member.uid, member)
    began, used = fleet.clock.now, 0.0
    for _ in range(200):
        start = fleet.clock.now
        assert fleet.gangs.filter(members[1], fleet.names[:-1]).failed
        used += fleet.clock.now - start
        fleet.clock.now += 0.05
    share = limits.share * (fleet.clock.now - began)
    assert used < share + (limits.burst + limits.finished_burst + 1) * fleet.policy.evaluation_seconds


def test_a_waiting_gang_keeps_no_needs_with_large_claims() -> None:
    """The needs keep the claims of the members, also after these are deleted."""
    fleet, found = Gangs(nodes=6), list[bool]()
    large = [fleet.large("a", 30), fleet.large("a", 30)]
    for name, pods in (("usual", [fleet.pod("a", count=30), fleet.pod("a", count=30)]), ("large", large)):
        members = fleet.joined(name, pods)
        assert members[0].membership is not None
        gang = gang_of(members[0], members[0].membership, fleet.cache.snapshot())
        found.append(fleet.planning.needs(gang) is not None)
    assert found == [True, False]


def test_the_holds_of_a_gang_build_each_node_once() -> None:
    """400 members built a node each before the next one was held."""
    fleet = Gangs(nodes=2)
    members = fleet.joined("g", [fleet.pod("a") for _ in range(8)])
    before = fleet.cache.snapshot().version
    assert fleet.gangs.filter(members[0], fleet.names).passed
    assert fleet.cache.snapshot().version == before + 1


def test_events_of_members_leave_most_of_the_time_to_others() -> None:
    """500 changes of members a second took two thirds of the time while 4,096 gangs waited."""
    fleet, rounds = Gangs(nodes=1), 0

    async def watch() -> float:
        enough = asyncio.Event()

        async def rebuilt() -> None:
            nonlocal rounds
            rounds += 1
            fleet.gangs.rescheduled.set()  # an event has come in the meantime
            if rounds > 50:
                enough.set()
            await asyncio.sleep(0)

        task = asyncio.create_task(fleet.monitor.run(rebuilt, Supervisor()))
        await enough.wait()
        task.cancel()
        return asyncio.get_running_loop().time()

    began = fleet.clock.now
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        rested = runner.run(watch())
    worked = fleet.clock.now - began
    assert worked < 0.3 * (worked + rested)


def test_a_filter_request_does_not_look_at_each_pod_of_each_claim_of_the_group() -> None:
    """Each request of a waiting member took 2.6 ms for each look at the group if 64 claims had 256 pods each."""
    assert steps_of_a_waiting_member(claims=32) <= steps_of_a_waiting_member(claims=1) + 64


def steps_of_a_waiting_member(claims: int) -> int:
    """The lines of Python that run in a filter request of a gang that has so many claims, with the same 100 pods."""
    fleet = Gangs(nodes=2)
    for number in range(claims):
        found = allocated(f"c{number}", "n0", "g")
        found["status"]["reservedFor"] = [
            {"resource": "pods", "name": f"runs-{i}", "uid": f"runs-{i}"} for i in range(100)
        ]
        apply(fleet, found)
    waits = fleet.pod("default")
    member = replace(waits, membership=Membership(GroupKey("default", GroupSource.BERTH, "g"), 2))
    fleet.cache.apply_pod(member.uid, member)
    assert " ".join(fleet.reasons([member]))
    return lines_of(lambda: fleet.gangs.filter(member, fleet.names))
