"""The write barrier: of two claims with the same device, the claim that was written first keeps it.

A bind waits until the watch has shown its own writes. Then the cache has every earlier write, too, and `require_kept`
checks each claim of the pod: it still is what the bind wrote or read, and no earlier write has one of its devices.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from extender.allocation.nodes import CounterKey, overdrawn_counters
from extender.api.resource_claims import Claim, Consumer, Result
from extender.api.resource_slices import Device, DeviceId, PoolKey, Slice, is_complete, newest_slices
from extender.cache import CLAIM, ClusterCache
from extender.runtime.informers import WatchProgress
from extender.serve.binding_cycle import BindError, DeviceLost

_MAX_SECONDS = 8.0  # how long a bind waits until the watch shows its write


def require_same_allocation(known: Claim, fresh: Claim, consumer: Consumer | None = None) -> Claim:
    """Return `fresh` if it still has the allocation of `known`, and is reserved for `consumer` if one is given.

    Raises BindError otherwise.
    """
    if fresh.allocation is None or (consumer is not None and not fresh.is_reserved_for(consumer.uid)):
        raise BindError(f"claim {known.key} was released in the meantime")
    if fresh.allocation != known.allocation:
        raise BindError(f"claim {known.key} was allocated elsewhere in the meantime")
    return fresh


def require_unchanged(known: Claim, fresh: Claim, identity: str, consumer: Consumer | None = None) -> Claim:
    """As `require_same_allocation`. Raises BindError also if another process than `identity` has become the allocator
    after `known` was stored."""
    require_same_allocation(known, fresh, consumer)
    if fresh.allocator not in (known.allocator, identity):
        raise BindError(f"claim {known.key} was taken over by another process")
    return fresh


class WriteBarrier:
    """Waits until the watch of claims has shown a write, and checks for earlier writes.

    `watched_version` returns the resourceVersion that the watch has reached, bookmarks included. It returns '' during
    a list, which applies its pages one after the other. `identity` is the allocator of this process.
    """

    def __init__(
        self,
        cache: ClusterCache,
        progress: WatchProgress,
        watched_version: Callable[[], str],
        identity: str,
    ) -> None:
        self._cache = cache
        self._progress = progress
        self._watched_version = watched_version
        self._identity = identity
        self.waits = 0  # completed waits, for berth_fence_wait_seconds
        self.seconds = 0.0  # sum of the completed waits
        self.losses = 0  # berth_fence_losses_total: binds that yielded to an earlier write

    async def wait(self, claims: Iterable[Claim]) -> None:
        """Wait until the watch has shown these claims as written, or a later version of them.

        Raises BindError after the timeout.
        """
        started = asyncio.get_running_loop().time()
        for claim in claims:
            if not await self._progress.wait_for(partial(self._is_shown, claim), _MAX_SECONDS):
                raise BindError(f"the watch did not show claim {claim.key} within {_MAX_SECONDS:.0f} s")
        self.waits += 1
        self.seconds += asyncio.get_running_loop().time() - started

    def _is_shown(self, written: Claim) -> bool:
        """Whether the watch has passed this version of the claim. A claim that the cache then lacks is deleted."""
        if not newer(self._watched_version(), written.resource_version):
            return False
        cached = self._cache.store.claims.get(written.key)
        if cached is None or cached.uid != written.uid:
            return True
        return newer(cached.resource_version, written.resource_version)

    def require_kept(self, claim: Claim) -> None:
        """Raise BindError if the cache shows that the claim was deleted, or that another process took it over or
        deallocated it; DeviceLost if an earlier write has allocated a device of it to another claim.

        Raises BindError if the slices do not tell that. It proves nothing, so the undo must not count it as a lost
        device: an earlier check may have let another pod use the allocation. A claim that was allocated before this
        bind is checked too: the process that allocated it may have ended before its own write barrier.
        """
        cached = self._cache.store.claims.get(claim.key)
        if cached is None or cached.uid != claim.uid:
            raise BindError(f"claim {claim.key} was deleted in the meantime")
        require_unchanged(claim, cached, self._identity)
        unclear: DeviceId | None = None
        found = _Check(self._cache, claim)
        for id_, own in found.devices.items():
            ownership = found.ownership(id_, own)
            if ownership is _Ownership.LOST:
                self.losses += 1
                raise DeviceLost(claim, f"device {id_} was allocated to another claim first")
            if ownership is _Ownership.UNCLEAR and unclear is None:
                unclear = id_
        if unclear is not None:
            self.losses += 1
            raise BindError(f"the ResourceSlices do not show whether earlier claims leave enough for device {unclear}")


@dataclass(slots=True)
class _Pool:
    """A pool as its newest slices publish it. A pool of several nodes may have thousands of devices and claims."""

    slices: list[Slice]
    devices: dict[str, Device]
    overdrawn: list[CounterKey] | None = None  # with earlier writes and the claim; None before `_overdrawn`
    earlier: list[Result] | None = None  # the devices that earlier writes allocated to other claims; likewise


class _Ownership(Enum):
    """Whether a claim keeps a device."""

    KEPT = auto()
    LOST = auto()  # to an earlier write
    # The slices do not show whether earlier writes leave enough. A driver that restarts deletes its slices and
    # publishes them again, one after the other.
    UNCLEAR = auto()


class _Check:
    """Compares the devices of one claim with earlier writes. It reads each pool once."""

    def __init__(self, cache: ClusterCache, claim: Claim) -> None:
        self._cache = cache
        self._uid = claim.uid
        self._results = _results(claim)
        # By device: a claim may have 32 shares of one device, of which other claims have thousands.
        self.devices: dict[DeviceId, list[Result]] = {}
        for one in self._results:
            self.devices.setdefault(one.device, []).append(one)
        self._pools: dict[PoolKey, _Pool] = {}

    def ownership(self, id_: DeviceId, own: list[Result]) -> _Ownership:
        """Whether the claim keeps a device, of which the claim has the shares `own`.

        A device is also lost if earlier writes leave too little of its capacity or of a shared counter. As in the
        reference, a device that a complete pool lacks consumes no counter. But its pool may have counters.
        """
        pool = self._pool(id_)
        device = pool.devices.get(id_.device)
        has_room = device is not None and bool(own[0].share_id) and _has_room_for_all(self._cache, id_, own, device)
        earlier = [] if has_room else self._earlier_on_device(id_)
        if earlier and not all(one.share_id for one in (*own, *earlier)):
            return _Ownership.LOST
        if device is None:
            known = not earlier and is_complete(pool.slices) and not any(one.counter_sets for one in pool.slices)
        else:
            if earlier and _overdraws_capacity(device, own, earlier):
                return _Ownership.LOST
            if device.consumes and not _drawn(device).isdisjoint(self._overdrawn(id_, pool)):
                return _Ownership.LOST
            known = (
                not (earlier or has_room)
                or all(one.amounts.keys() <= device.capacity.keys() for one in own)
                or not self._earlier_on_device(id_)
            )
            if device.consumes:
                known = known and is_complete(pool.slices) and _drawn(device) <= _published(pool)
        return _Ownership.UNCLEAR if not known and self._earlier_in_pool(id_, pool) else _Ownership.KEPT

    def _pool(self, id_: DeviceId) -> _Pool:
        key = PoolKey(id_.driver, id_.pool)
        found = self._pools.get(key)
        if found is None:
            slices = newest_slices(self._cache.slices.pools.by_pool.get(key, {}).values())
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
        others = ((holder, other) for (kind, holder), other in holders if kind == CLAIM and holder != self._uid)
        return [other for holder, other in others if _is_earlier(self._cache, holder, self._uid)]

    def _earlier_in_pool(self, id_: DeviceId, pool: _Pool) -> list[Result]:
        """The devices of a pool that earlier writes allocated to other claims."""
        if pool.earlier is None:
            claims = self._cache.store.claims_on(PoolKey(id_.driver, id_.pool))
            others = (one for one in claims if one.uid != self._uid and _is_earlier(self._cache, one.uid, self._uid))
            found = (other for claim in others for other in _results(claim))
            pool.earlier = [other for other in found if other.device[:2] == id_[:2]]
        return pool.earlier


def newer(seen: str, written: str) -> bool:
    """Whether resourceVersion `seen` is `written` or later. With etcd 3, both are integers as text, of any length."""
    if all(version.isascii() and version.isdigit() for version in (seen, written)):
        seen, written = seen.lstrip("0"), written.lstrip("0")
        return (len(seen), seen) >= (len(written), written)
    return seen == written


def _has_room_for_all(cache: ClusterCache, id_: DeviceId, own: list[Result], device: Device) -> bool:
    """Whether the device has enough for all its shares, whichever was written first, and once more for these.

    This reads no single share of another claim.
    """
    use = cache.allocated_devices.pool(PoolKey(id_.driver, id_.pool))
    if id_.device in use.taken or not all(one.share_id for one in own):
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
    """Whether another claim, `other`, was allocated before the claim `uid`.

    If one of the two times is not known, because only a list showed the write, or if both are equal, each claim counts
    as earlier than the other one: both binds yield.
    """
    written = cache.store.allocated_at
    return written.get(other, 0) <= written.get(uid, math.inf)
