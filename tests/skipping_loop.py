"""An event loop for tests of long delays: it does not wait for a timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SkippingLoop(asyncio.SelectorEventLoop):
    """When nothing else is to be done, the time of the loop moves to its next timer. It begins at 0 seconds."""

    def __init__(self) -> None:
        self._now = 0.0
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                found = super().select(None if timeout is None else 0)
                if not found and timeout is not None:
                    loop._now += timeout
                return found

        super().__init__(Selector())

    def time(self) -> float:
        return self._now


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a new SkippingLoop."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(work)
