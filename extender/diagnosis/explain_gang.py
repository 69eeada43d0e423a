"""The explanation of one gang on a snapshot: its members, its plan, or why it has none and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from extender.allocation import Snapshot
from extender.diagnosis.device_holders import Holder, uses_by_node
from extender.diagnosis.gang_near_misses import gang_near_misses
from extender.diagnosis.gang_question import GangNearMiss, GangQuestion, where, widest_domains
from extender.model import SCHEDULER, CallBudgetSpent, Code, GroupKey, GroupSource, Pod
from extender.policy import Policy
from extender.scheduling import (
    Attempt,
    EvaluationContext,
    Gang,
    GangMembers,
    GangMemory,
    GangPlan,
    GangShortage,
    Pending,
    RankingCache,
    UnreadyMember,
    disagreement,
    gang_members,
    gang_of,
    held_results,
    no_room,
    placed_members,
    plan_sizes,
)

_HOLDERS = 12  # in one explanation
Attempts = Mapping[str, Sequence[Attempt]]
"""The remembered attempts by UID of the pod, the oldest first."""


@dataclass(frozen=True, slots=True)
class ExplainedMember:
    """A pod of the group. `state` is 'bound', 'held', 'binding', 'waiting', 'gated', 'deleted' or 'not-ours'.

    `reason` and `since` (RFC 3339) are those of the attempts that are remembered; '' without any.
    """

    pod: str
    state: str
    node: str = ""  # on which it is bound or has devices
    reason: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True)
class PlannedMember:
    """Where a member would be placed now, or has devices held."""

    pod: str
    node: str
    devices: tuple[str, ...]  # driver/pool/device


@dataclass(frozen=True, slots=True)
class GangExplanation:
    """The explanation of a group.

    `outcome` is 'no-gang' (no minimum), 'runs' (the minimum is bound), 'planned' (serve holds devices), 'waiting' (for
    pods or claims), 'blocked' (a member is invalid), 'fits', 'refused' (no domain has room), 'gave-up' (whether one
    has room is not known), or 'unfinished' (the budget of the call ended).
    """

    group: str
    source: str  # the field, label or annotation by which its pods name it
    outcome: str
    sentence: str
    minimum: int = 0
    bound: int = 0
    missing: int = 0  # members that must still be bound
    topology: str = ""
    topology_label: str = ""
    members: tuple[ExplainedMember, ...] = ()
    since: str = ""  # RFC 3339: the plan, or else the first attempt that is remembered
    level: str = ""  # the domain of the plan, or the one with the most room
    domain: str = ""
    room: int = 0  # members that fit there
    plan: tuple[PlannedMember, ...] = ()
    misses: tuple[GangNearMiss, ...] = ()  # changes that would make it fit, the cheapest first
    cut_short: str = ""  # why not all changes were tried
    holders: tuple[Holder, ...] = ()  # of devices in the domain with the most room, the most devices first
    more_holders: int = 0


@dataclass(frozen=True, slots=True)
class PlannerCaches:
    """What the planner keeps between explanations: both follow the snapshots of one cache."""

    rankings: RankingCache
    memory: GangMemory


def groups_named(snapshot: Snapshot, namespace: str, name: str) -> dict[GroupKey, list[Pod]]:
    """The groups of this name, with those of their pods that the cache has: they have no node yet."""
    keys = [GroupKey(namespace, source, name) for source in GroupSource]
    found: dict[GroupKey, list[Pod]] = {key: [] for key in keys if snapshot.claims_of_group(key)}
    for pod in snapshot.pods.values():
        membership = pod.membership
        if membership is not None and (membership.key.namespace, membership.key.name) == (namespace, name):
            found.setdefault(membership.key, []).append(pod)
    return found


def explain_gang(
    key: GroupKey,
    pods: Sequence[Pod],
    snapshot: Snapshot,
    policy: Policy,
    context: EvaluationContext,
    caches: PlannerCaches,
    attempts: Attempts,
) -> GangExplanation:
    """The explanation of a group. `pods` are those without a node, as `groups_named` gives them."""
    if not pods:
        return _all_bound(key, snapshot)
    asking = min(pods, key=lambda pod: (not pod.is_waiting, pod.scheduler != SCHEDULER, pod.key))
    assert asking.membership is not None
    gang = gang_of(asking, asking.membership, snapshot)
    waiting = tuple(pod for pod in gang.waiting if pod.is_waiting)
    gang = replace(gang, waiting=waiting)
    found = GangExplanation(
        str(key),
        key.source.value,
        "waiting",
        "",
        gang.minimum,
        gang.placed.total(),
        gang.missing,
        gang.topology,
        gang.topology_label,
        (*_bound(key, snapshot), *_members(gang, pods, snapshot, attempts)),
        _first_attempt(waiting, attempts),
    )
    if asking.membership.problem:
        return replace(found, outcome="blocked", sentence=f"group {key} is refused: {asking.membership.problem}")
    if not gang.minimum:
        text = f"group {key} is no gang: its minimum is not known or below 2, so each pod is placed alone"
        return replace(found, outcome="no-gang", sentence=text)
    different = disagreement(key, gang.waiting)
    if different:
        return replace(found, outcome="blocked", sentence=different)
    if not gang.missing:
        text = f"group {key} has its minimum of {_pods(gang.minimum)} bound; each other pod is placed alone"
        return replace(found, outcome="runs", sentence=text)
    held = _held(waiting, snapshot)
    if held:
        return _planned(found, waiting, held, attempts)
    if not gang.is_complete:
        return replace(found, sentence=_incomplete(gang, pods))
    return _explain(found, gang, snapshot, policy, context, caches)


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
        return _unready(found, members)
    question = GangQuestion(gang, members, policy, snapshot, context, caches.rankings, caches.memory)
    try:
        result: GangPlan | GangShortage | None = None
        for size in plan_sizes(gang, members):
            result = question.plan(question.problem(size))
            if isinstance(result, GangPlan):
                return _fits(found, members.first(size), result, snapshot)
        assert isinstance(result, GangShortage)
        return _without_room(found, question, result)
    except CallBudgetSpent:
        text = f"group {gang.key}: the work limit of an explanation ended the plan: ask again"
        return replace(found, outcome="unfinished", sentence=text)


# -- members -------------------------------------------------------------------------------------------------------


def _all_bound(key: GroupKey, snapshot: Snapshot) -> GangExplanation:
    members = _bound(key, snapshot)
    sentence = f"group {key}: {_pods(len(members))} with devices bound, and no pod waits"
    return GangExplanation(str(key), key.source.value, "runs", sentence, bound=len(members), members=members)


def _bound(key: GroupKey, snapshot: Snapshot) -> tuple[ExplainedMember, ...]:
    """The bound members by name. The name of a member without devices is not known: its UID stands for it."""
    names = dict[str, str]()
    for claim_key in snapshot.claims_of_group(key):
        claim = snapshot.claims.get(claim_key)
        for consumer in claim.reserved_for if claim is not None else ():
            names[consumer.uid] = f"{key.namespace}/{consumer.name}"
    placed = placed_members(key, snapshot)
    found = [ExplainedMember(names.get(uid, uid), "bound", node) for uid, node in placed.items()]
    return tuple(sorted(found, key=lambda member: member.pod))


def _members(gang: Gang, pods: Sequence[Pod], snapshot: Snapshot, attempts: Attempts) -> Iterable[ExplainedMember]:
    """The pods without a node, in rank order, and then those that do not count."""
    held = {r.pod_uid: r for r in snapshot.reservations.values()}
    counted = {pod.uid for pod in gang.waiting}
    others = sorted((pod for pod in pods if pod.uid not in counted), key=lambda pod: pod.key)
    for pod in (*gang.waiting, *others):
        known, reservation = attempts.get(pod.uid, ()), held.get(pod.uid)
        state = reservation.state.value if reservation is not None else "waiting"
        if pod.uid not in counted:
            state = "deleted" if pod.deleting else "gated" if pod.gated else "not-ours"
        node = reservation.node if reservation is not None else ""
        yield ExplainedMember(str(pod.key), state, node, _reason(pod, known), known[0].at if known else "")


def _reason(pod: Pod, known: Sequence[Attempt]) -> str:
    """Why the last attempt failed: what Berth answered, or else what kube-scheduler wrote."""
    if known and known[-1].fitting:
        return ""
    reasons = "; ".join(text for text, _ in known[-1].reasons) if known else ""
    return reasons or pod.unschedulable


def _first_attempt(pods: Iterable[Pod], attempts: Attempts) -> str:
    return min((known[0].at for pod in pods if (known := attempts.get(pod.uid))), default="")


def _incomplete(gang: Gang, pods: Sequence[Pod]) -> str:
    exist = len(gang.waiting) + gang.placed.total()
    text = f"group {gang.key} waits for {_pods(gang.minimum - exist)}: {exist} of at least {gang.minimum} exist"
    gated = sum(pod.gated for pod in pods)
    return f"{text}, and {gated} more with scheduling gates" if gated else text


def _unready(found: GangExplanation, member: UnreadyMember) -> GangExplanation:
    if isinstance(member.why, Pending):
        return replace(found, sentence=f"group {found.group} waits: {member.why.message}")
    text = f"group {found.group} fits nowhere: pod {member.pod.key}: {member.why.reason}"
    return replace(found, outcome="blocked", sentence=text)


# -- plans ---------------------------------------------------------------------------------------------------------


def _held(pods: Iterable[Pod], snapshot: Snapshot) -> dict[str, PlannedMember]:
    """The members whose claims serve has reserved, by UID. A reservation that an allocation replaced is gone."""
    names, found = {pod.uid: str(pod.key) for pod in pods}, dict[str, PlannedMember]()
    for reservation in snapshot.reservations.values():
        name = names.get(reservation.pod_uid)
        if name is not None:
            before = found.get(reservation.pod_uid)
            devices = tuple(str(result.device) for result in reservation.results)
            found[reservation.pod_uid] = PlannedMember(
                name, reservation.node, (*(before.devices if before is not None else ()), *devices)
            )
    return found


def _planned(
    found: GangExplanation, pods: Sequence[Pod], held: Mapping[str, PlannedMember], attempts: Attempts
) -> GangExplanation:
    plan = tuple(held[pod.uid] for pod in pods if pod.uid in held)
    since = _planned_since(held, attempts)
    nodes = _some(sorted({member.node for member in plan}))
    text = f"group {found.group} is planned: {_pods(len(plan))} with devices held on {nodes}"
    text += f", since {since}" if since else ""
    return replace(found, outcome="planned", sentence=text, plan=plan, since=since or found.since)


def _planned_since(uids: Iterable[str], attempts: Attempts) -> str:
    """When the first member got its node; '' if no attempt shows that. A plan begins after the last refusal."""
    last = [known[-1] for uid in uids if (known := attempts.get(uid))]
    refused = max((attempt.at for attempt in last if not attempt.fitting), default="")
    return min((attempt.at for attempt in last if attempt.fitting and attempt.at >= refused), default="")


def _fits(found: GangExplanation, members: GangMembers, plan: GangPlan, snapshot: Snapshot) -> GangExplanation:
    placed = []
    for pod in members.pods:
        if pod.uid in plan.placements:
            node, placement = plan.placements[pod.uid]
            devices = tuple(str(result.device) for result in held_results(snapshot.node_infos[node], placement))
            placed.append(PlannedMember(str(pod.key), node, devices))
    text = f"group {found.group} fits: {_pods(len(placed))} {where(plan.level, plan.domain)}"
    return replace(
        found,
        outcome="fits",
        sentence=f"{text}; Berth places it when kube-scheduler asks again",
        level=plan.level,
        domain=plan.domain,
        room=len(placed),
        plan=tuple(placed),
    )


def _without_room(found: GangExplanation, question: GangQuestion, shortage: GangShortage) -> GangExplanation:
    near = gang_near_misses(question, shortage)
    reason = no_room(question.gang, question.snapshot, question.policy)
    if shortage.gave_up:
        text = f"group {found.group}: the planner gave up, because its claims allow too many combinations"
        text += ": a plan may exist"
    elif reason.code is Code.GANG_NO_DOMAIN:
        text = f"group {found.group} fits nowhere: {reason}"
    else:
        text = f"group {found.group} fits nowhere: no domain has room for {_pods(shortage.members)} together"
    if shortage.room:
        text += f"; the most room is {where(shortage.level, shortage.domain)}, for {shortage.room}"
    if near.found:
        text += f"; it {near.found[0].sentence}"
    found = replace(
        found,
        outcome="gave-up" if shortage.gave_up else "refused",
        sentence=text,
        level=shortage.level,
        domain=shortage.domain,
        room=shortage.room,
        misses=near.found,
        cut_short=near.cut_short,
    )
    return _with_holders(found, question, shortage)


def _with_holders(found: GangExplanation, question: GangQuestion, shortage: GangShortage) -> GangExplanation:
    """Without the holders if the budget ends first."""
    snapshot, budget = question.snapshot, question.context.budget
    try:
        domains = widest_domains(question, shortage)
        own = {pod.uid for pod in question.gang.waiting}
        node_infos = (snapshot.node_infos[name] for domain in domains[:1] for name in domain.nodes)
        uses = uses_by_node(node_infos, snapshot, question.gang.key, own, budget)
    except CallBudgetSpent:
        return found
    holders = [use.holder for uses_there in uses.values() for use in uses_there]
    holders.sort(key=lambda one: (-one.devices, one.node, one.pods, one.claims))
    return replace(found, holders=tuple(holders[:_HOLDERS]), more_holders=max(len(holders) - _HOLDERS, 0))


def _pods(count: int) -> str:
    return f"{count} {'pod' if count == 1 else 'pods'}"


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
