"""Fresh reads that must precede a take-back: of the claim, and of the consumers that it is reserved for.

The cache is no proof, as it may be out of date. Annotations, owners and names are no proof, as a tenant can write them.
See the table in SECURITY.md.
"""

from __future__ import annotations

import asyncio

from extender.cluster import NotFound, Writer
from extender.model import SCHEDULING_GROUP, Claim, ObjectKey, Pod

IN_FLIGHT_GRACE_SECONDS = 1.0  # until the API server has stored a Binding that was sent before the claim was marked


async def read_unchanged(writer: Writer, known: Claim) -> Claim | None:
    """Read a claim. None if its UID, allocation or consumers differ from `known`.

    Raises ClusterError, NotFound if no claim has the name.
    """
    fresh = await writer.read_claim(known.key)
    same = fresh.uid == known.uid and fresh.allocation == known.allocation and fresh.reserved_for == known.reserved_for
    return fresh if same else None


async def read_pod(writer: Writer, key: ObjectKey, uid: str) -> Pod | None:
    """Read a pod. None if it does not exist, or if another pod has its name. Raises ClusterError."""
    try:
        pod = await writer.read_pod(key)
    except NotFound:
        return None
    return pod if pod.uid == uid else None


async def is_bound(writer: Writer, key: ObjectKey, uid: str) -> bool:
    """Read whether the pod exists and has a node, and so may use its claims. Raises ClusterError."""
    pod = await read_pod(writer, key, uid)
    return pod is not None and bool(pod.node_name)


async def in_use(writer: Writer, claim: Claim) -> bool:
    """Read whether a consumer of the claim may use its devices.

    Such a consumer is a pod with a node, a PodGroup with such a member, or any other kind of object. Raises BerthError.
    """
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
    """Deallocate a claim, given as just read, unless a bound pod uses it. False if one does.

    A bind of another process may rely on the allocation. So this function marks a claim of Berth, waits, and reads the
    pods again. The second read shows a Binding that was already sent. A later bind sees the mark and fails
    (`ClaimWrites.confirm`), or writes its own mark, and then this deallocation fails.

    Raises BerthError; Conflict if a bind changed the claim in the meantime.
    """
    if await in_use(writer, claim):
        return False
    if claim.ours or any(consumer.resource != "pods" for consumer in claim.reserved_for):
        claim = await writer.announce_take_back(claim)
        await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)
        if await in_use(writer, claim):
            return False
    await writer.deallocate(claim)
    return True
