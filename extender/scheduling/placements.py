"""Placements shared by demands that come to the same on a node: under other names, by other selectors, the same devices."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachetools import FIFOCache

from extender.allocation import FastPath, FleetBaseline, NodeInfo, Pick, Solution
from extender.model import DeviceRequest
from extender.scheduling.pod_requirements import PodRequirements
from extender.scoring import ScorePart

_LIMIT = 8_192  # of about 2.5 KB; a half-full fleet of mixed kinds has a thousand states


@dataclass(frozen=True, slots=True)
class Placement:
    """The node can serve the demand with these devices."""

    solution: Solution
    parts: tuple[ScorePart, ...]
    score: float
    ring_gbps: float
    shared_from: Placement | None = field(
        default=None, compare=False, repr=False
    )  # the same for the request of another demand

    def for_request(self, request: DeviceRequest) -> Placement:
        """The same devices for the only request of another demand."""
        picks = tuple(Pick(pick.bit, request, None) for pick in self.solution.picks[0])
        return Placement(Solution((picks,), self.solution.alternatives), self.parts, self.score, self.ring_gbps, self)


class PlacementCache:
    """A bounded memory; the one that was made first goes first. It holds for one fleet at a time, as scores are relative to it."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._known: FIFOCache[tuple[object, ...], Placement] = FIFOCache(limit)
        self._baseline: FleetBaseline | None = None

    def __len__(self) -> int:
        return len(self._known)

    def get(self, asked: tuple[object, ...], baseline: FleetBaseline) -> Placement | None:
        """What was granted where the same was asked."""
        return self._known.get(asked) if baseline is self._baseline else None

    def put(self, asked: tuple[object, ...], baseline: FleetBaseline, placement: Placement) -> None:
        """Remember a placement."""
        if baseline is not self._baseline:
            self._known = FIFOCache(self._limit)
            self._baseline = baseline
        self._known[asked] = placement


def placement_key(
    node_info: NodeInfo, requirements: PodRequirements, fast_path_: FastPath
) -> tuple[object, ...] | None:
    """What a plain demand comes to on a node: equal ones get equal placements. None for a node that is imagined."""
    if node_info.state.hypothetical:
        return None
    wanted = requirements.topology, requirements.min_gbps, requirements.expected_bytes, requirements.policy
    return node_info.state.allocation_class, fast_path_.free, fast_path_.request.count, *wanted
