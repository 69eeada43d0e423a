"""Figures about the whole fleet, made beside the scheduler's calls so that a scrape only reads them."""

from __future__ import annotations

import asyncio

from extender.mirror.mirror import Mirror
from extender.service.turns import Turns
from extender.verdict.facts import Facts, fleet_facts

_PERIOD_SECONDS = 5.0


class Surveyor:
    """`facts` are by product, at most a few seconds old."""

    def __init__(self, mirror: Mirror, turns: Turns) -> None:
        self._mirror = mirror
        self._turns = turns
        self._seen = -1
        self.facts: dict[str, Facts] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.survey()
            await asyncio.sleep(_PERIOD_SECONDS)

    async def survey(self) -> None:
        """Count again, if anything changed."""
        snapshot = self._mirror.snapshot()
        if snapshot.version != self._seen:
            self.facts = await self._turns.run(fleet_facts(snapshot), chore=True)
            self._seen = snapshot.version
