"""Input and output of the search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from extender.allocation.constraints import UNREADABLE, TypedSet
from extender.allocation.features import Features
from extender.allocation.inventory import Inventory
from extender.allocation.pools import Pool, PoolDevice, PoolDevices
from extender.model import ClaimSpec, DeviceClass, DeviceRequest, PoolKey, Quantity

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


UNUSED = PoolUse()


@dataclass(frozen=True, slots=True)
class AllocatedState:
    """The allocated devices by pool. `counters` returns the nanos that they consume of a pool's counters."""

    pools: Mapping[PoolKey, PoolUse]
    counters: Callable[[Pool], Mapping[CounterKey, int]] = lambda _: {}


class Selection(NamedTuple):
    """Masks of devices: `match` may serve the request; a selector failed on `error`."""

    match: int
    error: int
    explain: Callable[[int], str]  # bit of `error` to the text of the failure
    unsupported: int = 0  # devices that match but have unsupported fields (Inventory.unsupported)
    drifting: int = 0  # devices that match but are left out, because their memory is in use without a claim


@dataclass(frozen=True, slots=True)
class Problem:
    """The unallocated claims of one pod on one node. `names` are the names of the claims in messages."""

    inventory: Inventory
    names: tuple[str, ...]
    specs: tuple[ClaimSpec, ...]
    allocated_state: AllocatedState
    select: Callable[[str, DeviceRequest], Selection]
    taken: int  # mask of devices that cannot be allocated exclusively
    features: Features = field(default_factory=Features)
    classes: Callable[[str], DeviceClass | None] = lambda _: None  # by name
    # The value of a CEL expression on a device, for an attribute that a request derives. Raises InvalidClaim.
    derive: Callable[[str, PoolDevice], TypedSet] = lambda *_: UNREADABLE

    def shares(self, bit: int) -> Mapping[str, int] | None:
        """Nanos per capacity that allocated shares consume of a device; None if it has no shares."""
        pool_device = self.inventory.devices[bit]
        return self.allocated_state.pools.get(self.inventory.pools[pool_device.pool].key, UNUSED).shares.get(
            pool_device.id.device
        )


class Pick(NamedTuple):
    """One device for one request. `consumed` is None unless the device is shared."""

    bit: int
    request: DeviceRequest
    consumed: Mapping[str, Quantity] | None


class Solution(NamedTuple):
    """For each claim: its picks, and the index of the alternative of each request."""

    picks: tuple[tuple[Pick, ...], ...]
    alternatives: tuple[tuple[int, ...], ...]

    @property
    def mask(self) -> int:
        """Mask of all devices of the solution."""
        found = 0
        for claim in self.picks:
            for pick in claim:
                found |= 1 << pick.bit
        return found


def taken_mask(inventory: Inventory, allocated_state: AllocatedState) -> int:
    """Mask of devices with an exclusive allocation, or with shares although the device no longer allows them."""
    found = 0
    for first, part in inventory.parts:
        found |= taken_of(part, allocated_state.pools.get(part.key, UNUSED)) << first
    return found


def taken_of(part: PoolDevices, use: PoolUse) -> int:
    """Like `taken_mask`, for the devices of one pool: bit 0 is the first device of the pool."""
    found = part.mask(use.taken)
    for device in use.shares:
        bit = part.index.get(device)
        if bit is not None and not part.devices[bit].device.allow_multiple:
            found |= 1 << bit
    return found
