"""Shared counters of partitionable devices (KEP-4815): what is left per pool, with take and give back.

Sets are keyed by driver and pool: two drivers may use one pool name. Amounts are nanos.
"""

from __future__ import annotations

from extender.allocation.pools import Inventory, Pool
from extender.allocation.problem import AllocatedState, CounterKey


class Counters:
    """What is left of every counter, filled in when a pool is first asked about."""

    def __init__(self, inventory: Inventory, allocated_state: AllocatedState) -> None:
        self._inventory = inventory
        self._allocated_state = allocated_state
        self._left: dict[int, dict[CounterKey, int]] = {}
        self._overdrawn: dict[int, str] = {}  # by pool, a counter of which more is consumed than there is

    def take(self, bit: int) -> str:
        """Charge a device's counters: '' if they were left, else the name of one that was not (nothing is charged).

        As in the reference, one overdrawn counter of a pool blocks every device there that consumes counters.
        """
        place = self._inventory.places[bit]
        left = self._pool(place.pool)
        if place.pool in self._overdrawn:
            return self._overdrawn[place.pool]
        charged: list[tuple[CounterKey, int]] = []
        for use in place.device.consumes:
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
        place = self._inventory.places[bit]
        left = self._left[place.pool]
        for use in place.device.consumes:
            for name, amount in use.counters:
                left[use.counter_set, name] += amount

    def fits(self, bit: int) -> bool:
        """Whether a device could be taken."""
        short = self.take(bit)
        if not short:
            self.give_back(bit)
        return not short

    def left(self, pool: int, key: CounterKey) -> int:
        """Nanos of one counter that nothing takes."""
        return self._pool(pool)[key]

    def _pool(self, position: int) -> dict[CounterKey, int]:
        left = self._left.get(position)
        if left is None:
            left = self._left[position] = left_of(self._inventory.pools[position], self._allocated_state)
            # Only what others consume can overdraw: what is taken here is checked first.
            overdrawn = next((key for key, amount in left.items() if amount < 0), None)
            if overdrawn is not None:
                self._overdrawn[position] = "/".join(overdrawn)
        return left


def left_of(pool: Pool, allocated_state: AllocatedState) -> dict[CounterKey, int]:
    """Nanos of each counter of a pool that allocated devices leave; negative where it is overdrawn."""
    if not pool.counter_sets:
        return {}
    consumed = allocated_state.counters(pool)
    return {
        (set_name, name): amount - consumed.get((set_name, name), 0)
        for set_name, counters in pool.counter_sets.items()
        for name, amount in counters.items()
    }
