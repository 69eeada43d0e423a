"""What proves that Berth may take something back: fresh reads of the claim and of the pod that it is reserved for.

A mirror may be old, and annotations, owners and names are a tenant's to write. See the table in SECURITY.md.
"""

from __future__ import annotations

from extender.cluster.errors import NotFound
from extender.cluster.writer import Writer
from extender.model.claim import Claim, ObjectKey, Pod
from extender.wire.core import decode_pod


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
    """Whether a consumer of the claim may use its devices: a pod that has a node, or anything else than a pod. Raises
    ClusterError."""
    for consumer in claim.reserved_for:
        key = ObjectKey(claim.key.namespace, consumer.name)
        if consumer.resource != "pods" or await is_bound(writer, key, consumer.uid):
            return True
    return False
