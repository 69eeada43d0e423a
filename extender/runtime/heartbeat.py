"""Detects a stalled event loop, for the liveness probe.

A blocked event loop answers no probe. An overloaded one may still answer a probe; the heartbeat then reports the delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_PERIOD_SECONDS = 1.0
_LATE_SECONDS = 15.0  # three times kube-scheduler's time-out for a filter request


class Heartbeat:
    """A background task that stores the time once a second. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._last = self._clock()
            await asyncio.sleep(_PERIOD_SECONDS)

    @property
    def stalled(self) -> str:
        """A sentence if the heartbeat is more than 15 s late, else ''."""
        age = self._clock() - self._last
        return f"the event loop has not turned for {age:.0f} s" if age > _LATE_SECONDS else ""
