"""What the search is asked and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from extender.allocation.features import Features
from extender.allocation.pools import Inventory, Pool
from extender.model import ClaimSpec, DeviceId, DeviceRequest, PoolKey, Quantity

CounterKey = tuple[str, str]  # counter set, counter


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What allocations hold of one pool. Device names; nanos per capacity for shares."""

    taken: frozenset[str] = frozenset()
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def holds(self, device: str) -> bool:
        """Whether any allocation, exclusive or shared, is on the device."""
        return device in self.taken or device in self.shares


UNUSED = PoolUse()


@dataclass(frozen=True, slots=True)
class AllocatedState:
    """What is in use, by pool; `counters` gives what allocated devices consume of a pool's counter sets, in nanos."""

    pools: Mapping[PoolKey, PoolUse]
    counters: Callable[[Pool], Mapping[CounterKey, int]]


class Selection(NamedTuple):
    """Devices a request may take and devices on which a selector failed, as masks over the inventory."""

    match: int
    error: int
    explain: Callable[[int], str]  # bit to the text of the error
    unsupported: int = 0  # devices that match and are never allocated, see Inventory.unsupported


@dataclass(frozen=True, slots=True)
class Problem:
    """One pod's unallocated claims on one node. `names` are the claims as messages call them."""

    inventory: Inventory
    names: tuple[str, ...]
    specs: tuple[ClaimSpec, ...]
    allocated_state: AllocatedState
    select: Callable[[str, DeviceRequest], Selection]
    taken: int  # devices that cannot be taken exclusively, as a mask
    features: Features = field(default_factory=Features)


class Pick(NamedTuple):
    """One device for one request. `consumed` only where the device is shared."""

    bit: int
    request: DeviceRequest
    consumed: Mapping[str, Quantity] | None


class Solution(NamedTuple):
    """Picks by claim, and which alternative each request took."""

    picks: tuple[tuple[Pick, ...], ...]
    alternatives: tuple[tuple[int, ...], ...]

    @property
    def mask(self) -> int:
        """All devices of the solution."""
        found = 0
        for claim in self.picks:
            for pick in claim:
                found |= 1 << pick.bit
        return found


def taken_mask(inventory: Inventory, allocated_state: AllocatedState) -> int:
    """Devices that are allocated exclusively, or that are exclusive now and still have shares."""
    found = 0
    for pool in inventory.pools:
        use = allocated_state.pools.get(pool.key, UNUSED)
        for device in (*use.taken, *use.shares):
            bit = inventory.index.get(DeviceId(*pool.key, device))
            if bit is not None and (device in use.taken or not inventory.places[bit].device.allow_multiple):
                found |= 1 << bit
    return found


def device_at(inventory: Inventory, bit: int) -> DeviceId:
    return inventory.places[bit].id
