"""Holds end at their deadline, whether or not anything asks for devices then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from math import inf

from extender.mirror.mirror import Mirror


class Expirer:
    """Runs beside the service, and sleeps until the mirror's next deadline."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sooner = asyncio.Event()

    def sooner(self) -> None:
        """The next deadline is earlier than it was."""
        self._sooner.set()

    async def run(self, mirror: Mirror) -> None:
        """Until cancelled."""
        while True:
            self._sooner.clear()
            mirror.expire(self._clock())
            seconds = mirror.next_deadline - self._clock()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, 0.0) if seconds < inf else None):
                    await self._sooner.wait()
