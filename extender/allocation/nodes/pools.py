"""The pools that one node can use, and the devices of their slices. The inventory of a node consists of them.

A pool has its current slices, and is complete and consistent, or offers nothing (source: structured of
k8s.io/dynamic-resource-allocation, 1.36). A write of a slice leaves the objects for the devices of the pool's other
slices. Everything that search and scoring may read from devices is interned: nodes with equal tokens share their
statuses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple
from weakref import WeakValueDictionary

from extender.allocation.device_rules import Features
from extender.api.nodes import Node, NodeSelection
from extender.api.resource_slices import Device, DeviceId, PoolKey, Slice, is_complete, newest_slices
from extender.vendors import memory_bytes, whole_identity

NUMBERS = count()


class Interned:
    """A token for a value. Equal values share one token, and tokens are compared by identity.

    `number` is never used again. A cache that must not keep the token in memory stores the number.
    """

    __slots__ = ("__weakref__", "number")

    def __init__(self) -> None:
        self.number = next(NUMBERS)


class Interns(WeakValueDictionary[Hashable, Interned]):
    """Tokens by value. The table holds them weakly: a token lives as long as another reference."""

    def of(self, key: Hashable) -> Interned:
        """The token of a value."""
        found = self.get(key)
        if found is None:
            found = self[key] = Interned()
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PoolDevice:
    """One device of a pool that the node can use."""

    device: Device
    slice: Slice
    pool: int  # position in Inventory.pools
    memory_bytes: int  # the total memory; 0 if it is not known

    @property
    def id(self) -> DeviceId:
        return DeviceId(*self.slice.pool, self.device.name)

    @property
    def driver(self) -> str:
        return self.slice.pool.driver


class DeviceBits(dict[str, int]):
    """Device name to bit. Pools whose devices have equal names share it."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True, eq=False)
class PoolDevices:
    """The devices of a usable pool at one position of inventories. Bit i of each mask is devices[i]."""

    key: PoolKey
    position: int  # of the pool in Inventory.pools
    devices: tuple[PoolDevice, ...]
    offsets: tuple[tuple[Slice, int], ...]  # (slice, bit of its first device)
    index: DeviceBits
    reachable: int  # mask of usable devices, without those of `selections`
    selections: tuple[tuple[NodeSelection, int], ...]  # node selections of usable devices that have their own
    simple: int  # see Inventory
    warned: int  # mask of devices with a taint of effect None
    unsupported: tuple[tuple[str, int], ...]  # see Inventory
    named: Mapping[str, int]  # node name to the mask of devices that name this node
    gpus: int  # mask of the whole GPUs
    identities: tuple[str, ...]  # of the whole GPUs
    hardware: Interned  # everything that search and scoring read from the devices if they are idle
    attributes: Interned  # everything that selectors can read from the devices, except identities
    # Equal for nodes that see equal devices of the pool. None: the devices' use can differ between these nodes, because
    # they name a node, or because Berth reads more than the use (GPUs, shared counters).
    shared: Interned | None

    def mask(self, names: Iterable[str]) -> int:
        """The mask of the devices with these names; other names do not matter."""
        found, index = 0, self.index
        for name in names:
            bit = index.get(name)
            if bit is not None:
                found |= 1 << bit
        return found


@dataclass(frozen=True, slots=True, eq=False)
class SliceDevices:
    """The devices of a slice at one position of inventories. Bit i of each mask is devices[i]."""

    slice: Slice
    devices: tuple[PoolDevice, ...]
    names: tuple[str, ...]
    selections: tuple[tuple[NodeSelection, int], ...]  # node selections of devices that have their own, with masks
    simple: int  # see Inventory
    warned: int  # mask of devices with a taint of effect None
    node_allocatable: int  # mask of devices that consume resources of the node
    named: Mapping[str, int]  # node name to the mask of devices that name this node
    gpus: tuple[tuple[int, str], ...]  # (bit, identity) of the whole GPUs
    # Of equal devices in the same order: everything that search and scoring read from them if they are idle, everything
    # that selectors can read except identities, and their names.
    hardware: Interned
    attributes: Interned
    identity: Interned


class KnownSlices:
    """The devices of the slices of pools with several slices, and the signatures of the devices of all pools.

    Devices of pools in inventories with the same KnownSlices have comparable signatures.
    """

    def __init__(self) -> None:
        self.signatures = Interns()
        self._bits: WeakValueDictionary[tuple[str, ...], DeviceBits] = WeakValueDictionary()  # by all names
        self._known: dict[str, dict[int, SliceDevices]] = {}  # by name of the slice and position

    def __len__(self) -> int:
        return len(self._known)

    def devices(self, slice_: Slice, position: int) -> SliceDevices:
        """The devices of a slice whose pool is at a position of Inventory.pools. The same object until it changes."""
        known = self._known.get(slice_.name, {})
        found = known.get(position)
        if found is None or found.slice is not slice_:
            found = slice_devices(slice_, position, self.signatures)
            same = {place: one for place, one in known.items() if one.slice is slice_}
            self._known[slice_.name] = {**same, position: found}
        return found

    def bits(self, names: tuple[str, ...]) -> DeviceBits:
        """The bit of each of these devices; of equal names, the last one."""
        found = self._bits.get(names)
        if found is None:
            found = self._bits[names] = DeviceBits((name, bit) for bit, name in enumerate(names))
        return found

    def forget(self, name: str) -> None:
        """Drop what is known of a slice that changed or was deleted."""
        self._known.pop(name, None)


def slice_devices(slice_: Slice, position: int, signatures: Interns) -> SliceDevices:
    """The devices of a slice whose pool is at a position of Inventory.pools."""
    devices = slice_.devices
    selections: dict[NodeSelection, int] = {}
    named: dict[str, int] = {}
    for bit, device in enumerate(devices):
        if slice_.per_device:
            selections[device.selection] = selections.get(device.selection, 0) | 1 << bit
        for name in {slice_.selection.node_name, device.selection.node_name} - {""}:
            named[name] = named.get(name, 0) | 1 << bit
    driver = slice_.pool.driver
    names = tuple(device.name for device in devices)
    memory = [memory_bytes(device, driver) for device in devices]
    kinds = tuple(_kind(device, total) for device, total in zip(devices, memory, strict=True))
    attributes = tuple((driver, *device.attributes.without_identity()) for device in devices)
    return SliceDevices(
        slice_,
        tuple(PoolDevice(device, slice_, position, total) for device, total in zip(devices, memory, strict=True)),
        names,
        tuple(selections.items()),
        _mask_of(devices, is_simple),
        _mask_of(devices, lambda device: any(taint.effect == "None" for taint in device.taints)),
        _mask_of(devices, lambda device: bool(device.node_allocatable)),
        named,
        tuple((bit, found) for bit, device in enumerate(devices) if (found := whole_identity(device, driver))),
        signatures.of(("hardware", kinds)),
        signatures.of(("attributes", attributes)),
        signatures.of(("names", names)),
    )


def _kind(device: Device, memory: int) -> Hashable:
    """The facts that search and scoring read from a device, without selectors and constraints. `memory` is in bytes."""
    return (
        device.capacity,
        memory,
        device.consumes,
        device.taints,
        device.binding_conditions,
        device.binding_failure_conditions,
        device.allow_multiple,
    )


def _mask_of(devices: tuple[Device, ...], is_in: Callable[[Device], bool]) -> int:
    return sum(1 << bit for bit, device in enumerate(devices) if is_in(device))


def is_simple(device: Device) -> bool:
    """Whether only selectors and the allocated state decide if a request can have the device."""
    return not (
        device.allow_multiple
        or device.consumes
        or device.taints
        or any(c.policy is not None for c in device.capacity.values())
    )


class Facts(NamedTuple):
    """What a node must know about the slices of one generation of a pool that other nodes see."""

    broken: Slice | None = None  # a slice with a field that Berth cannot read
    unknown_counter: str = ""  # see unknown_counter
    grouped: frozenset[str] = frozenset()  # see grouped


class WholePool:
    """All slices of a pool, of any generation. A change of one of them makes a new object."""

    __slots__ = ("_facts", "_generations", "names_no_node", "newest")

    def __init__(self, slices: Iterable[Slice] = ()) -> None:
        generations: dict[int, list[Slice]] = {}
        for slice_ in slices:
            generations.setdefault(slice_.generation, []).append(slice_)
        self._generations = {number: tuple(found) for number, found in generations.items()}
        self._facts: dict[int, Facts] = {}
        self.newest = max(generations, default=0)
        self.names_no_node = not all(s.selection.node_name for found in generations.values() for s in found)

    def slices(self, generation: int) -> tuple[Slice, ...]:
        """The slices of a generation. The same object for all callers."""
        return self._generations.get(generation, ())

    def facts(self, generation: int) -> Facts:
        """The facts about the slices of a generation."""
        found = self._facts.get(generation)
        if found is None:
            slices = self.slices(generation)
            counters = {one.name: one.counters for slice_ in slices for one in slice_.counter_sets}
            broken = next((slice_ for slice_ in slices if slice_.problem), None)
            found = Facts(broken, unknown_counter(counters, slices), grouped(slices))
            self._facts[generation] = found
        return found


def unknown_counter(counters: Mapping[str, Mapping[str, int]], slices: Iterable[Slice]) -> str:
    """The first counter that a device consumes and that is not among `counters`, as a sentence; '' without one."""
    for slice_ in slices:
        for device in slice_.devices:
            for use in device.consumes:
                known = counters.get(use.counter_set)
                if known is None:
                    return f"device {device.name}: counter set {use.counter_set} not found"
                missing = next((name for name, _ in use.counters if name not in known), None)
                if missing is not None:
                    return f"device {device.name}: counter {missing} not found in counter set {use.counter_set}"
    return ""


def grouped(slices: Iterable[Slice]) -> frozenset[str]:
    """The counter sets that some device uses with compatibility groups."""
    uses = (use for slice_ in slices for device in slice_.devices for use in device.consumes)
    return frozenset(use.counter_set for use in uses if use.compatibility_groups)


_NO_NAMES = frozenset[str]()  # one for all pools: a fleet has thousands
_NO_COUNTERS: Mapping[str, Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Pool:
    """A pool and its slices for the node. A pool that is incomplete or has `trouble` offers no devices."""

    key: PoolKey
    slices: tuple[Slice, ...] = ()
    counter_sets: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: _NO_COUNTERS)
    incomplete: bool = False
    trouble: str = ""  # why the pool is invalid
    grouped: frozenset[str] = frozenset()  # counter sets that some device uses with compatibility groups
    waits_for_binding: bool = False  # whether a device has binding conditions
    names_no_node: bool = False  # whether a slice of the pool names no node
    origin: tuple[Slice, ...] = ()  # the slices that matter for the node
    whole: WholePool | None = None  # all slices; None if those of `origin` are all of their generation
    placed: list[PoolDevices] = field(default_factory=list)  # the devices, for each position that was asked for

    @property
    def usable(self) -> bool:
        return not self.incomplete and not self.trouble

    @property
    def problem(self) -> str:
        """Why it offers no devices; '' if it does."""
        return self.trouble or (f"ResourceSlices of pool {self.key.name} are missing" if self.incomplete else "")

    def is_same(self, other: Pool) -> bool:
        """Whether both offer the same slices, for the same reason."""
        return (
            (self.key, self.incomplete, self.trouble) == (other.key, other.incomplete, other.trouble)
            and same_objects(self.slices, other.slices)
            and (self.counter_sets, self.grouped, self.names_no_node)
            == (other.counter_sets, other.grouped, other.names_no_node)
        )

    @property
    def is_own(self) -> bool:
        """Whether only one node can use the devices of the pool."""
        return all(slice_.selection.node_name for slice_ in self.slices)

    def slices_in(self, whole: WholePool) -> tuple[Slice, ...]:
        """The slices of the pool's generation. A newer one may exist that has no slice for the node yet."""
        return whole.slices(self.slices[0].generation) if self.slices else ()


def reaches(selection: NodeSelection, node: Node) -> bool:
    """Whether the node can use a slice or device with this node selection."""
    if selection.node_name:
        return selection.node_name == node.name
    if selection.all_nodes:
        return True
    return selection.selector is not None and selection.selector.matches(node.name, node.labels)


def is_relevant(slice_: Slice, node: Node, features: Features) -> bool:
    """Whether the slice matters for the node: it has devices for it, or counter sets."""
    if not features.partitionable and (slice_.per_device or slice_.counter_sets):
        return False
    if slice_.counter_sets:
        return True
    if slice_.selection.is_set:
        return reaches(slice_.selection, node)
    return slice_.per_device and any(reaches(device.selection, node) for device in slice_.devices)


KnownPools = WeakValueDictionary[tuple[PoolKey, tuple[str, ...]], Pool]
"""Pools by key and names of their slices, if some slice has no node name: nodes that see the same slices share them."""


def gather(
    node: Node,
    nearby: Iterable[Slice],
    whole_pool: Callable[[PoolKey], WholePool],
    features: Features,
    known: KnownPools | None = None,
    previous: Sequence[Pool] = (),
) -> tuple[Pool, ...]:
    """The pools of a node, in the order in which the search tries them.

    `nearby` has at least the slices that matter for the node. `whole_pool` returns all slices of a pool in the cluster,
    and the same object while they are the same. Pools with binding conditions come last. Calls with the same features
    can share `known`, and `previous` are the pools of an earlier call for the node: unchanged pools stay the same
    objects.
    """
    relevant: dict[PoolKey, list[Slice]] = {}
    for slice_ in nearby:
        if is_relevant(slice_, node, features):
            relevant.setdefault(slice_.pool, []).append(slice_)
    before = {pool.key: pool for pool in previous}
    found = [
        _known_pool(key, newest_slices(slices), whole_pool, features, before.get(key), known)
        for key, slices in relevant.items()
    ]
    pools = [pool for pool in found if pool is not None]
    return tuple(sorted(pools, key=lambda pool: (pool.waits_for_binding, pool.key)))


def _known_pool(
    key: PoolKey,
    slices: list[Slice],
    whole_pool: Callable[[PoolKey], WholePool],
    features: Features,
    before: Pool | None,
    known: KnownPools | None,
) -> Pool | None:
    """The pool, or None if its newest generation has no slice for the node.

    The result is `before` or the known Pool if the same slices decide about it.
    """
    everything, complete = whole_pool(key), is_complete(slices)
    if everything.newest > slices[0].generation and (features.corrected or not complete):
        return None  # the newest generation has no slice for this node
    whole = None if complete else everything
    name = key, tuple(slice_.name for slice_ in slices)
    shared = None if known is None or all(slice_.selection.node_name for slice_ in slices) else known
    for pool in (before, shared.get(name) if shared is not None else None):
        if pool is not None and pool.whole is whole and same_objects(pool.origin, slices):
            return pool
    found = _pool(key, slices, whole, features)
    waits = any(device.binding_conditions for slice_ in found.slices for device in slice_.devices)
    names_no_node = not all(slice_.selection.node_name for slice_ in slices)
    found = replace(
        found,
        waits_for_binding=waits,
        names_no_node=names_no_node or (whole is not None and whole.names_no_node),
        origin=found.slices if same_objects(found.slices, slices) else tuple(slices),
        whole=whole,
    )
    if shared is not None:
        shared[name] = found
    return found


def same_objects(before: Sequence[Slice], after: Sequence[Slice]) -> bool:
    """Whether two sequences contain the same slices, not only equal ones."""
    return len(before) == len(after) and all(x is y for x, y in zip(before, after, strict=True))


def _pool(key: PoolKey, slices: list[Slice], whole: WholePool | None, features: Features) -> Pool:
    """The pool. `whole` has all its slices; None if `slices` are complete."""
    generation = slices[0].generation
    if whole is not None:
        expected = sorted({slice_.slice_count for slice_ in slices})
        if len(expected) > 1:
            counts = f"{expected[0]} and {expected[-1]}"
            return Pool(key, trouble=f"ResourceSlices of one generation have resourceSliceCount {counts}")
        if [len(whole.slices(generation))] != expected:
            return Pool(key, incomplete=True)
    others = whole.facts(generation) if whole is not None else Facts()
    return _validated(key, sorted(slices, key=lambda s: s.name), others, features)


def _validated(key: PoolKey, slices: list[Slice], others: Facts, features: Features) -> Pool:
    broken = next((s for s in slices if s.problem), others.broken)
    if broken is not None:
        return Pool(key, trouble=f"ResourceSlice {broken.name}: {broken.problem}")
    with_devices = [s for s in slices if not s.counter_sets] if features.partitionable else slices
    trouble = _duplicate_device(with_devices)
    if trouble or not features.partitionable:
        return Pool(key, () if trouble else tuple(with_devices), trouble=trouble)
    counters: dict[str, Mapping[str, int]] = {}
    for slice_ in slices:
        for counter_set in slice_.counter_sets:
            if counter_set.name in counters:
                return Pool(key, trouble=f"duplicate counter set name {counter_set.name}")
            counters[counter_set.name] = counter_set.counters
    trouble = unknown_counter(counters, slices) or others.unknown_counter
    if trouble:
        return Pool(key, trouble=trouble)
    with_groups = grouped(slices) | others.grouped or _NO_NAMES
    # From 1.35, a slice has counter sets or devices. As in the reference, devices beside counter sets do not count.
    return Pool(key, tuple(with_devices), counters or _NO_COUNTERS, grouped=with_groups)


def _duplicate_device(slices: Iterable[Slice]) -> str:
    seen: set[str] = set()
    for slice_ in slices:
        for device in slice_.devices:
            if device.name in seen:
                return f"duplicate device name {device.name}"
            seen.add(device.name)
    return ""
