"""Planning a gang has the budget of one call, and its namespace's share of the evaluation time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from extender.extension.bound_members import BoundMembers
from extender.extension.gang_planning import GangPlanning
from extender.extension.gang_scheduler import GangScheduler
from extender.extension.sinks import FilterSink
from extender.model import Code, GroupKey, GroupSource, Membership, Pod, Reason
from tests.budget_worlds import Fleet


async def no_bound_members(_: str) -> Mapping[GroupKey, Mapping[str, str]]:
    return {}


class Gangs(Fleet):
    """The same fleet with a gang scheduler."""

    def __post_init__(self) -> None:
        super().__post_init__()
        planning = GangPlanning(self.cache, self.filter_service)
        bound = BoundMembers(self.cache, no_bound_members, self.clock)
        self.gangs = GangScheduler(self.cache, self.filter_service, planning, bound, FilterSink(), self.clock)

    def gang(self, name: str, size: int) -> list[Pod]:
        """Members in the namespace `hostile` whose claims all differ and are costly."""
        return self.joined(name, [self.hostile() for _ in range(size)])

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
