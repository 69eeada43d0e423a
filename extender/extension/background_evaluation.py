"""Going on with what calls left unfinished: a slice of work, then a rest many times as long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LEAST_SECONDS = 0.02  # of a rest, also while every namespace has used up its share


class BackgroundEvaluator:
    """Runs beside the service; `rest` is in times of the slice."""

    def __init__(self, clock: Callable[[], float], rest: float) -> None:
        self._clock = clock
        self._rest = rest
        self._work_left = asyncio.Event()

    def wake(self) -> None:
        """There is something to go on with."""
        self._work_left.set()

    async def run(self, work: Callable[[], bool]) -> None:
        """Until cancelled. `work` does one slice and says whether some is left."""
        while True:
            await self._work_left.wait()
            began = self._clock()
            if not work():
                self._work_left.clear()
            await asyncio.sleep(max(_LEAST_SECONDS, self._rest * (self._clock() - began)))
