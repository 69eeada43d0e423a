"""The slices of each pool, with the nodes that they name."""

from __future__ import annotations

from collections.abc import Collection

from extender.allocation import WholePool
from extender.model import Allocation, Claim, PoolKey, Slice, is_complete


class PoolSlices:
    """A driver decides how many slices a pool has, so an event of a slice or claim reads the nodes, not the slices."""

    def __init__(self) -> None:
        self.by_pool: dict[PoolKey, dict[str, Slice]] = {}  # slices by name
        self._nodes: dict[PoolKey, dict[str, int]] = {}  # name, or '' for slices without one, to number of slices
        self.with_counters: dict[PoolKey, dict[str, Slice]] = {}  # slices with counter sets, by name
        self._whole: dict[PoolKey, WholePool] = {}  # of pools that were asked for since their last change

    def put(self, new: Slice) -> None:
        """Add a slice. Its name must be unknown."""
        self._whole.pop(new.pool, None)
        self.by_pool.setdefault(new.pool, {})[new.name] = new
        if new.counter_sets:
            self.with_counters.setdefault(new.pool, {})[new.name] = new
        nodes, node = self._nodes.setdefault(new.pool, {}), new.selection.node_name
        nodes[node] = nodes.get(node, 0) + 1

    def remove(self, old: Slice) -> None:
        """Remove a slice."""
        self._whole.pop(old.pool, None)
        slices, nodes, node = self.by_pool[old.pool], self._nodes[old.pool], old.selection.node_name
        del slices[old.name]
        if old.counter_sets:
            self.with_counters[old.pool].pop(old.name)
        nodes[node] -= 1
        if not nodes[node]:
            del nodes[node]
        if not slices:
            del self.by_pool[old.pool], self._nodes[old.pool]
            self.with_counters.pop(old.pool, None)

    def nodes(self, pool: PoolKey) -> Collection[str]:
        """The nodes that the slices of a pool name; '' for slices without a node name."""
        return self._nodes.get(pool, {}).keys()

    def node_of(self, claim: Claim) -> str:
        """The node of a claim's devices: that of its allocation, if one of the pools names it.

        Else the only node that a pool names; '' without one. A driver may add slices of other nodes to any pool.
        """
        allocation = claim.allocation or Allocation()
        named = allocation.node_selector.node if allocation.node_selector is not None else None
        pools = [self.nodes(PoolKey(result.device.driver, result.device.pool)) for result in allocation.results]
        if named and any(named in nodes for nodes in pools):
            return named
        return next((node for nodes in pools if len(nodes) == 1 for node in nodes if node), "")

    def whole(self, pool: PoolKey) -> WholePool:
        """All slices of a pool. The same object until one of them changes, unless one slice is all of the pool."""
        found = self._whole.get(pool)
        if found is None:
            slices = tuple(self.by_pool.get(pool, {}).values())
            found = WholePool(slices)
            if slices and (len(slices) > 1 or not is_complete(slices)):  # nearly all pools have one slice
                self._whole[pool] = found
        return found
