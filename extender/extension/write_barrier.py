"""The write barrier: of two claims with the same device, the claim that was written first keeps it.

A bind waits until the watch has shown its own writes. Then the cache has every earlier write, too.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from functools import partial

from extender.allocation import overdrawn_counters
from extender.cache import CLAIM, ClusterCache
from extender.extension.binding_cycle import BindError, DeviceLost, newer
from extender.model import Claim, DeviceId, PoolKey, Result, newest_slices
from extender.runtime import WatchProgress

_SECONDS = 8.0  # how long a bind waits until the watch shows its write


class WriteBarrier:
    """Waits until the watch of claims has shown a write, and checks for earlier writes.

    `watched_version` returns the resourceVersion that the watch has reached, bookmarks included. It returns '' during
    a list, which applies its pages one after the other.
    """

    def __init__(
        self,
        cache: ClusterCache,
        progress: WatchProgress,
        watched_version: Callable[[], str],
        timeout_seconds: float = _SECONDS,
    ) -> None:
        self._cache = cache
        self._progress = progress
        self._watched_version = watched_version
        self._timeout_seconds = timeout_seconds
        self.waits = 0  # completed waits
        self.seconds = 0.0  # sum of the completed waits
        self.losses = 0  # binds that gave way to an earlier write

    async def wait_until_visible(self, written: Iterable[Claim]) -> None:
        """Wait until the watch has shown these claims as written, or a later version of them.

        Raises BindError after the timeout, or if a claim was deleted.
        """
        started = asyncio.get_running_loop().time()
        for claim in written:
            if not await self._progress.wait_for(partial(self._shown, claim), self._timeout_seconds):
                raise BindError(f"the watch did not show claim {claim.key} within {self._timeout_seconds:.0f} s")
            if self._deleted(claim):
                raise BindError(f"claim {claim.key} was deleted in the meantime")
        self.waits += 1
        self.seconds += asyncio.get_running_loop().time() - started

    def check(self, claim: Claim) -> None:
        """Raise DeviceLost if an earlier write has allocated a device of the claim to another claim."""
        lost = lost_device(self._cache, claim)
        if lost is not None:
            self.losses += 1
            raise DeviceLost(claim, f"device {lost} was allocated to another claim first")

    def _shown(self, written: Claim) -> bool:
        if not newer(self._watched_version(), written.resource_version):
            return False
        cached = self._cache.store.claims.get(written.key)
        return self._deleted(written) or (
            cached is not None and newer(cached.resource_version, written.resource_version)
        )

    def _deleted(self, written: Claim) -> bool:
        """Whether the cache has no such claim: it is deleted if the watch has passed the written version."""
        cached = self._cache.store.claims.get(written.key)
        return cached is None or cached.uid != written.uid


def lost_device(cache: ClusterCache, claim: Claim) -> DeviceId | None:
    """The first device of the claim that an earlier write has allocated to another claim; None if there is none.

    A device is also lost if earlier writes leave too little of its capacity or of a shared counter.
    """
    results = claim.allocation.results if claim.allocation is not None else ()
    for result in results:
        if result.admin_access:
            continue
        if _lost(cache, claim.uid, result) or _lost_counters(cache, claim.uid, results, result):
            return result.device
    return None


def _lost_counters(cache: ClusterCache, uid: str, results: tuple[Result, ...], result: Result) -> bool:
    """Whether earlier writes leave too little of a shared counter that this device consumes."""
    pool = PoolKey(result.device.driver, result.device.pool)
    slices = newest_slices(cache.store.pools.get(pool, {}).values())
    device = next((device for s in slices for device in s.devices if device.name == result.device.device), None)
    if device is None or not device.consumes:
        return False
    written = cache.store.allocated_at
    mine = written.get(uid, math.inf)
    earlier = [
        other
        for claim in cache.store.claims_on(pool)
        if claim.uid != uid and written.get(claim.uid, 0) < mine and claim.allocation is not None
        for other in claim.allocation.results
    ]
    used = frozenset(
        one.device.device for one in (*earlier, *results) if PoolKey(*one.device[:2]) == pool and not one.admin_access
    )
    drawn = {(use.counter_set, name) for use in device.consumes for name, _ in use.counters}
    return bool(earlier) and not drawn.isdisjoint(overdrawn_counters(slices, used))


def _lost(cache: ClusterCache, uid: str, result: Result) -> bool:
    written = cache.store.allocated_at
    # The time of a write that only a list showed is unknown. Such a claim loses against any other, and any against it.
    mine = written.get(uid, math.inf)
    earlier = [
        other
        for (kind, holder), other in cache.allocated_devices.holders(result.device)
        if kind == CLAIM and holder != uid and written.get(holder, 0) < mine
    ]
    if not earlier:
        return False
    if not result.share_id or any(not other.share_id for other in earlier):
        return True
    return _overdrawn(cache, result, earlier)


def _overdrawn(cache: ClusterCache, result: Result, earlier: list[Result]) -> bool:
    """Whether the earlier shares and this one together exceed a capacity of the device."""
    driver, pool, name = result.device
    slices = cache.store.pools.get(PoolKey(driver, pool), {})
    device = next((d for s in slices.values() for d in s.devices if d.name == name), None)
    if device is None:
        return False
    for capacity, amount in (result.consumed or {}).items():
        used = sum((other.consumed or {})[capacity].nanos for other in earlier if capacity in (other.consumed or {}))
        if capacity in device.capacity and used + amount.nanos > device.capacity[capacity].value.nanos:
            return True
    return False
