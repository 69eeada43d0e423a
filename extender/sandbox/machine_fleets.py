"""Fleets of machine files, in words: `42xhgx-h100-8,36xgb200-nvl72-tray/18`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from extender.base.berth_errors import WireError
from extender.base.text_limits import shown
from extender.sandbox.machines import Machine, carried_machines, load_machine
from extender.vendors import CLIQUE_LABEL

_PART = re.compile(r"([0-9]{1,6})x([^,]+?)(?:/([0-9]{1,4}))?")
MAX_NODES = 20_000


class MachineNode(NamedTuple):
    """A node to be made of a machine."""

    name: str
    machine: Machine
    labels: Mapping[str, str]


def parse_nodes(text: str, option: str = "--nodes") -> list[MachineNode]:
    """The nodes that a text names: COUNTxMACHINE[/NODES], with commas between the kinds.

    MACHINE is a carried machine or the path of a machine file. With /NODES, so many nodes in a row are in one NVLink
    clique. Raises WireError that names the option and the part.
    """
    nodes, numbers = list[MachineNode](), dict[str, int]()
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise WireError(option, f"must be COUNTxMACHINE[/NODES],…, such as 42xhgx-h100-8; is {shown(part)}")
        machine = _machine(found[2], option)
        kind, per_clique = _node_name(machine.name), int(found[3] or 0)
        first = numbers.get(kind, 0)
        numbers[kind] = first + int(found[1])
        if len(nodes) + int(found[1]) > MAX_NODES:
            raise WireError(option, f"names more than {MAX_NODES} nodes")
        for number in range(first, numbers[kind]):
            labels = {CLIQUE_LABEL: f"{kind}-clique-{number // per_clique}"} if per_clique else {}
            nodes.append(MachineNode(f"{kind}-{number:05}", machine, labels))
    if not nodes:
        raise WireError(option, "names no node")
    return nodes


def _machine(text: str, option: str) -> Machine:
    carried = carried_machines()
    if text in carried:
        return carried[text]
    if Path(text).suffix in (".yaml", ".yml", ".json"):
        return load_machine(Path(text))
    raise WireError(
        option, f"knows no machine {shown(text)}: give a machine file, or one of {', '.join(sorted(carried))}"
    )


def _node_name(machine: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", machine.lower()).strip("-") or "node"
