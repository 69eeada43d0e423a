"""What Berth decided about a pod: one answer of filter, the node and devices of a bind. Explanations and records share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from extender.allocation.view import NodeView, Snapshot
from extender.scoring.parts import Part
from extender.verdict.grants import Grant
from extender.verdict.verbs import held_results


class Attempt(NamedTuple):
    """One answer of filter."""

    at: str  # RFC 3339
    fitting: int  # nodes handed to the scheduler
    asked: int  # nodes it asked about
    reasons: tuple[tuple[str, int], ...] = ()  # most frequent reasons over the whole fleet, with their nodes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that can serve the pod."""

    node: str
    score: float
    devices: tuple[str, ...]
    ring_gbps: float
    best_gbps: float  # of any set of that size anywhere in the fleet
    source: str  # where the links are known from
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """A pod that Berth bound, as it was decided."""

    at: str
    chosen: Candidate
    runner_up: str = ""  # the second best node when the pod was filtered
    margin: float = 0.0  # by how much its score was lower


def candidate(view: NodeView, grant: Grant, snapshot: Snapshot) -> Candidate:
    """A node with what it would give."""
    devices = tuple(str(result.device) for result in held_results(view, grant))
    count = view.positions(grant.solution.mask).bit_count()
    source = view.fabric.source.value if view.fabric is not None else ""
    best = max(snapshot.fleet.best_ring_gbps.get(count, 0.0), grant.ring_gbps)
    return Candidate(view.node.name, grant.score, devices, grant.ring_gbps, best if grant.ring_gbps else 0.0, source, grant.parts)
