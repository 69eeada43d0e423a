"""Where the devices of a node are: their PCIe roots and NUMA nodes, and so how near two devices are.

Sources, the first one counts: for the PCIe root the standard attribute, then the agent; for the NUMA node the standard
attribute, then the driver's own name for it, then the agent, then a device on the same PCIe root. A part of a GPU that
says nothing has the locality of its GPU. An absent or impossible value is unknown, which is neither near nor far.

A driver may name the NUMA node of a GPU's own memory, where the agent names the socket beside the GPU (Grace). So the
agent's NUMA node, if it differs, is a further one of the device: it is near by it, but less than by the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from extender.allocation.nodes.inventory import Inventory
from extender.api.gpu_topology import Fabric
from extender.api.resource_slices import Device
from extender.base.bits import members
from extender.vendors import numa_attributes, parent_of, whole_identity

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"
_MAX_NUMA_NODES = 1024  # Linux supports no more


class Nearness(IntEnum):
    """How near two devices of a node are. A larger number is nearer; UNKNOWN is neutral."""

    UNKNOWN = -1
    FAR = 0
    NUMA_LIST = 1  # their lists of NUMA nodes have a node in common
    NUMA = 2  # the same NUMA node
    ROOT = 3  # the same PCIe root


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Locality:
    """The locality of a node's own devices. Nodes whose devices lie in the same way share one object.

    `kinds` has each driver of which some locality is known, with the mask of its devices. `roots` and `numa` have an
    entry per device bit: the mask of its PCIe roots, which are numbered in the order of the devices, and its NUMA
    nodes, its own one first.
    """

    kinds: tuple[tuple[str, int], ...]
    roots: tuple[int, ...]
    numa: tuple[tuple[int, ...], ...]

    def nearness(self, a: int, b: int) -> Nearness:
        """How near the devices at two bits are. Devices on two roots may still be on one NUMA node."""
        roots, others = self.roots[a], self.roots[b]
        if roots & others:
            return Nearness.ROOT
        mine, theirs = self.numa[a], self.numa[b]
        if mine and theirs:
            if mine[0] == theirs[0]:
                return Nearness.NUMA
            return Nearness.FAR if set(mine).isdisjoint(theirs) else Nearness.NUMA_LIST
        return Nearness.UNKNOWN

    def kind(self, bit: int) -> str:
        """The driver of the device at a bit; '' for a device that the node shares with others."""
        return next((driver for driver, mask in self.kinds if mask >> bit & 1), "")

    @property
    def key(self) -> tuple[object, ...]:
        """Equal keys describe equal localities."""
        return self.kinds, self.roots, self.numa


def locality_of(found: Inventory, fabric: Fabric | None, gpu_bits: tuple[int, ...]) -> Locality | None:
    """The locality of the node's own devices; None if no two drivers have devices of known locality."""
    own = found.reachable & ~found.shared
    pools = [(first, pool) for first, pool in found.pool_devices if pool.shared is None]
    if len({pool.key.driver for _, pool in pools}) < 2:  # noqa: PLR2004 - nearness is between devices of two drivers
        return None
    by_uuid = _by_gpu(found, fabric, gpu_bits)
    numbers: dict[str, int] = {}
    roots, numa = [0] * len(found.devices), [()] * len(found.devices)  # type: list[int], list[tuple[int, ...]]
    kinds: dict[str, int] = {}
    for first, pool in pools:
        for bit, one in enumerate(pool.devices, first):
            if own >> bit & 1:
                own_roots, numa[bit] = _of_device(one.device, one.driver, by_uuid)
                roots[bit] = sum(1 << numbers.setdefault(root, len(numbers)) for root in dict.fromkeys(own_roots))
                kinds[one.driver] = kinds.get(one.driver, 0) | 1 << bit
    numa = _as_on_its_root(roots, numa)
    known = {driver for driver, mask in kinds.items() if any(roots[bit] or numa[bit] for bit in members(mask))}
    if len(known) < 2:  # noqa: PLR2004 - as above
        return None
    return Locality(tuple(sorted((driver, kinds[driver]) for driver in known)), tuple(roots), tuple(numa))


def _as_on_its_root(roots: list[int], numa: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The NUMA nodes, with those that devices lack from devices on their PCIe root, if all of these agree."""
    of_root: dict[int, set[int]] = {}
    for mask, nodes in zip(roots, numa, strict=True):
        if mask.bit_count() == 1 and nodes:
            of_root.setdefault(mask, set()).add(nodes[0])
    agreed = {mask: tuple(nodes) for mask, nodes in of_root.items() if len(nodes) == 1}
    return [nodes or agreed.get(mask, ()) for mask, nodes in zip(roots, numa, strict=True)]


_OfDevice = tuple[tuple[str, ...], tuple[int, ...]]  # PCIe roots, NUMA nodes
_UNKNOWN: _OfDevice = ((), ())


def _of_device(device: Device, driver: str, by_uuid: Mapping[str, _OfDevice]) -> _OfDevice:
    """The locality of a device. What it does not publish is that of its GPU, or of the GPU that it is a part of."""
    uuid = whole_identity(device, driver) or parent_of(device, driver)
    roots, numa = by_uuid.get(uuid, _UNKNOWN)
    own_roots, own_numa = published_locality(device, driver)
    return own_roots or roots, own_numa + tuple(node for node in numa if node not in own_numa)


def _by_gpu(found: Inventory, fabric: Fabric | None, gpu_bits: tuple[int, ...]) -> dict[str, _OfDevice]:
    """The locality of each GPU by UUID, as driver and agent say it."""
    by_uuid: dict[str, _OfDevice] = {}
    for uuid, state, bit in zip(fabric.uuids, fabric.gpus, gpu_bits, strict=True) if fabric is not None else ():
        pool_device = found.devices[bit] if bit >= 0 else None
        roots, numa = published_locality(pool_device.device, pool_device.driver) if pool_device else _UNKNOWN
        said = (state.numa,) if state.numa is not None and state.numa not in numa else ()
        by_uuid[uuid] = roots or ((state.pcie_root,) if state.pcie_root else ()), numa + said
    return by_uuid


def published_locality(device: Device, driver: str) -> _OfDevice:
    """The PCIe roots and the NUMA nodes that the driver publishes."""
    roots = tuple(root for root in _values(device, PCIE_ROOT) if isinstance(root, str) and root)
    for name in numa_attributes(driver):
        nodes = tuple(node for node in _values(device, name) if type(node) is int and 0 <= node < _MAX_NUMA_NODES)
        if nodes:
            return roots, tuple(dict.fromkeys(nodes))
    return roots, ()


def _values(device: Device, name: str) -> tuple[object, ...]:
    value = device.attributes.get(name)
    return value if isinstance(value, tuple) else () if value is None else (value,)
