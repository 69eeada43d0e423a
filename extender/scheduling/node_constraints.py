"""The constraints of a pod on nodes that do not depend on what runs there: node selector, node affinity, taints.

kube-scheduler applies them, and CPU and memory, before it asks Berth. They matter here only for nodes that
kube-scheduler may not name because of what runs there now.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from cachetools import LRUCache

from extender.allocation import tolerates
from extender.model import Node, Pod

_KEPT = 16


def may_run(pod: Pod, node: Node) -> bool:
    """Whether these constraints let the pod run on the node."""
    return all(selector.matches(node.name, node.labels) for selector in pod.node_selectors) and all(
        any(tolerates(toleration, taint) for toleration in pod.tolerations) for taint in node.taints
    )


class UsableNodes:
    """The nodes on which pods may run, by constraints; the `limit` most recently used results are kept."""

    def __init__(self, limit: int = _KEPT) -> None:
        self._known: LRUCache[Hashable, frozenset[str]] = LRUCache(limit)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, pods: Iterable[Pod], nodes: Mapping[str, Node], version: int) -> dict[str, frozenset[str]]:
        """By UID of each pod that may not use all nodes, the names of its nodes.

        Equal versions have equal nodes.
        """
        found = {}
        for pod in pods:
            key = version, pod.node_selectors, pod.tolerations
            usable = self._known.get(key)
            if usable is None:
                usable = frozenset(name for name, node in nodes.items() if may_run(pod, node))
                self._known[key] = usable
            if len(usable) < len(nodes):
                found[pod.uid] = usable
        return found
