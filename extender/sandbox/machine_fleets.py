"""Fleets of machine files, in words: `42xhgx-h100-8,36xgb200-nvl72-tray/18`, and the API objects of their nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from extender.api.fields import Json
from extender.base.berth_errors import WireError
from extender.base.text_limits import shown
from extender.policy import Policy
from extender.sandbox.machines import (
    Machine,
    carried_machines,
    fabric_slice,
    gpu_slice,
    load_machine,
    nic_slice,
    node_object,
)

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
        machine = _machine(found[2])
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


def _machine(text: str) -> Machine:
    carried = carried_machines()
    if text in carried:
        return carried[text]
    if Path(text).suffix in (".yaml", ".yml", ".json"):
        return load_machine(Path(text))
    known = f"give a machine file (its form is in docs/replay.md), or one of {', '.join(sorted(carried))}"
    raise WireError(_OPTION, f"knows no machine {shown(text)}: {known}")


def _node_name(machine: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", machine.lower()).strip("-") or "node"
