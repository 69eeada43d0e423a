"""The devices for one node. Nodes that see the same slices of a pool share the objects for its devices."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import chain
from weakref import WeakValueDictionary

from extender.allocation.interned import Interns, interned
from extender.allocation.pools import Pool, PoolDevice, PoolDevices, reaches
from extender.fabric import gpu_uuid
from extender.model import Device, DeviceId, Node, Slice


class DeviceIndex:
    """The bit of each device in an inventory."""

    __slots__ = ("_parts",)

    def __init__(self, parts: tuple[tuple[int, PoolDevices], ...]) -> None:
        """`parts` has the usable pools, each with the bit of its first device."""
        self._parts = parts

    def get(self, device: DeviceId, default: int | None = None) -> int | None:
        """The bit of a device, or the default."""
        key = device.driver, device.pool
        for first, part in self._parts:
            if part.key == key:
                bit = part.index.get(device.device)
                return default if bit is None else first + bit
        return default

    def __getitem__(self, device: DeviceId) -> int:
        found = self.get(device)
        if found is None:
            raise KeyError(device)
        return found

    def __contains__(self, device: DeviceId) -> bool:
        return self.get(device) is not None


@dataclass(frozen=True, slots=True, eq=False)
class Inventory:
    """The devices for a node, in the order in which the search tries them. Bit i of each mask is devices[i]."""

    pools: tuple[Pool, ...]
    devices: tuple[PoolDevice, ...]
    offsets: tuple[tuple[Slice, int], ...]  # (slice, bit of its first device)
    index: DeviceIndex
    reachable: int  # mask of devices that the node can use; per-device node selection can exclude some
    simple: int = 0  # mask of devices for which `is_simple` is true
    shared: int = 0  # mask of devices that name no node or another one: this node does not have them alone
    unsupported: tuple[tuple[str, int], ...] = ()  # (cause of search_observer.CAUSES, mask of devices)
    parts: tuple[tuple[int, PoolDevices], ...] = ()  # of each usable pool, with the bit of its first device

    @property
    def shared_parts(self) -> list[tuple[int, PoolDevices]]:
        """The pools whose use is the same for all nodes that see equal devices, see PoolDevices.shared."""
        return [found for found in self.parts if found[1].shared is not None]

    def has_same_gpus(self, other: Inventory) -> bool:
        """Whether the whole GPUs of both inventories are the same objects. False if that is not known at low cost."""
        ours, theirs = ([part for _, part in found.parts if part.gpus] for found in (self, other))
        return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))


def inventory(node: Node, pools: tuple[Pool, ...], signatures: Interns | None = None) -> Inventory:
    """The inventory of a node: the devices of usable pools in the order pool, slice, device.

    Devices of pools in inventories with the same `signatures` have comparable signatures.
    """
    table: Interns = signatures if signatures is not None else WeakValueDictionary()
    parts = list[tuple[int, PoolDevices]]()
    first = reachable = simple = shared = 0
    unsupported: dict[str, int] = {}
    for position, pool in enumerate(pools):
        if not pool.usable:
            continue
        part = _part(pool, position, table)
        parts.append((first, part))
        reachable |= part.reachable << first
        for bit in part.selective:
            reachable |= reaches(part.devices[bit].device.selection, node) << first + bit
        simple |= part.simple << first
        shared |= ((1 << len(part.devices)) - 1 & ~part.named.get(node.name, 0)) << first
        for cause, mask in part.unsupported:
            unsupported[cause] = unsupported.get(cause, 0) | mask << first
        first += len(part.devices)
    found = tuple(parts)
    return Inventory(
        pools,
        tuple(chain.from_iterable(part.devices for _, part in found)),
        tuple((slice_, start + offset) for start, part in found for slice_, offset in part.offsets),
        DeviceIndex(found),
        reachable,
        simple,
        shared,
        tuple(unsupported.items()),
        found,
    )


def _part(pool: Pool, position: int, signatures: Interns) -> PoolDevices:
    found = next((part for part in pool.placed if part.position == position), None)
    if found is None:
        found = _pool_devices(pool, position, signatures)
        pool.placed.append(found)
    return found


def _pool_devices(pool: Pool, position: int, signatures: Interns) -> PoolDevices:
    devices: list[PoolDevice] = []
    offsets: list[tuple[Slice, int]] = []
    named: dict[str, int] = {}
    for slice_ in pool.slices:
        offsets.append((slice_, len(devices)))
        for device in slice_.devices:
            for name in {slice_.selection.node_name, device.selection.node_name} - {""}:
                named[name] = named.get(name, 0) | 1 << len(devices)
            devices.append(PoolDevice(DeviceId(*pool.key, device.name), device, slice_, position))
    # A slice with counter sets may repeat a device of another slice; only the last entry is usable.
    index = {pool_device.id.device: bit for bit, pool_device in enumerate(devices)}
    usable = index.values()
    selective = tuple(bit for bit in usable if devices[bit].slice.per_device)
    kinds = tuple(_kind(pool_device.device) for pool_device in devices)
    attributes = tuple((pool.key.driver, *one.device.attributes.without_identity()) for one in devices)
    gpus = tuple(bit for bit, pool_device in enumerate(devices) if gpu_uuid(pool_device.device))
    hardware = interned(signatures, ("hardware", position, kinds))
    values = interned(signatures, ("attributes", attributes))
    is_shared = not (named or gpus or pool.counter_sets)
    view = ("shared", pool.key, tuple(index.items()), hardware, values)
    return PoolDevices(
        pool.key,
        position,
        tuple(devices),
        tuple(offsets),
        index,
        sum(1 << bit for bit in usable) & ~sum(1 << bit for bit in selective),
        selective,
        _mask_of(devices, is_simple),
        _mask_of(devices, lambda device: any(taint.effect == "None" for taint in device.taints)),
        _unsupported(pool, devices),
        named,
        gpus,
        hardware,
        values,
        interned(signatures, view) if is_shared else None,
    )


def _kind(device: Device) -> Hashable:
    """The facts that search and scoring read from a device, without selectors and constraints."""
    return (
        device.capacity,
        device.consumes,
        device.taints,
        device.binding_conditions,
        device.binding_failure_conditions,
        device.allow_multiple,
    )


def _mask_of(devices: list[PoolDevice], is_in: Callable[[Device], bool]) -> int:
    return sum(1 << bit for bit, pool_device in enumerate(devices) if is_in(pool_device.device))


def _unsupported(pool: Pool, devices: list[PoolDevice]) -> tuple[tuple[str, int], ...]:
    """(cause, mask) of the devices with fields that Berth does not support yet. Berth never allocates them.

    A device on the same counter set as a device with compatibility groups is included: whether the two can be
    allocated together depends on the allocations of other schedulers.
    """
    found: dict[str, int] = {}
    for bit, pool_device in enumerate(devices):
        if any(use.counter_set in pool.grouped for use in pool_device.device.consumes):
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
