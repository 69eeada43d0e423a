"""What a GPU is worth, so that a pod without a wish does not take what others need.

The unit is a GiB of memory or a GB/s of links: both grow with the price of a GPU, and no price list is needed. A policy
may give a product another value in this unit. Values do not depend on the rest of the fleet, so a new node changes the
score of no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

from extender.api.gpu_topology import Graph

_GIB = 1 << 30
_HALF = 256.0  # the value of which `thrift` is 1/2; values of GPUs are between 26 (T4) and 3,100 (GB200)
_ACROSS_NODES = ("GB200", "GB300")  # products whose NVLinks reach the GPUs of other nodes
_SET = 0.75  # of the value, for each doubling of a broken set
_REACH = 4  # their links count so often, so that a tray of a rack is worth more than a whole board of B200s


def product_value(product: str, memory_bytes: float, graph: Graph, own: Mapping[str, float]) -> float:
    """The value of one GPU: of the first name in `own` that its product contains, else from memory and links.

    Links that reach other nodes count more: they join more GPUs than the node has.
    """
    for name, value in own.items():
        if name in product:
            return value
    links = max((sum(row) + into for row, into in zip(graph.links, graph.switch_links, strict=True)), default=0)
    reach = _REACH if any(name in product for name in _ACROSS_NODES) else 1
    return memory_bytes / _GIB + max(reach * links * graph.link_gbps, graph.pcie_gbps)


def thrift(value: float, taken: int, broken: int) -> float:
    """How little a choice costs, 1 (nothing) to 0: by the value of a GPU, and the size of the sets that it breaks.

    `taken` GPUs of `broken` GPUs are chosen. Each doubling from the first to the second adds _SET of the value: two of
    eight joined H100s cost more than two B200s of a board that others use, and less than two of eight joined B200s.
    """
    return _HALF / (_HALF + value * (1 + _SET * log2(broken / taken)))
