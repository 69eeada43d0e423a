"""Allocated devices by holder. A holder is a claim in the API server, a bind that writes a claim, or a hold of filter.

Every holder has its own key. `drop` undoes `put` completely, in any order of events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from extender.allocation.nodes import SHARES, UNUSED, PoolUse
from extender.api.resource_claims import Result
from extender.api.resource_slices import DeviceId, PoolKey

Holder = tuple[str, str]  # ("claim" | "bind" | "hold", claim UID)
CLAIM, BIND, HOLD = "claim", "bind", "hold"
_NO_NAMES = frozenset[str]()
_NOTHING: Mapping[str, tuple[int, int]] = {}


class AllocatedDevices:
    """Results by holder, indexed by pool and device.

    Devices of a claim count once: when the watch shows the allocation, the caller drops the bind's entry.
    """

    def __init__(self, changed: Callable[[Holder, tuple[Result, ...]], None] = lambda *_: None) -> None:
        """`changed` is called with a holder and its new results."""
        self._changed = changed
        self._by_holder: dict[Holder, tuple[Result, ...]] = {}
        self._by_pool: dict[PoolKey, _Pool] = {}

    def put(self, holder: Holder, results: Iterable[Result]) -> set[PoolKey]:
        """Replace the results of a holder; admin access does not count. Returns the pools whose use changed."""
        counted = tuple(result for result in results if not result.admin_access)
        before = self._by_holder.get(holder, ())
        if counted == before:
            return set()
        self._changed(holder, counted)
        touched = self._remove(holder, before) if before else set[PoolKey]()
        if counted:
            self._by_holder[holder] = counted
        for position, result in enumerate(counted):
            key = PoolKey(result.device.driver, result.device.pool)
            pool = self._by_pool.get(key)
            if pool is None:
                pool = self._by_pool[key] = _Pool()
            pool.add(holder, position, result)
            touched.add(key)
        return touched

    def drop(self, holder: Holder) -> set[PoolKey]:
        """Remove a holder. Returns the pools whose use changed."""
        return self.put(holder, ())

    def _remove(self, holder: Holder, results: tuple[Result, ...]) -> set[PoolKey]:
        self._by_holder.pop(holder, None)
        touched: set[PoolKey] = set()
        for position, result in enumerate(results):
            key = PoolKey(result.device.driver, result.device.pool)
            pool = self._by_pool[key]
            pool.remove(holder, position, result)
            if not pool.devices:
                del self._by_pool[key]
            touched.add(key)
        return touched

    def results(self, holder: Holder) -> tuple[Result, ...]:
        """The results of a holder."""
        return self._by_holder.get(holder, ())

    def pool(self, key: PoolKey) -> PoolUse:
        """The devices of a pool that are in use, exclusively or in shares."""
        pool = self._by_pool.get(key)
        return pool.use() if pool is not None else UNUSED

    def only_held(self, key: PoolKey) -> frozenset[str]:
        """Names of the devices of a pool that only holds keep in use."""
        pool = self._by_pool.get(key)
        return pool.only_held() if pool is not None else _NO_NAMES

    def holders(self, device: DeviceId) -> list[tuple[Holder, Result]]:
        """All holders of a device, with their results."""
        pool = self._by_pool.get(PoolKey(device.driver, device.pool))
        entries = pool.devices.get(device.device) if pool is not None else None
        return [(holder, result) for (holder, _), result in entries.entries.items()] if entries is not None else []

    def claims(self, key: PoolKey) -> set[str]:
        """UIDs of the claims that have devices of a pool."""
        pool = self._by_pool.get(key)
        devices = pool.devices.values() if pool is not None else ()
        return {uid for device in devices for (kind, uid), _ in device.entries if kind == CLAIM}


class _Pool:
    """The use of one pool. What an event costs grows with the devices in use, not with the shares of each."""

    __slots__ = ("_holds", "_only_held", "_shares", "_use", "devices")

    def __init__(self) -> None:
        self.devices: dict[str, _Device] = {}
        self._holds = 0  # entries of holders of kind HOLD
        self._shares: dict[str, Mapping[str, int]] = {}
        # Computed on demand, because thousands of nodes read the use of a pool that they share.
        self._use: PoolUse | None = None
        self._only_held: frozenset[str] | None = None

    def add(self, holder: Holder, position: int, result: Result) -> None:
        name = result.device.device
        device = self.devices.get(name)
        if device is None:
            device = self.devices[name] = _Device()
        device.entries[holder, position] = result
        self._count(holder, device, result, 1)

    def remove(self, holder: Holder, position: int, result: Result) -> None:
        name = result.device.device
        device = self.devices[name]
        del device.entries[holder, position]
        if not device.entries:
            del self.devices[name]
        self._count(holder, device, result, -1)

    def _count(self, holder: Holder, device: _Device, result: Result, amount: int) -> None:
        self._use = self._only_held = None
        if holder[0] == HOLD:
            self._holds += amount
            device.holds += amount
        if not result.share_id:
            return
        device.count_share(result.amounts, amount)
        if device.shares:
            total = device.consumed.items()
            amounts = {capacity: nanos for capacity, (nanos, _) in total}
            self._shares[result.device.device] = {**amounts, SHARES: device.shares}
        else:
            del self._shares[result.device.device]

    def use(self) -> PoolUse:
        if self._use is None:
            taken = (name for name, device in self.devices.items() if device.shares < len(device.entries))
            self._use = PoolUse(frozenset(taken), dict(self._shares))
        return self._use

    def only_held(self) -> frozenset[str]:
        if not self._holds:
            return _NO_NAMES
        if self._only_held is None:
            held = (name for name, device in self.devices.items() if device.holds == len(device.entries))
            self._only_held = frozenset(held)
        return self._only_held


class _Device:
    """The results that have one device."""

    __slots__ = ("consumed", "entries", "holds", "shares")

    def __init__(self) -> None:
        self.entries: dict[tuple[Holder, int], Result] = {}
        self.holds = 0  # entries of holders of kind HOLD
        self.shares = 0  # entries with a share of the device
        # Capacity name to (nanos, number of shares that have it).
        self.consumed: Mapping[str, tuple[int, int]] = _NOTHING

    def count_share(self, consumed: Mapping[str, int], amount: int) -> None:
        """Count a share that was added (`amount` 1) or removed (-1)."""
        self.shares += amount
        total = dict(self.consumed)
        for capacity, taken in consumed.items():
            nanos, shares = total.get(capacity, (0, 0))
            total[capacity] = nanos + amount * taken, shares + amount
            if not shares + amount:
                del total[capacity]
        self.consumed = total
