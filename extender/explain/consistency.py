"""The consistency check of the auditor: it compares claims with each other and with the ResourceSlices.

It reads only API objects, not reservations. It reports findings and repairs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from extender.allocation.nodes import overdrawn_counters
from extender.api.object_meta import ObjectKey
from extender.api.resource_claims import Claim, Result
from extender.api.resource_slices import Device, DeviceId, PoolKey, Slice, newest_slices
from extender.cache import ClusterCache

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
    store = cache.store
    pools: dict[PoolKey, dict[str, list[tuple[Claim, Result]]]] = {}
    found = _nodes(cache)
    for claim in store.claims.values():
        if claim.allocation is None:
            continue
        if not claim.reserved_for:
            sentence = f"claim {claim.key} has devices, but no pod reserves it"
            found.append(Finding("unreserved", str(claim.key), (claim.key,), sentence))
        for result in claim.allocation.results:
            if not result.admin_access:
                device = result.device
                used = pools.setdefault(PoolKey(device.driver, device.pool), {})
                used.setdefault(device.device, []).append((claim, result))
    for key, devices in pools.items():
        found += _pool(key, devices, newest_slices(cache.slices.pools.by_pool.get(key, {}).values()))
    return sorted(found)


def _nodes(cache: ClusterCache) -> list[Finding]:
    found = [
        Finding("agent", node, (), f"node {node}: {problem}")
        for node, problems in cache.agent_problems.items()
        for problem in problems
    ]
    found += [
        Finding("unbuilt", node, (), f"node {node}: the NodeInfo cannot be built: {problem}")
        for node, problem in cache.failed_nodes.items()
    ]
    return found


def _pool(key: PoolKey, used: dict[str, list[tuple[Claim, Result]]], slices: list[Slice]) -> Iterator[Finding]:
    published = {device.name: device for slice_ in slices for device in slice_.devices}
    for name, entries in used.items():
        device = DeviceId(key.driver, key.name, name)
        claims = tuple(sorted({claim.key for claim, _ in entries}))
        if len(entries) > 1 and any(not result.share_id for _, result in entries):
            yield Finding(
                "double", str(device), claims, f"device {device} is allocated to {', '.join(map(str, claims))}"
            )
        if name in published:
            yield from _capacity(device, published[name], entries, claims)
        elif published or not slices:
            yield Finding(
                "vanished", str(device), claims, f"device {device} of claim {claims[0]} is no longer published"
            )
    yield from _counters(key, used, slices)


def _capacity(
    device: DeviceId, published: Device, entries: list[tuple[Claim, Result]], claims: tuple[ObjectKey, ...]
) -> Iterator[Finding]:
    total: dict[str, int] = {}
    for _, result in entries:
        for name, amount in result.amounts.items():
            total[name] = total.get(name, 0) + amount
    for name, used in sorted(total.items()):
        capacity = published.capacity.get(name)
        if capacity is not None and used > capacity.value.nanos:
            yield Finding(
                "overdrawn-capacity", str(device), claims, f"shares of {name} on device {device} exceed its capacity"
            )


def _counters(key: PoolKey, used: dict[str, list[tuple[Claim, Result]]], slices: list[Slice]) -> Iterator[Finding]:
    over = overdrawn_counters(slices, frozenset(used))
    if over:
        claims = tuple(sorted({claim.key for entries in used.values() for claim, _ in entries}))
        names = ", ".join(f"{counter_set}/{name}" for counter_set, name in over)
        yield Finding(
            "overdrawn-counters", f"{key.driver}/{key.name}", claims, f"pool {key.driver}/{key.name}: {names} overdrawn"
        )
