"""Builds NodeInfos from the object index. The cache builds only marked nodes again and keeps all other NodeInfos."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple
from weakref import WeakValueDictionary

from extender.allocation import (
    AllocatedState,
    CounterKey,
    Features,
    Interned,
    Interns,
    Inventory,
    KnownPools,
    NodeInfo,
    NodeState,
    Pool,
    PoolUse,
    Uses,
    consumed_counters,
    gather,
    interned,
    inventory,
    live_use,
    same_objects,
    taken_mask,
    troubled,
    uses_of,
)
from extender.cache.allocated_devices import AllocatedDevices
from extender.cache.object_index import ObjectIndex
from extender.fabric import Graphs, choose_fabric, gpu_uuid, live_fabric
from extender.model import Device, DeviceId, Fabric, Node, PoolKey, Slice, Source, newest_slices

_PARTITION_SIZES = (1, 2, 4, 8)  # attributes partition1..8 of the NVIDIA driver


@dataclass(frozen=True, slots=True, eq=False)
class _Hardware:
    """The part of a node that does not depend on its use; valid until the node's slices change."""

    inventory: Inventory
    live: Slice | None  # the fabric slice of the node agent
    fabric: Fabric | None
    gpu_bits: tuple[int, ...]  # device bit of each GPU of the fabric, -1 for none
    uses: Uses
    partitions: tuple[int, ...] | None
    troubled: int
    attribute_signature: Interned  # everything that selectors can read, except identities
    hardware_signature: Interned  # everything that search and scoring read from an idle node


class _Counters(NamedTuple):
    """The consumed amounts of a pool's shared counters, and the inputs of that computation."""

    slices: tuple[Slice, ...]
    use: PoolUse
    consumed: dict[CounterKey, int]
    digest: bytes


class NodeInfoBuilder:
    """Builds NodeInfos. Equal hardware, allocation and attribute classes are interned, so equal nodes share one state.

    Interned objects live as long as a NodeInfo, a ranking or another reader refers to them.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self._graphs = Graphs()
        self._shared_pools: KnownPools = WeakValueDictionary()
        self._pool_signatures: Interns = WeakValueDictionary()
        self._hardware: dict[str, _Hardware] = {}
        self._attribute_signatures: Interns = WeakValueDictionary()
        self._hardware_signatures: Interns = WeakValueDictionary()
        self._allocation_signatures: Interns = WeakValueDictionary()
        self._own_signatures: Interns = WeakValueDictionary()
        self._states: WeakValueDictionary[tuple[Interned, Interned], NodeState] = WeakValueDictionary()
        self._counters: dict[PoolKey, _Counters] = {}
        self.agent_problems: dict[str, tuple[str, ...]] = {}  # contradictions in an agent's data, by node

    def build(
        self,
        node: Node,
        store: ObjectIndex,
        allocated_devices: AllocatedDevices,
        previous: NodeInfo | None,
        *,
        only_use: bool,
    ) -> NodeInfo:
        """The NodeInfo of one node. `only_use`: only claims and reservations changed since `previous`."""
        found = previous.inventory if only_use and previous is not None else self._inventory(node, store, previous)
        hardware = self._hardware_of(node, store, found)
        fabric, gpu_bits = hardware.fabric, hardware.gpu_bits
        pools = {pool.key: allocated_devices.pool(pool.key) for pool in found.pools}
        # A NodeInfo never changes. So it copies the counters now, before later events change the store.
        counted = {pool.key: self._consumed(pool, store, pools[pool.key]) for pool in found.pools if pool.counter_sets}
        counters = {key: one.consumed for key, one in counted.items()}
        use = AllocatedState(pools, lambda pool: counters.get(pool.key, {}))
        busy, held = taken_mask(found, use), _held(found, allocated_devices)
        agent_is_fresh = node.name not in store.silent_agents
        drift, overuse = live_use(found, use, hardware.uses, gpu_bits, busy) if agent_is_fresh else (0, {})
        consumed = tuple(one.digest for one in counted.values())
        shares, live = _share_digest(found, pools), (drift, tuple(overuse.items()))
        # What the score reads from the node, besides the use of the devices that it shares with others.
        own = busy & (~found.shared | _mask(gpu_bits))
        own_signature = interned(self._own_signatures, (hardware.hardware_signature, shares, own, *live))
        key = (hardware.hardware_signature, shares, busy, held, consumed, *live)
        state = self._state(interned(self._allocation_signatures, key), hardware, own_signature)
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
            overuse,
            agent_is_fresh,
            hardware.partitions,
            hardware.troubled,
        )

    def forget(self, node: str) -> None:
        """Drop the entries of a deleted node."""
        self.agent_problems.pop(node, None)
        gone = self._hardware.pop(node, None)
        if gone is not None:
            self._forget_counters(gone.inventory)

    def interned(self) -> dict[str, int]:
        """The number of kept entries by kind, for benchmarks and tests of the limits."""
        tables: dict[str, Sized] = {
            "states": self._states,
            "allocation_signatures": self._allocation_signatures,
            "own_signatures": self._own_signatures,
            "hardware_signatures": self._hardware_signatures,
            "attribute_signatures": self._attribute_signatures,
            "pool_signatures": self._pool_signatures,
            "shared_pools": self._shared_pools,
            "hardware": self._hardware,
            "counters": self._counters,
        }
        return {name: len(table) for name, table in tables.items()}

    def _state(self, allocation_signature: Interned, hardware: _Hardware, own_signature: Interned) -> NodeState:
        key = allocation_signature, hardware.attribute_signature
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = NodeState(
                allocation_signature,
                hardware.attribute_signature,
                hardware_signature=hardware.hardware_signature,
                own_signature=own_signature,
            )
        return found

    # -- the inventory ---------------------------------------------------------------------------------------

    def _inventory(self, node: Node, store: ObjectIndex, previous: NodeInfo | None) -> Inventory:
        nearby = self._nearby(node, store)
        before = previous.inventory.pools if previous is not None else ()
        pools = gather(
            node,
            nearby,
            lambda key: list(store.pools.get(key, {}).values()),
            self._features,
            self._shared_pools,
            before,
        )
        if previous is not None and previous.node.labels == node.labels and _same(before, pools):
            return previous.inventory
        return inventory(node, pools, self._pool_signatures)

    def _nearby(self, node: Node, store: ObjectIndex) -> list[Slice]:
        """The node's own slices, slices of no single node, and the counter sets of the own slices' pools."""
        own = list(store.by_node.get(node.name, {}).values())
        found = own + list(store.roaming.values())
        seen = {slice_.name for slice_ in found}
        for key in {slice_.pool for slice_ in own}:
            found += [s for s in store.pools[key].values() if s.counter_sets and s.name not in seen]
        return found

    def _consumed(self, pool: Pool, store: ObjectIndex, use: PoolUse) -> _Counters:
        """The consumed counters of a pool, computed once per state of the pool, not once per node."""
        slices = store.pools.get(pool.key, {})
        current = tuple(newest_slices(slices.values()))
        known = self._counters.get(pool.key)
        if known is None or not same_objects(known.slices, current) or known.use != use:
            consumed = consumed_counters(current, use)
            known = self._counters[pool.key] = _Counters(current, use, consumed, _digest(sorted(consumed.items())))
        return known

    def _forget_counters(self, gone: Inventory) -> None:
        """Drop the counters of a node's pools. Another node of such a pool computes them again."""
        for pool in gone.pools:
            self._counters.pop(pool.key, None)

    # -- the hardware ----------------------------------------------------------------------------------------

    def _hardware_of(self, node: Node, store: ObjectIndex, found: Inventory) -> _Hardware:
        known, live = self._hardware.get(node.name), store.fabric.get(node.name)
        if known is None or known.inventory is not found or known.live is not live:
            fabric, gpu_bits = self._fabric(node.name, live, found, store, known)
            is_same = known is not None and known.fabric is fabric and found.has_same_gpus(known.inventory)
            partitions = known.partitions if known is not None and is_same else _partitions(found, gpu_bits)
            hardware_signature = self._hardware_signature(found, fabric, gpu_bits, partitions)
            seen = hardware_signature, tuple(part.attributes for _, part in found.parts)
            attribute_signature = interned(self._attribute_signatures, seen)
            if known is not None and known.inventory is not found:
                self._forget_counters(known.inventory)
            known = self._hardware[node.name] = _Hardware(
                found,
                live,
                fabric,
                gpu_bits,
                uses_of(fabric),
                partitions,
                troubled(found, fabric, gpu_bits),
                attribute_signature,
                hardware_signature,
            )
        return known

    def _fabric(
        self, node: str, live: Slice | None, found: Inventory, store: ObjectIndex, known: _Hardware | None
    ) -> tuple[Fabric | None, tuple[int, ...]]:
        gpus = _whole_gpus(found)
        devices = list(gpus.values())
        if known is not None and _reads_the_same(known, live, found, node, store):
            fabric: Fabric | None = known.fabric
        else:
            reported = self._agent_fabric(node, live, devices, store)
            fabric = choose_fabric(reported, devices, self._graphs) if gpus else None
        if fabric is None:
            return None, ()
        bits = {gpu_uuid(device): bit for bit, device in gpus.items()}
        return fabric, tuple(bits.get(gpu.uuid, -1) for gpu in fabric.gpus)

    def _agent_fabric(self, node: str, live: Slice | None, gpus: list[Device], store: ObjectIndex) -> Fabric | None:
        def published_by(uuid: str) -> str:
            publisher = store.publishers.get(uuid, node)
            return publisher if publisher != node else ""

        reported, problems = live_fabric(live, gpus, published_by) if live is not None else (None, ())
        if problems:
            self.agent_problems[node] = problems
        else:
            self.agent_problems.pop(node, None)
        return reported

    def _hardware_signature(
        self, found: Inventory, fabric: Fabric | None, gpu_bits: tuple[int, ...], partitions: tuple[int, ...] | None
    ) -> Interned:
        shape = tuple(part.shape for _, part in found.parts)
        fabric_key: object = None
        if fabric is not None:
            states = tuple((gpu.healthy, gpu.note) for gpu in fabric.gpus)
            fabric_key = (fabric.graph, fabric.source, states, gpu_bits)
        pools = tuple((p.incomplete, p.trouble, _amounts(p)) for p in found.pools)
        hardware_signature = (shape, found.reachable, found.unsupported, fabric_key, pools, partitions)
        return interned(self._hardware_signatures, hardware_signature)


def _amounts(pool: Pool) -> bytes:
    """The amounts of the pool's counters. Nodes with equal devices can differ in them."""
    sets = sorted((name, sorted(counters.items())) for name, counters in pool.counter_sets.items())
    return _digest(sets) if sets else b""


def _whole_gpus(found: Inventory) -> dict[int, Device]:
    """The whole GPUs of an inventory by device bit, ascending."""
    return {first + bit: part.devices[bit].device for first, part in found.parts for bit in part.gpus}


def _reads_the_same(known: _Hardware, live: Slice | None, found: Inventory, node: str, store: ObjectIndex) -> bool:
    """Whether the choice of the fabric would read what it read for `known`. Most changes touch no GPU.

    The answer is False for a node whose agent's slice was rejected: the agent may have corrected it.
    """
    if known.live is not live or known.fabric is None or (known.fabric.source is Source.LIVE) != (live is not None):
        return False
    if any(store.publishers.get(gpu.uuid, node) != node for gpu in known.fabric.gpus if live is not None):
        return False
    if known.inventory.has_same_gpus(found):
        return True
    before, gpus = (list(_whole_gpus(one).values()) for one in (known.inventory, found))
    return len(before) == len(gpus) and all(
        a.name == b.name and a.attributes is b.attributes for a, b in zip(before, gpus, strict=True)
    )


def _mask(bits: Iterable[int]) -> int:
    """The mask of these bits; -1 stands for none."""
    return sum(1 << bit for bit in bits if bit >= 0)


def _held(found: Inventory, allocated_devices: AllocatedDevices) -> int:
    """The devices that only holds keep in use, as a bit mask."""
    mask = 0
    for pool in found.pools:
        for device in allocated_devices.only_held(pool.key):
            bit = found.index.get(DeviceId(pool.key.driver, pool.key.name, device))
            mask |= 1 << bit if bit is not None else 0
    return mask


def _share_digest(found: Inventory, pools: Mapping[PoolKey, PoolUse]) -> bytes:
    """A digest of the allocated shares of each device."""
    shares = [
        (bit, sorted(amounts.items()))
        for key, use in pools.items()
        for device, amounts in use.shares.items()
        if (bit := found.index.get(DeviceId(*key, device))) is not None
    ]
    return _digest(sorted(shares)) if shares else b""


def _digest(amounts: object) -> bytes:
    """A short key for amounts: a MIG node has hundreds of them, and keys stay in memory."""
    return blake2b(repr(amounts).encode(), digest_size=16).digest()


def _partitions(found: Inventory, gpu_bits: tuple[int, ...]) -> tuple[int, ...] | None:
    """Masks of GPU positions that Fabric Manager can join; None if no GPU names a partition."""
    sets: dict[tuple[int, object], int] = {}
    for position, bit in enumerate(gpu_bits):
        attributes = found.devices[bit].device.attributes if bit >= 0 else {}
        for size in _PARTITION_SIZES:
            number = attributes.get(f"gpu.nvidia.com/partition{size}")
            if number is not None:
                sets[size, number] = sets.get((size, number), 0) | 1 << position
    return tuple(sorted(mask for (size, _), mask in sets.items() if mask.bit_count() == size)) if sets else None


def _same(before: tuple[Pool, ...], after: tuple[Pool, ...]) -> bool:
    """Whether two results of `gather` have the same slices."""
    if len(before) != len(after):
        return False
    return all(
        a is b
        or (
            (a.key, a.incomplete, a.trouble) == (b.key, b.incomplete, b.trouble)
            and same_objects(a.slices, b.slices)
            and (a.counter_sets, a.grouped) == (b.counter_sets, b.grouped)
        )
        for a, b in zip(before, after, strict=True)
    )
