"""What proves that Berth may take something back: fresh reads of the claim and of the pod that it is reserved for.

A cache may be old, and annotations, owners and names are a tenant's to write. See the table in SECURITY.md.
"""

from __future__ import annotations

import asyncio

from extender.cluster import NotFound, Writer
from extender.model import SCHEDULING_GROUP, Claim, ObjectKey, Pod
from extender.wire import decode_pod

LANDING_SECONDS = 1.0  # for a Binding that was sent before the claim was marked


async def read_unchanged(writer: Writer, known: Claim) -> Claim | None:
    """The claim as the API server has it; None where it is another by now, or has another allocation or reservation.
    Raises ClusterError."""
    fresh = await writer.read_claim(known.key)
    same = fresh.uid == known.uid and fresh.allocation == known.allocation and fresh.reserved_for == known.reserved_for
    return fresh if same else None


async def read_pod(writer: Writer, key: ObjectKey, uid: str) -> Pod | None:
    """The pod as the API server has it; None where it is gone, or another pod has its name. Raises ClusterError."""
    try:
        pod = decode_pod(await writer.read_pod(key))
    except NotFound:
        return None
    return pod if pod.uid == uid else None


async def is_bound(writer: Writer, key: ObjectKey, uid: str) -> bool:
    """Whether the pod exists and has a node, so that it may use its claims. Raises ClusterError."""
    pod = await read_pod(writer, key, uid)
    return pod is not None and bool(pod.node_name)


async def in_use(writer: Writer, claim: Claim) -> bool:
    """Whether a consumer of the claim may use its devices: a pod that has a node, a PodGroup with such a pod, or what
    Berth does not know. Raises BerthError."""
    for consumer in claim.reserved_for:
        key = ObjectKey(claim.key.namespace, consumer.name)
        if consumer.resource == "pods":
            used = await is_bound(writer, key, consumer.uid)
        elif (consumer.resource, consumer.api_group) == ("podgroups", SCHEDULING_GROUP):
            used = await writer.read_has_bound_member(key)
        else:
            used = True
        if used:
            return True
    return False


async def deallocate_unused(writer: Writer, claim: Claim) -> bool:
    """Deallocate a claim, given as just read, that no bound pod uses; False where one does. Raises BerthError, Conflict
    among others where a bind began to use the claim meanwhile.

    Members of a PodGroup use its claim without a write of their own to status.reservedFor. So the claim is marked
    first: a bind that relies on it either has its Binding shown by the pods that are read a moment later, or finds
    the mark and gives up, or puts its own mark there, which makes this deallocation fail.
    """
    if await in_use(writer, claim):
        return False
    if any(consumer.resource != "pods" for consumer in claim.reserved_for):
        claim = await writer.announce_take_back(claim)
        await asyncio.sleep(LANDING_SECONDS)
        if await in_use(writer, claim):
            return False
    await writer.deallocate(claim)
    return True
