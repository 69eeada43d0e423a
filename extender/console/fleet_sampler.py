"""Figures of the whole fleet for /metrics, computed in the background so that a scrape only reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from extender.cache import ClusterCache
from extender.diagnosis import FleetStats, fleet_stats

_PERIOD_SECONDS = 5.0


class FleetSampler:
    """`stats` maps a GPU product to its figures, which are at most 5 s old."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._version = -1
        self.stats: dict[str, FleetStats] = {}

    async def run(self, listed: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled, once every kind is listed."""
        await listed()
        while True:
            self.sample()
            await asyncio.sleep(_PERIOD_SECONDS)

    def sample(self) -> None:
        """Compute the figures, if the cache changed."""
        snapshot = self._cache.snapshot()
        if snapshot.version != self._version:
            self.stats = fleet_stats(snapshot)
            self._version = snapshot.version
