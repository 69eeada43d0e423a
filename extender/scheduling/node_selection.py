"""The nodes that a pod may use, by the node selectors of its allocated claims and by its own constraints.

A pod may have 64 allocated claims, each with long selectors, and each filter request names all nodes; so what was
compared is remembered. kube-scheduler applies the pod's own constraints before it asks Berth. They matter here only for
nodes that kube-scheduler may not name because of what runs there now.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

from extender.allocation import NodeInfo, tolerates
from extender.api.nodes import Node, NodeSelector, Toleration
from extender.api.pods import Pod, PreferredTerm
from extender.base.deadline import NO_DEADLINE, Deadline, DeadlineExceeded
from extender.base.fair_lru import FairLRU

_MAX_CONSTRAINTS = 64  # results of UsableNodes
_MAX_GONE = 64  # nodes that do not exist any more, besides as many as exist


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
        if len(self._known) > 2 * len(node_infos) + _MAX_GONE:
            self._known.clear()
        try:
            if not self.is_pinned:
                self.split((node_info.node for node_info in node_infos.values()), deadline)
        except DeadlineExceeded:
            return False
        return True


def may_run(pod: Pod, node: Node) -> bool:
    """Whether the pod's node selector, node affinity and tolerations let it run on the node, whatever runs there."""
    return all(selector.matches(node.name, node.labels) for selector in pod.node_selectors) and all(
        any(tolerates(toleration, taint) for toleration in pod.tolerations) for taint in node.taints
    )


# kube-scheduler scales the counts of both plugins to 100, and multiplies by 3 (TaintToleration) and 2 (NodeAffinity).
_SOFT_TAINT = 150  # points of a preferred affinity, which has at most 100 for each term


class NodePreference(NamedTuple):
    """What makes a pod prefer nodes: its preferred node affinity, and the PreferNoSchedule taints that it tolerates."""

    terms: tuple[PreferredTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    def points(self, node: Node) -> int:
        """The weights of the terms that match, less _SOFT_TAINT for each PreferNoSchedule taint."""
        found = sum(term.weight for term in self.terms if term.selector.matches(node.name, node.labels))
        for taint in node.soft_taints:
            found -= 0 if any(tolerates(one, taint) for one in self.tolerations) else _SOFT_TAINT
        return found


NO_PREFERENCE = NodePreference()


class _Known:
    """The nodes on which pods with equal constraints may run, and the names of the nodes that were not read yet."""

    __slots__ = ("unread", "usable")

    def __init__(self, pod: Pod, nodes: Mapping[str, Node]) -> None:
        # Without node selectors a pod may use every node without taints: of many nodes, none is compared.
        usable = set() if pod.node_selectors else {name for name, node in nodes.items() if not node.taints}
        self.unread = [name for name in nodes if name not in usable]
        self.usable: set[str] | frozenset[str] = usable


class UsableNodes:
    """The nodes on which pods may run, by namespace and constraints: at most `limit` results, see FairLRU.

    A result that needs several calls must not be lost between them, whatever pods other namespaces have.
    """

    def __init__(self, limit: int = _MAX_CONSTRAINTS) -> None:
        self._known: FairLRU[Hashable, _Known] = FairLRU(limit)

    def __len__(self) -> int:
        return len(self._known)

    def of(
        self, pods: Iterable[Pod], nodes: Mapping[str, Node], version: int, deadline: Deadline = NO_DEADLINE
    ) -> dict[str, frozenset[str]]:
        """By UID of each pod that may not use all nodes, the names of its nodes.

        Equal versions have equal nodes. Raises DeadlineExceeded; the next call continues from there.
        """
        alike: dict[Hashable, list[Pod]] = {}
        for pod in pods:
            deadline.check_time()  # large constraints take long to hash and compare
            alike.setdefault((pod.key.namespace, version, pod.node_selectors, pod.tolerations), []).append(pod)
        found: dict[str, frozenset[str]] = {}
        for key, equal in alike.items():
            known = self._known.get(key)
            if known is None:
                known = _Known(equal[0], nodes)
                self._known.put(equal[0].key.namespace, key, known)
            usable = _completed(known, equal[0], nodes, deadline)
            if len(usable) < len(nodes):
                found |= dict.fromkeys([pod.uid for pod in equal], usable)
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
