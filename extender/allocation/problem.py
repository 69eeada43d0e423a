"""Input and output of the search. It tells an observer why a request cannot have a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from extender.allocation.constraints import UNREADABLE, TypedSet
from extender.allocation.device_rules import Features
from extender.allocation.nodes import UNUSED, AllocatedState, Inventory, Partitions, PoolDevice
from extender.api.claim_specs import ClaimSpec, DeviceRequest
from extender.api.device_classes import DeviceClass
from extender.api.quantity import Quantity
from extender.base.bits import union


class Observer:
    """Receives each device that a request cannot have, and ignores it."""

    def rejected(self, request: str, bit: int, cause: str, detail: str) -> None:
        """`bit` is the device; `cause` is a key of CAUSES; `detail` names the attribute, counter or field, or is ''."""


CAUSES = {
    "in-use": "allocated to another claim",
    "taken-here": "already chosen for this pod",
    "capacity": "not enough capacity left",
    "undefined-capacity": "does not offer the requested capacity",
    "counters": "its shared counters are used up",
    "tainted": "has a taint that the request does not tolerate",
    "constraint": "would break a constraint of the claim",
    "partition": "is in no free partition with the other GPUs of the claim",
    "compatibility-groups": "has no compatibility group in common with the devices in use of its counter set",
    "node-allocatable": "has a field that Berth does not support yet",
}


class CauseRecorder(Observer):
    """Stores the last (cause, detail) for each (request, bit)."""

    def __init__(self) -> None:
        self.causes: dict[tuple[str, int], tuple[str, str]] = {}

    def rejected(self, request: str, bit: int, cause: str, detail: str) -> None:
        self.causes[request, bit] = (cause, detail)


NULL_OBSERVER = Observer()


class Selection(NamedTuple):
    """Masks of devices: `match` may serve the request; a selector failed on `error`."""

    match: int
    error: int
    explain: Callable[[int], str]  # bit of `error` to the text of the failure
    unsupported: int = 0  # devices that match but have unsupported fields (Inventory.unsupported)
    drifting: int = 0  # devices that match but are left out, because their memory is in use without a claim
    small: int = 0  # devices that match but are left out, because they have less memory than the pod expects
    least_memory: int = 0  # bytes of memory that the selectors demand of each device; 0 for nothing


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
    # The sets of GPUs that a claim can have; None: all sets, as in the reference.
    partitions: Partitions | None = None

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


class Allowed(NamedTuple):
    """The devices that a search may use: `devices` for all requests, and fewer for some requests."""

    devices: int = -1
    of_request: Mapping[tuple[int, str], int] = MappingProxyType({})  # (position of the claim, request name) to mask


EVERY_DEVICE = Allowed()


class Solution(NamedTuple):
    """For each claim: its picks, and the index of the alternative of each request."""

    picks: tuple[tuple[Pick, ...], ...]
    alternatives: tuple[tuple[int, ...], ...]

    @property
    def taken(self) -> int:
        """Mask of the devices that the pod gets, without those that it only watches by admin access."""
        return union([1 << pick.bit for claim in self.picks for pick in claim if not pick.request.admin_access])

    @property
    def mask(self) -> int:
        """Mask of all devices of the solution."""
        found = 0
        for claim in self.picks:
            for pick in claim:
                found |= 1 << pick.bit
        return found
