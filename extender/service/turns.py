"""Who goes first: calls of kube-scheduler before everything that people look at."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
_SLICE_SECONDS = 0.0002  # work between two looks at who else is waiting
_YIELD_SECONDS = 0.02  # the longest that one slice waits for calls to end: under constant load work goes on, slowly
_REST_SECONDS = 0.001  # between slices while calls come: most of them then find the loop free


class Turns:
    """Long work is an iterator of small steps, run by `run`; calls are wrapped in `call`."""

    def __init__(self) -> None:
        self._calls = self._answered = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call of kube-scheduler."""
        self._calls += 1
        try:
            yield
        finally:
            self._answered += 1

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

    async def _give_way(self, seen: int) -> int:
        """Let the loop turn, and again while it has a call in hand: reading one takes several turns. Calls so far."""
        until = time.perf_counter() + _YIELD_SECONDS
        await asyncio.sleep(0)
        while self._calls > self._answered and time.perf_counter() < until:  # noqa: ASYNC110 - an event would cost every call
            await asyncio.sleep(0)
        if self._calls > seen:
            await asyncio.sleep(_REST_SECONDS)
        return self._calls
