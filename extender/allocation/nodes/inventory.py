"""The devices for one node. Nodes that see the same slices of a pool share the objects for its devices."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

from extender.allocation.nodes.pools import (
    KnownSlices,
    Pool,
    PoolDevice,
    PoolDevices,
    reaches,
    slice_devices,
)
from extender.api.nodes import Node
from extender.api.resource_slices import DeviceId, Slice
from extender.base.bits import members, union
from extender.vendors import GPU, driver_of


class DeviceIndex:
    """The bit of each device in an inventory."""

    __slots__ = ("_pools",)

    def __init__(self, pools: tuple[tuple[int, PoolDevices], ...]) -> None:
        """`pools` has the usable ones, each with the bit of its first device."""
        self._pools = pools

    def get(self, device: DeviceId) -> int | None:
        """The bit of a device, or None."""
        key = device.driver, device.pool
        for first, pool in self._pools:
            if pool.key == key:
                bit = pool.index.get(device.device)
                return None if bit is None else first + bit
        return None

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
    # Mask of the node's own devices of GPU drivers, or of all its own devices if there are none. A NIC in use says
    # nothing of how full a GPU node is.
    packed: int = 0
    gpus: int = 0  # mask of all devices of GPU drivers: whole ones, partitions and other forms
    unsupported: tuple[tuple[str, int], ...] = ()  # (cause of problem.CAUSES, mask): never allocated
    pool_devices: tuple[tuple[int, PoolDevices], ...] = ()  # of each usable pool, with the bit of its first device

    @property
    def shared_pools(self) -> list[tuple[int, PoolDevices]]:
        """The pools whose use is the same for all nodes that see equal devices, see PoolDevices.shared."""
        return [found for found in self.pool_devices if found[1].shared is not None]

    @property
    def whole_gpus(self) -> tuple[str, dict[str, int]]:
        """(driver, the bits of its whole GPUs by identity, ascending): the GPUs that a fabric can join.

        Of several drivers, such as that of a graphics unit in the CPU, the one with the most GPUs, or the one whose
        GPUs the agent reads. Of GPUs that a driver calls the same, the first. ('', {}) without any.
        """
        found: dict[str, dict[str, int]] = {}
        for first, pool in self.pool_devices:
            for bit, identity in zip(members(pool.gpus), pool.identities, strict=True):
                found.setdefault(pool.key.driver, {}).setdefault(identity, first + bit)
        if not found:
            return "", {}
        driver = max(found, key=lambda name: (len(found[name]), driver_of(name).agent))
        return driver, found[driver]

    def has_same_gpus(self, other: Inventory) -> bool:
        """Whether the whole GPUs of both inventories are the same objects. False if that is not known at low cost."""
        ours, theirs = ([pool for _, pool in found.pool_devices if pool.gpus] for found in (self, other))
        return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))


def inventory(node: Node, pools: tuple[Pool, ...], known: KnownSlices | None = None) -> Inventory:
    """The inventory of a node: the devices of usable pools in the order pool, slice, device."""
    known = known if known is not None else KnownSlices()
    usable_pools = list[tuple[int, PoolDevices]]()
    first = reachable = simple = shared = gpus = own_gpus = 0
    unsupported: dict[str, int] = {}
    for position, pool in enumerate(pools):
        if not pool.usable:
            continue
        usable = next((part for part in pool.placed if part.position == position), None)
        if usable is None:
            usable = _pool_devices(pool, position, known)
            pool.placed.append(usable)
        usable_pools.append((first, usable))
        reachable |= usable.reachable << first
        for selection, mask in usable.selections:
            reachable |= mask << first if reaches(selection, node) else 0
        simple |= usable.simple << first
        shared |= ((1 << len(usable.devices)) - 1 & ~usable.named.get(node.name, 0)) << first
        if driver_of(usable.key.driver).kind == GPU:
            gpus |= (1 << len(usable.devices)) - 1 << first
            own_gpus |= usable.named.get(node.name, 0) << first
        for cause, mask in usable.unsupported:
            unsupported[cause] = unsupported.get(cause, 0) | mask << first
        first += len(usable.devices)
    found = tuple(usable_pools)
    devices = tuple(chain.from_iterable(usable.devices for _, usable in found))
    offsets = tuple((slice_, start + offset) for start, usable in found for slice_, offset in usable.offsets)
    return Inventory(
        pools,
        devices if len(found) > 1 or not found else found[0][1].devices,  # thousands of nodes have one pool
        offsets if len(found) > 1 or not found else found[0][1].offsets,
        DeviceIndex(found),
        reachable,
        simple,
        shared,
        own_gpus or (1 << first) - 1 & ~shared,
        gpus,
        tuple(unsupported.items()),
        found,
    )


def _pool_devices(pool: Pool, position: int, known: KnownSlices) -> PoolDevices:
    signatures = known.signatures
    if len(pool.slices) == 1:  # nearly all pools: a change of the slice leaves nothing to keep
        slices = [slice_devices(pool.slices[0], position, signatures)]
    else:
        slices = [known.devices(slice_, position) for slice_ in pool.slices]
    firsts = [0, *accumulate(len(one.devices) for one in slices)]
    placed = list(zip(firsts, slices, strict=False))
    selections = tuple((selection, mask << first) for first, one in placed for selection, mask in one.selections)
    named: dict[str, int] = {}
    for first, one in placed:
        for name, mask in one.named.items():
            named[name] = named.get(name, 0) | mask << first
    filled = [one for one in slices if one.devices]
    hardware = signatures.of(("hardware of slices", position, tuple(one.hardware for one in filled)))
    attributes = signatures.of(("attributes of slices", tuple(one.attributes for one in filled)))
    gpus = [(first + bit, identity) for first, one in placed for bit, identity in one.gpus]
    unsupported = union([one.node_allocatable << first for first, one in placed])
    is_shared = not (named or gpus or pool.counter_sets)
    view = ("shared", pool.key, tuple(one.identity for one in filled), hardware, attributes)
    return PoolDevices(
        pool.key,
        position,
        tuple(chain.from_iterable(one.devices for one in slices)),
        tuple((one.slice, first) for first, one in placed),
        known.bits(tuple(chain.from_iterable(one.names for one in slices))),
        (1 << firsts[-1]) - 1 & ~union([mask for _, mask in selections]),
        selections,
        union([one.simple << first for first, one in placed]),
        union([one.warned << first for first, one in placed]),
        (("node-allocatable", unsupported),) if unsupported else (),
        named,
        union([1 << bit for bit, _ in gpus]),
        tuple(identity for _, identity in gpus),
        hardware,
        attributes,
        signatures.of(view) if is_shared else None,
    )


# -- partitions of a GPU fabric --------------------------------------------------------------------------------
# The only sets of whole GPUs that a driver joins for one claim. A driver publishes them with the feature gate
# FabricManagerPartitioning. It prepares a claim only if the claim's GPUs are exactly the members of one partition
# (activateFabricPartition in cmd/gpu-kubelet-plugin/device_state.go). That holds for each claim on its own, also for
# one GPU, for several requests and for admin access. A GPU without such attributes, on a node where others have them,
# is in no partition.


class FabricPartitions(NamedTuple):
    """Masks of devices: all whole GPUs of the node, and those of each partition."""

    gpus: int
    sets: tuple[int, ...]

    def within(self, devices: int, least: int, most: int) -> tuple[int, ...]:
        """The partitions of `least` to `most` GPUs that have no other GPUs than those of `devices`."""
        return tuple(one for one in self.sets if not one & ~devices and least <= one.bit_count() <= most)


def fabric_partitions_of(found: Inventory) -> FabricPartitions | None:
    """The partitions of a node; None if no GPU names one, so that each set of GPUs can be joined."""
    sets: dict[tuple[int, object], int] = {}
    gpus = 0
    for bit in (first + position for first, pool in found.pool_devices for position in members(pool.gpus)):
        gpus |= 1 << bit
        attributes = found.devices[bit].device.attributes
        for size, name in driver_of(found.devices[bit].driver).partitions:
            number = attributes.typed(name)  # the usual answer, None, takes a tenth of the time that `get` takes
            if number is not None:
                sets[size, number] = sets.get((size, number), 0) | 1 << bit
    # A partition with a GPU that the node lacks cannot be had.
    whole = (mask for (size, _), mask in sets.items() if mask.bit_count() == size)
    return FabricPartitions(gpus, tuple(sorted(whole))) if sets else None
