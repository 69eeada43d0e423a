"""What statuses are made from: a node, and the cluster at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, islice, takewhile

from extender.allocation.pools import Inventory
from extender.allocation.problem import AllocatedState
from extender.model import (
    DEFAULT_MIX,
    Claim,
    DeviceClass,
    Fabric,
    Node,
    ObjectKey,
    Pod,
    PoolKey,
    RequestMix,
    Reservation,
    members,
)

_NUMBERS = count()


class Interned:
    """Stands for a value that was seen before: equal values share one, which is compared by identity. What must not
    keep it in memory remembers its number, which is never given again."""

    __slots__ = ("__weakref__", "number")

    def __init__(self) -> None:
        self.number = next(_NUMBERS)


@dataclass(slots=True, eq=False, weakref_slot=True)
class NodeState:
    """An equivalence class of nodes. Nodes with one `signature` get equal statuses wherever selectors and constraints
    see equal; selectors that read no identity see equal where `appearance` is one."""

    allocation_class: Interned = field(default_factory=Interned)
    attribute_class: Interned | None = None  # None: like no other
    hypothetical: bool = False  # no node of the cluster is in this state
    names: list[str] = field(default_factory=list)  # the nodes of the snapshot in this state, sorted
    number: int = field(default_factory=lambda: next(_NUMBERS))


@dataclass(frozen=True, slots=True, eq=False)
class NodeInfo:
    """One node. Views with one `state` get equal statuses from all that read no identity of a device."""

    node: Node
    inventory: Inventory
    allocated_state: AllocatedState
    state: NodeState = field(default_factory=NodeState)
    fabric: Fabric | None = None
    gpu_bits: tuple[int, ...] = ()  # the device bit of each GPU of the fabric, -1 where it has none
    held: int = 0  # devices that only a hold keeps in use, as a mask
    busy: int = 0  # devices that cannot be taken exclusively, as a mask
    drift: int = 0  # devices that no claim holds and somebody uses, as a mask
    overuse: Mapping[int, int] = field(default_factory=dict)  # bit to bytes that live use exceeds the claims, coarse
    agent_is_fresh: bool = True  # whether the agent was heard of lately
    partitions: tuple[int, ...] | None = None  # sets that Fabric Manager can join, by position; None: it does not say
    troubled: int = 0  # devices with a taint that forbids nothing, and unhealthy GPUs, as a mask

    def positions(self, devices: int) -> int:
        """The GPUs among devices, by position in the fabric, as a mask."""
        in_order = _in_order(self.gpu_bits)
        if in_order:
            return devices & in_order
        found = 0
        for position, bit in enumerate(self.gpu_bits):
            if bit >= 0 and devices >> bit & 1:
                found |= 1 << position
        return found

    def devices(self, positions: int) -> int:
        """GPUs by position in the fabric, as a mask of devices."""
        in_order = _in_order(self.gpu_bits)
        if in_order:
            return positions & in_order
        return sum(1 << self.gpu_bits[position] for position in members(positions))


@lru_cache(maxsize=1024)  # a fleet has a few kinds of machines
def _in_order(gpu_bits: tuple[int, ...]) -> int:
    """The GPUs as a mask, where each stands among the devices where it stands in the fabric; 0 elsewhere."""
    return (1 << len(gpu_bits)) - 1 if gpu_bits == tuple(range(len(gpu_bits))) else 0


@dataclass(frozen=True, slots=True)
class FleetBaseline:
    """Facts about all nodes that scores are relative to."""

    best_ring_gbps: Mapping[int, float] = field(default_factory=dict)  # by number of GPUs
    least_memory_bytes: int = 0  # of the smallest GPU
    most_memory_bytes: int = 0
    most_gpus: int = 0  # of one node
    request_mix: RequestMix = DEFAULT_MIX


class ChangeLog:
    """When nodes last changed, the newest at the end: what changed since costs as much as there is of it."""

    def __init__(self, known_since: int | None = None) -> None:
        self._since = known_since  # changes after this version are known; None: none are
        self._last: dict[str, int] = {}

    def note(self, version: int, nodes: Iterable[str]) -> None:
        """Nodes changed with a version."""
        for name in nodes:
            self._last.pop(name, None)
            self._last[name] = version

    def forget(self, nodes: int) -> None:
        """All but the latest changes, once there are twice as many."""
        if len(self._last) > 2 * nodes:
            for name in list(islice(self._last, len(self._last) - nodes)):
                self._since = self._last.pop(name)

    def since(self, version: int) -> list[str] | None:
        """Nodes that changed after a version; None where that is not known."""
        if self._since is None or version < self._since:
            return None
        return list(takewhile(lambda name: self._last[name] > version, reversed(self._last)))


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The cluster at one moment. The mappings belong to the cache: a snapshot is valid until the caller awaits or
    changes the cache. `changed_since` tells which nodes differ between two versions."""

    version: int
    node_infos: Mapping[str, NodeInfo]
    classes: Mapping[str, DeviceClass]
    claims: Mapping[ObjectKey, Claim]
    pods: Mapping[str, Pod]  # by UID
    namespaces: Mapping[str, Mapping[str, str]]
    baseline: FleetBaseline
    classes_version: int
    changes: ChangeLog = field(default_factory=ChangeLog)
    extended_resources: Mapping[str, str] = field(default_factory=dict)  # resource name to class
    special_claims: Mapping[tuple[str, str], ObjectKey] = field(default_factory=dict)  # by a pod's namespace and UID
    reservations: Mapping[str, Reservation] = field(default_factory=dict)  # by claim UID: what is held or being written
    nodes_by_label: Callable[[str], Mapping[str, frozenset[str]]] = lambda _: {}  # label to its values and their nodes
    # Namespace and group to claims and their nodes.
    pod_groups: Mapping[tuple[str, str], Mapping[ObjectKey, str]] = field(default_factory=dict)
    states: Mapping[int, NodeState] = field(default_factory=dict)  # by number, those that nodes are in
    claims_on: Callable[[PoolKey], Iterable[Claim]] = lambda _: ()  # those that have devices of a pool

    def changed_since(self, version: int) -> list[str] | None:
        """Nodes whose view changed after `version`; None where that is not known."""
        return [] if version == self.version else self.changes.since(version)
