"""Holds of devices for one pod on one node."""

from __future__ import annotations

from extender.allocation import NodeInfo
from extender.cache import ClusterCache
from extender.scheduling import Placement, PodRequirements


def hold(
    cache: ClusterCache,
    pod_uid: str,
    requirements: PodRequirements,
    node_info: NodeInfo,
    placement: Placement,
    deadline: float,
) -> None:
    """Hold the devices of a placement until `deadline`, in seconds of the service's clock."""
    claims = requirements.for_node(node_info.node).pending_claims
    for claim, results in zip(claims, placement.results(node_info), strict=True):
        cache.hold(claim.uid, pod_uid, node_info.node.name, results, deadline)
