"""How the GPUs of one node are joined: the facts, without any judgement.

Units: links are counts of working NVLinks, rates are gigabytes per second in one direction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Source(Enum):
    """Where a fabric came from, most trustworthy first."""

    LIVE = "live agent"
    SLICE = "slice attributes"
    TABLE = "product table"
    FLAT = "nothing published"


# nvidia-smi topo -m words by growing distance; one letter each on the wire.
DISTANCES = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
UNKNOWN_DISTANCE = len(DISTANCES)


@dataclass(frozen=True, slots=True)
class Graph:
    """The joined GPUs of one machine, by position 0..n-1; equal machines share one object.

    links[i][j] is the number of working NVLinks from i to j, switch_links[i] those from i into an NVSwitch.
    """

    links: tuple[tuple[int, ...], ...]
    switch_links: tuple[int, ...]
    link_gbps: float  # what one link adds to a ring: the planning value of NCCL's src/graph/topo.h
    pcie_gbps: float  # what a ring gets where NVLink does not close it
    distance: tuple[tuple[int, ...], ...]  # position in DISTANCES
    numa: tuple[int, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        content = (self.links, self.switch_links, self.link_gbps, self.pcie_gbps, self.distance, self.numa)
        object.__setattr__(self, "_hash", hash(content))

    def __hash__(self) -> int:
        # Every lookup of what is remembered about a set of GPUs asks for it.
        return self._hash

    @property
    def size(self) -> int:
        return len(self.numa)


@dataclass(frozen=True, slots=True)
class GpuState:
    """What the agent saw of one GPU; None where it could not tell."""

    uuid: str
    memory_total_bytes: int = 0
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None  # by the driver; None where it does not say
    healthy: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fabric:
    """A node's graph with the identity of each position."""

    graph: Graph
    gpus: tuple[GpuState, ...]
    source: Source
    clique: str = ""
    product: str = ""

    def position(self, uuid: str) -> int | None:
        return next((i for i, gpu in enumerate(self.gpus) if gpu.uuid == uuid), None)
