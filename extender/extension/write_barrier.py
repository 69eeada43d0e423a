"""The write barrier: of two claims with the same device, the claim that was written first keeps it.

A bind waits until the watch has shown its own writes. Then the cache has every earlier write, too.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from extender.allocation.nodes import CounterKey, overdrawn_counters
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
        found = _Check(self._cache, claim)
        lost = found.lost()
        unclear = found.unclear() if lost is None else None
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


@dataclass(slots=True)
class _Pool:
    """A pool as its newest slices publish it. A pool of several nodes may have thousands of devices and claims."""

    slices: list[Slice]
    devices: dict[str, Device]
    overdrawn: list[CounterKey] | None = None  # with earlier writes and the claim; None before `_overdrawn`
    earlier: list[Result] | None = None  # the devices that earlier writes allocated to other claims; likewise


class _Check:
    """Compares the devices of one claim with earlier writes. It reads each pool once."""

    def __init__(self, cache: ClusterCache, claim: Claim) -> None:
        self._cache = cache
        self._uid = claim.uid
        self._results = _results(claim)
        # By device: a claim may have 32 shares of one device, of which other claims have thousands.
        self._devices: dict[DeviceId, list[Result]] = {}
        for one in self._results:
            self._devices.setdefault(one.device, []).append(one)
        self._pools: dict[PoolKey, _Pool] = {}

    def lost(self) -> DeviceId | None:
        """The first device that an earlier write has allocated to another claim; None if there is none.

        A device is also lost if earlier writes leave too little of its capacity or of a shared counter.
        """
        return next((id_ for id_, own in self._devices.items() if self._is_lost(id_, own)), None)

    def unclear(self) -> DeviceId | None:
        """The first device for which the slices do not show whether earlier writes leave enough; None if there is none.

        A driver that restarts deletes its slices and publishes them again, one after the other.
        """
        return next((id_ for id_, own in self._devices.items() if self._is_unclear(id_, own)), None)

    def _is_lost(self, id_: DeviceId, own: list[Result]) -> bool:
        pool = self._pool(id_)
        device = pool.devices.get(id_.device)
        earlier = self._earlier_on_device(id_) if not _has_room_for_all(self._cache, id_, own, device) else []
        if earlier and not all(one.share_id for one in (*own, *earlier)):
            return True
        if device is None:
            return False
        if earlier and _overdraws_capacity(device, own, earlier):
            return True
        return bool(device.consumes) and not _drawn(device).isdisjoint(self._overdrawn(id_, pool))

    def _is_unclear(self, id_: DeviceId, own: list[Result]) -> bool:
        """Whether the slices do not show enough to compare the device with earlier writes.

        As in the reference, a device that a complete pool lacks consumes no counter. But its pool may have counters.
        """
        pool = self._pool(id_)
        device = pool.devices.get(id_.device)
        if device is None:
            known = is_complete(pool.slices) and not any(slice_.counter_sets for slice_ in pool.slices)
            known = known and not self._earlier_on_device(id_)
        else:
            known = all(one.amounts.keys() <= device.capacity.keys() for one in own)
            known = known or not self._earlier_on_device(id_)
            if device.consumes:
                known = known and is_complete(pool.slices) and _drawn(device) <= _published(pool)
        return not known and bool(self._earlier_in_pool(id_, pool))

    def _pool(self, id_: DeviceId) -> _Pool:
        key = PoolKey(id_.driver, id_.pool)
        found = self._pools.get(key)
        if found is None:
            slices = newest_slices(self._cache.store.pools.get(key, {}).values())
            devices = {one.name: one for slice_ in reversed(slices) for one in reversed(slice_.devices)}  # first wins
            found = self._pools[key] = _Pool(slices, devices)
        return found

    def _overdrawn(self, id_: DeviceId, pool: _Pool) -> list[CounterKey]:
        """The counters of a pool of which earlier writes and the claim take too much; none without earlier writes."""
        if pool.overdrawn is None:
            earlier, own = self._earlier_in_pool(id_, pool), self._results
            used = frozenset(one.device.device for one in (*earlier, *own) if one.device[:2] == id_[:2])
            pool.overdrawn = overdrawn_counters(pool.slices, used) if earlier else []
        return pool.overdrawn

    def _earlier_on_device(self, id_: DeviceId) -> list[Result]:
        """The shares of a device, or the device, that earlier writes allocated to other claims."""
        holders = self._cache.allocated_devices.holders(id_)
        return [
            other for (kind, holder), other in holders if kind == CLAIM and _is_earlier(self._cache, holder, self._uid)
        ]

    def _earlier_in_pool(self, id_: DeviceId, pool: _Pool) -> list[Result]:
        """The devices of a pool that earlier writes allocated to other claims."""
        if pool.earlier is None:
            claims = self._cache.store.claims_on(PoolKey(id_.driver, id_.pool))
            others = (claim for claim in claims if _is_earlier(self._cache, claim.uid, self._uid))
            found = (other for claim in others for other in _results(claim))
            pool.earlier = [other for other in found if other.device[:2] == id_[:2]]
        return pool.earlier


def _has_room_for_all(cache: ClusterCache, id_: DeviceId, own: list[Result], device: Device | None) -> bool:
    """Whether the device has enough for all its shares, whichever was written first, and once more for these.

    This takes no look at each share.
    """
    use = cache.allocated_devices.pool(PoolKey(id_.driver, id_.pool))
    if device is None or id_.device in use.taken or not all(one.share_id for one in own):
        return False
    used = Counter(use.shares.get(id_.device, {}))
    for one in own:
        used.update(one.amounts)
    return all(used[name] <= capacity.value.nanos for name, capacity in device.capacity.items())


def _overdraws_capacity(device: Device, own: list[Result], earlier: list[Result]) -> bool:
    """Whether the shares together exceed a capacity of the device that the own ones consume."""
    used: Counter[str] = Counter()
    for share in (*own, *earlier):
        used.update(share.amounts)
    asked = {name for share in own for name in share.amounts}
    return any(name in device.capacity and used[name] > device.capacity[name].value.nanos for name in asked)


def _results(claim: Claim) -> list[Result]:
    """The devices of a claim; admin access takes none."""
    return [one for one in claim.allocation.results if not one.admin_access] if claim.allocation is not None else []


def _drawn(device: Device) -> set[CounterKey]:
    """The counters that the device consumes."""
    return {(use.counter_set, name) for use in device.consumes for name, _ in use.counters}


def _published(pool: _Pool) -> set[CounterKey]:
    """The counters that the current slices of a pool have."""
    sets = (one for slice_ in pool.slices for one in slice_.counter_sets)
    return {(one.name, name) for one in sets for name in one.counters}


def _is_earlier(cache: ClusterCache, other: str, uid: str) -> bool:
    """Whether the claim `other` was allocated before the claim `uid`.

    If one of the two times is not known, because only a list showed the write, or if both are equal, each claim counts
    as earlier than the other one: both binds give way.
    """
    written = cache.store.allocated_at
    return other != uid and written.get(other, 0) <= written.get(uid, math.inf)
