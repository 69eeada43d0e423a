"""The constraints of a pod on nodes that do not depend on what runs there: node selector, node affinity, taints.

kube-scheduler applies them, and CPU and memory, before it asks Berth. They matter here only for nodes that
kube-scheduler may not name because of what runs there now.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from extender.allocation import tolerates
from extender.model import NO_DEADLINE, Deadline, FairLRU, Node, Pod

_KEPT = 64


def may_run(pod: Pod, node: Node) -> bool:
    """Whether these constraints let the pod run on the node."""
    return all(selector.matches(node.name, node.labels) for selector in pod.node_selectors) and all(
        any(tolerates(toleration, taint) for toleration in pod.tolerations) for taint in node.taints
    )


class _Known:
    """The nodes on which pods with equal constraints may run, and the names of the nodes that were not read yet."""

    __slots__ = ("unread", "usable")

    def __init__(self, names: Iterable[str]) -> None:
        self.unread = list(names)
        self.usable: set[str] | frozenset[str] = set()


class UsableNodes:
    """The nodes on which pods may run, by namespace and constraints: at most `limit` results, see FairLRU.

    A result that needs several calls must not be lost between them, whatever pods other namespaces have.
    """

    def __init__(self, limit: int = _KEPT) -> None:
        self._known: FairLRU[Hashable, _Known] = FairLRU(limit)

    def __len__(self) -> int:
        return len(self._known)

    def of(
        self, pods: Iterable[Pod], nodes: Mapping[str, Node], version: int, deadline: Deadline = NO_DEADLINE
    ) -> dict[str, frozenset[str]]:
        """By UID of each pod that may not use all nodes, the names of its nodes.

        Equal versions have equal nodes. Raises DeadlineExceeded; the next call continues from there.
        """
        found = {}
        for pod in pods:
            deadline.check_time()  # large constraints take long to hash and compare
            namespace = pod.key.namespace
            key = namespace, version, pod.node_selectors, pod.tolerations
            known = self._known.get(key)
            if known is None:
                known = _Known(nodes)
                self._known.put(namespace, key, known)
            usable = _completed(known, pod, nodes, deadline)
            if len(usable) < len(nodes):
                found[pod.uid] = usable
        return found


def _completed(known: _Known, pod: Pod, nodes: Mapping[str, Node], deadline: Deadline) -> frozenset[str]:
    """Read the other nodes. An affinity may have thousands of conditions. Raises DeadlineExceeded."""
    if isinstance(known.usable, frozenset):
        return known.usable
    while known.unread:
        deadline.check_time()
        name = known.unread.pop()
        if may_run(pod, nodes[name]):
            known.usable.add(name)
    known.usable = frozenset(known.usable)
    return known.usable
