"""What is due later, without an event (`Timers`), and how often something may happen (`TokenBuckets`, `Cooldown`).

The owner of a list of timers has the table of what is done when they are due. All times are in seconds of one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Generic, TypeVar

from cachetools import LRUCache

Key = TypeVar("Key", bound=Hashable)
Timer = TypeVar("Timer", bound=Hashable)

_MAX_OUTDATED = 64  # outdated entries that the heap of timers may always have
_MAX_REMEMBERED = 8192  # keys of a Cooldown


class Timers(Generic[Timer]):
    """At most one time for each timer. `on_earlier` is called if one is set to a time before `wakes_at`.

    Of timers with equal times, the one that was set first is due first.
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


class TokenBuckets(Generic[Key]):
    """A bucket for each key: `burst` tokens at once, and then one in `seconds`.

    One key's flood takes no token of another. At most `remembered` keys have a bucket; a key that is forgotten begins
    with a full one.
    """

    def __init__(self, burst: float, seconds: float, remembered: int) -> None:
        self._burst, self._seconds = burst, seconds
        self._buckets: LRUCache[Key, tuple[float, float]] = LRUCache(remembered)  # tokens, and when that was true

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._buckets)

    def take(self, key: Key, now: float, tokens: float = 1.0) -> bool:
        """Take tokens of the key. False, and none is taken, if it has fewer."""
        left = self._left(key, now)
        if left < tokens:
            return False
        self._buckets[key] = left - tokens, now
        return True

    def wait(self, key: Key, now: float) -> float:
        """Seconds until the key has a whole token."""
        return max(0.0, 1.0 - self._left(key, now)) * self._seconds

    def empty(self, key: Key, now: float) -> None:
        """Take all tokens of the key."""
        self._buckets[key] = 0.0, now

    def forget(self, key: Key) -> None:
        """Drop the bucket of a key."""
        self._buckets.pop(key, None)

    def _left(self, key: Key, now: float) -> float:
        left, at = self._buckets.get(key, (self._burst, now))
        return min(self._burst, left + max(0.0, now - at) / self._seconds)


class Cooldown(Generic[Timer]):
    """Limits how often changes of a key are used: `burst` at once, and then one in `seconds`.

    A change beyond them waits, with all later ones of its key, until the key's timer is due. `waiting` has the keys.
    At most 8,192 keys with recent changes are kept.
    """

    def __init__(self, timers: Timers[tuple[Timer, str]], kind: Timer, burst: float, seconds: float) -> None:
        self._timers, self._kind = timers, kind
        self._changes: TokenBuckets[str] = TokenBuckets(burst, seconds, _MAX_REMEMBERED)
        self.waiting: set[str] = set()

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._changes)

    def try_accept(self, key: str, now: float, cost: float = 1.0) -> bool:
        """Take a change of the key, which counts as `cost` changes. False if it is not used now: the key waits."""
        if key in self.waiting:
            return False
        if self._changes.take(key, now, cost):
            return True
        self.waiting.add(key)
        self._timers.at((self._kind, key), now + self._changes.wait(key, now))
        return False

    def ended(self, key: str, now: float) -> None:
        """The timer of the key is due: its last change is used now."""
        self.waiting.discard(key)
        self._changes.empty(key, now)

    def forget(self, key: str) -> None:
        """Drop what is known of a key."""
        self.waiting.discard(key)
        self._changes.forget(key)
        self._timers.cancel((self._kind, key))
