"""Lets tasks wait until the watches have brought the cache to a certain state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


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
