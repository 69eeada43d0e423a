"""Facts about the claims of one pod: whether Berth refuses them, reserves them, and may use their devices.

Binding conditions (KEP-5007) tell whether the drivers have prepared the allocated devices for use.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from extender.allocation import Snapshot
from extender.api.claim_specs import MAX_ALTERNATIVES
from extender.api.object_meta import ObjectKey
from extender.api.pods import MAX_CLAIMS, Pod
from extender.api.reasons import Code, Reason
from extender.api.resource_claims import Claim, Result
from extender.base.text_limits import cut

ADMIN_LABEL = "resource.kubernetes.io/admin-access"


def too_many_claims(pod: Pod, claims: Iterable[Claim]) -> Reason | None:
    """The reason for which Berth refuses a pod with so many claims, or with so many alternatives in these claims."""
    if len(pod.claims) > MAX_CLAIMS:
        return Reason(Code.TOO_MANY_CLAIMS, (f"{MAX_CLAIMS} claims",))
    left = MAX_ALTERNATIVES
    for claim in claims:  # the rest is not counted
        left -= sum(len(request.alternatives) for request in claim.spec.requests)
        if left < 0:
            text = f"{MAX_ALTERNATIVES} device requests in its claims, all alternatives counted"
            return Reason(Code.TOO_MANY_CLAIMS, (text,))
    return None


def leftover_claims(pod: Pod, snapshot: Snapshot) -> list[ObjectKey]:
    """The special claims that earlier binds of the pod left. The pod's own claim list does not name them."""
    special = snapshot.special_claims.get((pod.key.namespace, pod.uid), ())
    return [key for key in special if not pod.names(key.name)]


def unresolvable_reason(claim: Claim, pod: Pod, snapshot: Snapshot) -> Reason | None:
    """Why no node can serve the pod with this claim; None if one may."""
    if claim.problem:
        return Reason(Code.INVALID, (f"claim {cut(str(claim.key))}: {claim.problem}",))
    if claim.deleting and not claim.is_reserved_for(pod.uid):
        return Reason(Code.INVALID, (f"claim {cut(str(claim.key))} is being deleted",))
    if claim.allocation is None:
        asks = any(a.admin_access for r in claim.spec.requests for a in r.alternatives)
        if asks and snapshot.namespaces.get(claim.key.namespace, {}).get(ADMIN_LABEL) != "true":
            return Reason(Code.ADMIN_ACCESS, (claim.key.namespace,))
        return None
    if not claim.reservations_left and needs_reservation(claim, pod):
        return Reason(Code.CLAIM_FULL, (str(claim.key),))
    return None


def needs_reservation(claim: Claim, pod: Pod) -> bool:
    """Whether a bind of the pod adds a consumer to the claim: not if it has the pod or the pod's PodGroup already."""
    groups = (one.name for one in claim.reserved_for if one.resource == "podgroups")
    return not (claim.is_reserved_for(pod.uid) or (pod.group and pod.group in groups))


class Readiness(Enum):
    """The state of a claim's allocated devices, by their binding conditions."""

    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"


def readiness(claim: Claim) -> Readiness:
    """The state of all allocated devices of the claim.

    FAILED: a failure condition of a device with binding conditions is true. READY: every binding condition of every
    device is true, or the claim has no allocation. WAITING: all other cases.
    """
    if claim.allocation is None:
        return Readiness.READY
    waiting = False
    for result in claim.allocation.results:
        if not result.binding_conditions:
            continue
        true = _true_conditions(claim, result)
        if true & set(result.binding_failure_conditions):
            return Readiness.FAILED
        waiting = waiting or not set(result.binding_conditions) <= true
    return Readiness.WAITING if waiting else Readiness.READY


def _true_conditions(claim: Claim, result: Result) -> set[str]:
    for status in claim.devices:
        if status.device == result.device and status.share_id == result.share_id:
            return {name for name, value in status.conditions if value == "True"}
    return set()
