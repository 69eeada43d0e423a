"""A gang scheduler without an API server, for gangs of pods without devices; and its admission queue alone."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.fleet import Fleet
from extender.allocation import Features
from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod, decode_pod
from extender.cache import ClusterCache
from extender.gangs.gang_problem import GangPlan
from extender.serve.filter import FilterSink
from extender.serve.gangs.bound_members import BoundMembers
from extender.serve.gangs.gang_admission import GangAdmission, SlotLimits
from extender.serve.gangs.gang_monitor import GangMonitor
from extender.serve.gangs.gang_planning import GangPlanning
from extender.serve.gangs.gang_scheduler import GangScheduler
from extender.serve.gangs.gang_state import FormingGang, GangTimer, GangTimers, PlannedGang


def gang_member(fleet: Fleet, namespace: str, group: str, name: str, minimum: int = 2) -> Pod:
    notes = {"berth.dev/group": group, "berth.dev/group-min": str(minimum)}
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}", "annotations": notes}
    obj = {"metadata": metadata, "spec": {"schedulerName": "berth-scheduler"}}
    fleet.apply("pods", f"{namespace}/{name}", obj)
    return decode_pod(obj)


async def _none_bound(_: str) -> dict[GroupKey, dict[str, str]]:
    return {}


class Requeues(FilterSink):
    """Notes the calls that requeue pods."""

    def __init__(self) -> None:
        self.times: list[str] = []
        super().__init__(lambda: self.times.append("fits"))


class AdmissionAlone(GangAdmission):
    """An admission queue without a cluster, and without a monitor, which does what is due."""

    def __init__(self, clock: Callable[[], float], limits: SlotLimits | None = None) -> None:
        cache, self.timers, self.requeues, self._now = ClusterCache(Features()), GangTimers(), Requeues(), clock
        bound = BoundMembers(cache, _none_bound, self.timers, clock)
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
    fleet: Fleet, limits: SlotLimits, sink: FilterSink | None = None
) -> tuple[GangScheduler, GangMonitor]:
    """A gang scheduler with its monitor. Their clock is that of the fleet."""

    def clock() -> float:
        return fleet.now

    sink = sink or FilterSink()
    planning = GangPlanning(fleet.cache, fleet.filter_service)
    gangs = GangScheduler(fleet.cache, fleet.filter_service, planning, _none_bound, sink, clock, slots=limits)
    return gangs, GangMonitor(gangs, fleet.cache, sink, clock)
