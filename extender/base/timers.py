"""One list of timers: what is due later, without an event. The owner of the list has the table of what is done then."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Generic, TypeVar

Timer = TypeVar("Timer", bound=Hashable)

_MAX_OUTDATED = 64  # outdated entries that the heap of timers may always have


class Timers(Generic[Timer]):
    """At most one time for each timer. `on_earlier` is called if one is set to a time before `wakes_at`.

    Times are in seconds of one clock. Of timers with equal times, the one that was set first is due first.
    """

    def __init__(self) -> None:
        self.wakes_at = inf  # when the task that waits for the timers wakes
        self.on_earlier: Callable[[], None] = lambda: None
        self._times: dict[Timer, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Timer]] = []  # with outdated entries
        self._numbers = count()

    @property
    def entries(self) -> int:
        """How many entries take memory, with outdated ones."""
        return len(self._heap)

    def at(self, timer: Timer, time: float) -> None:
        """Set the time of a timer, in place of its last one."""
        number = next(self._numbers)
        self._times[timer] = time, number
        heappush(self._heap, (time, number, timer))
        if len(self._heap) > 2 * len(self._times) + _MAX_OUTDATED:
            self._heap = [(*when, one) for one, when in self._times.items()]
            heapify(self._heap)
        if time < self.wakes_at:
            self.on_earlier()

    def cancel(self, timer: Timer) -> None:
        """Remove a timer, if it is set."""
        self._times.pop(timer, None)

    def due(self, now: float) -> list[Timer]:
        """Remove and return the timers whose time has come, the earliest first."""
        found = []
        while self.next <= now and self._heap:
            _, _, timer = heappop(self._heap)
            del self._times[timer]
            found.append(timer)
        return found

    @property
    def next(self) -> float:
        """The earliest time; infinite without timers."""
        while self._heap and self._times.get(self._heap[0][2]) != self._heap[0][:2]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else inf
