"""Decisions about pods: the result of a filter request, and the node and devices of a bind.

Explanations and records share these types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from extender.allocation import NodeInfo, Snapshot
from extender.scheduling.placement_results import held_results
from extender.scheduling.placements import Placement
from extender.scheduling.pod_requirements import PodRequirements
from extender.scoring import ScorePart

_AS_GOOD = 0.0005  # margins below it would be shown as 0.000


class Attempt(NamedTuple):
    """The result of one filter request, or of a bind that ended the plan of a gang."""

    at: str  # RFC 3339
    fitting: int  # nodes returned to kube-scheduler
    asked: int  # nodes in the request
    reasons: tuple[tuple[str, int], ...] = ()  # the most frequent reasons in the whole fleet, with node counts


@dataclass(frozen=True, slots=True)
class ScoredNode:
    """A node that satisfies the pod's requirements, with its score and devices."""

    node: str
    score: float
    devices: tuple[str, ...]  # the devices to allocate, as driver/pool/device
    ring_gbps: float  # GB/s of the ring through the chosen GPUs
    best_gbps: float  # GB/s of the best set of equal size in the fleet
    source: str  # the source of the link data
    parts: tuple[ScorePart, ...]
    reused: tuple[str, ...] = ()  # devices of the pod's claims that were allocated or promised before

    @property
    def all_devices(self) -> tuple[str, ...]:
        """All devices that the pod uses."""
        return (*self.devices, *self.reused)


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision by which Berth bound a pod."""

    at: str  # RFC 3339
    chosen: ScoredNode
    runner_up: str = ""  # the best other node when the pod was filtered
    margin: float = 0.0  # score of the chosen node minus score of the runner-up


def runner_up_text(name: str, margin: float) -> str:
    """The runner-up for users, as the decision and the pod's annotation name it."""
    return f"runner-up {name}, {'as good' if margin < _AS_GOOD else f'{margin:.3f} behind'}"


def scored_node(
    node_info: NodeInfo, placement: Placement, requirements: PodRequirements, snapshot: Snapshot
) -> ScoredNode:
    """The node with the score and devices of this placement."""
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
        requirements.allocated_devices,
    )
