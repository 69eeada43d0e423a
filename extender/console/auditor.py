"""The auditor checks the cluster for inconsistencies, and reports them. It repairs nothing.

It reports a finding that two rounds in a row have: an inconsistency of one round may be about to end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import structlog

from extender.api.fields import decode_readable
from extender.api.resource_claims import decode_claim
from extender.cache import ClusterCache
from extender.cluster import ApiClient, ClusterError, Writer, pages
from extender.explain import Finding, check_consistency

_ROUND_SECONDS = 30.0
_LIST_ROUNDS = 20  # rounds from one comparison with a fresh list to the next
_CLAIMS_PATH = "/apis/resource.k8s.io/v1/resourceclaims"
_MAX_REPORTS = 50  # findings that a round logs and writes Events for; the others follow in later rounds
_PAGE_CLAIMS = 100  # claims of one page; parsing a page blocks the event loop


class Auditor:
    """A background task of the console. `findings` are those that both of the last two rounds saw."""

    def __init__(
        self,
        cache: ClusterCache,
        client: ApiClient,
        writer: Writer,
    ) -> None:
        self._cache = cache
        self._client = client
        self._writer = writer
        self._previous: set[Finding] = set()
        self._reported: set[Finding] = set()
        self._log = structlog.get_logger("berth.audit")
        self.findings: list[Finding] = []
        self.differing = 0  # berth_audit_drift: claims that differed between the cache and the last fresh list
        self.rounds = 0

    async def run(self) -> None:
        """Run until cancelled: a round every 30 s."""
        while True:
            await asyncio.sleep(_ROUND_SECONDS)
            await self.round()

    async def round(self) -> None:
        """Check the cache once; every 20th round also compares it with a fresh list."""
        found = check_consistency(self._cache)
        self.findings = [finding for finding in found if finding in self._previous]
        self._previous = set(found)
        for finding in [finding for finding in self.findings if finding not in self._reported][:_MAX_REPORTS]:
            await self._report(finding)
        self._reported &= self._previous
        if self.rounds % _LIST_ROUNDS == 0:
            await self._compare()
        self.rounds += 1

    def by_check(self) -> Counter[str]:
        """Name of a check to number of its findings."""
        return Counter(finding.check for finding in self.findings)

    async def _report(self, finding: Finding) -> None:
        self._reported.add(finding)
        self._log.error("audit", check=finding.check, finding=finding.sentence)
        for key in finding.claims:
            claim = self._cache.store.claims.get(key)
            if claim is None:
                continue
            try:
                await self._writer.create_event("ResourceClaim", key, claim.uid, "AuditFinding", finding.sentence)
            except ClusterError as error:
                self._log.warning("could not write an Event", claim=str(key), problem=str(error))

    async def _compare(self) -> None:
        """Compare the claims of a fresh list with the cache, and set `differing`."""
        wrong = 0
        try:
            async for page in pages(self._client, _CLAIMS_PATH, "ResourceClaimList", _PAGE_CLAIMS):
                wrong += self._differing(page.get("items") or ())
        except ClusterError as error:
            self._log.warning("could not list claims for the comparison with the cache", problem=str(error))
            return
        self.differing = wrong

    def _differing(self, listed: Iterable[object]) -> int:
        """How many claims have the resourceVersion of the cache's claim and another allocation.

        The cache has no claim that cannot be read: its reflector has named and logged it.
        """
        wrong = 0
        claims, _ = decode_readable(listed, decode_claim)
        for claim in claims:
            known = self._cache.store.claims.get(claim.key)
            same = known is not None and known.resource_version == claim.resource_version
            wrong += same and known is not None and known.allocation != claim.allocation
        return wrong
