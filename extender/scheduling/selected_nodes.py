"""The nodes that match the node selectors of allocated claims. A pod may have 64 such claims, each with long selectors.

Each filter request names all nodes, so what was compared is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from extender.allocation import NodeInfo
from extender.model import NO_DEADLINE, Deadline, DeadlineExceeded, FairLRU, Node, NodeSelector

_KEPT = 16  # results, each with half a megabyte for 5,000 nodes
_GONE = 64  # nodes that do not exist any more, besides as many as exist


class SelectedNodes:
    """The nodes that match all of these selectors."""

    __slots__ = ("_known", "_pins", "_selectors")

    def __init__(self, selectors: Iterable[NodeSelector]) -> None:
        self._selectors = tuple(dict.fromkeys(selectors))
        self._pins = {pin for selector in self._selectors if (pin := selector.node) is not None}
        self._known: dict[str, tuple[Node, bool]] = {}

    @property
    def is_pinned(self) -> bool:
        """Whether a selector names its only node."""
        return bool(self._pins)

    def has(self, node: Node, deadline: Deadline = NO_DEADLINE) -> bool:
        """Whether the node matches. Raises DeadlineExceeded, unless that is known."""
        return bool(self.split((node,), deadline)[0])

    def split(self, nodes: Iterable[Node], deadline: Deadline = NO_DEADLINE) -> tuple[list[Node], list[str]]:
        """The nodes that match, and the names of the others. Raises DeadlineExceeded; the next call continues."""
        matching, elsewhere, only = list[Node](), list[str](), next(iter(self._pins), None)
        for node in nodes:
            if only is not None and (node.name != only or len(self._pins) > 1):
                elsewhere.append(node.name)  # most selectors name one node, so the others are not compared
                continue
            known = self._known.get(node.name)
            if known is None or known[0] is not node:
                deadline.check_time()
                known = node, all(selector.matches(node.name, node.labels) for selector in self._selectors)
                self._known[node.name] = known
            if known[1]:
                matching.append(node)
            else:
                elsewhere.append(node.name)
        return matching, elsewhere

    def compare(self, node_infos: Mapping[str, NodeInfo], deadline: Deadline) -> bool:
        """Compare all nodes. False if the deadline came first; the next call continues from there."""
        if len(self._known) > 2 * len(node_infos) + _GONE:
            self._known.clear()
        try:
            if not self.is_pinned:
                self.split((node_info.node for node_info in node_infos.values()), deadline)
        except DeadlineExceeded:
            return False
        return True


class SelectedNodesCache:
    """At most `limit` results, by the namespace of the pod and the selectors, see FairLRU.

    A result that needs several calls must not be lost between them, whatever pods other namespaces have.
    """

    def __init__(self, limit: int = _KEPT) -> None:
        self._known: FairLRU[tuple[str, tuple[NodeSelector, ...]], SelectedNodes] = FairLRU(limit)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, namespace: str, selectors: tuple[NodeSelector, ...]) -> SelectedNodes:
        """The nodes that match all of these selectors."""
        found = self._known.get((namespace, selectors))
        if found is None:
            found = SelectedNodes(selectors)
            if not found.is_pinned:  # one node is soon compared, and there are many such pods
                self._known.put(namespace, (namespace, selectors), found)
        return found
