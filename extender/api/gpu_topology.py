"""Berth's own words for GPUs: the connections between those of one node, without any rating, and what jobs ask for.

Units: links are counts of working NVLinks; rates are GB/s in one direction.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Self
from weakref import WeakValueDictionary


class Source(Enum):
    """The source of a fabric."""

    LIVE = "live agent"
    SLICE = "slice attributes"
    TABLE = "product table"
    FLAT = "nothing published"


# Words of `topo -m` for paths over PCIe, by growing distance. A ResourceSlice carries the position as one digit.
DISTANCES = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
UNKNOWN_DISTANCE = len(DISTANCES)


# Equal graphs are one object, as machines of one kind have equal ones: a table by graph compares identities.
_INTERCONNECTS: WeakValueDictionary[tuple[object, ...], Any] = WeakValueDictionary()
_GRAPHS: WeakValueDictionary[tuple[object, ...], Any] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Interconnect:
    """The part of a graph that decides the bandwidth of rings. It lacks the places of the GPUs (distances, NUMA nodes).

    Results about rings are cached by it, so that another NUMA node in an agent's slice causes no new search for rings.
    """

    links: tuple[tuple[int, ...], ...]
    switch_links: tuple[int, ...]
    link_gbps: float
    pcie_gbps: float

    def __new__(
        cls, links: tuple[tuple[int, ...], ...], switch_links: tuple[int, ...], link_gbps: float, pcie_gbps: float
    ) -> Self:
        key = (links, switch_links, link_gbps, pcie_gbps)
        found: Self = _INTERCONNECTS.setdefault(key, object.__new__(cls))
        return found


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Graph:
    """The GPUs of one machine by position 0..n-1, and their connections.

    links[i][j] is the number of working NVLinks from i to j; switch_links[i] is the number from i into an NVSwitch.
    """

    links: tuple[tuple[int, ...], ...]
    switch_links: tuple[int, ...]
    link_gbps: float  # bandwidth that one link adds to a ring; the value that NCCL plans with (src/graph/topo.h)
    pcie_gbps: float  # bandwidth of a ring that NVLink does not close
    distance: tuple[tuple[int, ...], ...]  # position in DISTANCES
    numa: tuple[int, ...]
    interconnect: Interconnect = field(init=False, repr=False)

    def __new__(
        cls,
        links: tuple[tuple[int, ...], ...],
        switch_links: tuple[int, ...],
        link_gbps: float,
        pcie_gbps: float,
        distance: tuple[tuple[int, ...], ...],
        numa: tuple[int, ...],
    ) -> Self:
        key = (links, switch_links, link_gbps, pcie_gbps, distance, numa)
        found: Self = _GRAPHS.setdefault(key, object.__new__(cls))
        return found

    def __post_init__(self) -> None:
        interconnect = Interconnect(self.links, self.switch_links, self.link_gbps, self.pcie_gbps)
        object.__setattr__(self, "interconnect", interconnect)

    @property
    def size(self) -> int:
        return len(self.numa)


@dataclass(frozen=True, slots=True)
class GpuState:
    """The state of one GPU that the agent reported. None: the agent could not read the value, or there is no agent."""

    memory_total_bytes: int = 0
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None  # reserved by the driver
    healthy: bool = True
    note: str = ""
    numa: int | None = None  # the NUMA node with CPUs next to the GPU. Graph.numa has 0 where it is unknown
    pcie_root: str = ""  # in the form of resource.kubernetes.io/pcieRoot; '' if the agent could not read it


@dataclass(frozen=True, slots=True)
class Fabric:
    """A node's graph, with the UUID and state of the GPU at each position."""

    graph: Graph
    uuids: tuple[str, ...]
    gpus: tuple[GpuState, ...]
    source: Source
    clique: str = ""
    product: str = ""
    products: tuple[str, ...] = ()  # of the GPU at each position, where they differ; () if each has `product`

    def product_at(self, position: int) -> str:
        return self.products[position] if self.products else self.product

    def of_products(self, names: Collection[str]) -> int:
        """Mask of the GPUs of these products, by position."""
        if not self.products:
            return (1 << self.graph.size) - 1 if self.product in names else 0
        return sum(1 << i for i in range(self.graph.size) if self.product_at(i) in names)


# -- the expected mix of jobs: shapes of requests with their shares --------------------------------------------


WHOLE = 1000  # thousandths of a GPU


class RequestShape(NamedTuple):
    """What a job asks for: `gpus` GPUs of `milli` thousandths each; 1000 if `gpus` is above 1."""

    gpus: int
    milli: int


RequestMix = tuple[tuple[RequestShape, float], ...]
"""(shape, share of all jobs) pairs. The shares add up to about 1."""


def whole_gpus(count: int) -> RequestShape:
    """The shape of a job with `count` whole GPUs."""
    return RequestShape(count, WHOLE)


# The mix before Berth has seen any job: the usual sizes on a machine with eight GPUs.
DEFAULT_MIX: RequestMix = tuple((whole_gpus(count), 0.25) for count in (1, 2, 4, 8))
