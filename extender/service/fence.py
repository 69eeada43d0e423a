"""Who was first: after a write has come back through the watch, an earlier claim on the same device wins."""

from __future__ import annotations

import math
from dataclasses import dataclass

from extender.mirror.mirror import Mirror
from extender.mirror.usage import CLAIM
from extender.model.claim import Claim, Result
from extender.model.device import DeviceId, PoolKey


@dataclass(slots=True)
class FenceCount:
    """How binds fared at the fence."""

    waits: int = 0
    seconds: float = 0.0  # waited in all
    losses: int = 0  # binds that gave way to an earlier write


def lost_device(mirror: Mirror, claim: Claim) -> DeviceId | None:
    """The first device of the claim that an earlier write holds, or None."""
    results = claim.allocation.results if claim.allocation is not None else ()
    for result in results:
        if not result.admin_access and _lost(mirror, claim.uid, result):
            return result.device
    return None


def _lost(mirror: Mirror, uid: str, result: Result) -> bool:
    written = mirror.store.allocated_at
    # What only a list showed was written at a time that nobody knows: such a claim gives way to all, and all to it.
    mine = written.get(uid, math.inf)
    earlier = [
        other
        for (kind, holder), other in mirror.usage.holders(result.device)
        if kind == CLAIM and holder != uid and written.get(holder, 0) < mine
    ]
    if not earlier:
        return False
    if not result.share_id or any(not other.share_id for other in earlier):
        return True
    return _overdrawn(mirror, result, earlier)


def _overdrawn(mirror: Mirror, result: Result, earlier: list[Result]) -> bool:
    """Whether earlier shares and this one are more than the device has."""
    driver, pool, name = result.device
    slices = mirror.store.pools.get(PoolKey(driver, pool), {})
    device = next((d for s in slices.values() for d in s.devices if d.name == name), None)
    if device is None:
        return False
    for capacity, amount in (result.consumed or {}).items():
        used = sum((other.consumed or {})[capacity].nanos for other in earlier if capacity in (other.consumed or {}))
        if capacity in device.capacity and used + amount.nanos > device.capacity[capacity].value.nanos:
            return True
    return False
