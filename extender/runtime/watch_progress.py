"""Lets tasks wait until the watches have brought the cache to a certain state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WatchProgress:
    """A condition variable that every applied watch event notifies."""

    def __init__(self) -> None:
        self._pulse = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiting tasks: an event was applied."""
        self._pulse.set()
        self._pulse = asyncio.Event()

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait at most `seconds` for the condition, which is checked after every event. False after a time-out."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._pulse.wait()
        except TimeoutError:
            return condition()
        return True
