"""Holds end at their deadline, whether or not anything asks for devices then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from math import inf

from extender.cache import ClusterCache


class HoldExpirer:
    """Runs beside the service, and sleeps until the cache's next deadline."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rescheduled = asyncio.Event()

    def reschedule(self) -> None:
        """The next deadline is earlier than it was."""
        self._rescheduled.set()

    async def run(self, cache: ClusterCache) -> None:
        """Until cancelled."""
        while True:
            self._rescheduled.clear()
            cache.expire(self._clock())
            seconds = cache.next_deadline - self._clock()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, 0.0) if seconds < inf else None):
                    await self._rescheduled.wait()
