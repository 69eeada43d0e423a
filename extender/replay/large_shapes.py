"""The shape of a large job, such as 4x8, and whether the free GPUs of a fleet have a place for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from extender.allocation import NodeInfo
from extender.api.gpu_topology import Graph
from extender.base.berth_errors import WireError
from extender.base.text_limits import shown
from extender.replay.jobs import MAX_GPUS, MAX_PODS
from extender.topology.sets import is_joined, ranked

_FORM = re.compile(r"(?:(\d{1,4})x)?(\d{1,2})")


class LargeShape(NamedTuple):
    """Pods in one domain, each with so many GPUs that links join."""

    pods: int
    gpus: int

    def __str__(self) -> str:
        return f"{self.pods}x{self.gpus}"


JOINED = LargeShape(1, 2)  # the smallest job that links join


def large_shape(text: str) -> LargeShape:
    """The shape that --large names. Raises WireError."""
    found = _FORM.fullmatch(text)
    pods, gpus = (int(found[1] or 1), int(found[2])) if found else (0, 0)
    if not (1 <= pods <= MAX_PODS and 1 <= gpus <= MAX_GPUS):
        raise WireError("--large", f"must be GPUS or PODSxGPUS, such as 8 or 4x8, is {shown(text)}")
    return LargeShape(pods, gpus)


def has_place(
    shape: LargeShape, node_infos: Iterable[NodeInfo], levels: Sequence[str], *, if_empty: bool = False
) -> bool:
    """Whether one domain of these nodes has free GPUs for the shape. `levels` are labels, the nearest first.

    Nodes without any of the labels are one domain. `if_empty`: whether it would if no GPU were in use.
    """
    rooms: dict[tuple[int, int], int] = {}  # of equal machines with the same free GPUs
    domains = Counter[tuple[str, str]]()
    for node_info in node_infos:
        if node_info.fabric is not None:
            graph, free = node_info.fabric.graph, node_info.positions(-1 if if_empty else ~node_info.busy)
            key = id(graph), free  # graphs are interned
            if key not in rooms:
                rooms[key] = _room(graph, free, shape.gpus)
            labels = node_info.node.labels
            domains[next(((level, labels[level]) for level in levels if level in labels), ("", ""))] += rooms[key]
    return max(domains.values(), default=0) >= shape.pods


def _room(graph: Graph, free: int, gpus: int) -> int:
    """How many sets of joined GPUs are free, the best one first."""
    if gpus == 1:
        return free.bit_count()
    found = 0
    while free.bit_count() >= gpus and is_joined(graph, best := ranked(graph, free, gpus)[0]):
        free &= ~best
        found += 1
    return found
