"""Shared counters of partitionable devices (KEP-4815): the amounts that are left in each pool.

Counter sets belong to a driver and a pool: two drivers may use the same pool name. Amounts are in nanos. In a set with
compatibility groups (KEP-5963), devices are allocated together only if all have one group in common, or none has any.
"""

from __future__ import annotations

from collections import defaultdict

from extender.allocation.inventory import Inventory
from extender.allocation.pools import Pool, PoolDevice
from extender.allocation.problem import AllocatedState, CounterKey
from extender.model import CounterUse


class ShortOfCounters(Exception):
    """The shared counters cannot serve any combination of devices."""


def memberships(use: CounterUse) -> list[CounterKey]:
    """What counts the devices in use of a set with groups: first all of them, then those with each group of this one.

    The names are no counters of the API, whose names are DNS labels. `/` counts the devices without groups.
    """
    groups = dict.fromkeys(use.compatibility_groups) or ("",)
    return [(use.counter_set, "#"), *((use.counter_set, f"/{group}") for group in groups)]


class Counters:
    """The amounts that are left of each counter. A pool is evaluated at its first use."""

    def __init__(self, inventory: Inventory, allocated_state: AllocatedState) -> None:
        self._inventory = inventory
        self._allocated_state = allocated_state
        self._left: dict[int, dict[CounterKey, int]] = {}
        self._overdrawn: dict[int, str] = {}  # pool to a counter whose consumption exceeds its amount
        self._members: dict[int, dict[CounterKey, int]] = {}  # see memberships

    def take(self, bit: int) -> tuple[str, str] | None:
        """Consume the counters of a device. Returns None, or the cause that forbids it (a key of CAUSES) with the name
        of the counter of which too little is left, or of the counter set.

        A failure changes nothing. As in the reference, one overdrawn counter blocks all devices of the pool that
        consume counters.
        """
        pool_device = self._inventory.devices[bit]
        left = self._pool(pool_device.pool)
        if pool_device.pool in self._overdrawn:
            return "counters", self._overdrawn[pool_device.pool]
        clash = self._clash(pool_device)
        if clash:
            return "compatibility-groups", clash
        charged: list[tuple[CounterKey, int]] = []
        for use in pool_device.device.consumes:
            for name, amount in use.counters:
                key = (use.counter_set, name)
                left[key] -= amount
                charged.append((key, amount))
        short = next((key for key, _ in charged if left[key] < 0), None)
        if short is None:
            self._count(pool_device, 1)
            return None
        for key, amount in charged:
            left[key] += amount
        return "counters", "/".join(short)

    def give_back(self, bit: int) -> None:
        """Undo a successful `take`."""
        pool_device = self._inventory.devices[bit]
        left = self._left[pool_device.pool]
        for use in pool_device.device.consumes:
            for name, amount in use.counters:
                left[use.counter_set, name] += amount
        self._count(pool_device, -1)

    def _clash(self, pool_device: PoolDevice) -> str:
        """A counter set whose devices in use have no group in common with this one; '' without one."""
        for use in self._with_groups(pool_device):
            everyone, *groups = map(self._members[pool_device.pool].__getitem__, memberships(use))
            if everyone and everyone not in groups:
                return use.counter_set
        return ""

    def _count(self, pool_device: PoolDevice, number: int) -> None:
        for use in self._with_groups(pool_device):
            for key in memberships(use):
                self._members[pool_device.pool][key] += number

    def _with_groups(self, pool_device: PoolDevice) -> list[CounterUse]:
        """The consumptions of a device in counter sets with compatibility groups."""
        pool = self._inventory.pools[pool_device.pool]
        if pool.grouped and pool_device.pool not in self._members:
            self._members[pool_device.pool] = defaultdict(int, self._allocated_state.counters(pool))
        return [use for use in pool_device.device.consumes if use.counter_set in pool.grouped] if pool.grouped else []

    def fits(self, bit: int) -> bool:
        """Whether `take` would succeed."""
        cause = self.take(bit)
        if cause is None:
            self.give_back(bit)
        return cause is None

    def left(self, pool: int, key: CounterKey) -> int:
        """The amount of one counter that is left, in nanos."""
        return self._pool(pool)[key]

    def _pool(self, position: int) -> dict[CounterKey, int]:
        left = self._left.get(position)
        if left is None:
            left = self._left[position] = left_of(self._inventory.pools[position], self._allocated_state)
            # Only allocated devices can overdraw a counter, because `take` checks the amount first.
            overdrawn = next((key for key, amount in left.items() if amount < 0), None)
            if overdrawn is not None:
                self._overdrawn[position] = "/".join(overdrawn)
        return left


def left_of(pool: Pool, allocated_state: AllocatedState) -> dict[CounterKey, int]:
    """The amount of each counter that allocated devices leave, in nanos; negative if it is overdrawn."""
    if not pool.counter_sets:
        return {}
    consumed = allocated_state.counters(pool)
    return {
        (set_name, name): amount - consumed.get((set_name, name), 0)
        for set_name, counters in pool.counter_sets.items()
        for name, amount in counters.items()
    }
