"""Whether it is known how links join the GPUs of a node, and who says so."""

from __future__ import annotations

from enum import StrEnum

from extender.allocation import NodeInfo
from extender.api.gpu_topology import Fabric, Source
from extender.topology.products import limits_of


class Links(StrEnum):
    """Who says how links join the GPUs of a node."""

    AGENT = "Berth's agent"
    BOARD = "the usual board of the product"
    NONE = "the product has no links"
    UNKNOWN = "not known"


def links_of(node_info: NodeInfo) -> Links:
    """Who says how links join the GPUs of a node."""
    fabric = node_info.fabric
    if fabric is None:
        return Links.UNKNOWN
    if fabric.source is Source.LIVE:
        return Links.AGENT
    if fabric.source is Source.TABLE:
        # Boards of one product number their GPUs differently, which matters unless all sets are equal: a DGX-1 and
        # other boards with eight V100 have the same links between other numbers.
        return Links.BOARD if is_equal_for_all(fabric) else Links.UNKNOWN
    drivers = {node_info.inventory.devices[bit].driver for bit in node_info.gpu_bits if bit >= 0}
    is_without = all(limits_of(fabric.product, driver).link_gbps == 0 for driver in drivers)
    return Links.NONE if is_without else Links.UNKNOWN


def is_equal_for_all(fabric: Fabric) -> bool:
    """Whether all sets of one size have one bandwidth: a switch joins all GPUs, or each is linked to each alike."""
    graph = fabric.graph
    pairs = {graph.links[a][b] for a in range(graph.size) for b in range(a)}
    return len(set(graph.switch_links)) == 1 and len(pairs) <= 1
