"""Makes the reservations of a planned gang in one step, and checks them when a member is filtered."""

from __future__ import annotations

from collections.abc import Iterable

from extender.cache import ClusterCache
from extender.extension.gang_state import FormingGang


def hold_all(cache: ClusterCache, forming: FormingGang) -> None:
    """Hold the devices of all members that are not held yet, in one step."""
    hold(cache, forming, forming.planned.plan.placements)


def hold(cache: ClusterCache, forming: FormingGang, uids: Iterable[str]) -> None:
    """Hold the planned devices of members whose nodes still exist."""
    node_infos = cache.snapshot().node_infos  # valid for the loop: a hold changes only the use of devices
    for uid in uids:
        node, placement = forming.planned.plan.placements[uid]
        node_info = node_infos.get(node)
        if node_info is None:
            continue
        claims = forming.planned.requirements[uid].for_node(node_info.node).pending_claims
        for claim, results in zip(claims, placement.results(node_info), strict=False):
            if claim.uid not in cache.reservations.by_claim:  # members may share a claim
                cache.hold(claim.uid, uid, node, results, forming.deadline)


def is_held(cache: ClusterCache, forming: FormingGang, uid: str) -> bool:
    """Whether the devices are still reserved: meanwhile a claim may have been deleted or allocated elsewhere."""
    if uid in forming.planned.without_devices:
        return True
    node = forming.planned.plan.placements[uid][0]
    node_info = cache.snapshot().node_infos.get(node)
    if node_info is None:
        return False
    for claim in forming.planned.requirements[uid].for_node(node_info.node).pending_claims:
        reservation = cache.reservations.by_claim.get(claim.uid)
        if reservation is None:
            cached = cache.store.claims.get(claim.key)
            if cached is None or cached.uid != claim.uid or cached.allocation is None:
                return False
        elif reservation.node != node:
            return False
    return True
