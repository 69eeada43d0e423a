"""Allocated devices by holder. A holder is a claim in the API server, a bind that writes a claim, or a hold of filter.

Every holder has its own key. `drop` undoes `put` completely, in any order of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from extender.allocation import UNUSED, PoolUse
from extender.model import DeviceId, PoolKey, Result

Holder = tuple[str, str]  # ("claim" | "bind" | "hold", claim UID)
CLAIM, BIND, HOLD = "claim", "bind", "hold"


class AllocatedDevices:
    """Results by holder, indexed by pool and device.

    Devices of a claim count once: when the watch shows the allocation, the caller drops the bind's entry.
    """

    def __init__(self) -> None:
        self._by_holder: dict[Holder, tuple[Result, ...]] = {}
        self._by_pool: dict[PoolKey, dict[str, dict[tuple[Holder, int], Result]]] = {}
        self._holds = 0  # holders of kind HOLD
        # Computed on demand, because thousands of nodes read the use of a pool that they share.
        self._uses: dict[PoolKey, PoolUse] = {}
        self._only_held: dict[PoolKey, frozenset[str]] = {}

    def put(self, holder: Holder, results: Iterable[Result]) -> set[PoolKey]:
        """Replace the results of a holder; admin access does not count. Returns the pools whose use changed."""
        counted = tuple(result for result in results if not result.admin_access)
        before = self._by_holder.get(holder, ())
        if counted == before:
            return set()
        self._holds += (bool(counted) - bool(before)) * (holder[0] == HOLD)
        touched = self._remove(holder, before)
        if counted:
            self._by_holder[holder] = counted
        for position, result in enumerate(counted):
            key = PoolKey(result.device.driver, result.device.pool)
            devices = self._by_pool.setdefault(key, {})
            devices.setdefault(result.device.device, {})[holder, position] = result
            touched.add(key)
        for key in touched:
            self._uses.pop(key, None)
            self._only_held.pop(key, None)
        return touched

    def drop(self, holder: Holder) -> set[PoolKey]:
        """Remove a holder. Returns the pools whose use changed."""
        return self.put(holder, ())

    def _remove(self, holder: Holder, results: tuple[Result, ...]) -> set[PoolKey]:
        self._by_holder.pop(holder, None)
        touched: set[PoolKey] = set()
        for position, result in enumerate(results):
            key = PoolKey(result.device.driver, result.device.pool)
            devices = self._by_pool[key]
            entries = devices[result.device.device]
            del entries[holder, position]
            if not entries:
                del devices[result.device.device]
            if not devices:
                del self._by_pool[key]
            touched.add(key)
        return touched

    def results(self, holder: Holder) -> tuple[Result, ...]:
        """The results of a holder."""
        return self._by_holder.get(holder, ())

    def pool(self, key: PoolKey) -> PoolUse:
        """The devices of a pool that are in use, exclusively or in shares."""
        known = self._uses.get(key)
        if known is not None:
            return known
        devices = self._by_pool.get(key)
        if not devices:
            return UNUSED
        taken: set[str] = set()
        shares: dict[str, Mapping[str, int]] = {}
        for device, entries in devices.items():
            shared = [result for result in entries.values() if result.share_id]
            if len(shared) < len(entries):
                taken.add(device)
            if shared:
                shares[device] = _sum(shared)
        found = self._uses[key] = PoolUse(frozenset(taken), shares)
        return found

    def only_held(self, key: PoolKey) -> frozenset[str]:
        """Names of the devices of a pool that only holds keep in use."""
        devices = self._by_pool.get(key) if self._holds else None
        if not devices:
            return frozenset()
        known = self._only_held.get(key)
        if known is None:
            known = self._only_held[key] = frozenset(
                device for device, entries in devices.items() if all(holder[0] == HOLD for holder, _ in entries)
            )
        return known

    def holders(self, device: DeviceId) -> list[tuple[Holder, Result]]:
        """All holders of a device, with their results."""
        entries = self._by_pool.get(PoolKey(device.driver, device.pool), {}).get(device.device, {})
        return [(holder, result) for (holder, _), result in entries.items()]

    def claims(self, key: PoolKey) -> set[str]:
        """UIDs of the claims that have devices of a pool."""
        return {uid for entries in self._by_pool.get(key, {}).values() for (kind, uid), _ in entries if kind == CLAIM}

    def pools(self) -> set[PoolKey]:
        return set(self._by_pool)


def _sum(results: list[Result]) -> dict[str, int]:
    """Consumed nano-units by capacity name."""
    total: dict[str, int] = {}
    for result in results:
        for name, amount in (result.consumed or {}).items():
            total[name] = total.get(name, 0) + amount.nanos
    return total
