"""The allocated devices by pool, and what they consume of shared counters.

Shared counters belong to partitionable devices (KEP-4815). Counter sets belong to a driver and a pool: two drivers may
use the same pool name. Amounts are in nanos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from extender.allocation.nodes.devices import PoolDevices
from extender.allocation.nodes.inventory import Inventory
from extender.allocation.nodes.pools import Pool, grouped
from extender.api.resource_slices import CounterUse, Device, PoolKey, Slice

CounterKey = tuple[str, str]  # counter set, counter
SHARES = ""  # see PoolUse


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The allocated devices of one pool: names in `taken` (exclusive), and `shares`: name to nanos per capacity.

    SHARES among the capacities is the number of shares: they may take no capacity.
    """

    taken: frozenset[str] = frozenset()
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def holds(self, device: str) -> bool:
        """Whether the device has an exclusive or a shared allocation."""
        return device in self.taken or device in self.shares

    def taken_of(self, part: PoolDevices) -> int:
        """Mask of devices with an exclusive allocation, or with shares although the device no longer allows them.

        Bit 0 is the first device of the pool.
        """
        found = part.mask(self.taken)
        for device in self.shares:
            bit = part.index.get(device)
            if bit is not None and not part.devices[bit].device.allow_multiple:
                found |= 1 << bit
        return found

    def consumed(self, slices: Sequence[Slice]) -> dict[CounterKey, int]:
        """Counters in nanos that the devices consume. `slices` are the current ones; other devices count 0.

        In counter sets with compatibility groups, also the numbers of devices, see `memberships`.
        """
        in_use = [one for slice_ in slices for one in slice_.devices if one.consumes and self.holds(one.name)]
        return consumption_of(in_use, grouped(slices) if in_use else frozenset())


UNUSED = PoolUse()


@dataclass(frozen=True, slots=True)
class AllocatedState:
    """The allocated devices by pool. `counters` returns the nanos that they consume of a pool's counters."""

    pools: Mapping[PoolKey, PoolUse]
    counters: Callable[[Pool], Mapping[CounterKey, int]] = lambda _: {}

    def taken(self, inventory: Inventory) -> int:
        """The devices of an inventory that `PoolUse.taken_of` gives, as a mask."""
        found = 0
        for first, part in inventory.parts:
            found |= self.pools.get(part.key, UNUSED).taken_of(part) << first
        return found

    def left(self, pool: Pool) -> dict[CounterKey, int]:
        """The amount of each counter that allocated devices leave, in nanos; negative if it is overdrawn."""
        if not pool.counter_sets:
            return {}
        consumed = self.counters(pool)
        return {
            (set_name, name): amount - consumed.get((set_name, name), 0)
            for set_name, counters in pool.counter_sets.items()
            for name, amount in counters.items()
        }


def memberships(use: CounterUse) -> list[CounterKey]:
    """What counts the devices in use of a set with groups: first all of them, then those with each group of this one.

    The names are no counters of the API, whose names are DNS labels. `/` counts the devices without groups.
    """
    groups = dict.fromkeys(use.compatibility_groups) or ("",)
    return [(use.counter_set, "#"), *((use.counter_set, f"/{group}") for group in groups)]


def consumption_of(devices: Iterable[Device], with_groups: frozenset[str]) -> dict[CounterKey, int]:
    """What these devices consume. `with_groups` are the counter sets that have compatibility groups."""
    found: dict[CounterKey, int] = {}
    for use in (use for device in devices for use in device.consumes):
        for name, amount in use.counters:
            key = (use.counter_set, name)
            found[key] = found.get(key, 0) + amount
        for key in memberships(use) if use.counter_set in with_groups else ():
            found[key] = found.get(key, 0) + 1
    return found


def counter_limits(slices: Iterable[Slice]) -> dict[CounterKey, int]:
    """The counters in nanos that the current slices of a pool have."""
    return {
        (s.name, name): amount for slice_ in slices for s in slice_.counter_sets for name, amount in s.counters.items()
    }


def overdrawn_counters(slices: Sequence[Slice], devices: frozenset[str]) -> list[CounterKey]:
    """Counters of which these devices together consume more than the current slices of the pool have."""
    limits = counter_limits(slices)
    if not limits:
        return []
    consumed = PoolUse(devices).consumed(slices)
    return sorted(counter for counter, amount in consumed.items() if amount > limits.get(counter, amount))
