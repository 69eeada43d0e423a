"""Figures about the whole fleet, counted again when the fleet changed, so that a scrape only reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from extender.cache import ClusterCache
from extender.diagnosis import FleetStats, fleet_stats

_PERIOD_SECONDS = 5.0


class FleetSampler:
    """`facts` are by product, at most a few seconds old."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._version = -1
        self.stats: dict[str, FleetStats] = {}

    async def run(self, listed: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled; the first count waits until everything is listed."""
        await listed()
        while True:
            self.sample()
            await asyncio.sleep(_PERIOD_SECONDS)

    def sample(self) -> None:
        """Count again, if anything changed."""
        snapshot = self._cache.snapshot()
        if snapshot.version != self._version:
            self.stats = fleet_stats(snapshot)
            self._version = snapshot.version
