"""Durations of kube-scheduler's calls, for /metrics. Only the event loop uses them, so there is no lock."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

# Seconds; kube-scheduler waits at least 5.
BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_NAMES = (*map(str, BOUNDS), "+Inf")


class CallDurations:
    """A histogram of call durations for each verb and HTTP status."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Bucketed] = {}

    def observe(self, verb: str, status: int, seconds: float) -> None:
        """Count a call that took `seconds`."""
        calls = self._known.get((verb, status))
        if calls is None:
            calls = self._known[verb, status] = _Bucketed()
        calls.counts[bisect_left(BOUNDS, seconds)] += 1
        calls.seconds += seconds

    def values(self) -> dict[tuple[str, ...], tuple[list[tuple[str, float]], float]]:
        """(verb, status) to ([(bound, cumulative number of calls), ...], sum of seconds). The last bound is +Inf."""
        return {
            (verb, str(status)): (list(zip(_NAMES, map(float, accumulate(calls.counts)), strict=True)), calls.seconds)
            for (verb, status), calls in self._known.items()
        }


class _Bucketed:
    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
