"""Time that runs only while certain work is done: the clock of a budget whose work lets others in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


class Stopwatch:
    """Call it for the seconds of work so far."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._passed = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        return self._passed if self._since is None else self._passed + self._clock() - self._since

    def timed(self, steps: Iterator[T]) -> Iterator[T]:
        """The same steps; the time runs while one is made."""
        try:
            while True:
                self._since = self._clock()
                try:
                    step = next(steps)
                except StopIteration:
                    return
                self._passed, self._since = self(), None
                yield step
        finally:
            self._passed, self._since = self(), None
