"""Berth's own ResourceSlice (driver fabric.berth.dev) to a Fabric and back to attributes.

One device per GPU, named gpu-<position>. Attributes, all of domain fabric.berth.dev:

uuid, productName, pciBusID, clique, note   strings
numaNode, pcieGeneration, nvlinkVersion     integers
linkMBps                                    integer: nominal rate of one link, one direction
switchLinks                                 integer: working links into an NVSwitch
links                                       string: 'peer:count,peer:count', working links to other GPUs
distances                                   string: one letter per peer, position in DISTANCES as a digit, '-' unknown
memoryTotalMiB, memoryFreeMiB               integers; free in coarse steps
memoryReservedMiB                           integer: held by the driver itself
nvlinkErrors                                integer: errors of all links since the driver was loaded
xid                                         integer: the last critical XID since the agent started, 0 for none
migEnabled                                  boolean
readAt                                      integer: minute (Unix time / 60) of the write, so that readers see an agent alive
healthy, stale                              booleans; a stale slice is not believed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from extender.fabric.products import link_gbps, pcie_gbps
from extender.model.device import Device
from extender.model.fabric import UNKNOWN_DISTANCE, Fabric, GpuState, Graph, Source

DRIVER = "fabric.berth.dev"
_MIB = 1 << 20
_MAX_GPUS = 16  # what one slice can carry within the API's limits


@dataclass(frozen=True, slots=True)
class Reading:
    """What the agent, or the sandbox in its place, knows of one GPU."""

    uuid: str
    product: str
    pci_bus_id: str = ""
    numa: int = 0
    links: tuple[tuple[int, int], ...] = ()  # (peer position, working links)
    switch_links: int = 0
    link_mbps: int = 0
    nvlink_version: int = 0
    pcie_generation: int = 0
    distances: tuple[int, ...] = ()
    memory_total_bytes: int = 0
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    mig: bool = False
    nvlink_errors: int = 0
    xid: int = 0
    clique: str = ""
    healthy: bool = True
    note: str = ""


def attributes_of(reading: Reading) -> dict[str, str | int | bool]:
    """The attributes that a reading is published as; empty ones are left out."""
    found: dict[str, str | int | bool] = {
        "uuid": reading.uuid,
        "productName": reading.product[:64],
        "pciBusID": reading.pci_bus_id,
        "numaNode": reading.numa,
        "links": ",".join(f"{peer}:{count}" for peer, count in reading.links),
        "switchLinks": reading.switch_links,
        "linkMBps": reading.link_mbps,
        "nvlinkVersion": reading.nvlink_version,
        "pcieGeneration": reading.pcie_generation,
        "distances": "".join("-" if d == UNKNOWN_DISTANCE else str(d) for d in reading.distances),
        "memoryTotalMiB": reading.memory_total_bytes // _MIB,
        "clique": reading.clique,
        "healthy": reading.healthy,
        "note": reading.note[:64],
    }
    if reading.memory_free_bytes is not None:
        found["memoryFreeMiB"] = reading.memory_free_bytes // _MIB
    if reading.memory_reserved_bytes is not None:
        found["memoryReservedMiB"] = reading.memory_reserved_bytes // _MIB
    if reading.mig:
        found["migEnabled"] = True
    found |= {name: value for name, value in (("nvlinkErrors", reading.nvlink_errors), ("xid", reading.xid)) if value}
    return {name: value for name, value in found.items() if value != ""}


def fabric_of(devices: Sequence[Device]) -> Fabric | None:
    """The fabric that a slice describes, or None where it contradicts itself beyond repair."""
    ordered = sorted(devices, key=lambda device: (len(device.name), device.name))
    count = len(ordered)
    if not 0 < count <= _MAX_GPUS:
        return None
    facts = [_facts(device) for device in ordered]
    uuids = [_text(fact, "uuid") for fact in facts]
    if "" in uuids or len(set(uuids)) < count or any(fact.get("stale") is True for fact in facts):
        return None
    rates = [link_gbps(_number(f, "nvlinkVersion"), _number(f, "linkMBps")) for f in facts if _has_links(f)]
    graph = Graph(
        links=_symmetric([_peers(_text(fact, "links"), count) for fact in facts]),
        switch_links=tuple(_number(fact, "switchLinks") for fact in facts),
        link_gbps=min(rates, default=0.0),
        pcie_gbps=min(pcie_gbps(_number(fact, "pcieGeneration") or 4) for fact in facts),  # the most common
        distance=tuple(_distances(_text(fact, "distances"), i, count) for i, fact in enumerate(facts)),
        numa=tuple(_number(fact, "numaNode") for fact in facts),
    )
    gpus = tuple(_state(uuid, fact) for uuid, fact in zip(uuids, facts, strict=True))
    return Fabric(graph, gpus, Source.LIVE, _text(facts[0], "clique"), _text(facts[0], "productName"))


def _facts(device: Device) -> Mapping[str, object]:
    return {name.partition("/")[2]: value for name, value in device.attributes.items()}


def _has_links(fact: Mapping[str, object]) -> bool:
    return bool(_text(fact, "links")) or _number(fact, "switchLinks") > 0


def _text(fact: Mapping[str, object], name: str) -> str:
    value = fact.get(name)
    return value if isinstance(value, str) else ""


def _number(fact: Mapping[str, object], name: str) -> int:
    """A count; absurd values count as nothing, so that a confused agent can never make Berth promise more."""
    value = fact.get(name)
    return value if type(value) is int and value > 0 else 0


def _peers(text: str, count: int) -> list[int]:
    found = [0] * count
    for entry in text.split(",") if text else ():
        peer, _, links = entry.partition(":")
        if peer.isdigit() and links.isdigit() and int(peer) < count:
            found[int(peer)] = int(links)
    return found


def _symmetric(rows: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    """Both ends must see a link: the smaller count holds."""
    size = range(len(rows))
    return tuple(tuple(0 if i == j else min(rows[i][j], rows[j][i]) for j in size) for i in size)


def _distances(text: str, own: int, count: int) -> tuple[int, ...]:
    digits = [int(c) if c.isdigit() and int(c) < UNKNOWN_DISTANCE else UNKNOWN_DISTANCE for c in text[:count]]
    digits += [UNKNOWN_DISTANCE] * (count - len(digits))
    digits[own] = 0
    return tuple(digits)


def _state(uuid: str, fact: Mapping[str, object]) -> GpuState:
    total = _number(fact, "memoryTotalMiB") * _MIB
    return GpuState(
        uuid, total, _part(fact, "memoryFreeMiB", total), _part(fact, "memoryReservedMiB", total),
        healthy=fact.get("healthy") is not False,
        note=_text(fact, "note"),
    )


def _part(fact: Mapping[str, object], name: str, total: int) -> int | None:
    """Bytes of a part of the memory; None where it is not said or cannot be."""
    value = fact.get(name)
    return value * _MIB if type(value) is int and 0 <= value * _MIB <= total else None
