"""Pods of one group want to be near each other: the same NVLink clique, then rack, then spine.

How near a node is depends on where the group's other pods are, so it is no part of the remembered status: it is added
to the few placements that a pod's answer is made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from extender.allocation import NodeInfo, Snapshot
from extender.model import ObjectKey
from extender.scheduling.placements import Placement
from extender.scheduling.pod_requirements import PodRequirements
from extender.scoring import ScorePart, total


@dataclass(frozen=True, slots=True)
class PodGroupProximity:
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
            found |= snapshot.nodes_by_label(label).get(value, frozenset())
        return found

    def part(self, node_info: NodeInfo) -> ScorePart:
        """The part of the score."""
        if node_info.node.name in self.nodes:
            return ScorePart("clique", 1.0, f"pods of group {self.group} are on this node")
        for label, value in self.levels:
            if node_info.node.labels.get(label) == value:
                return ScorePart(
                    "clique",
                    self._value(label),
                    f"same {label} as most of the {self.placed} placed of group {self.group}",
                )
        return ScorePart("clique", 0.0, f"far from the {self.placed} placed of group {self.group}")

    def _value(self, label: str) -> float:
        position = next(i for i, (known, _) in enumerate(self.levels) if known == label)
        return 1 - position / self.count

    def with_proximity(self, placement: Placement, node_info: NodeInfo, requirements: PodRequirements) -> Placement:
        """The placement with the part."""
        parts = (*placement.parts, self.part(node_info))
        return replace(placement, parts=parts, score=total(parts, requirements.policy))


def proximity_of(requirements: PodRequirements, snapshot: Snapshot) -> PodGroupProximity | None:
    """How near nodes are to the group's pods; None for pods of no group, or where none is placed yet."""
    members: Mapping[ObjectKey, str] = (
        snapshot.pod_groups.get(requirements.group, {}) if requirements.group is not None else {}
    )
    nodes = [name for name in members.values() if name in snapshot.node_infos]
    if requirements.group is None or not nodes:
        return None
    levels = []
    for label in requirements.policy.group_levels:
        values = Counter(v for name in nodes if (v := snapshot.node_infos[name].node.labels.get(label)) is not None)
        if values:
            levels.append((label, min(values, key=lambda value: (-values[value], value))))
    return PodGroupProximity(
        requirements.group[1], len(nodes), frozenset(nodes), tuple(levels), len(requirements.policy.group_levels)
    )
