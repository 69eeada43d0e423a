"""Shared counters of partitionable devices (KEP-4815): the amounts that are left in each pool.

Counter sets belong to a driver and a pool: two drivers may use the same pool name. Amounts are in nanos.
"""

from __future__ import annotations

from extender.allocation.inventory import Inventory
from extender.allocation.pools import Pool
from extender.allocation.problem import AllocatedState, CounterKey


class ShortOfCounters(Exception):
    """The shared counters cannot serve any combination of devices."""


class Counters:
    """The amounts that are left of each counter. A pool is evaluated at its first use."""

    def __init__(self, inventory: Inventory, allocated_state: AllocatedState) -> None:
        self._inventory = inventory
        self._allocated_state = allocated_state
        self._left: dict[int, dict[CounterKey, int]] = {}
        self._overdrawn: dict[int, str] = {}  # pool to a counter whose consumption exceeds its amount

    def take(self, bit: int) -> str:
        """Consume the counters of a device. Returns '', or the name of a counter of which too little is left.

        A failure changes nothing. As in the reference, one overdrawn counter blocks all devices of the pool that
        consume counters.
        """
        pool_device = self._inventory.devices[bit]
        left = self._pool(pool_device.pool)
        if pool_device.pool in self._overdrawn:
            return self._overdrawn[pool_device.pool]
        charged: list[tuple[CounterKey, int]] = []
        for use in pool_device.device.consumes:
            for name, amount in use.counters:
                key = (use.counter_set, name)
                left[key] -= amount
                charged.append((key, amount))
        short = next((key for key, _ in charged if left[key] < 0), None)
        if short is None:
            return ""
        for key, amount in charged:
            left[key] += amount
        return "/".join(short)

    def give_back(self, bit: int) -> None:
        """Undo a successful `take`."""
        pool_device = self._inventory.devices[bit]
        left = self._left[pool_device.pool]
        for use in pool_device.device.consumes:
            for name, amount in use.counters:
                left[use.counter_set, name] += amount

    def fits(self, bit: int) -> bool:
        """Whether `take` would succeed."""
        short = self.take(bit)
        if not short:
            self.give_back(bit)
        return not short

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
