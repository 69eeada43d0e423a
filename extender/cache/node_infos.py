"""Builds the NodeInfo of each dirty node. NodeInfos keeps the NodeInfo of every node, and the state of the node.

A build has three steps, and each keeps what did not change:

1. The inventory: the pools and devices that the node sees, from its slices and from shared ones.
2. The hardware: how the GPUs are joined, as the agent or else the product says, and what selectors and scores read of
   an idle node. It stays until the slices change.
3. The use: the devices that claims, binds and holds have, and the memory that the agent sees in use.

The result is a NodeInfo in a state. The keys of states are interned signatures, so nodes with equal hardware and equal
use are in one state, and are evaluated once. The use of shared pools is apart in a state: a claim on a device that
thousands of nodes see moves them all to other states, and builds none (see NodeInfos).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from weakref import WeakValueDictionary

from cachetools import LRUCache

from extender.allocation import Features, NodeInfo
from extender.allocation.nodes import (
    AllocatedState,
    CounterKey,
    FabricPartitions,
    Interned,
    Interns,
    Inventory,
    KnownPools,
    KnownSlices,
    NodeState,
    Pool,
    PoolGroup,
    PoolUse,
    SharedUse,
    fabric_partitions_of,
    gather,
    inventory,
    live_use,
    troubled,
    uses_of,
)
from extender.allocation.nodes.locality import Locality, locality_of
from extender.api.gpu_topology import Fabric, Source
from extender.api.nodes import Node
from extender.api.resource_slices import Device, DeviceId, PoolKey, Slice
from extender.cache.allocated_devices import AllocatedDevices
from extender.cache.slice_index import TOO_MANY, NodeSlices, SliceIndex, set_or_drop
from extender.topology.agent_slices import MAX_NODE_GPUS
from extender.topology.sources import choose_fabric, live_fabric
from extender.vendors import GPU, driver_of, parent_of

_MAX_VACANT_STATES = 1024  # kept states without nodes, of about 2 KB; a node often returns to such a state
_StateKey = tuple[Interned, Interned | None, SharedUse | None]
_NO_OVERUSE: Mapping[int, int] = {}  # one for all nodes, as the bits of their GPUs


@dataclass(frozen=True, slots=True, eq=False)
class _Hardware:
    """The part of a node that does not depend on its use; valid until the node's slices change."""

    inventory: Inventory
    live: Slice | None  # the fabric slice of the node agent
    fabric: Fabric | None
    gpu_bits: tuple[int, ...]  # device bit of each GPU of the fabric, -1 for none
    uses: tuple[int, ...]
    fabric_partitions: FabricPartitions | None
    troubled: int
    own: int  # mask of the devices whose use the score reads from the node: unshared devices, and GPUs
    attribute_signature: Interned  # everything that selectors can read, except identities
    hardware_signature: Interned  # everything that search and scoring read from an idle node
    group: PoolGroup | None  # the shared pools; None: the node sees none
    locality: Locality | None  # where the devices are


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class _Counters:
    """The consumed amounts of a pool's shared counters, and the inputs of that computation."""

    slices: tuple[Slice, ...]
    use: PoolUse
    consumed: dict[CounterKey, int]
    digest: bytes


class NodeInfoBuilder:
    """Builds NodeInfos. Equal signatures are interned, so equal nodes share one state.

    Interned objects live as long as a NodeInfo, a ranking or another reader refers to them.
    """

    def __init__(self, features: Features, slices: SliceIndex, allocated_devices: AllocatedDevices) -> None:
        self._features = features
        self._slices = slices
        self._allocated_devices = allocated_devices
        self._shared_pools: KnownPools = WeakValueDictionary()
        self._known_slices = KnownSlices()
        self._hardware: dict[str, _Hardware] = {}
        self._attribute_signatures = Interns()
        self._hardware_signatures = Interns()
        self._allocation_signatures = Interns()
        self._own_signatures = Interns()
        self._groups: WeakValueDictionary[tuple[Interned | None, ...], PoolGroup] = WeakValueDictionary()
        self._shared_uses: WeakValueDictionary[Hashable, SharedUse] = WeakValueDictionary()
        self._own_states = Interns()
        self._known_localities: WeakValueDictionary[Hashable, Locality] = WeakValueDictionary()
        self._states: WeakValueDictionary[_StateKey, NodeState] = WeakValueDictionary()
        self._counters: WeakValueDictionary[PoolKey, _Counters] = WeakValueDictionary()
        self.agent_problems: dict[str, tuple[str, ...]] = {}  # contradictions in an agent's data, by node
        self.driver_problems: dict[str, tuple[str, ...]] = {}  # impossible data of drivers, by node

    def build(self, node: Node, previous: NodeInfo | None, *, only_use: bool) -> NodeInfo:
        """The NodeInfo of one node. `only_use`: only claims and reservations changed since `previous`."""
        slices = self._slices
        waiting, waits = slices.waiting_pools, node.name in slices.node_changes.waiting
        known = previous.inventory.pools if only_use and previous is not None else ()
        if any(pool.counter_sets and (waits or pool.key in waiting) for pool in known):
            only_use = False  # its shared counters may depend on a slice that was deleted
        found = previous.inventory if only_use and previous is not None else self._inventory(node, previous)
        hardware = self._hardware_of(node, found)
        fabric, gpu_bits = hardware.fabric, hardware.gpu_bits
        shared = self.shared_use(hardware.group) if hardware.group is not None else None
        common = shared.pools if shared is not None else {}
        pools = {pool.key: self._allocated_devices.pool(pool.key) for pool in found.pools if pool.key not in common}
        # A NodeInfo never changes. So it copies the counters now, before later events change the store.
        counted = {pool.key: self._consumed(pool, pools[pool.key]) for pool in found.pools if pool.counter_sets}
        use = AllocatedState(pools)
        if counted:
            use = AllocatedState(pools, lambda pool: counted[pool.key].consumed if pool.key in counted else {})
        busy, held = use.taken(found), use.held(found)
        agent_is_fresh = node.name not in slices.agents.silent
        drift, overuse = 0, dict[int, int]()
        if agent_is_fresh and hardware.uses:
            drift, overuse = live_use(found, use, hardware.uses, gpu_bits, busy)
        consumed = tuple(one.digest for one in counted.values())
        shares, live = share_digest(found, pools), (drift, tuple(overuse.items()))
        own = hardware.hardware_signature, shares, busy & hardware.own, *live
        own_signature = self._own_signatures.of(own)
        key = (hardware.hardware_signature, hardware.group, shares, busy, held, consumed, *live)
        state = self._state(self._allocation_signatures.of(key), hardware, own_signature, shared)
        if shared is not None:
            use = AllocatedState({**pools, **common}, use.counters)
            for position, (first, _) in enumerate(found.shared_pools):
                busy |= shared.busy[position] << first
                held |= shared.held[position] << first
        return NodeInfo(
            node,
            found,
            use,
            state,
            fabric,
            gpu_bits,
            held & busy,
            busy,
            drift,
            overuse or _NO_OVERUSE,
            agent_is_fresh,
            hardware.fabric_partitions,
            hardware.troubled,
            hardware.locality,
        )

    def forget(self, node: str) -> None:
        """Drop the entries of a deleted node."""
        self.agent_problems.pop(node, None)
        self.driver_problems.pop(node, None)
        self._hardware.pop(node, None)
        self._slices.publishers.forget_questions(node)

    def forget_slice(self, name: str) -> None:
        """Drop what is known of a slice that changed or was deleted."""
        self._known_slices.forget(name)

    def interned(self) -> dict[str, int]:
        """The number of kept entries by kind, for benchmarks and tests of the limits."""
        return {name.strip("_"): len(table) for name, table in vars(self).items() if isinstance(table, Sized)}

    def shared_use(self, group: PoolGroup) -> SharedUse:
        """The current use of the shared pools of a group."""
        allocated_devices = self._allocated_devices
        pools = {pool.key: allocated_devices.pool(pool.key) for pool in group.pools}
        busy = tuple(pools[pool.key].taken_of(pool) for pool in group.pools)
        held = tuple(pool.mask(pools[pool.key].held) & taken for pool, taken in zip(group.pools, busy, strict=True))
        shares = tuple(digest(in_order(use.shares)) if use.shares else b"" for use in pools.values())
        key = group, tuple(use.taken for use in pools.values()), shares, held
        found = self._shared_uses.get(key)
        if found is None:
            found = self._shared_uses[key] = SharedUse(group, pools, busy, held)
        return found

    def with_shared_use(self, state: NodeState, shared: SharedUse) -> NodeState:
        """The state that differs only in the use of shared pools."""
        key = state.own_allocation, state.attribute_signature, shared
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = state.with_shared(shared)
        return found

    def _state(
        self, own_allocation: Interned, hardware: _Hardware, own_signature: Interned, shared: SharedUse | None
    ) -> NodeState:
        key = own_allocation, hardware.attribute_signature, shared
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = NodeState(
                hardware.attribute_signature,
                hardware_signature=hardware.hardware_signature,
                own_signature=own_signature,
                own_allocation=own_allocation,
                own=self._own_states.of(key[:2]) if shared is not None else own_allocation,
                shared=shared,
            )
        return found

    # -- the inventory ---------------------------------------------------------------------------------------

    def _inventory(self, node: Node, previous: NodeInfo | None) -> Inventory:
        slices = self._slices
        own = slices.by_node.get(node.name, NodeSlices())
        kept, left_out = own.kept()
        before = previous.inventory.pools if previous is not None else ()
        pools = gather(
            node,
            (slice_ for slice_ in _nearby(node, slices, kept) if slice_.pool in kept or slice_.pool not in own.pools),
            slices.pools.whole,
            self._features,
            self._shared_pools,
            before,
        )
        set_or_drop(self.driver_problems, node.name, (TOO_MANY,) if left_out else None)
        if left_out:
            pools += tuple(Pool(key, trouble=TOO_MANY) for key in left_out)
        if previous is not None and previous.node.labels == node.labels and _same(before, pools):
            return previous.inventory
        return inventory(node, pools, self._known_slices)

    def _consumed(self, pool: Pool, use: PoolUse) -> _Counters:
        """The consumed counters of a pool, computed once per state of the pool, not once per node."""
        current = pool.slices_in(self._slices.pools.whole(pool.key))
        known = self._counters.get(pool.key)
        if known is None or known.slices is not current or known.use != use:
            consumed = use.consumed(current)
            known = self._counters[pool.key] = _Counters(current, use, consumed, digest(sorted(consumed.items())))
        return known

    # -- the hardware ----------------------------------------------------------------------------------------

    def _hardware_of(self, node: Node, found: Inventory) -> _Hardware:
        known, live = self._hardware.get(node.name), self._slices.fabric.get(node.name)
        if known is not None and node.name in self._slices.node_changes.waiting:
            live = known.live  # something else changed the node
        doubted = node.name in self._slices.publishers.changed
        if known is None or known.inventory is not found or known.live is not live or doubted:
            fabric, gpu_bits = self._fabric(node.name, live, found, known)
            is_same = known is not None and known.inventory is found
            partitions = known.fabric_partitions if known is not None and is_same else fabric_partitions_of(found)
            locality = locality_of(found, fabric, gpu_bits)
            if locality is not None:
                locality = self._known_localities.setdefault(locality.key, locality)
            hardware_signature = self._hardware_signature(found, fabric, gpu_bits, partitions, locality)
            seen = hardware_signature, tuple(pool.attributes for _, pool in found.pool_devices)
            attribute_signature = self._attribute_signatures.of(seen)
            known = self._hardware[node.name] = _Hardware(
                found,
                live,
                fabric,
                gpu_bits,
                uses_of(fabric),
                partitions,
                troubled(found, fabric, gpu_bits),
                ~found.shared | sum(1 << bit for bit in gpu_bits if bit >= 0),
                attribute_signature,
                hardware_signature,
                self._group(found),
                locality,
            )
        return known

    def _group(self, found: Inventory) -> PoolGroup | None:
        pools = tuple(pool for _, pool in found.shared_pools)
        key = tuple(pool.shared for pool in pools)
        group = self._groups.get(key)
        if group is None and pools:
            group = self._groups[key] = PoolGroup(pools)
        return group

    def _fabric(
        self, node: str, live: Slice | None, found: Inventory, known: _Hardware | None
    ) -> tuple[Fabric | None, tuple[int, ...]]:
        (driver, gpus), publishers = found.whole_gpus, self._slices.publishers
        is_same = known is not None and node not in publishers.changed and _reads_the_same(known, live, found)
        if not is_same:
            publishers.forget_questions(node)
        if len(gpus) > MAX_NODE_GPUS:
            problem = f"its driver publishes {len(gpus)} GPUs, where a node has at most {MAX_NODE_GPUS}"
            self.agent_problems[node] = (problem,)
            return None, ()
        devices = {identity: found.devices[bit].device for identity, bit in gpus.items()}
        if known is not None and is_same:
            fabric: Fabric | None = known.fabric
        else:
            reported = self._agent_fabric(node, live, driver, devices, frozenset() if gpus else _parents(found))
            fabric = choose_fabric(reported, driver, devices)
        if fabric is None:
            return None, ()
        return fabric, tuple(gpus.get(uuid, -1) for uuid in fabric.uuids)

    def _agent_fabric(
        self, node: str, live: Slice | None, driver: str, gpus: Mapping[str, Device], parents: frozenset[str]
    ) -> Fabric | None:
        reported, problems = None, tuple[str, ...]()
        if live is not None:
            published_by = partial(self._slices.publishers.ask, node)
            reported, problems = live_fabric(live, driver, gpus, published_by, parents)
        set_or_drop(self.agent_problems, node, problems or None)
        return reported

    def _hardware_signature(
        self,
        found: Inventory,
        fabric: Fabric | None,
        gpu_bits: tuple[int, ...],
        partitions: FabricPartitions | None,
        locality: Locality | None,
    ) -> Interned:
        devices = tuple(pool.hardware for _, pool in found.pool_devices)
        fabric_key: object = None
        if fabric is not None:
            states = tuple((gpu.healthy, gpu.note) for gpu in fabric.gpus)
            fabric_key = (fabric.graph, fabric.product, fabric.products, fabric.source, states, gpu_bits)
        # Nodes with equal devices can differ in the amounts of their counters.
        amounts = (digest(in_order(pool.counter_sets)) if pool.counter_sets else b"" for pool in found.pools)
        pools = tuple((p.incomplete, p.trouble, amount) for p, amount in zip(found.pools, amounts, strict=True))
        usable = found.reachable, found.packed, found.gpus, found.unsupported
        hardware_signature = (devices, usable, fabric_key, pools, partitions, locality)
        return self._hardware_signatures.of(hardware_signature)


def _nearby(node: Node, slices: SliceIndex, own: Mapping[PoolKey, Mapping[str, Slice]]) -> list[Slice]:
    """The node's own slices, slices of no single node, and the counter sets of the pools of both."""
    found = [slice_ for of_pool in own.values() for slice_ in of_pool.values()]
    found += slices.shared.of(node)
    seen = {slice_.name for slice_ in found}
    for key in {slice_.pool for slice_ in found}:
        found += [s for s in slices.pools.with_counters.get(key, {}).values() if s.name not in seen]
    return found


def _parents(found: Inventory) -> frozenset[str]:
    """The UUIDs of the GPUs that the node's drivers publish in parts (MIG)."""
    return frozenset(
        uuid
        for _, pool in found.pool_devices
        if driver_of(pool.key.driver).kind == GPU
        for pool_device in pool.devices
        if (uuid := parent_of(pool_device.device, pool.key.driver))
    )


def _reads_the_same(known: _Hardware, live: Slice | None, found: Inventory) -> bool:
    """Whether the inputs of the fabric are those of `known`, so that it stays valid. Most changes touch no GPU.

    The answer is False for a node whose agent's slice was rejected: the agent may have corrected it.
    """
    if known.live is not live or known.fabric is None or (known.fabric.source is Source.LIVE) != (live is not None):
        return False
    driver, after = found.whole_gpus
    if not after and _parents(found) != _parents(known.inventory):
        return False
    if known.inventory.has_same_gpus(found):
        return True
    driver_before, before = known.inventory.whole_gpus
    if driver_before != driver or len(before) != len(after):
        return False
    old, new = (
        [one.devices[bit].device for bit in bits.values()] for one, bits in ((known.inventory, before), (found, after))
    )
    return all(a.name == b.name and a.attributes is b.attributes for a, b in zip(old, new, strict=True))


def _same(before: tuple[Pool, ...], after: tuple[Pool, ...]) -> bool:
    """Whether two results of `gather` have the same slices."""
    if len(before) != len(after):
        return False
    return all(a is b or a.is_same(b) for a, b in zip(before, after, strict=True))


# -- parts of signatures, as short values that can be compared -----------------------------------------------


def share_digest(found: Inventory, pools: Mapping[PoolKey, PoolUse]) -> bytes:
    """A digest of the allocated shares of each device."""
    shares = [
        (bit, sorted(amounts.items()))
        for key, use in pools.items()
        for device, amounts in use.shares.items()
        if (bit := found.index.get(DeviceId(*key, device))) is not None
    ]
    return digest(sorted(shares)) if shares else b""


def in_order(tables: Mapping[str, Mapping[str, int]]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Amounts by device or counter set, and by name, in one order."""
    return [(key, sorted(amounts.items())) for key, amounts in sorted(tables.items())]


def digest(amounts: object) -> bytes:
    """A short key for amounts: a MIG node has hundreds of them, and keys stay in memory."""
    return blake2b(repr(amounts).encode(), digest_size=16).digest()


class NodeInfos(Mapping[str, NodeInfo]):
    """NodeInfos by node name.

    A change of the use of shared pools moves whole states: nothing is computed for a node before a reader asks for it.
    """

    def __init__(self) -> None:
        self.states: dict[int, NodeState] = {}  # see Snapshot.states
        # States with the same own part as another state, which has a newer use of the shared pools.
        self._others: dict[int, list[NodeState]] = {}  # by number of the own part
        self._vacated: LRUCache[int, NodeState] = LRUCache(_MAX_VACANT_STATES)
        self._built: dict[str, NodeInfo] = {}  # some with an outdated use of shared pools: see __getitem__
        self._state_of: dict[str, NodeState] = {}
        self._followers: dict[PoolKey, set[str]] = {}  # see `nodes_to_build`

    def __getitem__(self, name: str) -> NodeInfo:
        found, state = self._built[name], self._state_of[name]
        if found.state is not state:
            found = self._built[name] = _in_state(found, state)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._built)

    def __len__(self) -> int:
        return len(self._built)

    def __contains__(self, name: object) -> bool:
        return name in self._built

    def put(self, name: str, new: NodeInfo | None) -> None:
        """Put the NodeInfo of a node; None deletes it."""
        old = self._built.pop(name, None) if new is None else self._built.get(name)
        old_state = self._state_of.pop(name, None)
        if new is not None:
            self._built[name], self._state_of[name] = new, new.state
        if new is None or new.state is not old_state:
            if old_state is not None:
                del old_state.names[bisect_left(old_state.names, name)]
                if not old_state.names:
                    self._vacate(old_state)
            if new is not None:
                insort(new.state.names, name)
                if len(new.state.names) == 1:
                    self._occupy(new.state)
        before, after = (one.inventory if one is not None else None for one in (old, new))
        if before is not after:
            for key in _to_follow(before):
                self._followers[key].discard(name)
                if not self._followers[key]:
                    del self._followers[key]
            for key in _to_follow(after):
                self._followers.setdefault(key, set()).add(name)

    def nodes_to_build(self, pools: set[PoolKey]) -> set[str]:
        """The nodes to build again after the use of these pools changed, because `use_shared` does not move them.

        A pool that is not shared in the sense of `use_shared` has shared counters, a GPU, or devices that name a node.
        """
        return {name for key in pools & self._followers.keys() for name in self._followers[key]}

    def use_shared(self, pools: set[PoolKey], builder: NodeInfoBuilder) -> tuple[list[str], list[str]]:
        """Move all nodes to the states that have the current use of these shared pools.

        Returns the names of the nodes in moved states, and of those of them that may have gained room.
        """
        uses = dict[PoolGroup, SharedUse]()
        moved, gained = list[str](), list[str]()
        for number, state in list(self.states.items()):
            before = state.shared
            if before is None or number != state.number or before.group.keys.isdisjoint(pools):
                continue
            now = uses.get(before.group)
            if now is None:
                now = uses[before.group] = builder.shared_use(before.group)
            if now is not before:
                names = self._move_all(state, builder.with_shared_use(state, now))
                moved += names
                gained += names if now.gained(before) else ()
        return moved, gained

    def _move_all(self, before: NodeState, after: NodeState) -> list[str]:
        """Move all nodes of a state; returns their names."""
        names, before.names = before.names, []
        self._vacate(before)
        after.names = sorted([*after.names, *names])
        self._occupy(after)
        self._state_of.update(dict.fromkeys(names, after))
        return names

    def _vacate(self, state: NodeState) -> None:
        self._vacated[state.number] = self.states.pop(state.number)
        if state.shared is None:
            return
        own, others = state.own.number, self._others.get(state.own.number, [])
        if self.states[own] is not state:
            others.remove(state)
        elif others:
            self.states[own] = others.pop()
        else:
            del self.states[own]
        if not others:
            self._others.pop(own, None)

    def _occupy(self, state: NodeState) -> None:
        self._vacated.pop(state.number, None)
        if state.number in self.states:
            return
        self.states[state.number] = state
        if state.shared is not None:
            before = self.states.get(state.own.number)
            if before is not None:
                self._others.setdefault(state.own.number, []).append(before)
            self.states[state.own.number] = state


def _in_state(old: NodeInfo, state: NodeState) -> NodeInfo:
    """The NodeInfo with the use of shared pools from its new state."""
    use, busy, held = state.shared, old.busy, old.held
    assert use is not None, "only states with shared pools move as a whole"
    for position, (first, pool) in enumerate(old.inventory.shared_pools):
        others = ~(((1 << len(pool.devices)) - 1) << first)
        busy = busy & others | use.busy[position] << first
        held = held & others | use.held[position] << first
    allocated_state = AllocatedState({**old.allocated_state.pools, **use.pools}, old.allocated_state.counters)
    return replace(old, allocated_state=allocated_state, state=state, busy=busy, held=held)


def _to_follow(inventory: Inventory | None) -> list[PoolKey]:
    """The pools of the node that have slices for several nodes, and that `use_shared` does not cover."""
    if inventory is None:
        return []
    shared = {pool.key for _, pool in inventory.shared_pools}
    return [pool.key for pool in inventory.pools if pool.names_no_node and pool.key not in shared]
