"""Whole sets: GPUs of a node that NVLink joins and that are all free, such as the eight of a board or a bridged pair.

A large job needs a whole set. So a pod that is served as well elsewhere does not break one.
"""

from __future__ import annotations

from extender.allocation import NodeInfo
from extender.allocation.nodes import UNUSED
from extender.topology.ring import joined_sets


def in_part_use(node_info: NodeInfo) -> int:
    """Mask of the GPUs (device bits) of which a claim has a share."""
    found = 0
    if not any(use.shares for use in node_info.allocated_state.pools.values()):
        return found
    for bit in node_info.gpu_bits:
        if bit >= 0:
            pool_device = node_info.inventory.devices[bit]
            use = node_info.allocated_state.pools.get(node_info.inventory.pools[pool_device.pool].key, UNUSED)
            if pool_device.id.device in use.shares:
                found |= 1 << bit
    return found


def whole_sets(node_info: NodeInfo) -> list[int]:
    """Masks of the whole sets of at least two GPUs, by position in the fabric."""
    fabric = node_info.fabric
    if fabric is None:
        return []
    used = node_info.positions(node_info.busy | in_part_use(node_info))
    joined = joined_sets(fabric.graph.interconnect, node_info.positions(-1))
    return [gpus for gpus in joined if not gpus & used and gpus.bit_count() > 1]


def broken_sets(node_info: NodeInfo, chosen: int) -> list[int]:
    """The whole sets of which the chosen GPUs (by position) are a part."""
    return [gpus for gpus in whole_sets(node_info) if gpus & chosen and gpus & ~chosen]
