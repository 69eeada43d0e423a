"""One computation for all nodes in one state, after the use of a pool changed that these nodes share."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from extender.allocation import AllocatedState, NodeInfo, NodeState
from extender.model import PoolKey

Changed = tuple[tuple[int, PoolKey], ...]
"""The changed pools of a node, each with its position in the inventory."""


class SameUse:
    """The new use of some pools, learned from one node of each state and applied to the others.

    It lives for one rebuild. Nodes in one state have equal devices at equal positions, in equal use. So a new use of
    the same pools at the same positions takes all of them to one new state.
    """

    def __init__(self, pools: Container[PoolKey]) -> None:
        self._pools = pools
        self._learned: dict[tuple[NodeState, Changed], NodeInfo] = {}  # by the old state; in the new state

    def changed_pools(self, node_info: NodeInfo) -> Changed:
        """Those of the pools that the node reaches."""
        found = enumerate(node_info.inventory.pools)
        return tuple([(position, pool.key) for position, pool in found if pool.key in self._pools])

    def learn(self, old: NodeInfo, changed: Changed, new: NodeInfo) -> None:
        """Remember a node that was built with the new use."""
        if new is old:  # the build failed
            return
        devices, positions = new.inventory.devices, {position for position, _ in changed}
        # The counters of a pool and the live memory of a GPU are not the same on all nodes of a state.
        with_counters = any(new.inventory.pools[position].counter_sets for position in positions)
        if not with_counters and not any(bit >= 0 and devices[bit].pool in positions for bit in new.gpu_bits):
            self._learned[old.state, changed] = new

    def apply(self, old: NodeInfo, changed: Changed) -> NodeInfo | None:
        """The node with the new use; None if no equal node was learned."""
        equal = self._learned.get((old.state, changed))
        if equal is None:
            return None
        ours, theirs = old.inventory.pools, equal.inventory.pools
        if any(ours[position].slices != theirs[position].slices for position, _ in changed):
            return None
        now, use = equal.allocated_state.pools, old.allocated_state
        pools = {**use.pools, **{key: now[key] for _, key in changed}}
        allocated_state = AllocatedState(pools, use.counters)
        return replace(old, allocated_state=allocated_state, state=equal.state, held=equal.held, busy=equal.busy)
