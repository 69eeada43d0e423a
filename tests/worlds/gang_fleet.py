"""Gang schedulers without an API server: on a fleet whose clock advances with each reading; on one whose clock the test
sets, for pods without devices; and their parts alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.fleet import Fleet as WatchedFleet
from extender.allocation import Features
from extender.api.pod_groups import GroupKey, GroupSource, Membership
from extender.api.pods import Pod, decode_pod
from extender.api.reasons import Code, Reason
from extender.base.deadline import Deadline
from extender.cache import ClusterCache
from extender.gangs.gang import Gang
from extender.gangs.gang_problem import GangPlan
from extender.serve.filter import FilterService, FilterSink
from extender.serve.gangs.bound_members import BoundMembers, Members, Read
from extender.serve.gangs.gang_admission import GangAdmission, SlotLimits
from extender.serve.gangs.gang_monitor import GangHints, GangMonitor
from extender.serve.gangs.gang_planning import GangPlanning
from extender.serve.gangs.gang_scheduler import GangScheduler
from extender.serve.gangs.gang_state import FormingGang, GangNeeds, GangTimer, GangTimers, PlannedGang, WaitsForGang
from tests.worlds.evaluation_worlds import Fleet


async def no_bound_members(_: str) -> Mapping[GroupKey, Mapping[str, str]]:
    return {}


def scheduled(
    cache: ClusterCache,
    filter_service: FilterService,
    planning: GangPlanning,
    sink: FilterSink,
    clock: Callable[[], float],
    slots: SlotLimits | None = None,
) -> tuple[GangScheduler, GangMonitor]:
    """A gang scheduler with its monitor."""
    gangs = GangScheduler(cache, filter_service, planning, no_bound_members, sink, clock, slots=slots)
    return gangs, GangMonitor(gangs, cache, sink, clock)


class CountedPlanning(GangPlanning):
    """Counts plans, and what has the time of a call: a plan, and the search for a gang's needs."""

    plans = calls = 0

    def plan(self, *args: Any) -> PlannedGang | WaitsForGang | Reason:
        CountedPlanning.plans += 1
        CountedPlanning.calls += 1
        return super().plan(*args)

    def needs(self, gang: Gang, deadline: Deadline) -> GangNeeds | None:
        CountedPlanning.calls += 1
        return super().needs(gang, deadline)


class Gangs(Fleet):
    """The same fleet with a gang scheduler."""

    planning_class = GangPlanning

    def __post_init__(self) -> None:
        super().__post_init__()
        self.planning = planning = self.planning_class(self.cache, self.filter_service)
        self.gangs, self.monitor = scheduled(self.cache, self.filter_service, planning, self.sink, self.clock)
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


class BoundMembersAlone(BoundMembers):
    """Without a monitor, which does what is due."""

    def __init__(self, cache: ClusterCache, read: Read, clock: Callable[[], float]) -> None:
        self.timers = GangTimers()
        self._now = clock
        super().__init__(cache, read, self.timers, clock)

    def due(self) -> None:
        """Do what is due."""
        effects = {GangTimer.READ: self.pause_ended, GangTimer.READ_FORGOTTEN: self.expire}
        for kind, namespace in self.timers.due(self._now()):
            effects[kind](namespace)

    async def read_due(self, done: Callable[[GroupKey, Members], None] = lambda *_: None) -> None:
        """Do what is due, and read the namespaces that are due, all at a time."""
        self.due()
        await asyncio.gather(*(self.read(namespace, keys, done) for namespace, keys in self.take_due().items()))


# -- gangs of pods without devices ---------------------------------------------------------------------------------


def gang_member(fleet: WatchedFleet, namespace: str, group: str, name: str, minimum: int = 2) -> Pod:
    notes = {"berth.dev/group": group, "berth.dev/group-min": str(minimum)}
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}", "annotations": notes}
    obj = {"metadata": metadata, "spec": {"schedulerName": "berth-scheduler"}}
    fleet.apply("pods", f"{namespace}/{name}", obj)
    return decode_pod(obj)


class Requeues(FilterSink):
    """Notes the calls that requeue pods."""

    def __init__(self) -> None:
        self.times: list[str] = []
        super().__init__(lambda: self.times.append("fits"))


class AdmissionAlone(GangAdmission):
    """An admission queue without a cluster, and without a monitor, which does what is due."""

    def __init__(self, clock: Callable[[], float], limits: SlotLimits | None = None) -> None:
        cache, self.timers, self.requeues, self._now = ClusterCache(Features()), GangTimers(), Requeues(), clock
        bound = BoundMembers(cache, no_bound_members, self.timers, clock)
        super().__init__(cache, bound, self.timers, clock, self.requeues.fits, limits=limits)

    def expire(self) -> bool:
        """Do what is due. Returns whether kube-scheduler was told to retry."""
        self.requeues.times.clear()
        effects = {
            GangTimer.PREEMPTIBLE: self.preemptible,
            GangTimer.PAUSE_END: self.pause_ended,
            GangTimer.POSITION_LOST: self.position_lost,
        }
        for kind, key in self.timers.due(self._now()):
            effects[kind](key)
        return bool(self.requeues.times)


def plan(key: GroupKey, size: int, since: float = 0.0, arrived: int = 0, *, bound: bool = False) -> FormingGang:
    """A gang with a plan, whose pods need no devices. The first few members arrived at bind, or all are bound."""
    uids = [f"u{i}" for i in range(size)]
    planned = PlannedGang(GangPlan({}, "", ""), {}, {}, frozenset(uids), {}, {})
    found = FormingGang(key, planned, size, since, since, 1000.0, since)
    for uid in uids if bound else uids[:arrived]:
        found.arrive(uid, "n0", since)
    if bound:
        commit(found)
        for uid in uids:
            found.bind(uid)
    return found


def commit(forming: FormingGang) -> None:
    """All members have written their claims."""
    for uid in forming.planned.members:
        forming.write(uid, forming.progress_at)


def watched_gangs(
    fleet: WatchedFleet, limits: SlotLimits, sink: FilterSink | None = None
) -> tuple[GangScheduler, GangMonitor]:
    """A gang scheduler with its monitor. Their clock is that of the fleet."""

    def clock() -> float:
        return fleet.now

    planning = GangPlanning(fleet.cache, fleet.filter_service)
    return scheduled(fleet.cache, fleet.filter_service, planning, sink or FilterSink(), clock, limits)
