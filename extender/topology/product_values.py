"""What the GPUs of a choice are worth, so that a pod without a wish does not take what others need.

The unit is a GiB of memory or a GB/s of links of the newest generation: both grow with the price of a GPU, and no price
list is needed. A policy may give a product another value in this unit. Values do not depend on the rest of the fleet,
so a new node changes the score of no other.

The agent says which links a GPU has to the others of its node. Without it, and for a GPU that is alone, the links are
those of the product in its vendor's file: a part of a board, or a GH200, is worth no less. Cards that only a bridge
joins (`unjoined` in the vendor's file) then count without links: only the agent knows whether a bridge is there.

A whole set is GPUs of a node that NVLink joins and that are all free, such as the eight of a board or a bridged pair. A
large job needs one, so a choice that breaks it costs more than the GPUs that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import log2

from extender.allocation import NodeInfo
from extender.api.gpu_topology import Fabric, Interconnect, Source
from extender.base.bits import members
from extender.topology.products import (
    PCIE_RING_GBPS,
    joinable_gbps,
    links_reach_other_nodes,
    pcie_gbps,
    pcie_generation,
)
from extender.topology.sets import joined_sets

_GIB = 1 << 30
_UNIT = "(GiB and GB/s)"
_HALF_VALUE = 256.0  # the value of which `thrift` is 1/2; values of GPUs are between 5 (T4) and 3,100 (GB200)
_SET_SHARE = 0.75  # of the value, for each doubling of a broken set
_UNKNOWN_VALUE = 1_000.0  # about that of a B200
# So much more, as a multiple of the value, counts a product of which jobs name all GPUs. Less counts by the square: if
# they name few, enough are left for them anyway.
_NAMED_FACTOR = 16
_MAX_KINDS = 1024  # of machines, whose values are remembered; each keeps its links, at most 3 KiB
_REACH_WEIGHT = 4  # their links count so often, so that a tray of a rack is worth more than a whole board of B200s


def product_value(
    fabric: Fabric, alike: int, product: str, driver: str, memory_bytes: float, own: Mapping[str, float]
) -> float:
    """The value of one of the GPUs `alike`: of the first name in `own` that the product contains, else from memory and
    links.

    Links that reach other nodes count more: they join more GPUs than the node has. An older product counts less, by the
    rate of its PCIe generation: an A100 with a bridge has as much memory and bandwidth as an H100 with one.
    """
    value = next((value for name, value in own.items() if name in product), None)
    if value is not None:
        return value
    return _usual_value(fabric.graph.interconnect, alike, fabric.source, product, driver, memory_bytes)


@lru_cache(_MAX_KINDS)  # a fleet has dozens of kinds of machines
def _usual_value(
    graph: Interconnect, alike: int, source: Source, product: str, driver: str, memory_bytes: float
) -> float:
    """The value of one of the GPUs `alike` of a graph, from memory and links."""
    links = max((sum(graph.links[i]) + graph.switch_links[i] for i in members(alike)), default=0)
    gbps = links * graph.link_gbps
    if source is not Source.LIVE or len(graph.links) == 1:
        gbps = max(gbps, joinable_gbps(product, driver))
    reach = _REACH_WEIGHT if links_reach_other_nodes(product, driver) else 1
    age = pcie_gbps(pcie_generation(product, driver)) / max(PCIE_RING_GBPS.values())
    return (memory_bytes / _GIB + reach * gbps) * age


def thrift(
    node_info: NodeInfo, fabric: Fabric, chosen: int, own: Mapping[str, float], named: Mapping[str, float]
) -> tuple[float, str]:
    """(how little these GPUs of a node cost, 1 (nothing) to 0, in words): by their value and the sets that they break.

    Each doubling from the chosen GPUs to those of the broken sets adds _SET_SHARE of the value: two of eight joined
    H100s cost more than two B200s of a board that others use, and less than two of eight joined B200s. `named` is that
    of the FleetBaseline: a product that other jobs need counts more, so that a pod without a wish leaves it to them.
    """
    taken = chosen.bit_count()
    found = values_of_products(node_info, fabric, chosen, own)
    value = counts = 0.0
    for product, each, gpus in found:
        value += each * gpus.bit_count()
        counts += each * (1 + _NAMED_FACTOR * named.get(product, 0.0) ** 2) * gpus.bit_count()
    value, counts = value / taken, counts / taken
    broken = (sum(broken_sets(node_info, chosen)) | chosen).bit_count()  # no two sets have a GPU in common
    names = " and ".join(product or "GPU" for product, _, _ in found)
    words = f"{names} of value {value:.0f} {_UNIT}{' on average' if len(found) > 1 else ''}"
    if broken > taken:
        words += f", {taken} of {broken} joined GPUs that are all free"
    if counts > value:
        words += f", counts as {counts:.0f}: other jobs need this product"
    return _HALF_VALUE / (_HALF_VALUE + counts * (1 + _SET_SHARE * log2(broken / taken))), words


def values_of_products(
    node_info: NodeInfo, fabric: Fabric, chosen: int, own: Mapping[str, float]
) -> list[tuple[str, float, int]]:
    """The products of these GPUs, the least valuable one first: its name, the value of one GPU, and which ones."""
    found = []
    for product in {*map(fabric.product_at, members(chosen))} if fabric.products else (fabric.product,):
        alike = fabric.of_products({product})
        gpus = chosen & alike
        devices = [node_info.inventory.devices[bit] for bit in members(node_info.devices(gpus))]
        memory = sum(one.memory_bytes for one in devices) / len(devices)
        value = product_value(fabric, alike, product, devices[0].driver, memory, own)
        found.append((product, value, gpus))
    return sorted(found, key=lambda one: (one[1], one[0]))


def thrift_of_memory(memory_bytes: float) -> tuple[float, str]:
    """The same for a device without links, such as a part of a GPU, by its memory alone.

    One whose memory is not known, such as a GPU that is passed through, may be the most valuable of the fleet.
    """
    value = memory_bytes / _GIB or _UNKNOWN_VALUE
    words = f"a device of value {value:.0f} {_UNIT}" if memory_bytes else "a device whose memory is not known"
    return _HALF_VALUE / (_HALF_VALUE + value), words


def whole_sets(node_info: NodeInfo) -> list[int]:
    """Masks of the whole sets of at least two GPUs, by position in the fabric."""
    fabric = node_info.fabric
    if fabric is None:
        return []
    used = node_info.positions(node_info.busy | node_info.partly_used)
    joined = joined_sets(fabric.graph.interconnect, node_info.positions(-1))
    return [gpus for gpus in joined if not gpus & used and gpus.bit_count() > 1]


def broken_sets(node_info: NodeInfo, chosen: int) -> list[int]:
    """The whole sets of which the chosen GPUs (by position) are a part."""
    return [gpus for gpus in whole_sets(node_info) if gpus & chosen and gpus & ~chosen]
