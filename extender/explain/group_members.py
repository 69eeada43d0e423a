"""The pods of a group, and the groups and Jobs of a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from extender.allocation import Snapshot
from extender.explain.gang_explanation import ExplainedMember, GangExplanation
from extender.model import SCHEDULER, GroupKey, GroupSource, Pod
from extender.scheduling import placed_members

HOW_TO_MAKE_A_GANG = "the annotation berth.dev/group-min on its pods would make it a gang"


def groups_named(snapshot: Snapshot, namespace: str, name: str) -> dict[GroupKey, list[Pod]]:
    """The groups of this name, with those of their pods that the cache has: they have no node yet.

    The name of a LeaderWorkerSet stands for all its groups of which a pod waits.
    """
    keys = [GroupKey(namespace, source, name) for source in GroupSource]
    found: dict[GroupKey, list[Pod]] = {key: [] for key in keys if snapshot.claims_of_group(key)}
    for pod in snapshot.pods.values():
        membership = pod.membership
        if membership is None or membership.key.namespace != namespace:
            continue
        if name in (membership.key.name, membership.owner):
            found.setdefault(membership.key, []).append(pod)
    return found


def jobs_named(snapshot: Snapshot, namespace: str, name: str) -> dict[GroupKey, list[Pod]]:
    """The Jobs and JobSets of this name whose pods name no group, with the pods that have no node yet."""
    found: dict[GroupKey, list[Pod]] = {}
    for pod in snapshot.pods.values():
        for key in pod.jobs if pod.key.namespace == namespace else ():
            if key.name == name:
                found.setdefault(key, []).append(pod)
    return found


def explain_job(key: GroupKey, pods: Sequence[Pod], snapshot: Snapshot) -> GangExplanation:
    """The explanation of a Job or JobSet that is no group. `pods` are those without a node."""
    kind = "JobSet" if key.source is GroupSource.JOB_SET else "Job"
    text = f"{kind} {key} is no gang: it has no minimum, so its pods are placed one by one"
    waiting = sorted((pod for pod in pods if counts(pod)), key=lambda pod: pod.key)
    members = tuple(members_without_node(waiting, pods, snapshot))
    return GangExplanation(str(key), key.source.value, "no-gang", f"{text}; {HOW_TO_MAKE_A_GANG}", members=members)


def counts(pod: Pod) -> bool:
    """Whether the pod counts as a member that waits."""
    return pod.is_waiting and pod.scheduler == SCHEDULER


def bound_members(key: GroupKey, snapshot: Snapshot) -> tuple[ExplainedMember, ...]:
    """The bound members by name. The name of a member without devices is not known: its UID stands for it."""
    names = dict[str, str]()
    for claim_key in snapshot.claims_of_group(key):
        claim = snapshot.claims.get(claim_key)
        for consumer in claim.reserved_for if claim is not None else ():
            names[consumer.uid] = f"{key.namespace}/{consumer.name}"
    placed = placed_members(key, snapshot)
    found = [ExplainedMember(names.get(uid, uid), "bound", node) for uid, node in placed.items()]
    return tuple(sorted(found, key=lambda member: member.pod))


def members_without_node(waiting: Sequence[Pod], pods: Sequence[Pod], snapshot: Snapshot) -> Iterator[ExplainedMember]:
    """The pods without a node: those of `waiting` in its order, then the others of `pods`, not counted."""
    held = {r.pod_uid: r for r in snapshot.reservations.values()}
    counting = {pod.uid for pod in waiting}
    others = sorted((pod for pod in pods if pod.uid not in counting), key=lambda pod: pod.key)
    for pod in (*waiting, *others):
        reservation = held.get(pod.uid)
        state = reservation.state.value if reservation is not None else "waiting"
        if pod.uid not in counting:
            state = "deleted" if pod.deleting or pod.ended else "gated" if pod.gated else "not-ours"
        node = reservation.node if reservation is not None else ""
        reason = pod.scheduler_error or pod.unschedulable
        yield ExplainedMember(str(pod.key), state, node, reason, pod.created)
