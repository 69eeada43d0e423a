"""The slices of each pool, with the nodes that they name."""

from __future__ import annotations

from collections.abc import Collection

from extender.model import PoolKey, Slice


class PoolSlices:
    """A driver decides how many slices a pool has, so an event of a slice or claim reads the nodes, not the slices."""

    def __init__(self) -> None:
        self.by_pool: dict[PoolKey, dict[str, Slice]] = {}  # slices by name
        self._nodes: dict[PoolKey, dict[str, int]] = {}  # name, or '' for slices without one, to number of slices

    def put(self, new: Slice) -> None:
        """Add a slice. Its name must be unknown."""
        self.by_pool.setdefault(new.pool, {})[new.name] = new
        nodes, node = self._nodes.setdefault(new.pool, {}), new.selection.node_name
        nodes[node] = nodes.get(node, 0) + 1

    def remove(self, old: Slice) -> None:
        """Remove a slice."""
        slices, nodes, node = self.by_pool[old.pool], self._nodes[old.pool], old.selection.node_name
        del slices[old.name]
        nodes[node] -= 1
        if not nodes[node]:
            del nodes[node]
        if not slices:
            del self.by_pool[old.pool], self._nodes[old.pool]

    def nodes(self, pool: PoolKey) -> Collection[str]:
        """The nodes that the slices of a pool name; '' for slices without a node name."""
        return self._nodes.get(pool, {}).keys()

    def node(self, pool: PoolKey) -> str:
        """A node that the slices of a pool name; '' if none names one."""
        return next(filter(None, self.nodes(pool)), "")
