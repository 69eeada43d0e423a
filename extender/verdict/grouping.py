"""Pods of one group want to be near each other: the same NVLink clique, then rack, then spine.

How near a node is depends on where the group's other pods are, so it is no part of the remembered verdict: it is added
to the few grants that a pod's answer is made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from extender.allocation.view import NodeView, Snapshot
from extender.model.claim import ObjectKey
from extender.scoring.parts import Part, total
from extender.verdict.demand import Demand
from extender.verdict.grants import Grant


@dataclass(frozen=True, slots=True)
class Nearness:
    """Where the others are. `levels` are (label, value that most of them have), the nearest first."""

    group: str
    placed: int
    nodes: frozenset[str]
    levels: tuple[tuple[str, str], ...]
    count: int  # of levels that the policy knows

    def near_nodes(self, snapshot: Snapshot) -> set[str]:
        """Every node that is near at some level."""
        found = set(self.nodes)
        for label, value in self.levels:
            found |= snapshot.nodes_by(label).get(value, frozenset())
        return found

    def part(self, view: NodeView) -> Part:
        """The part of the score."""
        if view.node.name in self.nodes:
            return Part("clique", 1.0, f"pods of group {self.group} are on this node")
        for label, value in self.levels:
            if view.node.labels.get(label) == value:
                return Part("clique", self._value(label), f"same {label} as most of the {self.placed} placed of group {self.group}")
        return Part("clique", 0.0, f"far from the {self.placed} placed of group {self.group}")

    def _value(self, label: str) -> float:
        position = next(i for i, (known, _) in enumerate(self.levels) if known == label)
        return 1 - position / self.count

    def added(self, grant: Grant, view: NodeView, demand: Demand) -> Grant:
        """The grant with the part."""
        parts = (*grant.parts, self.part(view))
        return replace(grant, parts=parts, score=total(parts, demand.policy))


def nearness(demand: Demand, snapshot: Snapshot) -> Nearness | None:
    """How near nodes are to the group's pods; None for pods of no group, or where none is placed yet."""
    members: Mapping[ObjectKey, str] = snapshot.groups.get(demand.group, {}) if demand.group is not None else {}
    nodes = [name for name in members.values() if name in snapshot.views]
    if demand.group is None or not nodes:
        return None
    levels = []
    for label in demand.policy.group_levels:
        values = Counter(v for name in nodes if (v := snapshot.views[name].node.labels.get(label)) is not None)
        if values:
            levels.append((label, min(values, key=lambda value: (-values[value], value))))
    return Nearness(demand.group[1], len(nodes), frozenset(nodes), tuple(levels), len(demand.policy.group_levels))
