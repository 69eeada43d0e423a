"""Why a complete gang has no plan: the room now and in an empty fleet, the near misses, and the holders of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from extender.diagnosis.device_holders import Holder, uses_by_node
from extender.diagnosis.emptied_fleet import EmptiedFleet
from extender.diagnosis.gang_near_misses import GangNearMisses, less_constrained
from extender.diagnosis.gang_question import GangNearMiss, GangQuestion, where, widest_domains
from extender.model import Code, DeadlineExceeded, counted
from extender.scheduling import GangPlan, GangShortage, no_room

_HOLDERS = 12  # in one explanation


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


def gang_refusal(question: GangQuestion, shortage: GangShortage) -> GangRefusal:
    """Why the gang has no plan. `shortage` is the result of the question's plan for its minimum.

    Never raises DeadlineExceeded: that plan asked for the usable nodes, which the question remembers.
    """
    near = GangNearMisses(shortage)
    near.try_own_changes(question)
    fleet, on_empty = _on_empty_fleet(question)
    if fleet is not None:
        question = replace(question, usable=fleet.usable)
    never = on_empty if isinstance(on_empty, GangShortage) else None
    if never is None:
        near.try_ends(question)
    misses = near.cheapest()
    sentence = "; ".join(_parts(question, shortage, misses, fleet, never))
    room_if_empty = shortage.members if isinstance(on_empty, GangPlan) else never.room if never is not None else None
    found = GangRefusal(sentence, misses, near.cut_short, room_if_empty, never=never is not None)
    return found if found.never else _with_holders(found, question, shortage)


def _on_empty_fleet(question: GangQuestion) -> tuple[EmptiedFleet | None, GangPlan | GangShortage | None]:
    """The empty fleet and the plan for the minimum there; None for what is not known for certain."""
    problem, fleet = question.problem(question.gang.missing), None
    try:
        fleet = EmptiedFleet(question.gang.key, problem, question.snapshot, question.context)
        found = fleet.plan(problem)
    except DeadlineExceeded:
        return fleet, None
    is_certain = isinstance(found, GangPlan) or (fleet.is_exact and not found.gave_up)
    return fleet, found if is_certain else None


def _parts(
    question: GangQuestion,
    shortage: GangShortage,
    misses: Sequence[GangNearMiss],
    fleet: EmptiedFleet | None,
    never: GangShortage | None,
) -> Iterator[str]:
    """The sentence. `never` is the shortage in the empty fleet; None if the gang fits there, or if that is unknown."""
    key, reason = question.gang.key, no_room(question.gang, question.snapshot, question.policy)
    room = f"{where(shortage.level, shortage.domain)}, for {shortage.room}" if shortage.room else ""
    if shortage.gave_up and never is None:
        text = "the planner gave up, because its claims allow too many combinations: a plan may exist"
        yield f"group {key}: {text}"
    elif reason.code is Code.GANG_NO_DOMAIN:
        yield f"group {key} fits nowhere: {reason}"
    elif never is not None:
        yield f"group {key} does not fit in this fleet: even if all other pods ended, {_room(never)}"
        yield from _allowed(question)
    else:
        yield f"group {key} fits nowhere: no domain has room for {counted(shortage.members, 'pod')} together"
    if room and (never is None or never.room != shortage.room or reason.code is Code.GANG_NO_DOMAIN):
        yield f"the most room is now {room}"
    elif not room and (never is not None or not shortage.gave_up):
        yield "now no node has room even for one of them"
    if fleet is not None and reason.code is not Code.GANG_NO_DOMAIN:
        yield from _without_label(question, fleet)
    if misses:
        yield f"it {misses[0].sentence}"
    elif never is not None and fleet is not None:
        yield from _once_empty(question, fleet)


def _room(shortage: GangShortage) -> str:
    if not shortage.room:
        return "no node would have room for one of its pods"
    place = where(shortage.level, shortage.domain)
    return f"the most room would be {place}, for {shortage.room} of {counted(shortage.members, 'pod')}"


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
    snapshot, deadline = question.snapshot, question.context.deadline
    try:
        domains = widest_domains(question, shortage)[:1]
        own = {pod.uid for pod in question.gang.waiting}
        node_infos = (snapshot.node_infos[name] for domain in domains for name in domain.nodes)
        uses = uses_by_node(node_infos, snapshot, question.gang.key, own, deadline)
    except DeadlineExceeded:
        return found
    holders = [use.holder for uses_there in uses.values() for use in uses_there]
    holders.sort(key=lambda one: (-one.devices, one.node, one.pods, one.claims))
    held_in = where(domains[0].level, domains[0].name) if holders else ""
    more = max(len(holders) - _HOLDERS, 0)
    return replace(found, holders=tuple(holders[:_HOLDERS]), more_holders=more, held_in=held_in)
