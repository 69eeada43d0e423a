"""The pools that one node can use: their current slices, and whether they are complete and consistent.

Source: k8s.io/dynamic-resource-allocation structured, 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from extender.allocation.features import Features
from extender.model import Device, DeviceId, Node, NodeSelection, PoolKey, Slice, is_complete, newest_slices


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """A pool and its slices for the node. A pool that is incomplete or has `trouble` offers no devices."""

    key: PoolKey
    slices: tuple[Slice, ...] = ()
    counter_sets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    incomplete: bool = False
    trouble: str = ""  # why the pool is invalid
    grouped: frozenset[str] = frozenset()  # counter sets that some device uses with compatibility groups

    @property
    def usable(self) -> bool:
        return not self.incomplete and not self.trouble


@dataclass(frozen=True, slots=True, eq=False)
class PoolDevice:
    """One device of a pool that the node can use."""

    id: DeviceId
    device: Device
    slice: Slice
    pool: int  # position in Inventory.pools


@dataclass(frozen=True, slots=True, eq=False)
class Inventory:
    """The devices for a node, in the order in which the search tries them. Bit i of each mask is devices[i]."""

    pools: tuple[Pool, ...]
    devices: tuple[PoolDevice, ...]
    offsets: tuple[tuple[Slice, int], ...]  # (slice, bit of its first device)
    index: Mapping[DeviceId, int]
    reachable: int  # mask of devices that the node can use; per-device node selection can exclude some
    simple: int = 0  # mask of devices for which `is_simple` is true
    shared: int = 0  # mask of devices that name no node or another one: this node does not have them alone
    unsupported: tuple[tuple[str, int], ...] = ()  # (cause of search_observer.CAUSES, mask of devices)


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


def gather(
    node: Node,
    nearby: Iterable[Slice],
    whole_pool: Callable[[PoolKey], Sequence[Slice]],
    features: Features,
) -> tuple[Pool, ...]:
    """The pools of a node, in the order in which the search tries them.

    `nearby` has at least the slices that matter for the node. `whole_pool` returns all slices of a pool in the cluster,
    of any generation. Pools with binding conditions come last.
    """
    relevant: dict[PoolKey, list[Slice]] = {}
    for slice_ in nearby:
        if is_relevant(slice_, node, features):
            relevant.setdefault(slice_.pool, []).append(slice_)
    found = (_pool(key, newest_slices(slices), whole_pool, features) for key, slices in relevant.items())
    pools = [pool for pool in found if pool is not None]
    return tuple(sorted(pools, key=lambda pool: (_waits_for_binding(pool), pool.key)))


def _pool(
    key: PoolKey, slices: list[Slice], whole_pool: Callable[[PoolKey], Sequence[Slice]], features: Features
) -> Pool | None:
    """The pool, or None if a newer generation exists that has no slice for this node."""
    generation = slices[0].generation
    foreign: list[Slice] = []
    if not is_complete(slices):
        everything = whole_pool(key)
        if any(other.generation > generation for other in everything):
            return None
        expected = sorted({slice_.slice_count for slice_ in slices})
        if len(expected) > 1:
            counts = f"{expected[0]} and {expected[-1]}"
            return Pool(key, trouble=f"ResourceSlices of one generation have resourceSliceCount {counts}")
        current = [other for other in everything if other.generation == generation]
        if [len(current)] != expected:
            return Pool(key, incomplete=True)
        names = {slice_.name for slice_ in slices}
        foreign = [other for other in current if other.name not in names]
    return _validated(key, sorted(slices, key=lambda s: s.name), foreign, features)


def _validated(key: PoolKey, slices: list[Slice], foreign: list[Slice], features: Features) -> Pool:
    broken = next((s for s in (*slices, *foreign) if s.problem), None)
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
    trouble = _unknown_counter(counters, (*slices, *foreign))
    if trouble:
        return Pool(key, trouble=trouble)
    # In 1.34, one slice has both the counter sets and the devices that consume them.
    return Pool(key, tuple(s for s in slices if s.devices), counters, grouped=_grouped((*slices, *foreign)))


def slices_of(pool: Pool, known: Iterable[Slice]) -> tuple[Slice, ...]:
    """Those of `known` with the pool's generation. A newer one may exist that has no slice for the node yet."""
    generation = pool.slices[0].generation if pool.slices else None
    return tuple(slice_ for slice_ in known if slice_.generation == generation)


def _duplicate_device(slices: Iterable[Slice]) -> str:
    seen: set[str] = set()
    for slice_ in slices:
        for device in slice_.devices:
            if device.name in seen:
                return f"duplicate device name {device.name}"
            seen.add(device.name)
    return ""


def _unknown_counter(counters: Mapping[str, Mapping[str, int]], slices: Iterable[Slice]) -> str:
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


def _grouped(slices: Iterable[Slice]) -> frozenset[str]:
    uses = (use for slice_ in slices for device in slice_.devices for use in device.consumes)
    return frozenset(use.counter_set for use in uses if use.compatibility_groups)


def _waits_for_binding(pool: Pool) -> bool:
    return any(device.binding_conditions for slice_ in pool.slices for device in slice_.devices)


def inventory(node: Node, pools: tuple[Pool, ...]) -> Inventory:
    """The inventory of a node: the devices of usable pools in the order pool, slice, device."""
    reachable = 0
    devices: list[PoolDevice] = []
    offsets: list[tuple[Slice, int]] = []
    for position, pool in enumerate(pools):
        if not pool.usable:
            continue
        driver, name = pool.key
        for slice_ in pool.slices:
            offsets.append((slice_, len(devices)))
            devices.extend(
                PoolDevice(DeviceId(driver, name, device.name), device, slice_, position) for device in slice_.devices
            )
    index = {pool_device.id: bit for bit, pool_device in enumerate(devices)}
    for bit, pool_device in enumerate(devices):
        # A slice with counter sets may repeat a device of another slice; only the last entry is usable.
        if index[pool_device.id] == bit and (
            not pool_device.slice.per_device or reaches(pool_device.device.selection, node)
        ):
            reachable |= 1 << bit
    simple = sum(1 << bit for bit, pool_device in enumerate(devices) if is_simple(pool_device.device))
    shared = sum(
        1 << bit
        for bit, pool_device in enumerate(devices)
        if node.name not in (pool_device.slice.selection.node_name, pool_device.device.selection.node_name)
    )
    unsupported = _unsupported(pools, devices)
    return Inventory(pools, tuple(devices), tuple(offsets), index, reachable, simple, shared, unsupported)


def _unsupported(pools: tuple[Pool, ...], devices: Iterable[PoolDevice]) -> tuple[tuple[str, int], ...]:
    """(cause, mask) of the devices with fields that Berth does not support yet. Berth never allocates them.

    A device on the same counter set as a device with compatibility groups is included: whether the two can be
    allocated together depends on the allocations of other schedulers.
    """
    found: dict[str, int] = {}
    for bit, pool_device in enumerate(devices):
        if any(use.counter_set in pools[pool_device.pool].grouped for use in pool_device.device.consumes):
            found["compatibility-groups"] = found.get("compatibility-groups", 0) | 1 << bit
        elif pool_device.device.node_allocatable:
            found["node-allocatable"] = found.get("node-allocatable", 0) | 1 << bit
    return tuple(found.items())


def is_simple(device: Device) -> bool:
    """Whether only selectors and the allocated state decide if a request can have the device."""
    return not (
        device.allow_multiple
        or device.consumes
        or device.taints
        or any(c.policy is not None for c in device.capacity.values())
    )
