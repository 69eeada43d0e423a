"""Whether the event loop turns. A loop that is blocked answers no probe at all; one that is starved answers now and
then, and this is how such a probe sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_PERIOD_SECONDS = 1.0
_LATE_SECONDS = 15.0  # three times what kube-scheduler waits for filter


class Heartbeat:
    """A task that notes the time once a second."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._last = self._clock()
            await asyncio.sleep(_PERIOD_SECONDS)

    @property
    def stalled(self) -> str:
        """'' while the loop turns, else for how long it has not."""
        age = self._clock() - self._last
        return f"the event loop has not turned for {age:.0f} s" if age > _LATE_SECONDS else ""
