"""How long to wait before the next try, as in client-go: doubled each time, with jitter, anew after a quiet while."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

_LARGEST_EXPONENT = 30  # more doublings than any range of delays needs


@dataclass(frozen=True, slots=True)
class Delays:
    """In seconds: `first` is the delay after one failure, `most` the longest, `reset` the time without a failure that
    makes the next one count as the first again."""

    first: float
    most: float
    reset: float = 120.0


class Backoff:
    """The delays of one thing that fails now and then."""

    def __init__(self, delays: Delays, clock: Callable[[], float] = time.monotonic) -> None:
        self._delays = delays
        self._clock = clock
        self._failures = 0
        self._last = float("-inf")

    @property
    def failures(self) -> int:
        """Failures in a row; 0 once the last one is longer ago than `reset`."""
        return self._failures if self._clock() - self._last <= self._delays.reset else 0

    def next(self) -> float:
        """Count a failure; the answer is how many seconds to wait: from half of the delay to the whole."""
        self._failures = self.failures + 1
        self._last = self._clock()
        delay = min(self._delays.most, self._delays.first * 2.0 ** min(self._failures - 1, _LARGEST_EXPONENT))
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
