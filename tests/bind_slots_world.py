"""A gang scheduler on a fleet without an API server, for gangs of pods without devices."""

from __future__ import annotations

from benchmarks.fleet import Fleet
from extender.extension.bind_slots import SlotLimits
from extender.extension.bound_members import BoundMembers
from extender.extension.filter import FilterSink
from extender.extension.gang_monitor import GangMonitor
from extender.extension.gang_planning import GangPlanning
from extender.extension.gang_scheduler import GangScheduler
from extender.model import GroupKey, Pod
from extender.wire import decode_pod


def gang_member(fleet: Fleet, namespace: str, group: str, name: str, minimum: int = 2) -> Pod:
    notes = {"berth.dev/group": group, "berth.dev/group-min": str(minimum)}
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}", "annotations": notes}
    obj = {"metadata": metadata, "spec": {"schedulerName": "berth-scheduler"}}
    fleet.apply("pods", f"{namespace}/{name}", obj)
    return decode_pod(obj)


async def _none_bound(_: str) -> dict[GroupKey, dict[str, str]]:
    return {}


def gang_scheduler(
    fleet: Fleet, limits: SlotLimits, remembered_gangs: int = 16, sink: FilterSink | None = None
) -> GangScheduler:
    """Its clock is that of the fleet."""
    return watched_gangs(fleet, limits, remembered_gangs, sink)[0]


def watched_gangs(
    fleet: Fleet, limits: SlotLimits, remembered_gangs: int = 16, sink: FilterSink | None = None
) -> tuple[GangScheduler, GangMonitor]:
    """With a monitor. Their clock is that of the fleet."""

    def clock() -> float:
        return fleet.now

    sink = sink or FilterSink()
    planning = GangPlanning(fleet.cache, fleet.filter_service)
    bound = BoundMembers(fleet.cache, _none_bound, clock)
    gangs = GangScheduler(
        fleet.cache,
        fleet.filter_service,
        planning,
        bound,
        sink,
        clock,
        remembered_gangs=remembered_gangs,
        slots=limits,
    )
    return gangs, GangMonitor(gangs, fleet.cache, bound, sink, clock)
