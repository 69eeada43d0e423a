"""Why a complete gang has no plan: the room now and in an empty fleet, the near misses, and the holders of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from extender.diagnosis.device_holders import Holder, uses_by_node, uses_of_shared_claims
from extender.diagnosis.emptied_fleet import EmptiedFleet
from extender.diagnosis.gang_near_misses import GangNearMisses, less_constrained
from extender.diagnosis.gang_question import (
    GangNearMiss,
    GangQuestion,
    equal_members,
    most_room,
    where,
    widest_domains,
)
from extender.model import Code, DeadlineExceeded, Reason, counted
from extender.scheduling import MOST_TOGETHER, GangPlan, GangProblem, GangShortage, UsableNodes, gang_problem, no_room

_HOLDERS = 12  # in one explanation
_FAULTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")  # taints that Kubernetes sets while they last


@dataclass(frozen=True, slots=True)
class GangRefusal:
    """Why a gang has no plan. The fields are those of GangExplanation."""

    sentence: str
    misses: tuple[GangNearMiss, ...]
    cut_short: str
    room_if_empty: int | None = None
    holders: tuple[Holder, ...] = ()
    more_holders: int = 0
    held_in: str = ""
    never: bool = False  # whether the gang does not fit even if all other pods end


@dataclass(frozen=True, slots=True)
class _Empty:
    """The fleet without other pods. The shortage there is None if the gang fits, or if that is not known.

    `causes` are why nodes have no devices for a member even there. `passes`: some of that may pass. `untainted` is the
    shortage without taints, too; None if there is none, if that is not known, or if there are no such taints.
    """

    fleet: EmptiedFleet | None = None
    shortage: GangShortage | None = None
    room: int | None = None
    causes: tuple[str, ...] = ()
    passes: bool = False
    untainted: GangShortage | None = None


def gang_refusal(question: GangQuestion, shortage: GangShortage) -> GangRefusal:
    """Why the gang has no plan. `shortage` is the result of the question's plan for its minimum.

    Never raises DeadlineExceeded: that plan asked for the usable nodes, which the question remembers.
    """
    near = GangNearMisses(shortage)
    near.try_own_changes(question)
    pins = uses_of_shared_claims(
        question.gang.key, question.members.pods, question.members.requirements, question.snapshot
    )
    loose = question.without(pins) or question
    empty = _empty(loose)
    if empty.fleet is not None:
        question = replace(question, usable=empty.fleet.usable)
    if empty.shortage is None:
        near.try_ends(question)
        near.try_pins(question, pins)
    misses = near.cheapest()
    sentence = "; ".join(_parts(loose, shortage, misses, empty))
    found = GangRefusal(sentence, misses, near.cut_short, empty.room, never=empty.shortage is not None)
    return found if found.never else _with_holders(found, question, shortage)


def _empty(question: GangQuestion) -> _Empty:
    """The chances of the gang in the empty fleet, as far as they are known for certain."""
    problem, found = question.problem(question.gang.missing), _Empty()
    try:
        fleet = EmptiedFleet(question.gang.key, problem, question.snapshot, question.context)
        found = _Empty(fleet)
        planned, updating = fleet.plan(problem), fleet.updating()
        nodes = counted(len(question.snapshot.node_infos), "node")
        general = (f"{Reason(Code.POOL_UPDATING)} on {updating} of {nodes}",) if updating else ()
        found = replace(found, causes=general)
        if isinstance(planned, GangPlan):
            return replace(found, room=len(problem.members))
        planned = most_room(problem, planned, fleet.plan)
        if planned.gave_up or not fleet.is_exact:
            return found
        reasons = list(_reasons(question, fleet))
        codes = {reason.code for _, by_number in reasons for reason in by_number}
        texts = [
            f"{pod}: " + ", ".join(f"{reason} on {number} of {nodes}" for reason, number in by_number.items())
            for pod, by_number in reasons
        ]
        causes = (*texts, *(general if Code.POOL_UPDATING not in codes else ()))
        once: GangPlan | GangShortage = planned
        faultless = _without_node_faults(question, problem)
        if fleet.has_taints:
            once = fleet.plan_without_taints(problem)
        if isinstance(once, GangPlan):
            now = isinstance(fleet.plan_without_taints(problem, question.snapshot), GangPlan)
            causes += ("without taints of devices it would fit" + ("" if now else ", but only after other pods end"),)
        elif faultless is not problem:
            once = fleet.plan_without_taints(faultless)
        may_fit = bool(updating) or isinstance(once, GangPlan) or once.gave_up
        untainted = None
        if isinstance(once, GangShortage) and not may_fit and Code.TAINTED in codes:
            untainted = most_room(faultless, once, fleet.plan_without_taints)
        return _Empty(fleet, planned, planned.room, causes, may_fit or untainted is not None, untainted)
    except DeadlineExceeded:
        return found


def _reasons(question: GangQuestion, fleet: EmptiedFleet) -> Iterator[tuple[str, dict[Reason, int]]]:
    """A pod of each kind that lacks nodes, and why, with the number of nodes: each reason once.

    Raises DeadlineExceeded.
    """
    names, told = {pod.uid: pod.key for pod in question.members.pods}, set[Reason]()
    for kind in equal_members(question.problem(question.gang.missing).members):
        found = {reason: number for reason, number in fleet.reasons(kind[0]).items() if reason not in told}
        told |= found.keys()
        if found:
            yield f"pod {names[kind[0].uid]}", found


def _without_node_faults(question: GangQuestion, problem: GangProblem) -> GangProblem:
    """The problem as if no node were cordoned, or had a taint by which Kubernetes reports a fault.

    The same problem if there is no such node. Raises DeadlineExceeded.
    """
    size, snapshot = question.gang.missing, question.snapshot
    taints = (taint for node_info in snapshot.node_infos.values() for taint in node_info.node.taints)
    if not any(taint.key.startswith(_FAULTS) for taint in taints):
        return problem
    nodes = {
        name: replace(node, taints=tuple(taint for taint in node.taints if not taint.key.startswith(_FAULTS)))
        for name, node in ((name, node_info.node) for name, node_info in snapshot.node_infos.items())
    }
    chosen = question.members.first(size)
    usable = UsableNodes(MOST_TOGETHER).of(chosen.pods, nodes, snapshot.version, question.context.deadline)
    return gang_problem(question.gang, chosen, question.policy, usable)


def _parts(
    question: GangQuestion, shortage: GangShortage, misses: Sequence[GangNearMiss], empty: _Empty
) -> Iterator[str]:
    """The sentence."""
    key, reason = question.gang.key, no_room(question.gang, question.snapshot, question.policy)
    never, fleet = empty.shortage, empty.fleet
    # A single node needs no label: if it could hold the gang, the label is not the cause.
    lacks_domain = reason.code is Code.GANG_NO_DOMAIN and empty.room != shortage.members
    if shortage.gave_up and never is None:
        text = "the planner gave up, because its claims allow too many combinations: a plan may exist"
        yield f"group {key}: {text}"
    elif lacks_domain:
        yield f"group {key} fits nowhere: {reason}"
    elif never is not None and not empty.passes:
        yield f"group {key} does not fit in this fleet: even if all other pods ended, {_room(never)}"
    else:
        yield f"group {key} fits nowhere: no domain has room for {counted(shortage.members, 'pod')} together"
    yield from _allowed(question) if never is not None and not lacks_domain else ()
    if shortage.room and (never is None or empty.passes or never.room != shortage.room or lacks_domain):
        most = "the most room is now" if shortage.most else "the most room that was found is now"
        yield f"{most} {where(shortage.level, shortage.domain)}, for {shortage.room}"
    elif not shortage.room and (never is not None or not shortage.gave_up):
        yield "now no node has room even for one of them"
    yield from empty.causes
    if empty.untainted is not None:
        yield f"even without taints and other pods, {_room(empty.untainted)}"
    if fleet is not None and not lacks_domain:
        yield from _without_label(question, fleet)
    if misses:
        yield f"it {misses[0].sentence}"
    elif never is not None and fleet is not None:
        yield from _once_empty(question, fleet)


def _room(shortage: GangShortage) -> str:
    if not shortage.room:
        return "no node would have room for one of its pods"
    place = where(shortage.level, shortage.domain)
    most = "the most room" if shortage.most else "the most room that was found"
    return f"{most} would be {place}, for {shortage.room} of {counted(shortage.members, 'pod')}"


def _allowed(question: GangQuestion) -> Iterator[str]:
    """How few nodes a member may use, by what kube-scheduler checks besides devices."""
    usable, pods = question.usable_nodes(question.gang.missing), question.members.pods
    pod = min((pod for pod in pods if pod.uid in usable), key=lambda pod: len(usable[pod.uid]), default=None)
    if pod is not None:
        nodes = f"{len(usable[pod.uid])} of {counted(len(question.snapshot.node_infos), 'node')}"
        yield f"node selector, node affinity, taints and cordons leave {nodes} to pod {pod.key}"


def _without_label(question: GangQuestion, fleet: EmptiedFleet) -> Iterator[str]:
    """How many nodes that the gang could use lack the label of its domain."""
    label, node_infos = question.gang.required_label(question.policy.group_levels), question.snapshot.node_infos
    lacking = sum(label not in node_infos[name].node.labels for name in fleet.usable) if label else 0
    if lacking:
        nodes = f"{lacking} of {counted(len(fleet.usable), 'node')} with devices for its pods"
        yield f"{nodes} {'has' if lacking == 1 else 'have'} no label {label}, which it needs"


def _once_empty(question: GangQuestion, fleet: EmptiedFleet) -> Iterator[str]:
    """The first constraint without which the gang would fit in the empty fleet."""
    try:
        for changed, wanted in less_constrained(question.problem(question.gang.missing)):
            if isinstance(fleet.plan(changed), GangPlan):
                yield f"{wanted} it would fit, but only after other pods end"
                return
    except DeadlineExceeded:
        return


def _with_holders(found: GangRefusal, question: GangQuestion, shortage: GangShortage) -> GangRefusal:
    """The refusal with the holders of devices in the domain with the most room; unchanged after the deadline."""
    snapshot = question.snapshot
    try:
        domains = widest_domains(question, shortage)[:1]
        node_infos = (snapshot.node_infos[name] for domain in domains for name in domain.nodes)
        uses = uses_by_node(node_infos, snapshot, question.gang.key, question.members.requirements, question.context)
    except DeadlineExceeded:
        return found
    holders = [use.holder for uses_there in uses.values() for use in uses_there]
    holders.sort(key=lambda one: (-one.devices, one.node, one.pods, one.claims))
    held_in = where(domains[0].level, domains[0].name) if holders else ""
    more = max(len(holders) - _HOLDERS, 0)
    return replace(found, holders=tuple(holders[:_HOLDERS]), more_holders=more, held_in=held_in)
