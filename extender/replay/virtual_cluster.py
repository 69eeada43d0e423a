"""A virtual cluster: serve's decisions over a virtual API server, and kube-scheduler's queue, in virtual time.

The time of its event loop moves to the next timer as soon as nothing else is to be done. Hours of a cluster pass in the
seconds that its decisions take, and no decision depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import selectors
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from extender.cache import ClusterCache
from extender.policy import Policy
from extender.replay.virtual_api import VirtualApi, VirtualWatches
from extender.replay.virtual_scheduler import NodeRoom, Placing, VirtualScheduler
from extender.runtime.informers import expire_holds
from extender.runtime.supervisor import Supervisor
from extender.serve import Decisions

T = TypeVar("T")
_EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)  # timestamps of a replay count from here
_MAX_DATE = 2.5e11  # seconds: a datetime ends in the year 9999, and jobs that wait for each other may run longer


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop without sockets. Its time begins at 0 seconds.

    asyncio runs the timers before `time() + _clock_resolution`. That of the machine's clock is a constant, which is
    too small to change the sum after some months: then no timer is ever due. So it is a float's distance to the next.
    """

    def __init__(self) -> None:
        self._now = 0.0
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                if timeout is None:
                    raise RuntimeError("a replay waits for nothing: no task of it can go on")
                loop._now += timeout
                loop._clock_resolution = math.ulp(loop._now)
                return []

        super().__init__(Selector())
        self._clock_resolution = math.ulp(self._now)

    def time(self) -> float:
        return self._now


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a new VirtualLoop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def wall_clock() -> datetime.datetime:
    """The time of the running VirtualLoop as a date, or the last date."""
    return _EPOCH + datetime.timedelta(seconds=min(asyncio.get_running_loop().time(), _MAX_DATE))


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
