"""Reads the PodGroup that a bind adds to claims as their consumer."""

from __future__ import annotations

from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import PodGroup, decode_pod_group
from extender.api.pods import Pod
from extender.cluster import Writer
from extender.extension.binding_cycle import BindError
from extender.scheduling import PodRequirements
from extender.scheduling.requirements import PreFilterResult


async def pod_group_of(writer: Writer, pod: Pod, requirements: PreFilterResult) -> PodGroup | None:
    """Read the PodGroup of a pod that has one, if a claim of the pod may belong to it; None otherwise.

    Raises BindError if the owner of a claim is a group that does not exist. A tenant can write such an owner, and the
    claim controller would remove such a group from the consumers.
    """
    claims = (
        (*requirements.pending_claims, *requirements.allocated_claims, *requirements.promised_claims)
        if isinstance(requirements, PodRequirements)
        else ()
    )
    owned = [claim for claim in claims if claim.owner_group is not None and claim.owner_group.name == pod.group]
    if not (owned or any(entry.claim_name for entry in pod.claims)):
        return None
    found = await writer.read_pod_group(ObjectKey(pod.key.namespace, pod.group))
    group = None if found is None else decode_pod_group(found)
    for claim in owned:
        if claim.owner_group is not None and (group is None or claim.owner_group != group.consumer):
            uid = claim.owner_group.uid
            raise BindError(f"owner of claim {claim.key}: PodGroup {pod.group} with UID {uid} does not exist")
    return group
