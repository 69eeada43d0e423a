"""The auditor checks the cluster for inconsistencies, and reports them. It repairs nothing.

`check_consistency` compares claims with each other and with the ResourceSlices. It reads only API objects, not
reservations. The auditor reports a finding that two rounds in a row have: an inconsistency of one round may be about to
end.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import structlog

from extender.allocation.nodes import overdrawn_counters
from extender.api.fields import decode_readable
from extender.api.object_meta import ObjectKey
from extender.api.resource_claims import Claim, Result, decode_claim
from extender.api.resource_slices import Device, DeviceId, PoolKey, Slice, newest_slices
from extender.cache import ClusterCache
from extender.cluster import ApiClient, ClusterError, Writer, pages

_ROUND_SECONDS = 30.0
_LIST_ROUNDS = 20  # rounds from one comparison with a fresh list to the next
_CLAIMS_PATH = "/apis/resource.k8s.io/v1/resourceclaims"
_MAX_REPORTS = 50  # findings that a round logs and writes Events for; the others follow in later rounds
_PAGE_CLAIMS = 100  # claims of one page; parsing a page blocks the event loop

Entries = list[tuple[Claim, Result]]
"""The allocations of one device."""

CHECKS = {  # by name, with what each finds
    "double": "a device is allocated exclusively, and another claim has it too",
    "overdrawn-capacity": "the shares of a device exceed its capacity",
    "overdrawn-counters": "allocated partitions exceed a shared counter",
    "vanished": "an allocated device is no longer published",
    "unreserved": "a claim has an allocation, but no pod reserves it",
    "agent": "the data of a node agent contradicts other data",
    "unbuilt": "the NodeInfo of a node cannot be built, so Berth uses an older one",
}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One inconsistency, with all claims that are part of it."""

    check: str  # a key of CHECKS
    about: str  # the device, pool, claim or node
    claims: tuple[ObjectKey, ...]
    sentence: str


def check_consistency(cache: ClusterCache) -> list[Finding]:
    """All findings, sorted."""
    found = [
        Finding("agent", node, (), f"node {node}: {problem}")
        for node, problems in cache.agent_problems.items()
        for problem in problems
    ]
    found += [
        Finding("unbuilt", node, (), f"node {node}: the NodeInfo cannot be built: {problem}")
        for node, problem in cache.failed_nodes.items()
    ]
    pools = defaultdict[PoolKey, dict[str, Entries]](dict)
    for claim in cache.store.claims.values():
        if claim.allocation is None:
            continue
        if not claim.reserved_for:
            sentence = f"claim {claim.key} has devices, but no pod reserves it"
            found.append(Finding("unreserved", str(claim.key), (claim.key,), sentence))
        for result in claim.allocation.results:
            if not result.admin_access:
                used = pools[PoolKey(result.device.driver, result.device.pool)]
                used.setdefault(result.device.device, []).append((claim, result))
    for key, devices in pools.items():
        found += _pool(key, devices, newest_slices(cache.slices.pools.by_pool.get(key, {}).values()))
    return sorted(found)


def _pool(key: PoolKey, used: dict[str, Entries], slices: list[Slice]) -> Iterator[Finding]:
    published = {device.name: device for slice_ in slices for device in slice_.devices}
    for name, entries in used.items():
        device, claims = DeviceId(key.driver, key.name, name), _claims(entries)
        if len(entries) > 1 and any(not result.share_id for _, result in entries):
            sentence = f"device {device} is allocated to {', '.join(map(str, claims))}"
            yield Finding("double", str(device), claims, sentence)
        if name in published:
            for amount in _overdrawn(published[name], entries):
                sentence = f"shares of {amount} on device {device} exceed its capacity"
                yield Finding("overdrawn-capacity", str(device), claims, sentence)
        elif published or not slices:
            sentence = f"device {device} of claim {claims[0]} is no longer published"
            yield Finding("vanished", str(device), claims, sentence)
    if over := overdrawn_counters(slices, frozenset(used)):
        names = ", ".join(f"{counter_set}/{name}" for counter_set, name in over)
        pool, claims = f"{key.driver}/{key.name}", _claims(chain.from_iterable(used.values()))
        yield Finding("overdrawn-counters", pool, claims, f"pool {pool}: {names} overdrawn")


def _claims(entries: Iterable[tuple[Claim, Result]]) -> tuple[ObjectKey, ...]:
    return tuple(sorted({claim.key for claim, _ in entries}))


def _overdrawn(device: Device, entries: Entries) -> list[str]:
    """The capacities of which the shares of a device have more than there is."""
    total = Counter[str]()
    for _, result in entries:
        total.update(result.amounts)
    capacity = device.capacity
    return sorted(name for name, used in total.items() if name in capacity and used > capacity[name].value.nanos)


# -- the task ----------------------------------------------------------------------------------------------------


class Auditor:
    """A background task of the console. `findings` are those that both of the last two rounds saw."""

    def __init__(self, cache: ClusterCache, client: ApiClient, writer: Writer) -> None:
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
