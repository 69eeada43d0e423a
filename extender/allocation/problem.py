"""Input and output of the search: a problem, its solution, and the allocations that bind writes for it.

The search tells a recorder why a request cannot have a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Final, NamedTuple

from extender.allocation.device_rules import NOTHING, Features, consumption, fits, published
from extender.allocation.nodes import UNUSED, AllocatedState, FabricPartitions, Inventory, PoolDevice
from extender.allocation.selection import UNREADABLE, Classes, Selection, TypedSet
from extender.api.claim_specs import ClaimSpec, Config, DeviceRequest
from extender.api.nodes import NodeSelector, Requirement, Term
from extender.api.quantity import Quantity
from extender.api.resource_claims import Allocation, Result

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


class CauseRecorder:
    """Why a request cannot have a device: the last (cause, detail) for each (request, device bit).

    The cause is a key of CAUSES; the detail names the attribute, counter or field, or is ''.
    """

    def __init__(self) -> None:
        self.causes: dict[tuple[str, int], tuple[str, str]] = {}

    def rejected(self, request: str, bit: int, cause: str, detail: str) -> None:
        self.causes[request, bit] = (cause, detail)


@dataclass(slots=True, eq=False)  # Final fields, see docs/architecture.md
class Problem:
    """The unallocated claims of one pod on one node. `names` are the names of the claims in messages."""

    inventory: Final[Inventory]
    names: Final[tuple[str, ...]]
    specs: Final[tuple[ClaimSpec, ...]]
    allocated_state: Final[AllocatedState]
    select: Final[Callable[[str, DeviceRequest], Selection]]
    taken: Final[int]  # mask of devices that cannot be allocated exclusively
    features: Final[Features] = field(default_factory=Features)
    classes: Final[Classes] = lambda _: None
    # The value of a CEL expression on a device, for an attribute that a request derives. Raises InvalidClaim.
    derive: Final[Callable[[str, PoolDevice], TypedSet]] = lambda *_: UNREADABLE
    # The sets of GPUs that a claim can have; None: all sets, as in the reference.
    fabric_partitions: Final[FabricPartitions | None] = None

    def usable(self, claim: str, request: DeviceRequest) -> int:
        """Mask of the devices that match a request and that it can have if no other request takes them.

        Raises InvalidClaim and DeadlineExceeded.
        """
        selection = self.select(claim, request)
        usable = selection.match & ~selection.error
        return usable if request.admin_access else usable & ~self.taken

    def has_room(self, bit: int, request: DeviceRequest) -> bool:
        """Whether a device can serve the request besides its allocated shares. Raises InvalidClaim."""
        one, features = self.inventory.devices[bit], self.features
        if not features.consumable_capacity:
            return True
        taken = consumption(one.device, one.driver, request.capacity, features)
        if taken is None or not features.pays(request):
            return taken is not None
        return fits(one.device, taken, self.shares(bit) or NOTHING, NOTHING)

    def shares(self, bit: int) -> Mapping[str, int] | None:
        """Nanos per capacity that allocated shares consume of a device; None if it has no shares."""
        pool_device = self.inventory.devices[bit]
        return self.allocated_state.pools.get(self.inventory.pools[pool_device.pool].key, UNUSED).shares.get(
            pool_device.device.name
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
        found = 0
        for claim in self.picks:
            for pick in claim:
                found |= 0 if pick.request.admin_access else 1 << pick.bit
        return found

    @property
    def masks(self) -> list[int]:
        """Masks of all devices of each claim."""
        return [reduce(or_, [1 << pick.bit for pick in claim], 0) for claim in self.picks]

    @property
    def mask(self) -> int:
        """Mask of all devices of the solution."""
        return reduce(or_, self.masks, 0)


# -- from a solution to status.allocation of the claims --------------------------------------------------------


def allocations(
    problem: Problem, solution: Solution, node_name: str, classes: Classes, new_share: Callable[[], str]
) -> list[Allocation]:
    """One allocation per claim. `new_share` returns a new share ID (a lower-case UUID)."""
    found = []
    for spec, picks, chosen in zip(problem.specs, solution.picks, solution.alternatives, strict=True):
        devices = [problem.inventory.devices[pick.bit] for pick in picks]
        requests = [request.alternatives[i] for request, i in zip(spec.requests, chosen, strict=True)]
        results = tuple(_result(pick, device, new_share) for pick, device in zip(picks, devices, strict=True))
        config = tuple(config_entries(spec, requests, classes, problem.features))
        found.append(Allocation(results, config, node_selector(devices, node_name)))
    return found


def _result(pick: Pick, pool_device: PoolDevice, new_share: Callable[[], str]) -> Result:
    request, device = pick.request, pool_device.device
    consumed = published(device, pool_device.driver, pick.consumed) if pick.consumed else None
    return Result(
        request.name,
        pool_device.id,
        admin_access=request.admin_access,
        tolerations=request.tolerations,
        share_id=new_share() if pick.consumed is not None else "",
        consumed=consumed,
        binding_conditions=device.binding_conditions,
        binding_failure_conditions=device.binding_failure_conditions,
        skip_node_operations=pool_device.slice.skip_node_operations,
    )


def config_entries(
    spec: ClaimSpec, requests: Sequence[DeviceRequest], classes: Classes, features: Features
) -> Iterator[Config]:
    """The config entries of the allocation for the chosen form of each request: of each class once, then the claim's.

    As in 1.37, an entry that covers all requests names none. In 1.36 it names them, and an entry of the claim is
    repeated for each request.
    """
    users: dict[str, list[str]] = {}
    for request in requests:
        users.setdefault(request.class_name, []).append(request.name)
    for class_name, names in users.items():
        class_ = classes(class_name)
        covers_all = features.config_once and len(names) == len(requests)
        for config in class_.config if class_ is not None else ():
            yield replace(config, requests=() if covers_all else tuple(names), source="FromClass")
    for config in spec.config:
        entry = replace(config, source="FromClaim")
        covered = sum(config.covers(request.name) for request in requests)
        if not config.requests or (features.config_once and covered == len(requests)):
            yield replace(entry, requests=())
        else:
            yield from [entry] * (min(covered, 1) if features.config_once else covered)


def node_selector(devices: list[PoolDevice], node_name: str) -> NodeSelector | None:
    """The nodes that can use the allocation: this node, the nodes that all slices select, or all nodes (None)."""
    expressions: dict[Requirement, None] = {}  # each once, in order
    fields: dict[Requirement, None] = {}
    for pool_device in devices:
        selection = pool_device.device.selection if pool_device.slice.per_device else pool_device.slice.selection
        if selection.node_name or pool_device.device.binds_to_node:
            only = Requirement("metadata.name", "In", (node_name,))
            return NodeSelector((Term(fields=(only,)),))
        if selection.selector is not None and selection.selector.terms:
            first = selection.selector.terms[0]
            expressions |= dict.fromkeys(first.expressions)
            fields |= dict.fromkeys(first.fields)
    if not expressions and not fields:
        return None
    return NodeSelector((Term(tuple(expressions), tuple(fields)),))
