"""Rates: how often something may happen for each key, such as a client's address or a node."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from cachetools import LRUCache

Key = TypeVar("Key", bound=Hashable)


class TokenBuckets(Generic[Key]):
    """A bucket for each key: `burst` tokens at once, and then one in `seconds`.

    One key's flood takes no token of another. At most `remembered` keys have a bucket; a key that is forgotten begins
    with a full one. Times are in seconds of the caller's clock.
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
