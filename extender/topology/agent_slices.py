"""The ResourceSlice of Berth's agent (driver fabric.berth.dev): decoding to a Fabric, and the attributes of a reading.

It has one device per GPU, named gpu-<position>. All attributes have the domain fabric.berth.dev:

uuid, productName, pciBusID, clique, note   strings
pcieRoot                                    string: as resource.kubernetes.io/pcieRoot; absent if unknown
numaNode                                    integer: the node with CPUs next to the GPU; absent if unknown
pcieGeneration, nvlinkVersion               integers
linkMBps                                    integer: nominal rate of one link, one direction
switchLinks                                 integer: working links into an NVSwitch
links                                       string: 'peer:count,peer:count', working links to other GPUs
distances                                   string: one letter per peer, position in DISTANCES as a digit, '-' unknown
memoryTotalMiB, memoryFreeMiB               integers; the free amount in coarse steps
memoryReservedMiB                           integer: memory that the driver reserves for itself
nvlinkErrors                                integer: errors of all links since the driver loaded
xid                                         integer: the last critical XID since the agent started, 0 for none
migEnabled                                  boolean
readAt                                      integer: minute (Unix time / 60) of the write; it shows that the agent lives
healthy, stale                              booleans; readers ignore a stale slice

A value out of the bounds of real hardware is ignored and reported as a problem. The upper bounds leave room for the
next generation of hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from extender.api.gpu_topology import UNKNOWN_DISTANCE, Fabric, GpuState, Graph, Source
from extender.api.resource_slices import Device
from extender.base.text_limits import one_line
from extender.topology.products import link_gbps, pcie_gbps, pcie_generation
from extender.topology.sets import MAX_GPUS, mesh_problem

DRIVER = "fabric.berth.dev"
MAX_NODE_GPUS = 64  # whole GPUs that a driver publishes for a node; the cost of a graph grows with their square
MAX_LINKS = 36  # NVLinks of one GPU; NVLink 5 has 18
MAX_PROBLEMS = 8  # problems reported per node
MAX_TEXT = 64  # characters; the API server's limit for a string attribute
_MAX_SHOWN = 40  # characters of a value that a problem quotes
_DOMAIN = f"{DRIVER}/"
_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_LINK = re.compile(r"([0-9]{1,2}):([0-9]{1,2})")  # [0-9]: str.isdigit also accepts digits that int() rejects
_MIB = 1 << 20

BOUNDS: Mapping[str, tuple[int, int]] = {
    "switchLinks": (0, MAX_LINKS),
    "linkMBps": (0, 200_000),  # one link, one direction; NVLink 5 has 50,000
    "nvlinkVersion": (0, 16),
    "pcieGeneration": (0, 16),
    "numaNode": (0, 1023),  # Linux supports at most 1,024 NUMA nodes
    "memoryTotalMiB": (0, 4 << 20),
    "memoryFreeMiB": (0, 4 << 20),  # and at most the total
    "memoryReservedMiB": (0, 4 << 20),  # and at most the total
}
"""Integer attributes of a GPU: name to (smallest, largest) possible value."""


class AgentFacts:
    """The attributes of one GPU as its agent publishes them, without those of other domains.

    Impossible values add a sentence to `problems`.
    """

    def __init__(self, device: Device, problems: list[str]) -> None:
        self._device = device.name
        self._values = {
            name.removeprefix(_DOMAIN): value for name, value in device.attributes.items() if name.startswith(_DOMAIN)
        }
        self._problems = problems

    def wrong(self, name: str, why: str) -> None:
        """Add a problem: the attribute has an impossible value."""
        shown = repr(str(self._values.get(name)))  # cut after escaping, which can turn one character into ten
        shown = shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "…"
        problem = f"device {self._device[:_MAX_SHOWN]}: {name} {shown} {why}"
        if len(self._problems) < MAX_PROBLEMS and problem not in self._problems:
            self._problems.append(problem)

    def text(self, name: str) -> str:
        """The string attribute, or '' if it is absent or too long."""
        value = self._values.get(name, "")
        if isinstance(value, str) and len(value) <= MAX_TEXT:
            return value
        self.wrong(name, f"is not text of at most {MAX_TEXT} characters")
        return ""

    def says(self, name: str, value: bool) -> bool:  # noqa: FBT001 - the value that the attribute is compared with
        """Whether the attribute is present and equals `value`."""
        return self._values.get(name) is value

    def known_count(self, name: str, total: int | None = None) -> int | None:
        """The integer attribute, or None if it is absent, outside BOUNDS, or above `total` (memoryTotalMiB)."""
        least, most = BOUNDS[name]
        most, words = (most, f"{most}") if total is None else (total, f"memoryTotalMiB ({total})")
        value = self._values.get(name)
        if value is None or (type(value) is int and least <= value <= most):
            return value
        self.wrong(name, f"is not an integer from {least} to {words}")
        return None

    def count(self, name: str) -> int:
        """The integer attribute, or 0 if it is absent or outside BOUNDS."""
        return self.known_count(name) or 0

    def pcie_root(self) -> str:
        """The PCIe root, or '' if it is absent or has another form."""
        root = self.text("pcieRoot")
        if not root or _PCIE_ROOT.fullmatch(root):
            return root
        self.wrong("pcieRoot", "is not of the form pci0000:64")
        return ""

    def peers(self, own: int, gpus: int) -> list[int]:
        """Working links to each GPU of the node, by position. All 0 if the list is not valid or above MAX_LINKS."""
        found = [0] * gpus
        text = self.text("links")
        for entry in text.split(",", MAX_GPUS) if text else ():
            link = _LINK.fullmatch(entry)
            if link is None or int(link[1]) >= gpus or int(link[1]) == own:
                self.wrong("links", "is not a list of peer:count for other GPUs of this node")
                return [0] * gpus
            found[int(link[1])] = int(link[2])
        if sum(found) + self.count("switchLinks") > MAX_LINKS:
            self.wrong("links", f"gives the GPU more than {MAX_LINKS} links")
            return [0] * gpus
        return found

    def distances(self, own: int, gpus: int, unknown: int) -> tuple[int, ...]:
        """The distance to each GPU as a position in DISTANCES; `unknown` if it is absent or not valid."""
        text = self.text("distances")
        if len(text) > gpus or any(c not in "-0123456789" for c in text):
            self.wrong("distances", "is not one ASCII digit or '-' per GPU")
            text = ""
        digits = [unknown if c == "-" or int(c) >= unknown else int(c) for c in text]
        digits += [unknown] * (gpus - len(digits))
        digits[own] = 0
        return tuple(digits)


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of one GPU by the agent or the sandbox. Memory is in bytes, linkMBps in MB/s."""

    uuid: str
    product: str
    pci_bus_id: str = ""
    numa: int | None = None
    pcie_root: str = ""
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
    """The attributes that publish a reading, without the domain. Empty strings and unknown values are left out."""
    found: dict[str, str | int | bool] = {
        "uuid": reading.uuid,
        "productName": reading.product[:64],
        "pciBusID": reading.pci_bus_id,
        "pcieRoot": reading.pcie_root,
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
    if reading.numa is not None:
        found["numaNode"] = reading.numa
    if reading.memory_free_bytes is not None:
        found["memoryFreeMiB"] = reading.memory_free_bytes // _MIB
    if reading.memory_reserved_bytes is not None:
        found["memoryReservedMiB"] = reading.memory_reserved_bytes // _MIB
    if reading.mig:
        found["migEnabled"] = True
    found |= {name: value for name, value in (("nvlinkErrors", reading.nvlink_errors), ("xid", reading.xid)) if value}
    return {name: value for name, value in found.items() if value != ""}


def fabric_of(devices: Sequence[Device]) -> Fabric | None:
    """The fabric that the devices of a slice describe, or None if the slice is not usable."""
    return read_fabric(devices)[0]


def read_fabric(devices: Sequence[Device]) -> tuple[Fabric | None, tuple[str, ...]]:
    """(fabric, problems): the fabric that the devices of a slice describe, and at most MAX_PROBLEMS sentences.

    The fabric is None if the slice contradicts itself or marks itself as stale.
    """
    ordered = sorted(devices, key=lambda device: (len(device.name), device.name))
    count = len(ordered)
    if not 0 < count <= MAX_GPUS:
        return None, (f"{count} devices, where a node has 1 to {MAX_GPUS} GPUs",)
    problems: list[str] = []
    stats = [AgentFacts(device, problems) for device in ordered]
    uuids = [fact.text("uuid") for fact in stats]
    if "" in uuids or len(set(uuids)) < count:
        return None, ("two devices have one uuid, or a device has none",)
    if any(fact.says("stale", value=True) for fact in stats):
        return None, ()
    graph = _graph(stats)
    if problem := mesh_problem(graph.links):
        problems.insert(0, problem)
        graph = replace(graph, links=((0,) * count,) * count)
    fabric = Fabric(
        graph,
        tuple(uuids),
        tuple(_state(fact) for fact in stats),
        Source.LIVE,
        one_line(stats[0].text("clique")),
        one_line(stats[0].text("productName")),
    )
    return fabric, tuple(problems[:MAX_PROBLEMS])


def _graph(stats: Sequence[AgentFacts]) -> Graph:
    count = len(stats)
    rows = [fact.peers(i, count) for i, fact in enumerate(stats)]
    switched = tuple(fact.count("switchLinks") for fact in stats)
    rates = [
        link_gbps(fact.count("nvlinkVersion"), fact.count("linkMBps"))
        for fact, row, links in zip(stats, rows, switched, strict=True)
        if links or any(row)
    ]
    return Graph(
        links=_symmetric(rows),
        switch_links=switched,
        link_gbps=min(rates, default=0.0),
        pcie_gbps=min(
            pcie_gbps(fact.count("pcieGeneration") or pcie_generation(fact.text("productName"))) for fact in stats
        ),
        distance=tuple(fact.distances(i, count, UNKNOWN_DISTANCE) for i, fact in enumerate(stats)),
        numa=tuple(fact.count("numaNode") for fact in stats),
    )


def _symmetric(rows: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    """The smaller count of the two ends, because both ends must report a link."""
    size = range(len(rows))
    return tuple(tuple(0 if i == j else min(rows[i][j], rows[j][i]) for j in size) for i in size)


def _state(fact: AgentFacts) -> GpuState:
    total = fact.count("memoryTotalMiB")
    return GpuState(
        total * _MIB,
        _bytes(fact.known_count("memoryFreeMiB", total)),
        _bytes(fact.known_count("memoryReservedMiB", total)),
        healthy=not fact.says("healthy", value=False),
        note=one_line(fact.text("note")),
        numa=fact.known_count("numaNode"),
        pcie_root=fact.pcie_root(),
    )


def _bytes(mib: int | None) -> int | None:
    return mib * _MIB if mib is not None else None
