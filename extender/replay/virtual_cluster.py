"""A virtual cluster: serve's decisions over a virtual API server, and kube-scheduler's queue, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from extender.cache import ClusterCache
from extender.policy import Policy
from extender.replay.node_room import NodeRoom
from extender.replay.virtual_api import VirtualApi, VirtualWatches
from extender.replay.virtual_scheduler import Placing, VirtualScheduler
from extender.replay.virtual_time import wall_clock
from extender.runtime.informers import expire_holds
from extender.runtime.supervisor import Supervisor
from extender.serve import Decisions


class VirtualCluster:
    """All of it must run in one VirtualLoop. `bound` is told the UID and the node of a pod with a Binding."""

    scheduler: VirtualScheduler

    def __init__(self, policy: Policy, bound: Callable[[str, str], None]) -> None:
        clock = asyncio.get_running_loop().time
        self.supervisor = Supervisor(clock=clock)
        self.api = VirtualApi(bound, lambda: self.scheduler.requeue())
        self.decisions = Decisions(self.api, self._watches, policy, clock, self.supervisor, wall_clock)

    def _watches(self, cache: ClusterCache, applied: Callable[[str], None]) -> VirtualWatches:
        expire = partial(expire_holds, cache, asyncio.get_running_loop().time)
        found = VirtualWatches(self.api, expire, self.supervisor)
        self.api.connect(cache, applied, found.progress)
        return found

    async def run(
        self, placing: Placing, room: NodeRoom, seed: int, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Schedule pods until `work` returns. `room` is what each node has left."""
        self.scheduler = VirtualScheduler(self.api, placing, room, self.supervisor, seed)
        self.decisions.start()
        self.supervisor.start("kube-scheduler", self.scheduler.run)
        try:
            await work()
        finally:
            await self.supervisor.stop()
        if failed := sorted(name for name, times in self.supervisor.failures.items() if times):
            # The supervisor of a process goes on after a bug. What a replay finds would be wrong.
            raise RuntimeError(f"the tasks {', '.join(failed)} of the replay failed, see the log")
