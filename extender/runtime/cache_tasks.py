"""Tasks around the cache: they end holds, build changed nodes in time slices, and wait for the watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf

from extender.cache import ClusterCache


class HoldExpirer:
    """A background task that sleeps until the next deadline in the cache. `clock` returns seconds."""

    def __init__(self, cache: ClusterCache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock
        self._moved = asyncio.Event()
        cache.timers.moved = self._moved.set

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._moved.clear()
            self._cache.expire(self._clock())
            seconds = self._cache.next_deadline - self._clock()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, 0.0) if seconds < inf else None):
                    await self._moved.wait()


_SLICE_SECONDS = 0.005
_STEP = 4  # nodes or slices between two reads of the clock
_FEW = 8  # changed nodes that a snapshot builds at once


class CacheRefresh:
    """A caller of `wait` builds the remaining nodes, and yields to the event loop after each time slice.

    Without a caller nothing is built: the next snapshot builds everything at once. `time_slice` is in seconds.
    """

    def __init__(
        self,
        cache: ClusterCache,
        clock: Callable[[], float] = time.perf_counter,
        time_slice: float = _SLICE_SECONDS,
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._time_slice = time_slice
        self._building = asyncio.Lock()
        self._computed = 0  # nodes and slices since the start

    async def wait(self) -> None:
        """Wait until the next snapshot has to build only a few nodes. Call it before work that takes a snapshot.

        While changes come faster than their nodes are built, the wait ends after as many nodes as had to be built when
        it began. The snapshot then builds the rest at once.
        """
        backlog = self._cache.backlog
        if backlog <= _FEW:
            return
        enough = self._computed + backlog
        async with self._building:  # one caller builds, so that a time slice is all that other tasks wait for
            while self._cache.backlog > _FEW and self._computed < enough:
                until = self._clock() + self._time_slice
                while self._cache.backlog > _FEW and self._clock() < until:
                    self._cache.rebuild(_STEP)
                    self._computed += _STEP
                await asyncio.sleep(0)


class WatchProgress:
    """A condition variable that every applied watch event notifies.

    A condition must be cheap and must not raise: `notify` checks it in place of the waiting task.
    """

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def __len__(self) -> int:
        """How many tasks wait."""
        return len(self._waiting)

    def notify(self) -> None:
        """Wake the tasks whose condition holds: an event was applied."""
        for woken, condition in self._waiting.items():
            if not woken.done() and condition():
                woken.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds. It is checked after every event."""
        while not condition():
            await self._next_time(condition)

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """As `until`, but at most `seconds`. Returns whether the condition holds.

        The end of the wait proves no time of another clock than the loop's: uvloop's timers may be a millisecond early.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.until(condition)
        except TimeoutError:
            return condition()
        return True

    async def _next_time(self, condition: Callable[[], bool]) -> None:
        """Wait until an event after which the condition holds. It may not hold any more when the task runs."""
        woken = asyncio.get_running_loop().create_future()
        self._waiting[woken] = condition
        try:
            await woken
        finally:
            del self._waiting[woken]
