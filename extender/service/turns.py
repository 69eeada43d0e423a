"""Who goes first: calls of kube-scheduler before everything that people look at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
_SLICE_SECONDS = 0.00015  # work between two looks at who else is waiting
_PATIENCE_SECONDS = 0.02  # the longest that one slice waits for a call in hand: under constant load work goes on, slowly
_CALLS_BETWEEN = 3  # that pass between two slices while they come: most then meet none
_NEXT_SECONDS = 0.002  # how long the next call is waited for while calls come


class Turns:
    """Long work is an iterator of small steps, run by `run`; calls are wrapped in `call`."""

    def __init__(self) -> None:
        self._calls = self._answered = 0
        self._waiting: list[asyncio.Future[None]] = []

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call of kube-scheduler."""
        self._calls += 1
        try:
            yield
        finally:
            self._answered += 1
            if self._waiting:
                waiting, self._waiting = self._waiting, []
                for future in waiting:
                    _wake(future)

    async def run(self, steps: Iterator[T | None]) -> T:
        """The first step that is not None, with calls let in between."""
        started, seen = time.perf_counter(), self._calls
        for step in steps:
            if step is not None:
                return step
            if time.perf_counter() - started > _SLICE_SECONDS:
                seen = await self._give_way(seen)
                started = time.perf_counter()
        raise AssertionError("the last step is the answer")

    async def pause(self) -> None:
        """Let calls in that came meanwhile."""
        await self._give_way(self._calls)

    async def _give_way(self, seen: int) -> int:
        """Let the loop turn. While calls come, go on right after one was answered: then its caller needs time of its own
        before the next. Calls so far."""
        await asyncio.sleep(0)
        if self._calls > self._answered:
            await self._call_to_end(_PATIENCE_SECONDS)
        elif self._calls > seen:
            for _ in range(_CALLS_BETWEEN):
                await self._call_to_end(_NEXT_SECONDS)
        return self._calls

    async def _call_to_end(self, seconds: float) -> None:
        """Until a call is answered, or so long."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        timer = loop.call_later(seconds, _wake, future)
        self._waiting.append(future)
        await future
        timer.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
