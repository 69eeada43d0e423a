"""Placements, and a cache that shares them between pods.

Requirements with other names or other selectors can match the same devices; then they share one placement.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cachetools import FIFOCache

from extender.allocation import FastPath, FleetBaseline, NodeInfo, Pick, Solution
from extender.model import DeviceRequest
from extender.scheduling.pod_requirements import IdentityKey, PodRequirements
from extender.scoring import ScorePart

_NO_REQUEST = DeviceRequest("", "")  # of a cached placement: a tenant's request may take 128 KiB
_LIMIT = 8_192  # entries of about 2.5 KB; a half-full fleet of mixed machine types has about 1,000 states


@dataclass(frozen=True, slots=True)
class Placement:
    """The node satisfies the requirements with these devices."""

    solution: Solution
    parts: tuple[ScorePart, ...]
    score: float
    ring_gbps: float  # GB/s
    # The cached placement that this one copies for another pod's request.
    shared_from: Placement | None = field(default=None, compare=False, repr=False)

    def for_request(self, request: DeviceRequest) -> Placement:
        """The same devices for the single request of another pod."""
        picks = tuple(Pick(pick.bit, request, None) for pick in self.solution.picks[0])
        return Placement(Solution((picks,), self.solution.alternatives), self.parts, self.score, self.ring_gbps, self)


class PlacementCache:
    """A bounded FIFO cache. It is valid for one FleetBaseline, because scores are relative to that baseline."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._placements: FIFOCache[tuple[object, ...], Placement] = FIFOCache(limit)
        self._baseline: FleetBaseline | None = None

    def __len__(self) -> int:
        return len(self._placements)

    def get(self, key: tuple[object, ...], baseline: FleetBaseline) -> Placement | None:
        """The cached placement of a key; None for an unknown key or another baseline."""
        return self._placements.get(key) if baseline is self._baseline else None

    def put(self, key: tuple[object, ...], baseline: FleetBaseline, placement: Placement) -> Placement:
        """Cache a placement without its request, and return it as shared. A new baseline clears the cache."""
        if baseline is not self._baseline:
            self._placements = FIFOCache(self._limit)
            self._baseline = baseline
        kept = self._placements[key] = replace(placement.for_request(_NO_REQUEST), shared_from=None)
        return kept.for_request(placement.solution.picks[0][0].request)


def placement_key(
    node_info: NodeInfo, requirements: PodRequirements, fast_path_: FastPath
) -> tuple[object, ...] | None:
    """The cache key: equal keys have equal placements. None for a hypothetical node, whose state is not comparable.

    If no GPU of the fabric matches, the score reads only the number of the node's devices in use. So nodes of one
    hardware share the choice among the devices of a pool that all of them reach.
    """
    if node_info.state.hypothetical:
        return None
    policy = IdentityKey(requirements.policy)  # comparing policies by value would take a tenth of the time
    asked = fast_path_.free, fast_path_.request.count, requirements.intent, policy
    if not node_info.positions(fast_path_.free):
        return node_info.state.hardware_signature, node_info.own_in_use, *asked
    return node_info.state.own_signature, *asked
