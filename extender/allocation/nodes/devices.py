"""The devices of a slice and of a pool. The inventory of a node consists of them.

A write of a slice leaves the objects for the devices of the pool's other slices. Everything that search and
scoring may read from devices is interned: nodes with equal tokens share their statuses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from weakref import WeakValueDictionary

from extender.api.nodes import NodeSelection
from extender.api.resource_slices import Device, DeviceId, PoolKey, Slice
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
