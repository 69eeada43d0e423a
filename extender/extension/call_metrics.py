"""How long kube-scheduler's calls took: counted without a lock, read by /metrics."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

BOUNDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)  # seconds; kube-scheduler waits 5 or more
_NAMES = (*map(str, BOUNDS), "+Inf")


class CallDurations:
    """Calls by verb and HTTP status."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Bucketed] = {}

    def observe(self, verb: str, status: int, seconds: float) -> None:
        """Count a call."""
        calls = self._known.get((verb, status))
        if calls is None:
            calls = self._known[verb, status] = _Bucketed()
        calls.counts[bisect_left(BOUNDS, seconds)] += 1
        calls.seconds += seconds

    def values(self) -> dict[tuple[str, ...], tuple[list[tuple[str, float]], float]]:
        """By verb and status: calls up to each bound and up to any, and their seconds."""
        return {
            (verb, str(status)): (list(zip(_NAMES, map(float, accumulate(calls.counts)), strict=True)), calls.seconds)
            for (verb, status), calls in self._known.items()
        }


class _Bucketed:
    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
