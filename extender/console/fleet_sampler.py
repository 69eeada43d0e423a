"""Figures of the whole fleet for /metrics and the page, computed in the background."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from extender.cache import ClusterCache
from extender.explain import FleetStats, fleet_stats

_PERIOD_SECONDS = 5.0
_POINTS = 240  # of the trend
_LONGEST_SECONDS = 160.0  # between two points; so the trend has the last 10 hours at most


class TrendPoint(NamedTuple):
    """The fleet at one time, in seconds of the console's clock."""

    at: float
    free: int  # GPUs without an allocation, share or hold
    largest_set: int  # size of the largest set of free GPUs that NVLink joins on one node


class FleetTrend:
    """At most `limit` points, the oldest first.

    A full trend drops every second point and then takes half as many, so that it has the whole time since the start.
    When points are `longest` seconds apart, it drops the oldest instead.
    """

    def __init__(self, limit: int = _POINTS, longest: float = _LONGEST_SECONDS) -> None:
        self._limit = limit
        self._longest = longest
        self._spacing = _PERIOD_SECONDS
        self._points: deque[TrendPoint] = deque()

    def add(self, point: TrendPoint) -> None:
        """Add a point, unless the last one is too recent."""
        if self._points and point.at - self._points[-1].at < self._spacing:
            return
        self._points.append(point)
        if len(self._points) <= self._limit:
            return
        if self._spacing < self._longest:
            self._spacing *= 2
            self._points = deque(list(self._points)[::-2][::-1])  # the newest stays
        else:
            self._points.popleft()

    def after(self, at: float) -> list[TrendPoint]:
        """The points after a time."""
        return [point for point in self._points if point.at > at]


class FleetSampler:
    """`stats` maps a GPU product to its figures, which are at most 5 s old. `clock` returns seconds."""

    def __init__(self, cache: ClusterCache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock
        self._version = -1
        self.stats: dict[str, FleetStats] = {}
        self.trend = FleetTrend()

    async def run(self, listed: Callable[[], Awaitable[None]], rebuilt: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled, once every kind is listed. See Rebuilds.done for `rebuilt`."""
        await listed()
        while True:
            await rebuilt()
            self.sample()
            await asyncio.sleep(_PERIOD_SECONDS)

    def sample(self) -> None:
        """Compute the figures, if the cache changed, and add a point to the trend."""
        snapshot = self._cache.snapshot()
        if snapshot.version != self._version:
            self.stats = fleet_stats(snapshot)
            self._version = snapshot.version
        products = self.stats.values()
        largest = max((stats.largest_set for stats in products), default=0)
        self.trend.add(TrendPoint(self._clock(), sum(stats.free for stats in products), largest))
