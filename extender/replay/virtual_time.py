"""An event loop whose time moves to its next timer as soon as nothing else is to be done.

Hours of a cluster pass in the seconds that its decisions take, and no decision depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)  # timestamps of a replay count from here
_MAX_DATE = 2.5e11  # seconds: a datetime ends in the year 9999, and jobs that wait for each other may run longer


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop without sockets. Its time begins at 0 seconds.

    asyncio runs the timers before `time() + _clock_resolution`. That of the machine's clock is a constant, which is
    too small to change the sum after some months: then no timer is ever due. So it is a float's distance to the next.
    """

    def __init__(self) -> None:
        self._now = 0.0
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                if timeout is None:
                    raise RuntimeError("a replay waits for nothing: no task of it can go on")
                loop._now += timeout
                loop._clock_resolution = math.ulp(loop._now)
                return []

        super().__init__(Selector())
        self._clock_resolution = math.ulp(self._now)

    def time(self) -> float:
        return self._now


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a new VirtualLoop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def wall_clock() -> datetime.datetime:
    """The time of the running VirtualLoop as a date, or the last date."""
    return _EPOCH + datetime.timedelta(seconds=min(asyncio.get_running_loop().time(), _MAX_DATE))
