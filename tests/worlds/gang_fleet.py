"""A fleet with a gang scheduler, whose clock advances with each reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from extender.api.pod_groups import GroupKey, GroupSource, Membership
from extender.api.pods import Pod
from extender.api.reasons import Code, Reason
from extender.base.deadline import Deadline
from extender.cache import ClusterCache
from extender.gangs.gang import Gang
from extender.serve.gangs.bound_members import BoundMembers, Members, Read
from extender.serve.gangs.gang_monitor import GangHints, GangMonitor
from extender.serve.gangs.gang_planning import GangPlanning
from extender.serve.gangs.gang_scheduler import GangScheduler
from extender.serve.gangs.gang_state import GangNeeds, GangTimer, GangTimers, PlannedGang, WaitsForGang
from tests.worlds.evaluation_worlds import Fleet


async def no_bound_members(_: str) -> Mapping[GroupKey, Mapping[str, str]]:
    return {}


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
        sink = self.sink
        self.gangs = GangScheduler(self.cache, self.filter_service, planning, no_bound_members, sink, self.clock)
        self.monitor = GangMonitor(self.gangs, self.cache, sink, self.clock)
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
