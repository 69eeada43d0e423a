"""Exponential back-off as in client-go: the delay doubles per failure, has jitter, and resets after a quiet time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

_LARGEST_EXPONENT = 30  # avoids a float overflow


@dataclass(frozen=True, slots=True)
class Delays:
    """In seconds: the delay after the first failure, the longest delay, and the time without failures that resets."""

    first: float
    most: float
    reset: float = 120.0


class Backoff:
    """The back-off of one repeated operation."""

    def __init__(self, delays: Delays, clock: Callable[[], float] = time.monotonic) -> None:
        self._delays = delays
        self._clock = clock
        self._failures = 0
        self._last = float("-inf")

    @property
    def failures(self) -> int:
        """Consecutive failures; 0 if the last one is more than `reset` seconds ago."""
        return self._failures if self._clock() - self._last <= self._delays.reset else 0

    def reset(self) -> None:
        """The operation made progress: the next failure counts as the first one."""
        self._failures = 0

    def next(self) -> float:
        """Count a failure. Returns the seconds to wait: random, between half of the delay and the full delay."""
        self._failures = self.failures + 1
        self._last = self._clock()
        delay = min(self._delays.most, self._delays.first * 2.0 ** min(self._failures - 1, _LARGEST_EXPONENT))
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter needs no secure randomness
