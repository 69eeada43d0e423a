"""Why a complete gang has no plan: the room now and in an empty fleet, the near misses, and the holders of devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from extender.allocation import Snapshot
from extender.allocation.what_if import hypothetical_snapshot
from extender.api.group_topology import ONE_NODE
from extender.api.pods import Pod
from extender.api.reasons import Code, Reason
from extender.base.deadline import DeadlineExceeded
from extender.base.text_limits import counted
from extender.explain.excluded_nodes import counted_obstacles, excluded_nodes
from extender.explain.fleet_rows import CONDITIONS
from extender.explain.gang_near_misses import GangNearMisses, less_constrained
from extender.explain.gang_question import (
    ExplainedSubGroup,
    GangExplanation,
    GangNearMiss,
    GangQuestion,
    PlannerCaches,
    equal_members,
    most_room,
    uses_by_node,
    uses_of_shared_claims,
    where,
    widest_domains,
)
from extender.gangs.gang import EmptyNodes, own_devices
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import (
    MAX_TOGETHER,
    GangMember,
    GangPlan,
    GangProblem,
    GangShortage,
    equal_units,
    gang_problem,
    no_room,
)
from extender.gangs.node_rooms import NodeRooms
from extender.scheduling import NodeRanking, Unschedulable, UsableNodes, path_labels
from extender.scheduling.subgroup_tree import SubGroup
from extender.topology.link_knowledge import NOT_KNOWN, as_if_joined, needs_links, unknown_links, unread

_MAX_HOLDERS = 12  # in one explanation
_MAX_SUBGROUPS = 64  # in one explanation, the largest first
_MAX_PLANNED = 16  # different ones of these; a plan takes some 30 ms
# Reasons of nodes that are told even if the pod fits on others: these nodes may get room again.
_TOLD = (Code.POOL_UPDATING, Code.POOL_INVALID, Code.TAINTED)


@dataclass(frozen=True, slots=True)
class _Empty:
    """The fleet without other pods. The shortage there is None if the gang fits, or if that is not known.

    `causes` are why nodes have no devices for a member even there. `passes`: some of that may pass. `untainted` is the
    shortage without taints, too; None if there is none, if that is not known, or if there are no such taints. `mistake`
    is what is wrong with the claims of a member.
    """

    fleet: EmptiedFleet | None = None
    shortage: GangShortage | None = None
    room: int | None = None
    causes: tuple[str, ...] = ()
    passes: bool = False
    untainted: GangShortage | None = None
    mistake: str = ""


def gang_refusal(found: GangExplanation, question: GangQuestion, shortage: GangShortage) -> GangExplanation:
    """The explanation with why the gang has no plan. `shortage` is the result of the question's plan for its minimum.

    Never raises DeadlineExceeded: that plan asked for the usable nodes, which the question remembers.
    """
    near = GangNearMisses(shortage)
    near.try_own_changes(question)
    pins = uses_of_shared_claims(question)
    loose = question.without([claim for pin in pins for claim in pin.claims]) or question
    unknown = _if_joined_now(loose, question.gang.missing)
    empty = _empty(loose, unknown)
    if empty.mistake:
        sentence = f"group {question.gang.key} fits nowhere: {empty.mistake}"
        return replace(found, outcome="blocked", sentence=sentence, room=shortage.room, room_if_empty=empty.room)
    if empty.fleet is not None:
        question = replace(question, usable=empty.fleet.usable)
    if empty.shortage is None:
        near.try_ends(question, pins)
    is_never = empty.shortage is not None and not empty.passes
    misses, parts = near.cheapest(), _rooms_of_subgroups(empty.fleet.question if empty.fleet and is_never else loose)
    sentence = "; ".join(_parts(loose, shortage, misses, empty, parts, unknown))
    found = replace(
        found,
        outcome="gave-up" if shortage.gave_up and empty.shortage is None else "refused",
        sentence=sentence,
        level=shortage.level,
        domain=shortage.domain,
        room=shortage.room,
        room_if_empty=empty.room,
        misses=misses,
        cut_short=near.cut_short,
        parts=parts,
    )
    return found if empty.shortage is not None else _with_holders(found, question, shortage)


def _if_joined_now(question: GangQuestion, size: int) -> list[str]:
    """The nodes whose links are not known, and on which so many members would fit now if links join all GPUs there.

    None after the deadline.
    """
    try:
        return _if_joined(question, question.problem(size))
    except DeadlineExceeded:
        return []


def _if_joined(question: GangQuestion, problem: GangProblem) -> list[str]:
    """The nodes whose links no agent reports, and on which the gang fits if links join all GPUs of the node.

    Raises DeadlineExceeded.
    """
    snapshot, infos = question.snapshot, question.snapshot.node_infos
    if not needs_links(member.requirements.intent for member in problem.members):
        return []
    nodes = {name: as_if_joined(infos[name]) for name in unread(infos.values())}
    if not nodes:
        return []
    joined = hypothetical_snapshot(snapshot, {**infos, **nodes}, snapshot.version)
    planned = plan_gang(problem, joined, replace(question.context, placements=None))
    return sorted(planned.nodes & nodes.keys()) if isinstance(planned, GangPlan) else []


def _empty(question: GangQuestion, unknown: Sequence[str]) -> _Empty:
    """The chances of the gang in the empty fleet, as far as they are known for certain.

    `unknown` are the nodes on which it may fit now.
    """
    problem, found = question.problem(question.gang.missing), _Empty()
    try:
        fleet = EmptiedFleet(question, problem)
        found = _Empty(fleet)
        planned, updating = fleet.question.plan(problem), fleet.updating()
        nodes = counted(len(question.snapshot.node_infos), "node")
        general = (f"{Reason(Code.POOL_UPDATING)} on {updating} of {nodes}",) if updating else ()
        found = replace(found, causes=general)
        if isinstance(planned, GangPlan):
            return replace(found, room=len(problem.members))
        planned = most_room(problem, planned, fleet.question.plan)
        if planned.gave_up or not fleet.is_exact:
            return found
        if mistake := fleet.mistake():
            return _Empty(fleet, planned, planned.room, mistake=mistake)
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
        joined = _if_joined(fleet.question, problem) if not unknown else []
        causes += (f"{unknown_links(joined)}: it may fit there, but only after other pods end",) if joined else ()
        may_fit = bool(updating) or bool(joined or unknown) or isinstance(once, GangPlan) or once.gave_up
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
    if not any(taint.key.startswith(CONDITIONS) for taint in taints):
        return problem
    nodes = {
        name: replace(node, taints=tuple(taint for taint in node.taints if not taint.key.startswith(CONDITIONS)))
        for name, node in ((name, node_info.node) for name, node_info in snapshot.node_infos.items())
    }
    chosen = question.members.first(size)
    usable = UsableNodes(MAX_TOGETHER).of(chosen.pods, nodes, snapshot.version, question.context.deadline)
    return gang_problem(question.gang, chosen, question.policy, snapshot, usable)


def _parts(
    question: GangQuestion,
    shortage: GangShortage,
    misses: Sequence[GangNearMiss],
    empty: _Empty,
    parts: Sequence[ExplainedSubGroup],
    unknown: Sequence[str],
) -> Iterator[str]:
    """The sentence. `unknown` are the nodes on which the gang may fit now."""
    key, reason = question.gang.key, no_room(question.gang, question.snapshot, question.policy, question.has_room)
    never, fleet = empty.shortage, empty.fleet
    # A single node needs no label: if it could hold the gang, the label is not the cause.
    lacks_domain = reason.code is Code.GANG_NO_DOMAIN and empty.room != shortage.members
    if shortage.gave_up and never is None:
        text = "the planner gave up, because its claims allow too many combinations: a plan may exist"
        yield f"group {key}: {text}"
    elif lacks_domain:
        yield f"group {key} fits nowhere: {reason}"
    elif never is not None and not empty.passes:
        place = "where it runs" if reason.code is Code.GANG_DOMAIN_FULL else "in this fleet"
        yield f"group {key} does not fit {place}: even if all other pods ended, {_room(never)}"
    elif unknown:
        members = counted(shortage.members, "pod")
        yield f"group {key} {NOT_KNOWN}: no domain is known to have room for {members} together"
    else:
        yield f"group {key} fits nowhere: no domain has room for {counted(shortage.members, 'pod')} together"
    if reason.code is Code.GANG_DOMAIN_FULL:
        yield str(reason)
    yield from _lacking_subgroups(parts, "even then" if never is not None and not empty.passes else "now")
    yield from _allowed(question) if never is not None and not lacks_domain else ()
    if shortage.room and (never is None or empty.passes or never.room != shortage.room or lacks_domain):
        most = "the most room is now" if shortage.most else "the most room that was found is now"
        yield f"{most} {where(shortage.level, shortage.domain)}, for {shortage.room}"
    elif not shortage.room and _if_joined_now(question, 1):
        yield "now no node that it may use is known to have room even for one of them"
    elif not shortage.room and not lacks_domain and (never is not None or not shortage.gave_up):
        yield "now no node that it may use has room even for one of them"
    yield from empty.causes
    if unknown:
        yield f"{unknown_links(unknown)}: it may fit there"
    if empty.untainted is not None:
        yield f"even without taints and other pods, {_room(empty.untainted)}"
    if fleet is not None and not lacks_domain:
        yield from _without_label(question, fleet)
    if misses:
        yield f"it {misses[0].sentence}"
    elif never is not None and fleet is not None:
        yield from _once_empty(question, fleet)


def _room(shortage: GangShortage) -> str:
    """The room with all other pods gone."""
    if not shortage.room:
        return "no node that it may use would have room for one of its pods"
    place = where(shortage.level, shortage.domain)
    most = "the most room" if shortage.most else "the most room that was found"
    return f"{most} would be {place}, for {shortage.room} of {counted(shortage.members, 'pod')}"


def _allowed(question: GangQuestion) -> Iterator[str]:
    """How few nodes a member may use, by what kube-scheduler checks besides devices."""
    usable, pods = question.usable_nodes(question.gang.missing), question.members.pods
    pod = min((pod for pod in pods if pod.uid in usable), key=lambda pod: len(usable[pod.uid]), default=None)
    if pod is not None:
        nodes = f"{len(usable[pod.uid])} of {counted(len(question.snapshot.node_infos), 'node')}"
        named = f"pod {pod.key}{_kept_by(pod, question)}"
        yield f"node selector, node affinity, taints and cordons leave {nodes} to {named}"


def _kept_by(pod: Pod, question: GangQuestion) -> str:
    """What keeps a member from the other nodes, in words; '' after the deadline."""
    try:
        found = excluded_nodes(pod, question.snapshot.node_infos, question.context.deadline)
    except DeadlineExceeded:
        return ""
    return f" ({counted_obstacles(found.values())})" if found else ""


def _without_label(question: GangQuestion, fleet: EmptiedFleet) -> Iterator[str]:
    """How many nodes that the gang could use lack the label of its domain."""
    levels, node_infos = question.policy.group_levels, question.snapshot.node_infos
    label = question.gang.topology_in(levels).required_label(levels)
    lacking = sum(label not in node_infos[name].node.labels for name in fleet.usable) if label else 0
    if lacking:
        nodes = f"{lacking} of {counted(len(fleet.usable), 'node')} with devices for its pods"
        yield f"{nodes} {'has' if lacking == 1 else 'have'} no label {label}, which it needs"


def _once_empty(question: GangQuestion, fleet: EmptiedFleet) -> Iterator[str]:
    """The first constraint without which the gang would fit in the empty fleet."""
    try:
        for changed, wanted in less_constrained(question):
            if isinstance(fleet.question.plan(changed), GangPlan):
                yield f"{wanted} it would fit, but only after other pods end"
                return
    except DeadlineExceeded:
        return


def _with_holders(found: GangExplanation, question: GangQuestion, shortage: GangShortage) -> GangExplanation:
    """The explanation with the holders of devices in the domain with the most room; unchanged after the deadline."""
    try:
        domains = widest_domains(question, shortage)[:1]
        uses = uses_by_node(question, [name for domain in domains for name in domain.nodes])
    except DeadlineExceeded:
        return found
    holders = [use.holder for uses_there in uses.values() for use in uses_there]
    holders.sort(key=lambda one: (-one.devices, one.node, one.pods, one.claims))
    held_in = where(domains[0].level, domains[0].name) if holders else ""
    more = max(len(holders) - _MAX_HOLDERS, 0)
    return replace(found, holders=tuple(holders[:_MAX_HOLDERS]), more_holders=more, held_in=held_in)


# -- the slices and sub-groups of the gang ------------------------------------------------------------------------


def planned_subgroups(problem: GangProblem, plan: GangPlan, snapshot: Snapshot) -> tuple[ExplainedSubGroup, ...]:
    """Where each slice and sub-group of a plan is."""
    return tuple(
        ExplainedSubGroup(
            one.name,
            len(members),
            one.level,
            _domain(one, plan.placements[members[0].uid][0], problem, snapshot),
            len(members),
        )
        for one, members in _subgroups(problem)
    )


def _rooms_of_subgroups(question: GangQuestion) -> tuple[ExplainedSubGroup, ...]:
    """The most room that there is for each slice and sub-group alone; none after the deadline.

    Those that differ from _MAX_PLANNED others are left out.
    """
    known: dict[Hashable, tuple[str, int]] = {}
    found = []
    try:
        problem = question.problem(question.gang.missing)
        for one, members in _subgroups(problem):
            needs = tuple((each.requirements.key, each.nodes, each.excluded, each.limits) for each in members)
            key = one.level, frozenset(one.placed.items()), needs, _shape(one)
            if key not in known and len(known) < _MAX_PLANNED:
                known[key] = _alone(one, members, problem, question)
            if key in known:
                found.append(ExplainedSubGroup(one.name, len(members), one.level, *known[key]))
    except DeadlineExceeded:
        return ()
    return tuple(found)


def _lacking_subgroups(subgroups: Iterable[ExplainedSubGroup], when: str) -> Iterator[str]:
    """The smallest sub-group that has no room even alone, as a sentence; nothing if each has room. `when` is a word.

    A larger one can lack room because of the sub-groups in it.
    """
    lacking = [one for one in subgroups if one.room < one.pods]
    if lacking:
        one = min(lacking, key=lambda one: (one.pods, -one.room))
        word = "node" if one.level == ONE_NODE else f"domain of {one.level}"
        most = f"the most room is in {one.domain}, for {one.room}" if one.room else "none has room"
        yield f"{one.part} needs {counted(one.pods, 'pod')} in one {word}: {when} {most}"


def _subgroups(problem: GangProblem) -> Iterator[tuple[SubGroup, list[GangMember]]]:
    """The sub-groups that have members to place, with these, in the order of the tree."""
    members = {member.uid: member for member in problem.members}
    for subgroup in islice(_flat(problem.subgroups), _MAX_SUBGROUPS):
        own = [members[uid] for uid in subgroup.members if uid in members]
        if own:
            yield subgroup, own


def _flat(subgroups: Iterable[SubGroup]) -> Iterator[SubGroup]:
    for subgroup in subgroups:
        yield subgroup
        yield from _flat(subgroup.inner)


def _shape(subgroup: SubGroup) -> Hashable:
    """What decides the plan of a sub-group besides its members."""
    return tuple((one.level, len(one.members), frozenset(one.placed.items()), _shape(one)) for one in subgroup.inner)


def _domain(subgroup: SubGroup, node: str, problem: GangProblem, snapshot: Snapshot) -> str:
    if subgroup.level == ONE_NODE:
        return node
    return snapshot.domains(path_labels(subgroup.level, problem.levels)).name_of.get(node, "")


def _alone(
    subgroup: SubGroup, members: list[GangMember], problem: GangProblem, question: GangQuestion
) -> tuple[str, int]:
    """(the domain for this sub-group alone, or the one with the most room, the members that fit there)."""
    is_node = subgroup.level == ONE_NODE
    alone = replace(
        problem,
        members=tuple(members),
        topology=ONE_NODE if is_node else "preferred",
        topology_label="" if is_node else subgroup.level,
        placed=subgroup.placed,
        subgroups=subgroup.inner,
    )
    found = question.plan(alone)
    if isinstance(found, GangPlan):
        return _domain(subgroup, found.placements[members[0].uid][0], problem, question.snapshot), len(members)
    most = most_room(alone, found, question.plan)
    domains = question.snapshot.domains(path_labels(most.level, problem.levels)).nodes
    node = next(iter(domains.get(most.domain, ())), "")
    return _domain(subgroup, node, problem, question.snapshot) if most.room else "", most.room


# -- the fleet without other pods ----------------------------------------------------------------------------------


class EmptiedFleet:
    """A snapshot in which only the devices of one gang are in use. `question` asks for the gang there.

    `usable` are the nodes on which some member of the problem fits then. `is_exact` is false if devices of pools that
    several nodes share are in use, or if the policy excludes devices that a program uses without a claim: neither are
    released.
    """

    def __init__(self, question: GangQuestion, problem: GangProblem) -> None:
        """Raises DeadlineExceeded."""
        snapshot, empty_nodes = question.snapshot, EmptyNodes()
        kept = own_devices(question.gang.key, snapshot)
        node_infos = {}
        for name, node_info in snapshot.node_infos.items():
            question.context.deadline.check()
            node_infos[name] = empty_nodes.of(node_info, kept.get(name, ()))
        emptied, caches = hypothetical_snapshot(snapshot, node_infos, snapshot.version), PlannerCaches()
        self.question = replace(question, snapshot=emptied, caches=caches)
        self._node_infos = node_infos
        self._problem = problem
        rooms = [
            NodeRooms(units, emptied, question.context, caches.rankings, caches.memory)
            for units in equal_units(problem.members)
        ]
        self.usable = frozenset(name for one in rooms for name in one.most)
        drift = any(member.requirements.policy.drift == "filter" for member in problem.members)
        self.is_exact = not any(
            (node_info.busy and name not in kept) or (drift and node_info.drift)
            for name, node_info in node_infos.items()
        )

    @property
    def has_taints(self) -> bool:
        """Whether a device has a taint."""
        return any(one.device.taints for info in self._node_infos.values() for one in info.inventory.devices)

    def plan_without_taints(self, problem: GangProblem, on: Snapshot | None = None) -> GangPlan | GangShortage:
        """Plan on the empty nodes, or on a snapshot, as if no device had a taint. Raises DeadlineExceeded."""
        context = self.question.context
        context = replace(context, features=replace(context.features, taints=False), placements=None)
        return plan_gang(problem, on or self.question.snapshot, context)

    def reasons(self, member: GangMember) -> dict[Reason, int]:
        """Why nodes have no devices for a member even then, with their number: the most frequent reason if no node has.

        Pools that are updated or invalid, and taints, are always told. Raises DeadlineExceeded.
        """
        found, fits = Counter[Reason](), False
        for one in self._ranking(member).nodes_by_status(self._allowed(member)):
            if isinstance(one.status, Unschedulable):
                found[one.status.reason] += one.nodes
            else:
                fits = True
        first = [] if fits else [reason for reason, _ in found.most_common(1)]
        told = sorted((reason for reason in found if reason.code in _TOLD), key=str)
        return {reason: found[reason] for reason in dict.fromkeys((*first, *told))}

    def mistake(self) -> str:
        """What is wrong with the claims of a member, if no wait helps; '' if nothing is. Raises DeadlineExceeded."""
        pods = {pod.uid: pod for pod in self.question.members.pods}
        for kind in equal_members(self._problem.members):
            pod, fault = pods[kind[0].uid], self._ranking(kind[0]).fault()
            if fault is not None:
                return f"pod {pod.key}: {fault}"
        return ""

    def _ranking(self, member: GangMember) -> NodeRanking:
        """Raises DeadlineExceeded."""
        found = self.question.caches.rankings.get_or_create(member.requirements)
        if not found.update(self.question.snapshot, self.question.context):
            raise DeadlineExceeded
        return found

    def _allowed(self, member: GangMember) -> set[str]:
        selectors = member.requirements.node_selectors
        return {
            name
            for name, node_info in self._node_infos.items()
            if (member.nodes is None or name in member.nodes)
            and all(selector.matches(name, node_info.node.labels) for selector in selectors)
        }

    def updating(self) -> int:
        """The number of nodes for the members of which a pool is being updated: they may get more devices."""
        allowed = set[str]().union(*map(self._allowed, self._problem.members))
        pools = (self._node_infos[name].inventory.pools for name in allowed)
        return sum(any(pool.incomplete for pool in some) for some in pools)
