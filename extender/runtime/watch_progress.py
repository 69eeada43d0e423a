"""Waiting for the watch: tasks sleep until the cache has moved on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WatchProgress:
    """A pulse that every applied event gives."""

    def __init__(self) -> None:
        self._pulse = asyncio.Event()

    def notify(self) -> None:
        """Something was applied."""
        self._pulse.set()
        self._pulse = asyncio.Event()

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition came true in time; it is looked at after every event."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._pulse.wait()
        except TimeoutError:
            return condition()
        return True
