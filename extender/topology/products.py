"""Tables by product name: link rates, PCIe generations, and the usual boards.

Real machines can differ from a table (a missing bridge, a GPU without its links), so the agent's data come first
(sources.py), and an explanation names the source. Rates: NCCL src/graph/topo.h; boards: NVIDIA's published matrices.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from extender.api.gpu_topology import UNKNOWN_DISTANCE, Graph

# NVLink version to the bandwidth per link that NCCL plans with, in GB/s in one direction.
NCCL_LINK_GBPS = {1: 18.0, 2: 20.0, 3: 20.0, 4: 20.6, 5: 40.1}
SLOW_LINK_GBPS = 12.0  # GA102 bridges: 14.06 GB/s nominal
_SLOW_NOMINAL = 20_000  # MB/s; only GA102 links are slower than the 20 GB/s of NVLink 1
PCIE_RING_GBPS = {3: 10.0, 4: 20.0, 5: 30.0}  # PCIe generation to bandwidth of a ring over x16, in GB/s
_DEFAULT_PCIE = 4
_MAX_PRODUCTS = 256  # (product, GPU count) pairs in the cache; a fleet has dozens


class Board(NamedTuple):
    """A usual machine: words of the product name, GPUs, links of each GPU into the NVSwitch, NVLink version."""

    words: tuple[str, ...]
    gpus: int
    switch_links: int
    version: int


_BOARDS = (
    Board(("A100-SXM", "A100 SXM"), 8, 12, 3),
    Board(("A800-SXM", "A800 SXM"), 8, 8, 3),
    Board(("H100 80GB HBM3", "H100 SXM"), 8, 18, 4),
    Board(("H800",), 8, 8, 4),
    Board(("H200",), 8, 18, 4),
    Board(("GB200", "GB300"), 4, 18, 5),
    Board(("B200", "B300"), 8, 18, 5),
    Board(("V100-SXM3",), 16, 6, 2),
)
_NOT_SWITCHED = ("NVL", "PCIe", "PCIE")

# The hybrid cube mesh of a DGX-1 with V100s. No other board without a switch has one usual numbering of its GPUs.
_DGX1 = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
_DGX1_SIZE = 8


class ProductLimits(NamedTuple):
    """The largest values of a product: NVLinks of one GPU, version of NVLink, generation of PCIe."""

    words: tuple[str, ...]
    links: int
    nvlink: int
    pcie: int

    @property
    def nvlink_gbps(self) -> float:
        """The largest NVLink bandwidth of a ring, in GB/s."""
        return self.links * NCCL_LINK_GBPS[self.nvlink]


# The first match counts: some names contain others. Source: NVIDIA's data sheets.
_LIMITS = (
    ProductLimits(("B200", "B300"), 18, 5, 5),
    ProductLimits(("H800",), 8, 4, 5),
    ProductLimits(("H100", "H200", "H20", "GH200"), 18, 4, 5),
    ProductLimits(("A800",), 8, 3, 4),
    ProductLimits(("A100",), 12, 3, 4),
    ProductLimits(("V100",), 6, 2, 3),
    ProductLimits(("P100",), 4, 1, 3),
    ProductLimits((" Ada", "L4", "L20", "GeForce RTX 40"), 0, 1, 4),
    ProductLimits(("RTX PRO", "GeForce RTX 50"), 0, 1, 5),
    ProductLimits(("Quadro RTX", "TITAN RTX", "RTX 2080"), 2, 2, 3),
    ProductLimits(("A30", "A40", "RTX A6000", "RTX A5500", "RTX A5000", "RTX A4500", "RTX 3090"), 4, 3, 4),
    ProductLimits(("A10", "A16", "A2"), 0, 1, 4),
    ProductLimits(("T4", "P40", "P4"), 0, 1, 3),
)
_NEWEST = ProductLimits((), 18, 5, 5)


def link_gbps(version: int, nominal_mbps: int) -> float:
    """Bandwidth that one link adds to a ring, in GB/s. For an unknown version: 80 % of the nominal rate."""
    if 0 < nominal_mbps < _SLOW_NOMINAL:
        return SLOW_LINK_GBPS
    known = NCCL_LINK_GBPS.get(version)
    return known if known is not None else nominal_mbps * 0.8 / 1000


def limits_of(product: str) -> ProductLimits:
    """The limits of a product; those of the newest one in the table for an unknown product."""
    return _limits(product) or _NEWEST


def pcie_generation(product: str) -> int:
    """The PCIe generation of a product; 4, the most common one, for an unknown product."""
    known = _limits(product)
    return known.pcie if known is not None else _DEFAULT_PCIE


def _limits(product: str) -> ProductLimits | None:
    return next((limits for limits in _LIMITS if any(word in product for word in limits.words)), None)


def pcie_gbps(generation: int) -> float:
    """Bandwidth of a ring over PCIe, in GB/s."""
    nearest = 5 if generation > 5 else 3  # noqa: PLR2004 - the newest in the table
    return PCIE_RING_GBPS.get(generation, PCIE_RING_GBPS[nearest])


@lru_cache(maxsize=_MAX_PRODUCTS)
def usual_graph(product: str, count: int) -> Graph | None:
    """The usual graph of a machine with `count` GPUs of this product, or None if the tables have none."""
    if "V100-SXM2" in product and count == _DGX1_SIZE:
        return _graph(count, _DGX1, (0,) * count, NCCL_LINK_GBPS[2], product)
    if any(word in product for word in _NOT_SWITCHED):
        return None
    for board in _BOARDS:
        if board.gpus == count and any(word in product for word in board.words):
            none = ((0,) * count,) * count
            return _graph(count, none, (board.switch_links,) * count, NCCL_LINK_GBPS[board.version], product)
    return None


@lru_cache(maxsize=_MAX_PRODUCTS)
def flat_graph(product: str, count: int) -> Graph:
    """A graph without NVLink and with unknown distances, for GPUs without topology information."""
    return _graph(count, ((0,) * count,) * count, (0,) * count, 0.0, product)


def _graph(count: int, links: tuple[tuple[int, ...], ...], switch: tuple[int, ...], rate: float, product: str) -> Graph:
    distance = tuple(tuple(0 if i == j else UNKNOWN_DISTANCE for j in range(count)) for i in range(count))
    return Graph(links, switch, rate, pcie_gbps(pcie_generation(product)), distance, (0,) * count)
