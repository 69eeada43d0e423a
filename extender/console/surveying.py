"""Figures about the whole fleet, counted again when the fleet changed, so that a scrape only reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from extender.diagnosis.fleet_stats import Facts, fleet_facts
from extender.mirror.mirror import Mirror

_PERIOD_SECONDS = 5.0


class Surveyor:
    """`facts` are by product, at most a few seconds old."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._version = -1
        self.facts: dict[str, Facts] = {}

    async def run(self, listed: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled; the first count waits until everything is listed."""
        await listed()
        while True:
            self.survey()
            await asyncio.sleep(_PERIOD_SECONDS)

    def survey(self) -> None:
        """Count again, if anything changed."""
        snapshot = self._mirror.snapshot()
        if snapshot.version != self._version:
            self.facts = fleet_facts(snapshot)
            self._version = snapshot.version
