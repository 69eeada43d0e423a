"""What the vendor files say of a product: link rates, PCIe generation, and its usual board.

Real machines can differ from a table (a missing bridge, a GPU without its links), so the agent's data come first
(sources.py), and an explanation names the source. Where the driver of the devices is known, only its vendor's file
counts: the names of products are matched by words, and a word of one vendor may be in a name of another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from extender.api.gpu_topology import UNKNOWN_DISTANCE, Graph

if TYPE_CHECKING:
    from extender.vendors import Product, Vendor

PCIE_RING_GBPS = {3: 10.0, 4: 20.0, 5: 30.0}  # PCIe generation to bandwidth of a ring over x16, in GB/s
_DEFAULT_PCIE = 4
_MAX_PRODUCTS = 256  # (product, GPU count) pairs in each cache; a fleet has dozens
_AGENT_LINK = "NVLink {}"  # the kind of link that the agent reads, with its generation


class ProductLimits(NamedTuple):
    """The largest values of a product: bandwidth of a ring over its links in GB/s, and generation of PCIe."""

    link_gbps: float
    pcie: int


def _vendors(driver: str) -> tuple[Vendor, ...]:
    """The vendor of a driver; all vendors if '' or unknown."""
    from extender.vendors import VENDORS, driver_of  # pydantic takes 6 MiB, which the node agent does without

    vendor = driver_of(driver).vendor
    return VENDORS if vendor is None else (vendor,)


@lru_cache(maxsize=_MAX_PRODUCTS)
def _product(name: str, driver: str) -> tuple[Vendor, Product] | None:
    return next(((vendor, found) for vendor in _vendors(driver) if (found := vendor.product(name))), None)


def link_gbps(version: int, nominal_mbps: int) -> float:
    """Bandwidth that one link of an agent's reading adds to a ring, in GB/s.

    For an unknown version: 80 % of the nominal rate.
    """
    name = _AGENT_LINK.format(version)
    vendor = next((vendor for vendor in _vendors("") if name in vendor.links), None)
    if vendor is None:
        return nominal_mbps * 0.8 / 1000
    if vendor.slow_links is not None and 0 < nominal_mbps < vendor.slow_links.below_mbps:
        return vendor.slow_links.gbps
    return vendor.links[name]


def link_name(product: str, driver: str) -> str:
    """What users call one link of a product, such as 'NVLink' or 'xGMI link'."""
    known = _product(product, driver)
    kinds = [*((known[1].link,) if known else ()), *(kind for vendor in _vendors(driver) for kind in vendor.links)]
    return next((kind.rpartition(" ")[0] or kind for kind in kinds if kind), "link")


@lru_cache(maxsize=_MAX_PRODUCTS)
def limits_of(product: str, driver: str = "") -> ProductLimits:
    """The limits of a product; the largest in the files for an unknown product."""
    if known := _product(product, driver):
        vendor, found = known
        return ProductLimits(vendor.link_gbps(found), found.pcie)
    every = [(vendor.link_gbps(found), found.pcie) for vendor in _vendors("") for found in vendor.products]
    return ProductLimits(max(gbps for gbps, _ in every), max(pcie for _, pcie in every))


def joinable_gbps(product: str, driver: str = "") -> float:
    """What the links of one GPU reach in GB/s; 0 for an unknown product, and for a card that only a bridge joins."""
    known = _product(product, driver)
    return 0.0 if known is None or known[0].is_unjoined(product) else known[0].link_gbps(known[1])


def pcie_generation(product: str, driver: str = "") -> int:
    """The PCIe generation of a product; 4, the most common one, for an unknown product."""
    known = _product(product, driver)
    return known[1].pcie if known is not None else _DEFAULT_PCIE


def links_reach_other_nodes(product: str, driver: str = "") -> bool:
    """Whether the links of a product join GPUs of several nodes, as those of an NVL72 rack do."""
    known = _product(product, driver)
    return known is not None and known[1].across_nodes


def pcie_gbps(generation: int) -> float:
    """Bandwidth of a ring over PCIe, in GB/s."""
    nearest = 5 if generation > 5 else 3  # noqa: PLR2004 - the newest in the table
    return PCIE_RING_GBPS.get(generation, PCIE_RING_GBPS[nearest])


@lru_cache(maxsize=_MAX_PRODUCTS)
def usual_graph(product: str, count: int, driver: str = "") -> Graph | None:
    """The usual graph of a machine with `count` whole GPUs of this product, or None if the files have none."""
    for vendor in _vendors(driver):
        board = vendor.board(product, count)
        if board is not None:
            size = range(count)
            links = board.mesh or tuple(tuple(board.peer_links * (i != j) for j in size) for i in size)
            return _graph(count, links, board.switch_links, vendor.links[board.link], pcie_generation(product, driver))
    return None


@lru_cache(maxsize=_MAX_PRODUCTS)
def flat_graph(product: str, count: int, driver: str = "") -> Graph:
    """A graph without links and with unknown distances, for GPUs without topology information."""
    return _graph(count, ((0,) * count,) * count, 0, 0.0, pcie_generation(product, driver))


def _graph(count: int, links: tuple[tuple[int, ...], ...], switch_links: int, rate: float, pcie: int) -> Graph:
    distance = tuple(tuple(0 if i == j else UNKNOWN_DISTANCE for j in range(count)) for i in range(count))
    return Graph(links, (switch_links,) * count, rate, pcie_gbps(pcie), distance, (0,) * count)
