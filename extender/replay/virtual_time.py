"""An event loop whose time moves to its next timer as soon as nothing else is to be done.

Hours of a cluster pass in the seconds that its decisions take, and no decision depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import datetime
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)  # timestamps of a replay count from here


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop without sockets. Its time begins at 0 seconds."""

    def __init__(self) -> None:
        self._now = 0.0
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                if timeout is None:
                    raise RuntimeError("a replay waits for nothing: no task of it can go on")
                loop._now += timeout
                return []

        super().__init__(Selector())

    def time(self) -> float:
        return self._now


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a new VirtualLoop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def wall_clock() -> datetime.datetime:
    """The time of the running VirtualLoop as a date."""
    return _EPOCH + datetime.timedelta(seconds=asyncio.get_running_loop().time())
