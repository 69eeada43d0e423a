"""The input of node statuses: NodeInfo for one node, and Snapshot for the cluster at one moment.

`AllocatedState` has the devices in use, and what they consume of shared counters. These belong to partitionable devices
(KEP-4815), and a counter set to a driver and a pool: two drivers may use the same pool name. Amounts are in nanos.

Live memory shows GPUs in use that no claim holds (drift), and shares that use more than they claim (overuse). Like the
faults that drivers and agents report, it lowers the score of a device. It never decides whether a claim fits, because
it changes between the decision and the start of a container.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice, takewhile
from typing import Final

from extender.allocation.nodes.inventory import FabricPartitions, Inventory
from extender.allocation.nodes.locality import Locality, Nearness
from extender.allocation.nodes.pools import NUMBERS, Interned, Pool, PoolDevices, grouped
from extender.api.device_classes import DeviceClass
from extender.api.gpu_topology import DEFAULT_MIX, Fabric, GpuState, RequestMix
from extender.api.label_domains import LabelDomains
from extender.api.nodes import Node
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, GroupPolicy
from extender.api.pods import Pod
from extender.api.quantity import NANO
from extender.api.resource_claims import Claim, Reservation
from extender.api.resource_slices import CounterUse, Device, PoolKey, Slice
from extender.base.bits import members
from extender.vendors import amount_of_memory

CounterKey = tuple[str, str]  # counter set, counter
SHARES = ""  # see PoolUse


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The allocated devices of one pool: names in `taken` (exclusive), and `shares`: name to nanos per capacity.

    SHARES among the capacities is the number of shares: they may take no capacity.
    """

    taken: frozenset[str] = frozenset()
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    held: frozenset[str] = field(default=frozenset(), compare=False)  # of all these, those that only holds keep in use

    def holds(self, device: str) -> bool:
        """Whether the device has an exclusive or a shared allocation."""
        return device in self.taken or device in self.shares

    def taken_of(self, pool: PoolDevices) -> int:
        """Mask of devices with an exclusive allocation, or with shares although the device no longer allows them.

        Bit 0 is the first device of the pool.
        """
        found = pool.mask(self.taken)
        for device in self.shares:
            bit = pool.index.get(device)
            if bit is not None and not pool.devices[bit].device.allow_multiple:
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
        for first, pool in inventory.pool_devices:
            found |= self.pools.get(pool.key, UNUSED).taken_of(pool) << first
        return found

    def held(self, inventory: Inventory) -> int:
        """The devices of an inventory that only holds keep in use, as a mask."""
        found = 0
        for first, pool in inventory.pool_devices:
            names = self.pools.get(pool.key, UNUSED).held
            found |= pool.mask(names) << first if names else 0
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


def overdrawn_counters(slices: Sequence[Slice], devices: frozenset[str]) -> list[CounterKey]:
    """Counters of which these devices together consume more than the current slices of the pool have."""
    limits = {
        (s.name, name): amount for slice_ in slices for s in slice_.counter_sets for name, amount in s.counters.items()
    }
    consumed = PoolUse(devices).consumed(slices)
    return sorted(counter for counter, amount in consumed.items() if amount > limits.get(counter, amount))


_MAX_SINGLE_NODES = 64  # so many changed nodes are looked at one by one
_MIB = 1 << 20
_FLOOR_BYTES = 512 * _MIB  # use of an idle GPU; the agent publishes in steps of 256 MiB
_UNKNOWN_FLOOR_BYTES = 2048 * _MIB  # the same if the driver does not report the memory that it reserves
_FLOOR_SHARE = 100  # use below 1/100 of the memory also counts as idle
_STEP_BYTES = 8 << 30  # overuse is rounded up to steps, so that similar nodes share one node state


class PoolGroup(Interned):
    """The shared pools that a node sees (`Inventory.shared_pools`). Nodes that see equal pools have one group."""

    __slots__ = ("keys", "pools")

    def __init__(self, pools: tuple[PoolDevices, ...]) -> None:
        super().__init__()
        self.pools = pools
        self.keys = frozenset(pool.key for pool in pools)


class SharedUse(Interned):
    """The allocated devices of a group; masks by pool, in the order of the group, from the pool's first device.

    Equal uses of one group are one object.
    """

    __slots__ = ("busy", "group", "held", "pools")

    def __init__(
        self, group: PoolGroup, pools: Mapping[PoolKey, PoolUse], busy: tuple[int, ...], held: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.group = group
        self.pools = pools
        self.busy = busy  # devices that cannot be allocated exclusively
        self.held = held  # those of them that only holds keep in use

    def gained(self, before: SharedUse) -> bool:
        """Whether the pools may have room that they did not have before."""
        return _has_freed(before.pools, self.pools)


def _has_freed(before: Mapping[PoolKey, PoolUse], now: Mapping[PoolKey, PoolUse]) -> bool:
    """Whether a claim may have left devices of these pools. `now` has all of them."""
    return any(not use.taken <= now[key].taken or use.shares != now[key].shares for key, use in before.items())


@dataclass(slots=True, eq=False, weakref_slot=True)
class NodeState:
    """An equivalence class of nodes. Of nodes with one signature, each gets what was found for the others:

    * `attribute_signature`: what selectors match that read no identifying attribute;
    * `hardware_signature`: what search and score find on an idle node;
    * `own_signature`: what they find beside the use of the devices that the node does not share with others;
    * `allocation_signature`: the status, if selectors and constraints give equal results for the devices.
    """

    attribute_signature: Interned | None = None  # None: no other node has equal attributes
    hypothetical: bool = False  # whether no node of the cluster is in this state
    names: list[str] = field(default_factory=list)  # names of the nodes in this state, sorted
    number: int = field(default_factory=lambda: next(NUMBERS))
    hardware_signature: Interned = field(default_factory=Interned)
    own_signature: Interned = field(default_factory=Interned)
    own_allocation: Interned = field(default_factory=Interned)  # the allocation signature without `shared`
    own: Interned = field(default_factory=Interned)  # the state without `shared`; not used if `shared` is None
    shared: SharedUse | None = None  # the use of the shared pools; None: the nodes see none

    @property
    def allocation_signature(self) -> tuple[int, int]:
        """See above. The numbers keep no signature in memory."""
        return self.own_allocation.number, self.shared.number if self.shared is not None else -1

    def with_shared(self, shared: SharedUse) -> NodeState:
        """A new state, without nodes, that differs only in the use of the shared pools."""
        return replace(self, names=[], number=next(NUMBERS), shared=shared)


@dataclass(slots=True, eq=False)  # Final fields, see docs/architecture.md
class NodeInfo:
    """One node. Nodes with the same `state` get equal statuses unless a selector reads an identifying attribute."""

    node: Final[Node]
    inventory: Final[Inventory]
    allocated_state: Final[AllocatedState]
    state: Final[NodeState] = field(default_factory=NodeState)
    fabric: Final[Fabric | None] = None
    gpu_bits: Final[tuple[int, ...]] = ()  # the device bit of each GPU of the fabric, or -1
    held: Final[int] = 0  # mask of devices that are in use only because of a hold
    busy: Final[int] = 0  # mask of devices that cannot be allocated exclusively
    drift: Final[int] = 0  # mask of devices in use that no claim holds
    overuse: Final[Mapping[int, int]] = field(default_factory=dict)  # bit to bytes beyond the claims, in coarse steps
    agent_is_fresh: Final[bool] = True  # whether the agent's last report is recent
    fabric_partitions: Final[FabricPartitions | None] = None  # the sets of GPUs that a claim can have; None: all sets
    troubled: Final[int] = 0  # mask of devices with a taint of effect None, and of unhealthy GPUs
    locality: Final[Locality | None] = None  # where the devices are; None: no two drivers have devices here

    def gained(self, before: NodeInfo) -> bool:
        """Whether the node may have room that it did not have before. False if it only lost devices to claims."""
        is_same = (
            self.node == before.node
            and self.inventory is before.inventory
            and self.state.hardware_signature is before.state.hardware_signature
            and (self.agent_is_fresh, self.overuse) == (before.agent_is_fresh, before.overuse)
        )
        if not is_same or before.drift & ~(self.drift | self.busy):
            return True
        return _has_freed(before.allocated_state.pools, self.allocated_state.pools)

    @property
    def own_in_use(self) -> int:
        """The number of the devices in `Inventory.packed` that cannot be allocated exclusively."""
        return (self.busy & self.inventory.packed).bit_count()

    @property
    def partly_used(self) -> int:
        """Mask of the GPUs (device bits) of which a claim has a share."""
        found, pools = 0, self.allocated_state.pools
        if not any(use.shares for use in pools.values()):
            return found
        for bit in self.gpu_bits:
            if bit >= 0:
                pool_device = self.inventory.devices[bit]
                use = pools.get(self.inventory.pools[pool_device.pool].key, UNUSED)
                if pool_device.device.name in use.shares:
                    found |= 1 << bit
        return found

    @property
    def whole_gpus(self) -> int:
        """Mask of the devices that are GPUs of the fabric."""
        return self.devices(self.positions(-1))

    def positions(self, devices: int) -> int:
        """The GPUs of a device mask, as a mask of positions in the fabric."""
        first, mask = _in_order(self.gpu_bits)
        if mask:
            return devices >> first & mask
        found = 0
        for position, bit in enumerate(self.gpu_bits):
            if bit >= 0 and devices >> bit & 1:
                found |= 1 << position
        return found

    def devices(self, positions: int) -> int:
        """The devices of a mask of positions in the fabric, as a device mask."""
        first, mask = _in_order(self.gpu_bits)
        if mask:
            return (positions & mask) << first
        return sum(1 << self.gpu_bits[position] for position in members(positions))


@lru_cache(maxsize=1024)  # a fleet has a few machine types
def _in_order(gpu_bits: tuple[int, ...]) -> tuple[int, int]:
    """(bit of the first GPU, mask of all positions) if the GPUs follow each other as in the fabric, else (0, 0).

    Devices of other drivers may come first in the inventory: dra.net before the GPUs'.
    """
    first = gpu_bits[0] if gpu_bits else -1
    in_order = first >= 0 and gpu_bits == tuple(range(first, first + len(gpu_bits)))
    return (first, (1 << len(gpu_bits)) - 1) if in_order else (0, 0)


@dataclass(frozen=True, slots=True)
class FleetBaseline:
    """Facts about all nodes, to which scores are relative."""

    best_ring_gbps: Mapping[int, float] = field(default_factory=dict)  # number of GPUs to the best ring in GB/s
    least_memory_bytes: int = 0  # memory of the smallest GPU
    most_gpus: int = 0  # largest number of GPUs in one node
    request_mix: RequestMix = DEFAULT_MIX
    # Names of two drivers, sorted, to how near their devices are on the node where they are nearest.
    nearest: Mapping[tuple[str, str], Nearness] = field(default_factory=dict)
    # Product to the part of its GPUs, 0 to 1, that jobs for which few products will do would take on a full fleet.
    named: Mapping[str, float] = field(default_factory=dict)


class ChangeLog:
    """The version of each node's last change, the newest last. The cost of `since` depends only on its result."""

    def __init__(self, known_since: int | None = None) -> None:
        self._since = known_since  # the log is complete after this version; None: it is empty
        self._last: dict[str, int] = {}

    def note(self, version: int, nodes: Iterable[str], most: int) -> None:
        """Record that nodes changed with a version. Drops all but the latest `most` of more than twice as many."""
        for name in nodes:
            self._last.pop(name, None)
            self._last[name] = version
        if len(self._last) > 2 * most:
            for name in list(islice(self._last, len(self._last) - most)):
                self._since = self._last.pop(name)

    def since(self, version: int) -> list[str] | None:
        """Names of nodes that changed after a version; None if the log does not go back that far."""
        if self._since is None or version < self._since:
            return None
        return list(takewhile(lambda name: self._last[name] > version, reversed(self._last)))


@dataclass(slots=True, eq=False)  # Final fields, see docs/architecture.md
class Snapshot:
    """The cluster at one moment. It is valid until the caller awaits or changes the cache, which owns the mappings."""

    version: Final[int]
    node_infos: Final[Mapping[str, NodeInfo]]
    classes: Final[Mapping[str, DeviceClass]]
    claims: Final[Mapping[ObjectKey, Claim]]
    pods: Final[Mapping[str, Pod]]  # by UID
    namespaces: Final[Mapping[str, Mapping[str, str]]]
    baseline: Final[FleetBaseline]
    classes_version: Final[int]
    changes: Final[ChangeLog] = field(default_factory=ChangeLog)
    gains: Final[ChangeLog] = field(default_factory=ChangeLog)  # of the changes, those that may have made room
    extended_resources: Final[Mapping[str, str]] = field(default_factory=dict)  # resource name to DeviceClass name
    # (namespace, UID) of the pod to its special claim.
    special_claims: Final[Mapping[tuple[str, str], Mapping[ObjectKey, None]]] = field(default_factory=dict)
    reservations: Final[Mapping[str, Reservation]] = field(default_factory=dict)  # by claim UID
    domains: Final[Callable[[tuple[str, ...]], LabelDomains]] = lambda _: LabelDomains()  # by `path_labels`
    # (namespace, GroupKey.on_claims) to {claim: node}
    group_claims: Final[Mapping[tuple[str, str], Mapping[ObjectKey, str]]] = field(default_factory=dict)
    # The same to (UID, node) of the pods for which these claims are reserved.
    group_users: Final[Mapping[tuple[str, str], Iterable[tuple[str, str]]]] = field(default_factory=dict)
    # States that some node is in, by number; a state with shared pools by the number of its `own` signature, too.
    states: Final[Mapping[int, NodeState]] = field(default_factory=dict)
    claims_on: Final[Callable[[PoolKey], Iterable[Claim]]] = lambda _: ()  # claims with devices of a pool
    # Members of each group that have no node yet, by UID; without pods that are deleted or have scheduling gates.
    members: Final[Mapping[GroupKey, Mapping[str, Pod]]] = field(default_factory=dict)
    group_policies: Final[Mapping[GroupKey, GroupPolicy]] = field(default_factory=dict)
    # UID to node of bound members, from a recent read; only of groups whose bound members have too few claims.
    bound_members: Final[Mapping[GroupKey, Mapping[str, str]]] = field(default_factory=dict)
    # NVLink clique to the UIDs of the ComputeDomains in it, see extender/cache/allocated_devices.py.
    compute_domains: Final[Mapping[str, Collection[str]]] = field(default_factory=dict)
    soft_tainted: Final[Collection[str]] = ()  # names of the nodes with a PreferNoSchedule taint
    # Node to the CPU of the pods that Berth gave devices there, in thousandths of a core.
    claimed_cpu: Final[Mapping[str, int]] = field(default_factory=dict)

    def claims_of_group(self, group: GroupKey) -> Mapping[ObjectKey, str]:
        """The claims that the group's pods have devices in, each with its node."""
        return self.group_claims.get((group.namespace, group.on_claims), {})

    def users_of_group(self, group: GroupKey) -> dict[str, str]:
        """UID to node of the pods for which these claims are reserved."""
        return dict(iter(self.group_users.get((group.namespace, group.on_claims), ())))

    def changed_since(self, version: int) -> list[str] | None:
        """Names of nodes whose NodeInfo changed after `version`; None if that is not known."""
        return [] if version == self.version else self.changes.since(version)

    def states_since(self, version: int) -> Collection[NodeState]:
        """The states of the nodes that changed after `version`, and maybe others; all if that is cheaper."""
        changed = self.changed_since(version)
        if changed is None or len(changed) > _MAX_SINGLE_NODES:
            return self.states.values()
        found = (self.node_infos.get(name) for name in changed)
        return {node_info.state.number: node_info.state for node_info in found if node_info is not None}.values()

    def gained_since(self, version: int) -> list[str] | None:
        """Those of the changed nodes that may have gained room, see NodeInfo.gained; None if that is not known."""
        return [] if version == self.version else self.gains.since(version)


def troubled(found: Inventory, fabric: Fabric | None, gpu_bits: tuple[int, ...]) -> int:
    """Mask of the devices that have a taint with effect None or are unhealthy GPUs. Both only lower the score."""
    mask = 0
    for first, pool in found.pool_devices:
        mask |= pool.warned << first
    for state, bit in zip(fabric.gpus, gpu_bits, strict=True) if fabric is not None else ():
        if bit >= 0 and not state.healthy:
            mask |= 1 << bit
    return mask


def uses_of(fabric: Fabric | None) -> tuple[int, ...]:
    """Bytes in use on each GPU, in the order of the fabric; () if no GPU is in use or the agent does not report it."""
    found = tuple(_used(state) for state in fabric.gpus) if fabric is not None else ()
    return found if any(found) else ()


def live_use(
    found: Inventory, use: AllocatedState, uses: tuple[int, ...], gpu_bits: tuple[int, ...], busy: int
) -> tuple[int, dict[int, int]]:
    """(mask of GPUs in use without a claim, bit of a shared GPU to the bytes in use beyond its claims)."""
    drift, overuse = 0, {}
    for used, bit in zip(uses, gpu_bits, strict=True) if uses else ():
        if not used or bit < 0 or busy >> bit & 1:
            continue
        pool_device = found.devices[bit]
        shares = use.pools.get(found.pools[pool_device.pool].key, UNUSED).shares.get(pool_device.device.name)
        if shares is None:
            drift |= 1 << bit
        else:
            beyond = used - (amount_of_memory(shares) or 0) // NANO
            if beyond > 0:
                overuse[bit] = -(-beyond // _STEP_BYTES) * _STEP_BYTES
    return drift, overuse


def _used(state: GpuState) -> int:
    """Bytes in use, or 0 if the GPU looks idle or the agent does not report its memory."""
    if state.memory_free_bytes is None or not state.memory_total_bytes:
        return 0
    reserved, floor = state.memory_reserved_bytes, _FLOOR_BYTES
    if reserved is None:
        reserved, floor = 0, _UNKNOWN_FLOOR_BYTES
    used = state.memory_total_bytes - state.memory_free_bytes - reserved
    return used if used > max(floor, state.memory_total_bytes // _FLOOR_SHARE) else 0
