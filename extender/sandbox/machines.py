"""Machine files: a file states how the GPUs of a server are joined. This module makes nodes and slices from it.

A fleet of machine files has words, as in `42xhgx-h100-8,36xgb200-nvl72-tray/18`.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from extender.api.documents import Positions, one_value
from extender.api.fields import Json
from extender.api.gpu_topology import DISTANCES, UNKNOWN_DISTANCE
from extender.base.berth_errors import WireError
from extender.base.text_limits import shown
from extender.files import name_of, read_file
from extender.policy import Policy, faults_of
from extender.topology.agent_slices import DRIVER, Reading, attributes_of
from extender.topology.products import limits_of, pcie_generation, usual_graph

GPU_DRIVER, NIC_DRIVER = "gpu.nvidia.com", "dra.net"
_NAMESPACE = uuid.UUID("6f1c1d1e-0f5e-5d8c-9a55-2f0f3c1b7a10")  # fixed, so that every run makes the same UUIDs
_GA102 = "3-GA102"
_MAX_FILE = 1024 * 1024  # bytes
_Count = Annotated[int, Field(ge=0, le=1000)]
_Number = Annotated[float, Field(ge=0, le=100_000)]
_Link = Annotated[list[_Number], Field(min_length=3)]  # GPU, GPU, number of working links; further entries are notes
_MAX_NICS = 128  # devices of one slice, by the API's limits
_ARCHITECTURES = (
    ("V100", "Volta", "7.0.0"),
    ("P100", "Pascal", "6.0.0"),
    ("T4", "Turing", "7.5.0"),
    ("RTX 8000", "Turing", "7.5.0"),
    ("A100", "Ampere", "8.0.0"),
    ("A40", "Ampere", "8.6.0"),
    ("A6000", "Ampere", "8.6.0"),
    ("L4", "Ada Lovelace", "8.9.0"),
    ("H100", "Hopper", "9.0.0"),
    ("H200", "Hopper", "9.0.0"),
    ("B200", "Blackwell", "10.0.0"),
)
_BRANDS = (("V100", "Tesla"), ("P100", "Tesla"), ("RTX A6000", "NvidiaRTX"), ("RTX 8000", "QuadroRTX"))  # of NVML
_WITHOUT_HMM = ("Pascal", "Volta", "Unknown")  # GPUs on which the open kernel modules do not run


class Nic(BaseModel, frozen=True):
    """A NIC of a machine file; all other fields are notes. `pcie_root` and `numa` are None if the kernel knows none."""

    rdma: str = Field(min_length=1, max_length=64)  # name of the RDMA device
    vendor: str = Field(max_length=64)
    product: str = Field(max_length=64)
    pci_bus_id: str = Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
    pcie_root: str | None = Field(default=None, pattern=r"^pci[0-9a-f]{4}:[0-9a-f]{2}$")
    numa: int | None = Field(default=None, ge=0, le=1023)


@dataclass(frozen=True, slots=True)
class Machine:
    """One decoded machine file. `readings` has one entry per GPU."""

    name: str
    product: str
    memory_bytes: int
    readings: tuple[Reading, ...]  # without UUIDs: `fabric_slice` adds those of a node
    nics: tuple[Nic, ...] = ()
    has_agent: bool = True  # False: no fabric slice, so that the links are those of the product's usual board
    knows_links: bool = True  # False: the links of the GPUs are not known

    @property
    def count(self) -> int:
        return len(self.readings)


class MachineFile(BaseModel):
    """The fields of a machine file; all other fields are notes. Lists but `nics` have one entry per GPU."""

    name: str = Field(min_length=1, max_length=64)
    gpu_product: str
    gpus: int = Field(ge=1, le=16)
    vram_bytes: int = Field(ge=0, lt=1 << 53)
    nvswitch: bool | None = None
    nvlink_generation: str | None = None
    link_GBps_per_direction: _Number | None = None  # noqa: N815 - the name in the files
    links: list[_Link] | None = None
    links_per_gpu: list[_Count] | None = None
    pci_bus_ids: list[str | None] | None = None
    pcie_roots: list[str | None] | None = None
    numa: list[int] | None = None
    topo_m: list[list[str]] | None = None
    nics: list[Nic] = Field(default=[], max_length=_MAX_NICS)

    @model_validator(mode="after")
    def _an_entry_for_each(self) -> Self:
        for name in ("links_per_gpu", "pci_bus_ids", "pcie_roots", "numa", "topo_m"):
            found = getattr(self, name)
            if found and len(found) != self.gpus:
                raise ValueError(f"{name} has {len(found)} entries for {self.gpus} GPUs")
        for row in self.topo_m or ():
            if len(row) != self.gpus:
                raise ValueError(f"a row of topo_m has {len(row)} entries for {self.gpus} GPUs")
        if self.nvswitch and not self.links_per_gpu:
            raise ValueError("nvswitch is true: links_per_gpu must say how many links of each GPU go into it")
        if (self.links or any(self.links_per_gpu or ())) and not _rates(self)[0]:
            raise ValueError("link_GBps_per_direction must say how fast each of the links is")
        for bus, number in Counter(nic.pci_bus_id for nic in self.nics).items():
            if number > 1:
                raise ValueError(f"{number} entries of nics have pci_bus_id {bus!r}")
        return self


def load_machine(path: Path) -> Machine:
    """Read a machine from a YAML or JSON file. Raises WireError that names the file and the field."""
    return _read(read_file(path, _MAX_FILE), name_of(path))


def unlinked_machine(product: str, gpus: int, vram_bytes: int) -> Machine:
    """A machine of which only the GPUs are known: the usual board of the product joins them, if there is one."""
    has_board = usual_graph(product, gpus, GPU_DRIVER) is not None
    knows_links = has_board or gpus <= 1 or not limits_of(product, GPU_DRIVER).link_gbps
    reading = Reading(
        uuid="",
        product=product,
        pcie_generation=pcie_generation(product),
        distances=(UNKNOWN_DISTANCE,) * gpus,
        memory_total_bytes=vram_bytes,
        memory_free_bytes=vram_bytes,
    )
    return Machine(product or "no-gpu", product, vram_bytes, (reading,) * gpus, (), not has_board, knows_links)


@cache
def carried_machines() -> Mapping[str, Machine]:
    """Return the built-in machines by name. The files are read once."""
    folder = resources.files("extender.sandbox") / "machines"
    found = (_read(f.read_bytes(), f.name) for f in folder.iterdir() if f.name.endswith(".yaml"))
    return MappingProxyType({machine.name: machine for machine in found})


def _read(content: bytes, where: str) -> Machine:
    positions: Positions = {}
    value = one_value(content, where, _MAX_FILE, positions)
    if not isinstance(value, dict):
        raise WireError(where, "a machine file must be a mapping")
    if value.keys().isdisjoint(MachineFile.model_fields):
        fields = ", ".join(MachineFile.model_fields)
        raise WireError(where, f"has none of the fields of a machine file, which are {fields}")
    try:
        return _machine(MachineFile.model_validate(value), where)
    except ValidationError as error:
        raise WireError(where, faults_of(error, positions)) from error


def _machine(file: MachineFile, where: str) -> Machine:
    nothing, zeros = [None] * file.gpus, [0] * file.gpus
    buses, roots = file.pci_bus_ids or nothing, file.pcie_roots or nothing
    numa, into_switches = file.numa, file.links_per_gpu or zeros
    link_mbps, nvlink_version = _rates(file)
    links = _links(file, where)
    readings = tuple(
        Reading(
            uuid="",
            product=file.gpu_product,
            pci_bus_id=buses[i] or "",
            numa=numa[i] if numa and numa[i] >= 0 else None,
            pcie_root=roots[i] or "",
            links=() if file.nvswitch else tuple((j, n) for j, n in enumerate(links[i]) if n),
            switch_links=into_switches[i] if file.nvswitch else 0,
            link_mbps=link_mbps,
            nvlink_version=nvlink_version,
            pcie_generation=pcie_generation(file.gpu_product),
            distances=_distances(file, i),
            memory_total_bytes=file.vram_bytes,
            memory_free_bytes=file.vram_bytes,
        )
        for i in range(file.gpus)
    )
    return Machine(file.name, file.gpu_product, file.vram_bytes, readings, tuple(file.nics))


def _rates(file: MachineFile) -> tuple[int, int]:
    """Return (nominal MB/s of a link, NVLink version)."""
    generation = file.nvlink_generation or "0"
    version = int(generation[0]) if generation[:1].isascii() and generation[:1].isdecimal() else 0
    nominal = file.link_GBps_per_direction or (14.06 if generation == _GA102 else 0)
    return round(nominal * 1000), version


def _links(file: MachineFile, where: str) -> list[list[int]]:
    table = [[0] * file.gpus for _ in range(file.gpus)]
    for entry in file.links or ():
        i, j, number = map(int, entry[:3])
        given = f"[{', '.join(f'{value:g}' for value in entry)}]"
        if entry[:3] != [i, j, number]:
            raise WireError(f"{where}: links", f"{given} must be two GPUs and a number of links, as whole numbers")
        if i == j:
            raise WireError(f"{where}: links", f"{given} joins GPU {i} with itself")
        if not (0 <= i < file.gpus and 0 <= j < file.gpus):
            raise WireError(f"{where}: links", f"{given} names a GPU outside 0..{file.gpus - 1}")
        table[i][j] = table[j][i] = number
    return table


def _distances(file: MachineFile, i: int) -> tuple[int, ...]:
    if not file.topo_m:
        return (UNKNOWN_DISTANCE,) * file.gpus
    return tuple(_distance(word, file.numa, i, j) for j, word in enumerate(file.topo_m[i]))


def _distance(word: str, numa: list[int] | None, i: int, j: int) -> int:
    """Return the index in DISTANCES. `topo -m` shows NVLink in place of the PCIe class; then the NUMA nodes decide."""
    if word in DISTANCES:
        return DISTANCES.index(word)
    if not numa:
        return UNKNOWN_DISTANCE
    return DISTANCES.index("NODE") if numa[i] == numa[j] else DISTANCES.index("SYS")


# -- from machines to API objects ----------------------------------------------------------------------------


def gpu_uuid(node: str, index: int) -> str:
    """Return the UUID of a GPU: the same in every run for a node and an index."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}"


def node_object(name: str, machine: Machine, labels: dict[str, str]) -> Json:
    """Return the Node object."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "berth.dev/machine": machine.name, **labels},
        },
        "status": {
            "allocatable": {"cpu": "128", "memory": "1Ti", "pods": "250"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Sandbox"}],
            "nodeInfo": {"kubeletVersion": "none (sandbox)"},
        },
    }


def gpu_slice(name: str, machine: Machine) -> Json:
    """Return the ResourceSlice of the NVIDIA driver: one device per GPU, without NVLink.

    It has the attributes of release 0.5, which added the NUMA node. What the machine file does not know is left out.
    """
    family, compute = next(((f, c) for word, f, c in _ARCHITECTURES if word in machine.product), ("Unknown", "1.0.0"))
    brand = next((name for word, name in _BRANDS if word in machine.product), "Nvidia")
    addressing = "ATS" if "GB200" in machine.product else "" if family in _WITHOUT_HMM else "HMM"
    devices = []
    for i, reading in enumerate(machine.readings):
        attributes: Json = {
            "type": {"string": "gpu"},
            "uuid": {"string": gpu_uuid(name, i)},
            "productName": {"string": machine.product},
            "brand": {"string": brand},
            "architecture": {"string": family},
            "cudaComputeCapability": {"version": compute},
            "driverVersion": {"version": "580.65.6"},
            "cudaDriverVersion": {"version": "13.0.0"},
        }
        if reading.pci_bus_id:
            attributes["resource.kubernetes.io/pciBusID"] = {"string": reading.pci_bus_id}
        if addressing:
            attributes["addressingMode"] = {"string": addressing}
        if reading.pcie_root:
            attributes["resource.kubernetes.io/pcieRoot"] = {"string": reading.pcie_root}
        if reading.numa is not None:
            attributes["resource.kubernetes.io/numaNode"] = {"int": reading.numa}
        capacity = {"memory": {"value": f"{machine.memory_bytes >> 20}Mi"}}
        devices.append({"name": f"gpu-{i}", "attributes": attributes, "capacity": capacity})
    return _slice(f"00000-{GPU_DRIVER}-{name}", GPU_DRIVER, name, devices)


def nic_slice(name: str, machine: Machine) -> Json:
    """Return the ResourceSlice of DRANET: one device per NIC, with the attributes of its releases up to 1.4.

    It gives the NUMA node a name of its own, and leaves out a PCIe root that the kernel does not know.
    """
    devices = []
    for nic in machine.nics:
        attributes: Json = {
            "dra.net/pciAddress": {"string": nic.pci_bus_id},
            "dra.net/pciDevice": {"string": nic.product},
            "dra.net/pciVendor": {"string": nic.vendor},
            "dra.net/rdma": {"bool": True},
            "dra.net/rdmaDevice": {"string": nic.rdma},
        }
        if nic.numa is not None:
            attributes["dra.net/numaNode"] = {"int": nic.numa}
        if nic.pcie_root is not None:
            attributes["resource.kubernetes.io/pcieRoot"] = {"string": nic.pcie_root}
        name_of_pci = nic.pci_bus_id.translate(str.maketrans(":.", "--"))
        devices.append({"name": f"pci-{name_of_pci}", "attributes": attributes})
    return _slice(f"{NIC_DRIVER}-{name}", NIC_DRIVER, name, devices)


def fabric_slice(name: str, machine: Machine) -> Json:
    """Return the ResourceSlice of the agent, with the attributes that the agent makes from these readings."""
    devices = []
    for i, reading in enumerate(machine.readings):
        values = attributes_of(replace(reading, uuid=gpu_uuid(name, i)))
        taint = {"key": f"{DRIVER}/informational", "effect": "NoSchedule"}
        devices.append({"name": f"gpu-{i}", "attributes": {k: _typed(v) for k, v in values.items()}, "taints": [taint]})
    return _slice(f"{DRIVER}-{name}", DRIVER, name, devices)


def _typed(value: str | int) -> Json:
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


def _slice(name: str, driver: str, node: str, devices: list[Json]) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


# -- fleets ------------------------------------------------------------------------------------------------------

_PART = re.compile(r"([0-9]+)x([^,]+?)((?:/[1-9][0-9]{0,4}){0,3})")
_LEVELS = Policy().group_levels  # the nearest first: cliques, racks, spines
MAX_NODES = 20_000
_OPTION = "--nodes"


class MachineNode(NamedTuple):
    """A node to be made of a machine. `allocatable` replaces the CPU and the memory of nodes of machine files."""

    name: str
    machine: Machine
    labels: Mapping[str, str]
    allocatable: Mapping[str, str] = MappingProxyType({})


def parse_nodes(text: str) -> list[MachineNode]:
    """The nodes that a text names: COUNTxMACHINE[/NODES[/NODES[/NODES]]], with commas between the kinds.

    MACHINE is a carried machine or the path of a machine file. So many nodes in a row are in one NVLink clique, in one
    rack and in one spine. Raises WireError that names the option --nodes and the part.
    """
    nodes, numbers = list[MachineNode](), dict[str, int]()
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            problem = f"must be COUNTxMACHINE[/NODES],…, such as 36xgb200-nvl72-tray/18; is {shown(part)}"
            raise WireError(_OPTION, problem)
        machine = _named_machine(found[2])
        kind, sizes = _node_name(machine.name), [int(size) for size in found[3].split("/")[1:]]
        if len(found[1].lstrip("0")) > len(str(MAX_NODES)) or len(nodes) + int(found[1]) > MAX_NODES:
            raise WireError(_OPTION, f"names more than {MAX_NODES} nodes")
        first = numbers.get(kind, 0)
        numbers[kind] = first + int(found[1])
        for number in range(first, numbers[kind]):
            labels = {level: f"{kind}-{number // size}" for level, size in zip(_LEVELS, sizes, strict=False)}
            nodes.append(MachineNode(f"{kind}-{number:05}", machine, labels))
    if not nodes:
        raise WireError(_OPTION, "names no node")
    return nodes


def machine_objects(node: MachineNode) -> list[Json]:
    """A node with the slices of its GPUs and NICs, and the agent's fabric slice."""
    name, machine = node.name, node.machine
    made = node_object(name, machine, dict(node.labels))
    made["status"]["allocatable"] |= node.allocatable
    nics = [nic_slice(name, machine)] if machine.nics else []
    if not machine.readings:
        return [made, *nics]
    fabric = [fabric_slice(name, machine)] if machine.has_agent else []
    return [made, gpu_slice(name, machine), *nics, *fabric]


def _named_machine(text: str) -> Machine:
    carried = carried_machines()
    if text in carried:
        return carried[text]
    if Path(text).suffix in (".yaml", ".yml", ".json"):
        return load_machine(Path(text))
    known = f"give a machine file (its form is in docs/replay.md), or one of {', '.join(sorted(carried))}"
    raise WireError(_OPTION, f"knows no machine {shown(text)}: {known}")


def _node_name(machine: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", machine.lower()).strip("-") or "node"
