"""Ends holds at their deadline, also when no request comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from math import inf

from extender.cache import ClusterCache


class HoldExpirer:
    """A background task that sleeps until the next deadline in the cache. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rescheduled = asyncio.Event()

    def reschedule(self) -> None:
        """Wake the task: the next deadline is now earlier."""
        self._rescheduled.set()

    async def run(self, cache: ClusterCache) -> None:
        """Run until cancelled."""
        while True:
            self._rescheduled.clear()
            cache.expire(self._clock())
            seconds = cache.next_deadline - self._clock()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, 0.0) if seconds < inf else None):
                    await self._rescheduled.wait()
