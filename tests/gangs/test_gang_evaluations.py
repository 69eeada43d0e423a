"""Plans of gangs have the time of one call, or their turn in the queue. Time is counted work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from extender.api.nodes import NodeSelector, Requirement, Term, Toleration
from extender.api.pod_groups import GroupKey, GroupPolicy, GroupSource, Membership
from extender.api.pods import Pod
from extender.api.reasons import Code, Reason
from extender.base.deadline import NO_DEADLINE, Deadline
from extender.gangs.gang import gang_of
from extender.gangs.gang_problem import MAX_TOGETHER
from extender.policy import Policy
from extender.serve.gangs.gang_planning import GangPlanning
from tests.worlds.counted_work import lines_of
from tests.worlds.evaluation_worlds import RecordingSink, allocated, apply
from tests.worlds.gang_fleet import Gangs, unfinished


def test_a_plan_that_takes_longer_than_a_call_is_made_in_the_queue_and_the_gang_is_asked_about_again() -> None:
    fleet = Gangs(nodes=60, sink=RecordingSink())
    members = fleet.gang("g", 20)
    began = fleet.clock.now
    assert set(fleet.reasons(members)) == {unfinished("g")}
    assert fleet.clock.now - began < 2 * fleet.policy.evaluation_seconds, "one deadline, and what the calls read"
    fleet.work()
    assert isinstance(fleet.sink, RecordingSink)
    assert fleet.sink.requeued == 1
    assert all(fleet.gangs.filter(one, fleet.names).passed for one in members)


def test_a_gang_of_a_namespace_with_queued_work_has_its_turn_in_the_queue() -> None:
    """A costly pod of the namespace is evaluated all the time."""
    fleet = Gangs(nodes=12)
    fleet.filter_service.evaluations.queue("busy", "costly", never)
    members = fleet.joined("g", [fleet.pod("busy") for _ in range(3)])
    call_of_another(fleet)
    assert set(fleet.reasons(members)) == {unfinished("g")}
    for _ in range(3):
        fleet.filter_service.evaluations.work()
    assert all(fleet.gangs.filter(one, fleet.names).passed for one in members)


def call_of_another(fleet: Gangs) -> None:
    """Another namespace calls: while none does, one has half of the time."""
    with fleet.filter_service.evaluations.deadline_of_call("another"):
        pass


def never(deadline: Deadline) -> bool:
    """Work without an end."""
    while True:
        deadline.check_time()


def test_a_gang_whose_plan_never_ends_in_time_leaves_the_queue() -> None:
    """All its evaluations are known. kube-scheduler asks about it again a few seconds later."""

    class Slow(GangPlanning):
        def plan(self, *inputs: Any) -> Any:
            fleet.clock.now += 1.0
            inputs[-1].check_time()

    class Fleet(Gangs):
        planning_class = Slow

    fleet = Fleet(nodes=6)
    members = fleet.joined("g", [fleet.pod("slow") for _ in range(2)])
    assert set(fleet.reasons(members)) == {unfinished("g")}
    fleet.work()
    assert set(fleet.reasons(members)) == {unfinished("g")}
    assert fleet.gangs.timers.next < fleet.clock.now + 10


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


def test_plans_that_fail_leave_the_time_to_others() -> None:
    """Each of them is shorter than a call, and all their evaluations are known after the first."""
    fleet = Gangs(nodes=30)
    gangs = [fleet.too_large("busy", f"g{i}") for i in range(300)]
    other = fleet.too_large("other", "job")
    began, used, told = fleet.clock.now, 0.0, set[str]()
    for members in gangs:
        call_of_another(fleet)
        start = fleet.clock.now
        told.update(fleet.reasons(members[:1]))
        used += fleet.clock.now - start
        fleet.clock.now += 0.01
    assert str(Reason(Code.GANG_NO_ROOM, ("g0",))) in told
    assert unfinished("g299") in told
    assert used < 0.2 * (fleet.clock.now - began) + 0.2
    fleet.clock.now += 1.0
    assert set(fleet.reasons(other[:1])) == {str(Reason(Code.GANG_NO_ROOM, ("job",)))}
    fleet.work()
    assert set(fleet.reasons(gangs[299][:1])) == {str(Reason(Code.GANG_NO_ROOM, ("g299",)))}


def test_the_nodes_that_members_may_use_are_read_within_the_time_of_a_call() -> None:
    """They were read in one piece before: with affinities of 10,000 conditions 1 s for 500 nodes."""
    fleet = Gangs(nodes=60)
    terms = [Term((Requirement(f"k{i}", "DoesNotExist"),)) for i in range(20)]  # 1,200 looks at a node
    members = fleet.joined("g", [replace(fleet.pod("slow"), node_selectors=(NodeSelector((term,)),)) for term in terms])
    began = fleet.clock.now
    assert set(fleet.reasons(members)) == {unfinished("g")}
    assert fleet.clock.now - began < 2 * fleet.policy.evaluation_seconds
    fleet.work()
    assert not set(fleet.reasons(members)) & {unfinished("g")}, "the queue continues from there"


def test_members_with_large_equal_constraints_are_compared_within_the_time_of_a_call() -> None:
    """A hundred members with 30,000 tolerations each took 3 s of CPU time: each was hashed without a check."""
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

    notes = Slow({"berth.dev/group": "g"})
    return fleet.joined("g", [replace(fleet.pod("slow"), annotations=notes) for _ in range(size)])


def share_of_time(fleet: Gangs, seconds: float, pause: float, call: Callable[[int], object]) -> float:
    """The share of the time that the calls of one namespace take, with so many seconds between two of them."""
    began, used, number = fleet.clock.now, 0.0, 0
    while fleet.clock.now < began + seconds:
        call_of_another(fleet)
        start = fleet.clock.now
        call(number)
        used += fleet.clock.now - start
        fleet.clock.now += pause
        number += 1
    return used / (fleet.clock.now - began)


def test_changes_of_the_minimum_of_a_gang_leave_the_time_to_others() -> None:
    """Each change had Berth look for allocations that an earlier attempt left: 50 ms for 400 members with 64 claims."""
    fleet = Gangs(nodes=6)
    key = GroupKey("slow", GroupSource.SCHEDULER_PLUGINS, "g")
    members = [replace(member, membership=Membership(key, 0, owner="g")) for member in slow(fleet, 30)]
    for member in members:
        fleet.cache.apply_pod(member.uid, member)

    def change(number: int) -> None:
        fleet.cache.apply_group_policy(key, GroupPolicy(minimum=40 + number % 2))
        assert "waits until at least 4" in " ".join(fleet.reasons(members[:1]))

    assert share_of_time(fleet, 10.0, 0.1, change) < 0.2


def test_the_reading_of_a_huge_group_leaves_the_time_to_others() -> None:
    """Each filter request for a pod of a group of 5,000 took 3 ms, without end, if the first pod is invalid."""
    fleet = Gangs(nodes=6)

    class Name(str):
        """A scheduler's name whose comparison takes as long as the reading of many members."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            fleet.clock.now += 0.00005
            return str(self) == other

    key = GroupKey("huge", GroupSource.CORE, "g")
    pods = [replace(fleet.pod("huge"), scheduler=Name("berth-scheduler")) for _ in range(MAX_TOGETHER + 1)]
    members = [replace(pod, membership=Membership(key, 2, rank)) for rank, pod in enumerate(pods)]
    members[0] = replace(members[0], problem="spec.containers: are too large")
    for member in members:
        fleet.cache.apply_pod(member.uid, member)

    def ask(_: int) -> None:
        assert fleet.gangs.filter(members[1], fleet.names[:-1]).failed

    assert share_of_time(fleet, 20.0, 0.05, ask) < 0.2


def test_a_waiting_gang_keeps_no_needs_with_large_claims() -> None:
    """The needs keep the claims of the members, also after these are deleted."""
    fleet, found = Gangs(nodes=6), list[bool]()
    large = [fleet.large("a", 30), fleet.large("a", 30)]
    for name, pods in (("usual", [fleet.pod("a", count=30), fleet.pod("a", count=30)]), ("large", large)):
        members = fleet.joined(name, pods)
        assert members[0].membership is not None
        gang = gang_of(members[0], members[0].membership, fleet.cache.snapshot())
        found.append(fleet.planning.needs(gang, NO_DEADLINE) is not None)
    assert found == [True, False]


def test_an_event_of_a_member_takes_the_same_time_however_many_gangs_wait() -> None:
    """500 changes of members a second took two thirds of the time while 4,096 gangs waited."""
    assert steps_of_an_event(gangs=100) <= steps_of_an_event(gangs=1) + 32


def steps_of_an_event(gangs: int) -> int:
    """The lines of Python that run when a member is created again, and at the end of its gang's pause.

    The least of some events, as one in many also sorts the timers.
    """
    fleet = Gangs(nodes=1)
    waiting = [fleet.joined(f"g{number}", [fleet.pod("a", count=5) for _ in range(2)]) for number in range(gangs)]
    for members in waiting:
        assert "no domain has room" in " ".join(fleet.reasons(members))
    fleet.monitor.pods_changed(*fleet.cache.store.take_changed_groups())
    fleet.clock.now += 60.0
    fleet.monitor.expire()
    member = waiting[0][0]

    def change() -> None:
        fleet.cache.apply_pod(member.uid, None)
        fleet.cache.apply_pod(member.uid, member)
        fleet.monitor.pods_changed(*fleet.cache.store.take_changed_groups())
        fleet.clock.now += 60.0
        fleet.monitor.expire()

    return min(lines_of(change) for _ in range(5))


def test_a_bug_with_one_gang_delays_no_other() -> None:
    class Buggy(RecordingSink):
        def note(self) -> None:
            super().note()
            if self.requeued == 1:
                raise RuntimeError("a bug")

    fleet = Gangs(nodes=1, sink=Buggy())
    for name in ("g", "h"):
        members = fleet.joined(name, [fleet.pod("a", count=5) for _ in range(2)])
        assert "no domain has room" in " ".join(fleet.reasons(members))
        fleet.gone(members[0])
        fleet.cache.apply_pod(members[0].uid, members[0])
    fleet.monitor.pods_changed(*fleet.cache.store.take_changed_groups())
    fleet.clock.now += 60.0
    with pytest.raises(RuntimeError, match="a bug"):
        fleet.monitor.expire()
    fleet.monitor.expire()
    assert isinstance(fleet.sink, Buggy)
    assert fleet.sink.requeued == 2


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


def with_waiting_gangs(number: int) -> Gangs:
    fleet = Gangs(nodes=12, policy=Policy(gang_collect_seconds=60))
    for name in range(number):
        fleet.clock.now += 60
        assert "no domain has room" in " ".join(fleet.reasons(fleet.too_large("hostile", f"g{name}")[:1]))
    return fleet


def test_one_gang_after_the_other_is_searched_for_in_the_queue() -> None:
    """Attack: stall scheduling with many gangs that wait for a domain to collect in (off by default)."""
    fleet = with_waiting_gangs(5)
    evaluations = fleet.filter_service.evaluations
    searches = 0
    while fleet.gangs.timers.next <= fleet.clock.now:
        fleet.monitor.expire()
        searches += "collecting" in evaluations
        while "collecting" in evaluations:
            evaluations.work()
            assert fleet.filter_service.evaluations.has_time("hostile"), "calls do not wait for it"
    assert searches == 5
    fleet.clock.now += 120.0
    fleet.monitor.expire()
    assert "collecting" in evaluations, "the first one is searched for again"
