"""The devices of one slice, as parts of inventories. A write of a slice leaves those of the pool's other slices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from weakref import WeakValueDictionary

from extender.allocation.interned import Interned, Interns, interned
from extender.allocation.pools import PoolDevice
from extender.fabric import gpu_uuid
from extender.model import Device, DeviceId, NodeSelection, Slice


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
    gpus: tuple[int, ...]  # bits of the whole GPUs
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
        self.signatures: Interns = WeakValueDictionary()
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
    attributes = tuple((driver, *device.attributes.without_identity()) for device in devices)
    return SliceDevices(
        slice_,
        tuple(PoolDevice(DeviceId(*slice_.pool, device.name), device, slice_, position) for device in devices),
        names,
        tuple(selections.items()),
        _mask_of(devices, is_simple),
        _mask_of(devices, lambda device: any(taint.effect == "None" for taint in device.taints)),
        _mask_of(devices, lambda device: bool(device.node_allocatable)),
        named,
        tuple(bit for bit, device in enumerate(devices) if gpu_uuid(device)),
        interned(signatures, ("hardware", tuple(map(_kind, devices)))),
        interned(signatures, ("attributes", attributes)),
        interned(signatures, ("names", names)),
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
