"""Requests that build large answers in the event loop take turns, so that probes and Events go in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """One request at a time; at most `waiting` others wait for their turn."""

    def __init__(self, waiting: int) -> None:
        self._most_waiting = waiting
        self._waiting = 0
        self._turn = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """Whether no further request may wait."""
        return self._waiting >= self._most_waiting

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for the turn. After it, a pause as long as the turn leaves the event loop to other work."""
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            loop.call_later(loop.time() - began, self._turn.release)
