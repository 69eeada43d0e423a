"""Whether it is known how links join the GPUs of a node, and who says so."""

from __future__ import annotations

from enum import StrEnum

from extender.allocation import NodeInfo
from extender.api.gpu_topology import Source
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
        return Links.BOARD
    drivers = {node_info.inventory.devices[bit].id.driver for bit in node_info.gpu_bits if bit >= 0}
    is_without = all(limits_of(fabric.product, driver).link_gbps == 0 for driver in drivers)
    return Links.NONE if is_without else Links.UNKNOWN
