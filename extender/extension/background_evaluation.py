"""Continues evaluations that calls left unfinished: one stretch of work, then a pause many times as long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_LEAST_SECONDS = 0.02  # of a pause, so that the loop does not spin while no namespace has tokens


class BackgroundEvaluator:
    """A background task of serve. `rest` is the length of the pause as a multiple of the time of the stretch."""

    def __init__(self, clock: Callable[[], float], rest: float) -> None:
        self._clock = clock
        self._rest = rest
        self._work_left = asyncio.Event()

    def wake(self) -> None:
        """Start again, because an evaluation is unfinished."""
        self._work_left.set()

    async def run(self, work: Callable[[], bool], rebuilt: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled. `work` does one stretch and returns whether work is left.

        See Rebuilds.done for `rebuilt`.
        """
        while True:
            await self._work_left.wait()
            await rebuilt()
            began = self._clock()
            if not work():
                self._work_left.clear()
            await asyncio.sleep(max(_LEAST_SECONDS, self._rest * (self._clock() - began)))
