"""Near misses of a gang: changes that would make it fit, the cheapest first.

Cheap is a change that stops few pods, its own or others, and then few devices. The planner plans the gang with each
change, and only changes with a plan are named. They are few, and not all that exist.

For the end of other pods (`_Releases`), a search in each of a few domains lists the pods there, those first whose end
stops the fewest pods and frees the most devices. It finds the first few of the list without which the planner has a
plan, and then takes back the end of every pod that the plan does not need. It does so once more with those first that
share a claim with members.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from heapq import nsmallest
from itertools import chain

from extender.allocation import Snapshot
from extender.api.group_topology import ONE_NODE
from extender.api.label_domains import natural
from extender.api.resource_claims import Result
from extender.base.deadline import DeadlineExceeded
from extender.base.text_limits import counted
from extender.explain.gang_question import (
    ALLOCATED,
    DeviceUse,
    GangNearMiss,
    GangQuestion,
    devices_asked,
    free_devices,
    stopped_pods,
    uses_by_node,
    where,
    widest_domains,
)
from extender.explain.scenario import Scenario, apply_scenario, only_nodes
from extender.gangs.domains import Domain
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import GangPlan, GangProblem, GangShortage
from extender.topology.link_knowledge import assumed_for

_MAX_FOUND = 5  # the cheapest near misses, in one explanation
_MAX_SIZES = 3  # smaller minimums that are tried
_MAX_DOMAINS = 8  # in which the end of pods is tried
_MAX_NODES = 64  # of a domain, whose pods are tried
_MAX_LEFT_OUT = 48  # uses of one near miss that are left out one after the other; a plan takes some 30 ms
_MAX_NAMED = 8  # holders named in a sentence
_LIMITS = f"the end of other pods was tried in {_MAX_DOMAINS} domains and on {_MAX_NODES} nodes of each only"
_GAVE_UP = "gave up: the claims allow too many combinations to find the fewest pods whose end helps"
_MAYBE_FEWER = " (gave up: the end of fewer may do)"

Uses = Mapping[str, Sequence[DeviceUse]]


class GangNearMisses:
    """Near misses of a gang. `shortage` is the result of a plan for its minimum. No method raises DeadlineExceeded.

    `cut_short` is the limit that ended the search; '' if it tried all changes.
    """

    def __init__(self, shortage: GangShortage) -> None:
        self._shortage = shortage
        self._found: list[GangNearMiss] = []
        self.cut_short = ""

    def cheapest(self) -> tuple[GangNearMiss, ...]:
        """The near misses found so far, the cheapest first; of equal ones, the gang's own changes first."""
        return tuple(sorted(dict.fromkeys(self._found), key=lambda one: (one.pods, one.devices))[:_MAX_FOUND])

    def try_own_changes(self, question: GangQuestion) -> None:
        """Try the gang without its own constraints, and with a smaller minimum."""
        self._collect(chain(_by_constraint(question), _by_minimum(question, self._shortage)))

    def try_ends(self, question: GangQuestion, pins: Sequence[DeviceUse]) -> None:
        """Try the end of other pods. See uses_of_shared_claims for `pins`."""
        releases = _Releases(question, self._shortage, pins)
        self._collect(releases.near_misses())
        self.cut_short = self.cut_short or releases.cut_short

    def _collect(self, near_misses: Iterator[GangNearMiss]) -> None:
        try:
            for one in near_misses:
                self._found.append(one)
        except DeadlineExceeded:
            self.cut_short = "the work limit of an explanation ended the search for changes: ask again"


def less_constrained(question: GangQuestion) -> Iterator[tuple[GangProblem, str]]:
    """The gang without one of its own constraints on the domain or its nodes, and the words for this change."""
    problem = question.problem(question.gang.missing)
    if any(member.limits for member in problem.members):
        members = tuple(replace(member, limits=()) for member in problem.members)
        asked = [pod.constraints for pod in question.members.pods]
        apart = any(not term.weight for one in asked for term in one.apart)
        spread = any(term.required for one in asked for term in one.spread)
        names = ["anti-affinity to each other"] * apart + ["topology spread"] * spread
        yield replace(problem, members=members), f"without the pods' {' and '.join(names)}"
    if problem.topology == ONE_NODE:
        yield replace(problem, topology="preferred"), "without the constraint to one node"
    if problem.topology == "required":
        yield replace(problem, topology="preferred"), "with topology preferred instead of required"
    if problem.topology_label:
        wanted = f"without the constraint to one value of {problem.topology_label}"
        yield replace(problem, topology_label=""), wanted
    if problem.subgroups:
        yield replace(problem, subgroups=()), "without its slices and sub-groups"


def _by_constraint(question: GangQuestion) -> Iterator[GangNearMiss]:
    for changed, wanted in less_constrained(question):
        found = question.plan(changed)
        if isinstance(found, GangPlan):
            note = _assumed(question, found)
            yield GangNearMiss(0, 0, f"fits {wanted}, {where(found.level, found.domain)}{note}")


def _by_minimum(question: GangQuestion, shortage: GangShortage) -> Iterator[GangNearMiss]:
    """The gang with a smaller minimum that its slices allow. A minimum below 2 is not tried: it makes no gang.

    Nor is one where sub-groups have minimums of their own, whose sum it cannot be below.
    """
    if question.members.needed:
        return
    gang, pods = question.gang, question.members.pods[: question.gang.missing]
    needing = [question.members.requirements.get(pod.uid) for pod in pods]
    sizes = [
        size
        for size in range(1, len(pods))
        if size + gang.placed.total() > 1
        and 0 < size - needing[:size].count(None) <= shortage.room
        and not replace(gang, minimum=gang.minimum - len(pods) + size).problem(question.policy.group_levels)
    ]
    for size in reversed(sizes[-_MAX_SIZES:]):
        found = question.plan(question.problem(size))
        if isinstance(found, GangPlan):
            lacking = sum(devices_asked(one) for one in needing[size:] if one is not None)
            smaller = gang.minimum - len(pods) + size
            text = f"fits with a minimum of {smaller} instead of {gang.minimum} members{_assumed(question, found)}"
            yield GangNearMiss(len(pods) - size, lacking, text)
            return


# -- by the end of other pods --------------------------------------------------------------------------------------


class _Releases:
    """Near misses by the end of other pods, a few in each domain. `cut_short` is the limit that ended it.

    `shortage` is the result of a plan for the minimum. See uses_of_shared_claims for `pins`.
    """

    def __init__(self, question: GangQuestion, shortage: GangShortage, pins: Sequence[DeviceUse]) -> None:
        self._question = question
        self._shortage = shortage
        self._pins = pins
        self._pinned = {claim.uid for pin in pins for claim in pin.claims}
        self._loose: dict[frozenset[str], tuple[GangProblem, Snapshot] | None] = {}  # by UID of claims that have ended
        self._gave_up = False  # whether a plan of a search ended at its step limit
        self.cut_short = ""

    def near_misses(self) -> Iterator[GangNearMiss]:
        """Raises DeadlineExceeded."""
        domains = widest_domains(self._question, self._shortage)
        self.cut_short = _LIMITS if len(domains) > _MAX_DOMAINS else ""
        for domain in domains[:_MAX_DOMAINS]:
            found = None
            for found in self._in(domain):
                yield found
            if found is None and self._gave_up:
                self.cut_short = self.cut_short or _GAVE_UP

    def _in(self, domain: Domain) -> Iterator[GangNearMiss]:
        """At most one near miss for each order in which the uses may end."""
        uses = uses_by_node(self._question, domain.nodes)
        names = sorted(uses, key=lambda name: (stopped_pods(uses[name]), _devices_of(uses[name]), natural(name)))
        if len(names) > _MAX_NODES:
            self.cut_short = _LIMITS
        near, ordered = self._around(domain, names[:_MAX_NODES]), self._in_order(uses, names[:_MAX_NODES])
        plan = self._plan(ordered, near) if ordered else None
        if not isinstance(plan, GangPlan):
            self._gave_up |= plan is not None and plan.gave_up
            self.cut_short = _LIMITS if plan is not None and len(near) < len(domain.nodes) else self.cut_short
            return
        yield self._first_few(plan, ordered, near)
        # If the claims that pin the members were free, they might fit on nodes where no other pod has to end.
        pins_first = sorted(ordered, key=self._is_no_pin)
        if any(one is not other for one, other in zip(ordered, pins_first, strict=True)):
            yield self._first_few(plan, pins_first, near)

    def _first_few(self, plan: GangPlan, ordered: Sequence[DeviceUse], near: Collection[str]) -> GangNearMiss:
        """The near miss by the end of the first few uses. `plan` is without all of them."""

        def fits(count: int) -> bool:
            nonlocal plan
            found = self._plan(ordered[:count], near)
            plan = found if isinstance(found, GangPlan) else plan
            return found is plan

        ended = ordered[: bisect_left(range(len(ordered)), True, 1, key=fits)]
        plan, needed, is_least = self._without_unneeded(plan, ended, near)
        with suppress(DeadlineExceeded):
            found = self._plan(needed)  # with all nodes, the domain may be another one
            plan = found if isinstance(found, GangPlan) else plan
        return _ends(self._question, needed, plan, "" if is_least else _MAYBE_FEWER)

    def _is_no_pin(self, use: DeviceUse) -> bool:
        return self._pinned.isdisjoint(claim.uid for claim in use.claims)

    def _in_order(self, uses: Uses, names: Iterable[str]) -> list[DeviceUse]:
        """The uses on these nodes whose end is tried, those first that keep the gang from every domain."""
        others = [use for name in names for use in uses[name]]
        known = {claim.uid for use in others for claim in use.claims}
        pins = [pin for pin in self._pins if any(claim.uid not in known for claim in pin.claims)]
        return [*pins, *sorted(others, key=lambda use: (use.stopped, -use.holder.devices))]

    def _plan(self, ended: Sequence[DeviceUse], names: Collection[str] | None = None) -> GangPlan | GangShortage:
        """Plan without these uses: on the nodes with these names, or on all."""
        claims = {claim.uid: claim for use in ended for claim in use.claims if claim.uid in self._pinned}
        key = frozenset(claims)
        if key not in self._loose:
            loose = self._question.without(tuple(claims.values()))
            self._loose[key] = (loose.problem(loose.gang.missing), loose.snapshot) if loose is not None else None
        asked = self._loose[key]
        if asked is None:
            return self._shortage
        problem, snapshot = asked
        snapshot = snapshot if names is None else only_nodes(snapshot, names)
        held = [result for claim in claims.values() if claim.allocation for result in claim.allocation.results]
        released = tuple(result for result in _results(ended) if result not in held)
        changed = apply_scenario(snapshot, (), Scenario(released=released))
        return plan_gang(problem, changed, self._question.context)

    def _without_unneeded(
        self, plan: GangPlan, ended: Sequence[DeviceUse], near: Collection[str]
    ) -> tuple[GangPlan, Sequence[DeviceUse], bool]:
        """The plan, and the uses that it needs the end of: without any of them, there is no plan.

        False if a limit ended that, or if the planner gave up.
        """
        needed, is_least = list(ended), True
        dearest_first = sorted(ended, key=lambda use: (-use.stopped, -use.holder.devices))
        try:
            for dropped in (self._untouched(plan, ended), *([use] for use in dearest_first)):
                left = [use for use in needed if not any(use is other for other in dropped)]
                if not left or len(left) == len(needed):
                    continue
                if len(dropped) == 1 and len(needed) > _MAX_LEFT_OUT:
                    is_least = False
                    break
                found = self._plan(left, near)
                if isinstance(found, GangPlan):
                    plan, needed = found, left
                else:
                    is_least &= not found.gave_up
        except DeadlineExceeded:
            is_least = False
        return plan, needed, is_least

    def _around(self, domain: Domain, names: Sequence[str]) -> Collection[str]:
        """These nodes, those where members run, and the others of the domain with the most free devices."""
        node_infos = self._question.snapshot.node_infos
        known = {*names, *(name for name in self._question.gang.placed if name in node_infos)}
        free = {name: free_devices(node_infos[name]) for name in domain.nodes if name not in known}
        return [*sorted(known), *nsmallest(_MAX_NODES, free, key=lambda name: (-free[name], natural(name)))]

    def _untouched(self, plan: GangPlan, uses: Sequence[DeviceUse]) -> Sequence[DeviceUse]:
        """The uses of devices that the plan does not take. Some may keep it from others, such as by counters."""
        node_infos = self._question.snapshot.node_infos
        taken = {
            result.device
            for name, placement in plan.placements.values()
            for result in chain.from_iterable(placement.results(node_infos[name]))
        }
        return [use for use in uses if not any(result.device in taken for result in use.results)]


def _assumed(question: GangQuestion, plan: GangPlan) -> str:
    """What is said of a plan that rests on links of a table."""
    intents = (one.intent for one in question.members.requirements.values())
    return assumed_for(intents, (question.snapshot.node_infos[name] for name in sorted(plan.nodes)))


def _ends(question: GangQuestion, uses: Sequence[DeviceUse], plan: GangPlan, note: str = "") -> GangNearMiss:
    """The near miss by the end of the pods of these uses, with which the gang has this plan."""
    sentence = f"fits {where(plan.level, plan.domain)} without {_named(uses)}{note}{_assumed(question, plan)}"
    return GangNearMiss(stopped_pods(uses), _devices_of(uses), sentence, tuple(use.holder for use in uses))


def _results(uses: Iterable[DeviceUse]) -> tuple[Result, ...]:
    """Each device once: several nodes can list the same use of a shared pool."""
    return tuple({(result.device, result.share_id): result for use in uses for result in use.results}.values())


def _devices_of(uses: Iterable[DeviceUse]) -> int:
    return sum(use.holder.devices for use in uses)


def _named(uses: Sequence[DeviceUse]) -> str:
    texts = [_text(use) for use in uses[:_MAX_NAMED]]
    more = [f"{len(uses) - _MAX_NAMED} more"] if len(uses) > _MAX_NAMED else []
    return " and ".join([*texts, *more])


def _text(use: DeviceUse) -> str:
    """A holder as text, such as 'training/llm-0 (8 devices on n1, group llm of 4 pods)'."""
    holder = use.holder
    name = ", ".join(holder.pods) or f"claim {', '.join(holder.claims)}"
    count = counted(holder.devices, "device")
    state = "" if holder.state == ALLOCATED else f", {holder.state}"
    group = f", group {holder.group}" if holder.group else ""
    group += f" of {use.group_pods} pods" if use.group_pods > 1 else ""
    return f"{name} ({count} on {holder.node}{state}{group})"
