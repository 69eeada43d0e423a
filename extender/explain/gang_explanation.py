"""The explanation of one gang on a snapshot: its members, its plan, or why it has none and what would make it fit.

`explain_gang` answers with the first of these that is true, in the order in which serve decides:

1. No pod of the group waits: it runs, or lacks pods that do not exist (`_all_bound`).
2. A member is invalid, members disagree, or the group is too large: 'blocked'. Its object does not exist: 'waiting'.
3. It has no minimum: 'no-gang', each pod is placed alone. Its minimum is bound: 'runs', so are the others.
4. Serve holds devices for it: 'planned'. Some members do not exist yet: 'waiting'.
5. It is complete. The planner of serve plans it on the snapshot: it 'fits', or gang_refusal.py says why not. That file
   plans the gang once more as if all other pods ended, and gang_near_misses.py with single changes; what both share,
   the room of a gang and the holders of devices, is gang_question.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from extender.allocation import Snapshot
from extender.api.group_topology import NO_TOPOLOGY, AskedTopology, group_topology
from extender.api.pod_groups import IN_TREE, JOB_KINDS, NEEDED_OBJECTS, GroupKey, GroupSource, GroupTrees, Membership
from extender.api.pods import SCHEDULER, Pod
from extender.api.reasons import Code, Reason
from extender.base.deadline import DeadlineExceeded
from extender.base.text_limits import counted, error_line, first_few
from extender.explain.gang_question import (
    ExplainedMember,
    GangExplanation,
    GangQuestion,
    PlannedMember,
    PlannerCaches,
    most_room,
    reservations_by_pod,
    where,
)
from extender.explain.gang_refusal import gang_refusal, planned_subgroups
from extender.explain.scenario import Scenario, apply_scenario
from extender.gangs.domains import NODE
from extender.gangs.gang import Gang, disagreement, gang_minimum, gang_of, lacking_object, placed_members
from extender.gangs.gang_problem import (
    MAX_TOGETHER,
    GangMembers,
    GangPlan,
    GangShortage,
    UnreadyMember,
    gang_members,
    plan_sizes,
)
from extender.policy import Policy
from extender.scheduling import EvaluationContext, path_labels, requirements_of
from extender.scheduling.requirements import ErrorStatus, UnschedulableAndUnresolvable
from extender.topology.link_knowledge import assumed_for

_HOW_TO_MAKE_A_GANG = "the annotation berth.dev/group-min on its pods would make it a gang"
_MAX_NODES_NAMED = 4  # nodes of a plan in a sentence
_NO_MINIMUM = "no minimum is known"
_UNSEEN = "the others do not exist, have ended, or are bound without devices"


def explain_gang(
    key: GroupKey,
    pods: Sequence[Pod],
    snapshot: Snapshot,
    policy: Policy,
    context: EvaluationContext,
    caches: PlannerCaches,
    bound_member: Membership | None,
) -> GangExplanation:
    """The explanation of a group. `pods` are those without a node, as `groups_named` gives them.

    `bound_member` has the facts that a bound pod states about the group, for the case that no pod waits.
    """
    if not pods:
        return _all_bound(key, bound_member or _membership_by_object(key, snapshot), snapshot, policy)
    asking = min(pods, key=lambda pod: (not _counts(pod), pod.key))
    assert asking.membership is not None
    gang = gang_of(asking, asking.membership, snapshot)
    gang = replace(gang, waiting=tuple(pod for pod in gang.waiting if _counts(pod)))
    found = GangExplanation(
        str(key),
        key.source.value,
        "waiting",
        "",
        gang.minimum,
        gang.placed.total(),
        gang.missing,
        *_topology(gang.topology, gang.topology_label, policy),
        (*_bound_members(key, snapshot), *_members_without_node(gang.waiting, pods, snapshot)),
        *_since(gang),
    )
    problem = _problem(gang, pods, snapshot, policy)
    if problem:
        return replace(found, outcome="blocked", sentence=problem)
    lacks = lacking_object(asking.membership, snapshot)
    if lacks:
        text = f"group {key} waits for {lacks}, which does not exist"
        if key.source not in IN_TREE:  # without its CRD, pods with the label are placed alone
            text += f"; if the API server does not serve {NEEDED_OBJECTS[key.source].api}, each pod is placed alone"
        return replace(found, sentence=text)
    if not gang.minimum:
        why = _why_no_gang(asking.membership, snapshot)
        advice = f"; {_HOW_TO_MAKE_A_GANG}" if why == _NO_MINIMUM else ""
        text = f"group {key} is no gang: {why}, so each pod is placed alone{advice}"
        return replace(found, outcome="no-gang", sentence=text)
    if not gang.missing:
        return _runs(found, gang, snapshot, policy)
    planned = _planned(found, gang, snapshot, policy)
    if planned is not None:
        return planned
    if not gang.is_complete:
        mistake = _mistake(gang, snapshot, policy)
        return replace(found, sentence=_incomplete(gang, pods, snapshot) + (f"; {mistake}" if mistake else ""))
    found = _explain(found, gang, snapshot, policy, context, caches)
    return replace(found, sentence=found.sentence + _last_answer(gang)) if found.outcome == "fits" else found


def _topology(asked: AskedTopology, object_label: str, policy: Policy) -> tuple[str, str]:
    """What the annotations of the group ask for, and the label of which its pods must have one value; '' for none."""
    found = group_topology(asked, object_label, policy.group_levels)
    words = "" if asked == NO_TOPOLOGY else f"{found.nearness} {found.preferred}".rstrip()
    return words, found.label


def _problem(gang: Gang, pods: Sequence[Pod], snapshot: Snapshot, policy: Policy) -> str:
    """Why no plan is made, even if all devices are free; '' without such a reason."""
    for pod in sorted(pods, key=lambda pod: (not _counts(pod), pod.key)):
        if pod.membership is not None and pod.membership.problem:
            group = f"group {gang.key} is rejected: " if gang.key.name else ""
            return f"{group}pod {pod.key}: {pod.membership.problem}"
    memberships = [pod.membership for pod in gang.waiting if pod.membership is not None]
    if any(gang_minimum(membership, snapshot) for membership in memberships):
        levels, different = policy.group_levels, disagreement(gang.key, gang.waiting)
        problem = gang.problem(levels) if gang.is_complete else different or gang.topology_in(levels).problem
        if problem:
            return f"group {gang.key} is rejected: {problem}"
    if gang.minimum > MAX_TOGETHER:
        return f"group {gang.key} is rejected: {Reason(Code.GANG_TOO_LARGE, (gang.key.name, str(MAX_TOGETHER)))}"
    return ""


def _explain(
    found: GangExplanation,
    gang: Gang,
    snapshot: Snapshot,
    policy: Policy,
    context: EvaluationContext,
    caches: PlannerCaches,
) -> GangExplanation:
    """The explanation of a complete gang that has no plan."""
    members = gang_members(gang, snapshot, policy)
    if isinstance(members, UnreadyMember):
        return _unready(found, members, gang, snapshot, policy)
    question = GangQuestion(gang, members, policy, snapshot, context, caches)
    try:
        result: GangPlan | GangShortage | None = None
        for size in plan_sizes(gang, members):
            result = question.plan(question.problem(size))
            if isinstance(result, GangPlan):
                parts = planned_subgroups(question.problem(size), result, snapshot)
                return replace(_fits(found, members.first(size), result, snapshot), parts=parts)
        assert isinstance(result, GangShortage)
        result = most_room(question.problem(gang.missing), result, question.plan)
    except DeadlineExceeded:
        text = f"group {gang.key}: the work limit of an explanation ended the plan: ask again"
        return replace(found, outcome="unfinished", sentence=text)
    return gang_refusal(found, question, result)


# -- the pods of a group, and the groups and Jobs of a name ---------------------------------------------------------


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
        if name in (membership.key.name, membership.owner, pod.group):
            found.setdefault(membership.key, []).append(pod)
    return found


def namespaces_with_group(snapshot: Snapshot, name: str) -> list[str]:
    """The namespaces that have a group, or a Job or JobSet, of this name, in order."""
    found = {pod.key.namespace for pod in snapshot.pods.values() if _is_of(pod, name)}
    for namespace in {namespace for namespace, _ in snapshot.group_claims} - found:
        if any(snapshot.claims_of_group(GroupKey(namespace, source, name)) for source in GroupSource):
            found.add(namespace)
    return sorted(found)


def _is_of(pod: Pod, name: str) -> bool:
    membership = pod.membership
    groups = (membership.key.name, membership.owner, pod.group) if membership is not None else ()
    return name in groups or any(key.name == name for key in pod.jobs)


def explain_jobs(snapshot: Snapshot, namespace: str, name: str) -> list[GangExplanation]:
    """The explanations of the Jobs and JobSets of this name whose pods name no group."""
    found: dict[GroupKey, list[Pod]] = {}
    for pod in snapshot.pods.values():
        for key in pod.jobs if pod.key.namespace == namespace else ():
            if key.name == name:
                found.setdefault(key, []).append(pod)
    return [_explain_job(key, pods, snapshot) for key, pods in found.items()]


def _explain_job(key: GroupKey, pods: Sequence[Pod], snapshot: Snapshot) -> GangExplanation:
    text = f"{JOB_KINDS[key.source]} {key} is no gang: it has no minimum, so its pods are placed one by one"
    waiting = sorted((pod for pod in pods if _counts(pod)), key=lambda pod: pod.key)
    members = tuple(_members_without_node(waiting, pods, snapshot))
    return GangExplanation(str(key), key.source.value, "no-gang", f"{text}; {_HOW_TO_MAKE_A_GANG}", members=members)


def _counts(pod: Pod) -> bool:
    """Whether the pod counts as a member that waits."""
    return pod.is_waiting and pod.scheduler == SCHEDULER


def _bound_members(key: GroupKey, snapshot: Snapshot) -> tuple[ExplainedMember, ...]:
    """The bound members by name. The name of a member without devices is not known: its UID stands for it."""
    names = dict[str, str]()
    for claim_key in snapshot.claims_of_group(key):
        claim = snapshot.claims.get(claim_key)
        for consumer in claim.reserved_for if claim is not None else ():
            names[consumer.uid] = f"{key.namespace}/{consumer.name}"
    placed = placed_members(key, snapshot)
    found = [ExplainedMember(names.get(uid, uid), "bound", node) for uid, node in placed.items()]
    return tuple(sorted(found, key=lambda member: member.pod))


def _members_without_node(waiting: Sequence[Pod], pods: Sequence[Pod], snapshot: Snapshot) -> Iterator[ExplainedMember]:
    """The pods without a node: those of `waiting` in its order, then the others of `pods`, not counted."""
    held = reservations_by_pod(snapshot)
    counting = {pod.uid for pod in waiting}
    others = sorted((pod for pod in pods if pod.uid not in counting), key=lambda pod: pod.key)
    for pod in (*waiting, *others):
        reservation = held[pod.uid][-1] if pod.uid in held else None
        state = reservation.state.value if reservation is not None else "waiting"
        if pod.uid not in counting:
            state = "deleted" if pod.deleting or pod.ended else "gated" if pod.gated else "not-ours"
        node = reservation.node if reservation is not None else ""
        reason = pod.scheduler_error or pod.unschedulable
        yield ExplainedMember(str(pod.key), state, node, reason, pod.created)


# -- members -------------------------------------------------------------------------------------------------------


def _all_bound(key: GroupKey, membership: Membership | None, snapshot: Snapshot, policy: Policy) -> GangExplanation:
    """The explanation of a group of which no pod waits."""
    members = _bound_members(key, snapshot)
    have = f"group {key} has {counted(len(members), 'pod')} bound, and no pod waits"
    found = GangExplanation(str(key), key.source.value, "bound", have, bound=len(members), members=members)
    if membership is None:
        return replace(found, sentence=f"{have}; its minimum is not known here")
    object_policy = snapshot.group_policies.get(membership.policy_key)
    object_label = object_policy.topology_label if object_policy is not None else ""
    topology, label = _topology(membership.topology, object_label, policy)
    minimum = gang_minimum(membership, snapshot)
    found = replace(
        found,
        minimum=minimum,
        missing=max(minimum - len(members), 0),
        topology=topology,
        topology_label=label,
    )
    if not minimum:
        return replace(
            found, outcome="no-gang", sentence=f"{have}; it is no gang: {_why_no_gang(membership, snapshot)}"
        )
    found = _in_domain(found, [member.node for member in members], snapshot, policy)
    if not found.missing:
        place = where(found.level, found.domain)
        text = f"group {key} runs: {counted(len(members), 'pod')} bound {place}; its minimum is {minimum}"
        return replace(found, outcome="runs", sentence=f"{text}, and no pod waits")
    text = f"group {key} has {len(members)} of at least {minimum} pods bound, and no pod waits"
    why = "the others do not exist or have ended" if _knows_all_bound(key, snapshot) else _UNSEEN
    return replace(found, outcome="waiting", sentence=f"{text}: {why}")


def _knows_all_bound(key: GroupKey, snapshot: Snapshot) -> bool:
    """Whether the bound members were read: claims show only those with devices."""
    return key in snapshot.bound_members


def _membership_by_object(key: GroupKey, snapshot: Snapshot) -> Membership | None:
    """The membership of a pod without annotations, if the object of the group is known."""
    if key.source is GroupSource.COMPOSITE:
        return GroupTrees(snapshot.group_policies).of_root(key)
    owner = key.name.rpartition("-")[0] if key.source is GroupSource.LEADER_WORKER_SET else key.name
    membership = Membership(key, owner=owner)
    return membership if membership.policy_key in snapshot.group_policies else None


def _why_no_gang(membership: Membership, snapshot: Snapshot) -> str:
    policy, source = snapshot.group_policies.get(membership.policy_key), membership.key.source
    if source is GroupSource.LEADER_WORKER_SET and policy is None:
        return f"LeaderWorkerSet {membership.owner} is not known"
    if source is GroupSource.LEADER_WORKER_SET and policy is not None and policy.sequential:
        why = "startupPolicy LeaderReady or exclusive-topology"
        return f"LeaderWorkerSet {membership.owner} creates the workers after the leader has a node ({why})"
    if lacks := lacking_object(membership, snapshot):
        return f"{lacks} does not exist"
    minimum = membership.minimum or (policy.minimum if policy is not None else 0)
    return f"its minimum is {minimum}, and a gang has at least 2" if minimum else _NO_MINIMUM


def _since(gang: Gang) -> tuple[str, str]:
    """When the last of all pods was created, or the first while they do not all exist; and which of both it is."""
    times = [pod.created for pod in gang.waiting if pod.created]
    if bool(gang.minimum) and gang.is_complete:
        return max(times, default=""), "all pods exist"
    return min(times, default=""), "the first pod exists"


def _incomplete(gang: Gang, pods: Sequence[Pod], snapshot: Snapshot) -> str:
    exist, minimum = len(gang.waiting) + gang.placed.total(), gang.minimum
    if exist < minimum:
        text = f"group {gang.key} waits for {counted(minimum - exist, 'pod')}: {exist} of at least {minimum} exist"
    else:
        assert gang.lacking_subgroup is not None, "only a sub-group can lack pods"
        text = f"group {gang.key} waits for pods of sub-group {gang.lacking_subgroup[0]}"
        text += f": it needs at least {gang.lacking_subgroup[1]}"
    gated = sum(pod.gated and not (pod.deleting or pod.ended) for pod in pods)
    foreign = sum(pod.scheduler != SCHEDULER for pod in pods)
    text += f", and {gated} more with scheduling gates" if gated else ""
    text += f", and {foreign} more without schedulerName {SCHEDULER}" if foreign else ""
    is_unsure = gang.placed and not _knows_all_bound(gang.key, snapshot)
    return text + (" (bound pods without devices are not counted)" if is_unsure else "")


_PASSES = (Code.EXTENDED_STALE, Code.CLAIM_FULL)  # they end without a change of the pods


def _mistake(gang: Gang, snapshot: Snapshot, policy: Policy) -> str:
    """The first member that no free device helps until its user changes it, its claims or a class; '' if none is."""
    for pod in gang.waiting[:MAX_TOGETHER]:
        why = requirements_of(pod, snapshot, policy)
        if isinstance(why, UnschedulableAndUnresolvable) and why.reason.code not in _PASSES:
            return f"pod {pod.key}: {why.reason}"
    return ""


def _unready(
    found: GangExplanation, member: UnreadyMember, gang: Gang, snapshot: Snapshot, policy: Policy
) -> GangExplanation:
    mistake, why = _mistake(gang, snapshot, policy), member.why
    if mistake:
        return replace(found, outcome="blocked", sentence=f"group {found.group} fits nowhere: {mistake}")
    if isinstance(why, ErrorStatus):
        return replace(found, sentence=f"group {found.group} waits: {why.message}")
    if why.reason.code is not Code.GANG_CLAIM_FULL:
        return replace(found, sentence=f"group {found.group} waits: pod {member.pod.key}: {why.reason}")
    if _suffice_without_others(gang, snapshot, policy):
        return replace(found, sentence=f"group {found.group} waits: {why.reason}")
    return replace(found, outcome="blocked", sentence=f"group {found.group} fits nowhere: {why.reason}")


def _suffice_without_others(gang: Gang, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the claims of the members have enough reservations if all other pods end.

    Up to MAX_TOGETHER members are planned together, and these are more than a claim can be reserved for.
    """
    own = {pod.uid for pod in gang.waiting} | placed_members(gang.key, snapshot).keys()
    claims = {key: snapshot.claims.get(key) for pod in gang.waiting for key in pod.claim_keys}
    alone = [
        replace(claim, reserved_for=tuple(one for one in claim.reserved_for if one.uid in own))
        for claim in claims.values()
        if claim is not None
    ]
    return isinstance(gang_members(gang, apply_scenario(snapshot, alone, Scenario()), policy), GangMembers)


# -- plans ---------------------------------------------------------------------------------------------------------


def _runs(found: GangExplanation, gang: Gang, snapshot: Snapshot, policy: Policy) -> GangExplanation:
    found = _in_domain(found, gang.placed, snapshot, policy)
    place = where(found.level, found.domain)
    text = f"group {found.group} has its minimum of {counted(gang.minimum, 'pod')} bound {place}"
    return replace(found, outcome="runs", sentence=f"{text}; each other pod is placed alone")


def _in_domain(found: GangExplanation, nodes: Iterable[str], snapshot: Snapshot, policy: Policy) -> GangExplanation:
    """The explanation with the tightest domain that has all these nodes."""
    names = sorted(set(nodes))
    if len(names) == 1:
        return replace(found, level=NODE, domain=names[0])
    for level in policy.group_levels:
        name_of = snapshot.domains(path_labels(level, policy.group_levels)).name_of
        domains = {name_of.get(name) for name in names if name in snapshot.node_infos}
        domain = next(iter(domains), None)
        if len(domains) == 1 and domain is not None:
            return replace(found, level=level, domain=domain)
    return found


def _planned(found: GangExplanation, gang: Gang, snapshot: Snapshot, policy: Policy) -> GangExplanation | None:
    """The explanation of a gang for which serve holds devices; None if it holds none."""
    plan, held = list[PlannedMember](), reservations_by_pod(snapshot)
    for pod in gang.waiting:
        own = held.get(pod.uid, ())
        if own:
            devices = tuple(str(result.device) for reservation in own for result in reservation.results)
            plan.append(PlannedMember(str(pod.key), own[0].node, devices))
    if not plan:
        return None
    nodes = sorted({member.node for member in plan})
    found = _in_domain(found, [*nodes, *gang.placed], snapshot, policy)
    place = f" {where(found.level, found.domain)}" if found.level and found.level != NODE else ""
    named = first_few(nodes, _MAX_NODES_NAMED)
    text = f"group {found.group} is planned: {counted(len(plan), 'pod')} with devices held on {named}{place}"
    return replace(found, outcome="planned", sentence=text, plan=tuple(plan))


def _fits(found: GangExplanation, members: GangMembers, plan: GangPlan, snapshot: Snapshot) -> GangExplanation:
    placed = []
    for pod in members.pods:
        if pod.uid in plan.placements:
            node, placement = plan.placements[pod.uid]
            devices = placement.devices(snapshot.node_infos[node])
            placed.append(PlannedMember(str(pod.key), node, devices))
    text = f"group {found.group} fits: {counted(len(placed), 'pod')} {where(plan.level, plan.domain)}"
    text += assumed_for(
        (one.intent for one in members.requirements.values()), (snapshot.node_infos[member.node] for member in placed)
    )
    return replace(
        found,
        outcome="fits",
        sentence=f"{text}; Berth places it when kube-scheduler asks for it",
        level=plan.level,
        domain=plan.domain,
        room=len(placed),
        plan=tuple(placed),
    )


def _last_answer(gang: Gang) -> str:
    """What kube-scheduler wrote about a waiting member: a bind failed, or CPU is missing, which no plan shows."""
    failed = next((pod for pod in gang.waiting if pod.scheduler_error), None)
    if failed is not None:
        return f"; the last attempt of {failed.key.name} ended with an error: {error_line(failed.scheduler_error)}"
    text = next((pod.unschedulable for pod in gang.waiting if pod.unschedulable), "")
    return f"; the last answer of kube-scheduler was: {text}" if text else ""
