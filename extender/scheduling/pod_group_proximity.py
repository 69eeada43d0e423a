"""Proximity of pod group members: the same node, then the same NVLink clique, then rack, then spine.

Proximity depends on the nodes of the group's other pods. So it is not part of the cached status: the filter service
adds it to the few placements of one answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from extender.allocation import NodeInfo, Snapshot
from extender.model import counted
from extender.scheduling.placements import Placement
from extender.scheduling.pod_requirements import PodRequirements
from extender.scoring import ScorePart, total


@dataclass(frozen=True, slots=True)
class PodGroupProximity:
    """Nodes of the group's other pods. `levels` are (label, most frequent value of it), the nearest level first."""

    group: str
    placed: int  # claims of the group that have devices on a known node
    nodes: frozenset[str]
    levels: tuple[tuple[str, str], ...]
    count: int  # number of levels in the policy

    def near_nodes(self, snapshot: Snapshot) -> Iterator[frozenset[str]]:
        """The names of the nodes that are near the group, by level; the nearest nodes are in several levels."""
        yield self.nodes
        for label, value in self.levels:
            yield snapshot.nodes_by_label(label).get(value, frozenset())

    def part(self, node_info: NodeInfo) -> ScorePart:
        """The score part of a node, 0..1: 1 on the same node, less for each farther level, 0 where no level matches."""
        if node_info.node.name in self.nodes:
            return ScorePart("clique", 1.0, f"pods of group {self.group} are on this node")
        for label, value in self.levels:
            if node_info.node.labels.get(label) == value:
                return ScorePart(
                    "clique",
                    self._value(label),
                    f"same {label} as most of {counted(self.placed, 'placed claim')} of group {self.group}",
                )
        return ScorePart("clique", 0.0, f"far from {counted(self.placed, 'placed claim')} of group {self.group}")

    def _value(self, label: str) -> float:
        position = next(i for i, (known, _) in enumerate(self.levels) if known == label)
        return 1 - position / self.count

    def with_proximity(self, placement: Placement, node_info: NodeInfo, requirements: PodRequirements) -> Placement:
        """The placement with this score part added and the score computed again."""
        parts = (*placement.parts, self.part(node_info))
        return replace(placement, parts=parts, score=total(parts, requirements.policy))


def proximity_of(requirements: PodRequirements, snapshot: Snapshot) -> PodGroupProximity | None:
    """The proximity to the pod's group; None for a pod without a group and for a group without placed pods."""
    if requirements.group is None:
        return None
    by_node = Counter(snapshot.claims_of_group(requirements.group).values())  # a node may have hundreds of claims
    nodes = {name: number for name, number in by_node.items() if name in snapshot.node_infos}
    if not nodes:
        return None
    levels = []
    for label in requirements.policy.group_levels:
        values = Counter[str]()
        for name, number in nodes.items():
            if (value := snapshot.node_infos[name].node.labels.get(label)) is not None:
                values[value] += number
        if values:
            levels.append((label, min(values, key=lambda value: (-values[value], value))))
    placed, count = sum(nodes.values()), len(requirements.policy.group_levels)
    return PodGroupProximity(requirements.group.name, placed, frozenset(nodes), tuple(levels), count)
