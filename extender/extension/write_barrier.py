"""The write barrier: of two claims with the same device, the claim that was written first keeps it.

A bind waits until the watch has shown its own writes. Then the cache has every earlier write, too.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from extender.allocation import CounterKey, counter_limits, overdrawn_counters
from extender.cache import CLAIM, ClusterCache
from extender.extension.binding_cycle import BindError, DeviceLost, newer
from extender.model import Claim, Device, DeviceId, PoolKey, Result, Slice, is_complete, newest_slices
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
    ) -> None:
        self._cache = cache
        self._progress = progress
        self._watched_version = watched_version
        self.waits = 0  # completed waits
        self.seconds = 0.0  # sum of the completed waits
        self.losses = 0  # binds that gave way to an earlier write

    async def wait_until_visible(self, written: Iterable[Claim]) -> None:
        """Wait until the watch has shown these claims as written, or a later version of them.

        Raises BindError after the timeout, or if a claim was deleted.
        """
        started = asyncio.get_running_loop().time()
        for claim in written:
            if not await self._progress.wait_for(partial(self._shown, claim), _SECONDS):
                raise BindError(f"the watch did not show claim {claim.key} within {_SECONDS:.0f} s")
            if self._deleted(claim):
                raise BindError(f"claim {claim.key} was deleted in the meantime")
        self.waits += 1
        self.seconds += asyncio.get_running_loop().time() - started

    def check(self, claim: Claim) -> None:
        """Raise DeviceLost if an earlier write has allocated a device of the claim to another claim.

        Raises BindError if the slices do not tell. That proves nothing, so the undo must not count it as a lost device:
        an earlier check may have let another pod use the allocation.
        """
        lost = lost_device(self._cache, claim)
        unclear = unclear_device(self._cache, claim) if lost is None else None
        if lost is not None:
            self.losses += 1
            raise DeviceLost(claim, f"device {lost} was allocated to another claim first")
        if unclear is not None:
            self.losses += 1
            raise BindError(f"the ResourceSlices do not show whether earlier claims leave enough for device {unclear}")

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
    results = _results(claim)
    return next(
        (id_ for id_, own in _by_device(results).items() if _is_lost(cache, claim.uid, results, id_, own)), None
    )


def unclear_device(cache: ClusterCache, claim: Claim) -> DeviceId | None:
    """The first device for which the slices do not show whether earlier writes leave enough; None if there is none.

    A driver that restarts deletes its slices and publishes them again, one after the other.
    """
    devices = _by_device(_results(claim))
    return next((id_ for id_, own in devices.items() if _is_unclear(cache, claim.uid, id_, own)), None)


def _by_device(results: list[Result]) -> dict[DeviceId, list[Result]]:
    """The results by device: a claim may have 32 shares of one device, of which other claims have thousands."""
    found: dict[DeviceId, list[Result]] = {}
    for one in results:
        found.setdefault(one.device, []).append(one)
    return found


def _is_lost(cache: ClusterCache, uid: str, results: list[Result], id_: DeviceId, own: list[Result]) -> bool:
    slices, device = _published(cache, id_)
    earlier = _earlier_on_device(cache, uid, id_) if not _has_room_for_all(cache, id_, own, device) else []
    if earlier and not all(one.share_id for one in (*own, *earlier)):
        return True
    if device is None:
        return False
    if earlier and _overdraws_capacity(device, own, earlier):
        return True
    others = _earlier_in_pool(cache, uid, id_) if device.consumes else []
    pool = id_[:2]
    used = frozenset(one.device.device for one in (*others, *results) if one.device[:2] == pool)
    return bool(others) and not _drawn(device).isdisjoint(overdrawn_counters(slices, used))


def _has_room_for_all(cache: ClusterCache, id_: DeviceId, own: list[Result], device: Device | None) -> bool:
    """Whether the device has enough for all its shares, whichever was written first, and once more for these.

    This takes no look at each share.
    """
    use = cache.allocated_devices.pool(PoolKey(id_.driver, id_.pool))
    if device is None or id_.device in use.taken or not all(one.share_id for one in own):
        return False
    used = Counter(use.shares.get(id_.device, {}))
    for one in own:
        used.update({name: amount.nanos for name, amount in (one.consumed or {}).items()})
    return all(used[name] <= capacity.value.nanos for name, capacity in device.capacity.items())


def _is_unclear(cache: ClusterCache, uid: str, id_: DeviceId, own: list[Result]) -> bool:
    """Whether the slices do not show enough to compare the device with earlier writes.

    As in the reference, a device that a complete pool lacks consumes no counter. But its pool may have counters.
    """
    slices, device = _published(cache, id_)
    if device is None:
        known = is_complete(slices) and not any(slice_.counter_sets for slice_ in slices)
        known = known and not _earlier_on_device(cache, uid, id_)
    else:
        known = all((one.consumed or {}).keys() <= device.capacity.keys() for one in own)
        known = known or not _earlier_on_device(cache, uid, id_)
        if device.consumes:
            known = known and is_complete(slices) and _drawn(device) <= counter_limits(slices).keys()
    return not known and bool(_earlier_in_pool(cache, uid, id_))


def _overdraws_capacity(device: Device, own: list[Result], earlier: list[Result]) -> bool:
    """Whether the shares together exceed a capacity of the device that the own ones consume."""
    used: Counter[str] = Counter()
    for share in (*own, *earlier):
        used.update({name: amount.nanos for name, amount in (share.consumed or {}).items()})
    asked = {name for share in own for name in share.consumed or {}}
    return any(name in device.capacity and used[name] > device.capacity[name].value.nanos for name in asked)


def _results(claim: Claim) -> list[Result]:
    """The devices of a claim; admin access takes none."""
    return [one for one in claim.allocation.results if not one.admin_access] if claim.allocation is not None else []


def _published(cache: ClusterCache, id_: DeviceId) -> tuple[list[Slice], Device | None]:
    """The newest slices of the device's pool, and the device as they publish it."""
    slices = newest_slices(cache.store.pools.get(PoolKey(id_.driver, id_.pool), {}).values())
    return slices, next((device for s in slices for device in s.devices if device.name == id_.device), None)


def _drawn(device: Device) -> set[CounterKey]:
    """The counters that the device consumes."""
    return {(use.counter_set, name) for use in device.consumes for name, _ in use.counters}


def _earlier_on_device(cache: ClusterCache, uid: str, id_: DeviceId) -> list[Result]:
    """The shares of a device, or the device, that earlier writes allocated to other claims."""
    holders = cache.allocated_devices.holders(id_)
    return [other for (kind, holder), other in holders if kind == CLAIM and _is_earlier(cache, holder, uid)]


def _earlier_in_pool(cache: ClusterCache, uid: str, id_: DeviceId) -> list[Result]:
    """The devices of the device's pool that earlier writes allocated to other claims."""
    claims = cache.store.claims_on(PoolKey(id_.driver, id_.pool))
    found = (other for claim in claims if _is_earlier(cache, claim.uid, uid) for other in _results(claim))
    return [other for other in found if other.device[:2] == id_[:2]]


def _is_earlier(cache: ClusterCache, other: str, uid: str) -> bool:
    """Whether the claim `other` was allocated before the claim `uid`.

    If one of the two times is not known, because only a list showed the write, or if both are equal, each claim counts
    as earlier than the other one: both binds give way.
    """
    written = cache.store.allocated_at
    return other != uid and written.get(other, 0) <= written.get(uid, math.inf)
