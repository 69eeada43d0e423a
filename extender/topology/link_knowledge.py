"""Whether it is known how links join the GPUs of a node, who says so, and what is said of answers that rest on it.

Without Berth's agent, filter takes the links from a table of products. If boards of a product differ, its yes is
assumed, and its no, if only links are the reason, is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from extender.allocation import NodeInfo
from extender.allocation.nodes import NodeState
from extender.api.gpu_topology import Fabric, Graph, Source
from extender.api.pod_annotations import PodIntent
from extender.api.reasons import Code
from extender.base.text_limits import first_few
from extender.topology.products import limits_of

NOT_KNOWN = "is not known to fit"  # said of pods and gangs that unknown links may join
_MAX_NAMED = 3  # nodes in a sentence


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


# -- answers about nodes whose links no agent reports ---------------------------------------------------------------


def needs_links(intents: Iterable[PodIntent]) -> bool:
    """Whether some of these pods refuse GPUs for the links between them."""
    return any(one.topology == "required" or one.min_gbps for one in intents)


def unread(node_infos: Iterable[NodeInfo]) -> list[str]:
    """The names of the nodes whose links no agent reports, if the product leaves them open."""
    return [info.node.name for info in node_infos if links_of(info) is Links.UNKNOWN]


def assumed(node_infos: Iterable[NodeInfo]) -> list[str]:
    """The names of those of these nodes, sorted, on which a yes rests on links of a table that may differ."""
    found = [one for one in node_infos if one.fabric is not None and one.fabric.source is Source.TABLE]
    return sorted({*unread(found)})


def may_be_joined(node_info: NodeInfo, code: Code) -> bool:
    """Whether a node refuses a pod only because no agent reports its links. `code` is the reason of the refusal."""
    return code in (Code.TOPOLOGY, Code.BANDWIDTH) and links_of(node_info) is Links.UNKNOWN


def as_if_joined(node_info: NodeInfo) -> NodeInfo:
    """The node as if the best links of its product joined all its GPUs, in a hypothetical state."""
    fabric = node_info.fabric
    if fabric is None:
        return node_info
    driver, old = node_info.inventory.whole_gpus[0], fabric.graph
    rate, size = limits_of(fabric.product, driver).link_gbps, old.size
    graph = Graph(((0,) * size,) * size, (1,) * size, rate, old.pcie_gbps, old.distance, old.numa)
    state = NodeState(attribute_signature=node_info.state.attribute_signature, hypothetical=True)
    return replace(node_info, fabric=replace(fabric, graph=graph), state=state)


def assumed_for(intents: Iterable[PodIntent], node_infos: Iterable[NodeInfo]) -> str:
    """What is said of a yes for such pods on these nodes, to append to a sentence; '' if it rests on no table."""
    return assumed_links(assumed(node_infos)) if needs_links(intents) else ""


def assumed_links(nodes: Sequence[str]) -> str:
    """What is said of a yes on these nodes, to append to a sentence; '' without nodes."""
    named = first_few(nodes, _MAX_NAMED)
    text = f"; which GPUs links join on {named} is assumed from the usual board, as no agent of Berth has read it"
    return text if nodes else ""


def unknown_links(nodes: Sequence[str]) -> str:
    """What is said of a no on these nodes."""
    return f"which GPUs links join on {first_few(nodes, _MAX_NAMED)} is not known, as no agent of Berth has read it"
