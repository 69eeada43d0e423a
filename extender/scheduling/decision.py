"""What Berth decided about a pod: one answer of filter, the node and devices of a bind. Explanations and records share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from extender.allocation import NodeInfo, Snapshot
from extender.scheduling.placements import Placement
from extender.scheduling.shortlist import held_results
from extender.scoring import ScorePart


class Attempt(NamedTuple):
    """One answer of filter."""

    at: str  # RFC 3339
    fitting: int  # nodes handed to the scheduler
    asked: int  # nodes it asked about
    reasons: tuple[tuple[str, int], ...] = ()  # most frequent reasons over the whole fleet, with their nodes


@dataclass(frozen=True, slots=True)
class ScoredNode:
    """A node that can serve the pod."""

    node: str
    score: float
    devices: tuple[str, ...]
    ring_gbps: float
    best_gbps: float  # of any set of that size anywhere in the fleet
    source: str  # where the links are known from
    parts: tuple[ScorePart, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """A pod that Berth bound, as it was decided."""

    at: str
    chosen: ScoredNode
    runner_up: str = ""  # the second best node when the pod was filtered
    margin: float = 0.0  # by how much its score was lower


def scored_node(node_info: NodeInfo, placement: Placement, snapshot: Snapshot) -> ScoredNode:
    """A node with what it would give."""
    devices = tuple(str(result.device) for result in held_results(node_info, placement))
    count = node_info.positions(placement.solution.mask).bit_count()
    source = node_info.fabric.source.value if node_info.fabric is not None else ""
    best = max(snapshot.baseline.best_ring_gbps.get(count, 0.0), placement.ring_gbps)
    return ScoredNode(
        node_info.node.name,
        placement.score,
        devices,
        placement.ring_gbps,
        best if placement.ring_gbps else 0.0,
        source,
        placement.parts,
    )
