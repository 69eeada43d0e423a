"""Calls that may never answer, such as a read of a file whose server is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

LOOK_SECONDS = 1.0  # between two reads of files that may change
T = TypeVar("T")


class LimitedCall(Generic[T]):
    """Awaits `call`, which runs in a thread, for at most `limit_seconds`.

    One call runs at a time. After a time-out, the next await waits for the call that has not answered yet. So a file
    that never answers costs one thread, not one for each try.
    """

    def __init__(self, call: Callable[[], T], limit_seconds: float = 10.0) -> None:
        self._call = call
        self._limit = limit_seconds
        self._running: asyncio.Future[T] | None = None

    async def __call__(self) -> T:
        """The result of the call. Raises TimeoutError after the limit, and what the call raises."""
        if self._running is None:
            self._running = asyncio.get_running_loop().run_in_executor(None, self._call)
        running = self._running
        await asyncio.wait([running], timeout=self._limit)
        if not running.done():
            raise TimeoutError(f"a read has not ended after {self._limit:g} s")
        self._running = None
        return running.result()
