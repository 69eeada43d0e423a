"""The auditor: looks again and again for what must not be, and says so. It repairs nothing that is another's.

What it sees once may be on its way to be undone; a finding counts when two rounds see it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from extender.cache import ClusterCache
from extender.cluster import ApiClient, ClusterError, Writer, pages
from extender.diagnosis import Finding, check_consistency
from extender.wire import decode_claim

Json = dict[str, Any]
_ROUND_SECONDS = 30.0
_LIST_ROUNDS = 20  # rounds between two comparisons with a fresh list
_CLAIMS_PATH = "/apis/resource.k8s.io/v1/resourceclaims"
_PAGE = 100  # claims; a page is parsed in one go


class Auditor:
    """Runs beside the console. `findings` are those of the last round that the round before saw too; reading them
    starts no round."""

    def __init__(
        self,
        cache: ClusterCache,
        client: ApiClient,
        writer: Writer,
        ready: Callable[[], bool],
        round_seconds: float = _ROUND_SECONDS,
    ) -> None:
        self._cache = cache
        self._client = client
        self._writer = writer
        self._ready = ready
        self._round_seconds = round_seconds
        self._previous: set[Finding] = set()
        self._reported: set[Finding] = set()
        self._log = structlog.get_logger("berth.audit")
        self.findings: list[Finding] = []
        self.drifted = 0  # claims that the watch had wrong when last compared with a fresh list
        self.rounds = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._round_seconds)
            if self._ready():
                await self.round()

    async def round(self) -> None:
        """One look."""
        found = check_consistency(self._cache)
        self.findings = [finding for finding in found if finding in self._previous]
        self._previous = set(found)
        for finding in self.findings:
            if finding not in self._reported:
                await self._report(finding)
        self._reported &= self._previous
        if self.rounds % _LIST_ROUNDS == 0:
            await self._compare()
        self.rounds += 1

    def by_kind(self) -> Counter[str]:
        """How many findings of each kind there are now."""
        return Counter(finding.kind for finding in self.findings)

    async def _report(self, finding: Finding) -> None:
        self._reported.add(finding)
        self._log.error("audit", kind=finding.kind, finding=finding.sentence)
        for key in finding.claims:
            claim = self._cache.store.claims.get(key)
            if claim is None:
                continue
            try:
                await self._writer.create_event("ResourceClaim", key, claim.uid, "AuditFinding", finding.sentence)
            except ClusterError as error:
                self._log.warning("could not write an event", claim=str(key), problem=str(error))

    async def _compare(self) -> None:
        """Claims of a fresh list against the cache: what is older than the watch and different is drift."""
        wrong = 0
        try:
            async for page in pages(self._client, _CLAIMS_PATH, _PAGE):
                wrong += self._wrong(page.get("items") or ())
        except ClusterError as error:
            self._log.warning("could not list claims to compare", problem=str(error))
            return
        self.drifted = wrong

    def _wrong(self, listed: Iterable[Json]) -> int:
        """How many claims the cache has at the same version and otherwise."""
        wrong = 0
        for claim in map(decode_claim, listed):
            known = self._cache.store.claims.get(claim.key)
            same = known is not None and known.resource_version == claim.resource_version
            wrong += same and known is not None and known.allocation != claim.allocation
        return wrong
