"""Near misses of a gang: changes that would make it fit, the cheapest first.

Cheap is a change that stops few pods, its own or others, and then few devices. The planner plans the gang with each
change, and only changes with a plan are named. They are few, and not all that exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.diagnosis.device_holders import ALLOCATED, DeviceUse, Holder, uses_by_node
from extender.diagnosis.scenario import Scenario, apply_scenario, only_nodes
from extender.model import CallBudget, CallBudgetSpent, Result
from extender.policy import Policy
from extender.scheduling import (
    NODE,
    Domain,
    Domains,
    EvaluationContext,
    Gang,
    GangMembers,
    GangMemory,
    GangPlan,
    GangProblem,
    GangShortage,
    PodRequirements,
    RankingCache,
    gang_problem,
    natural,
    plan_gang,
)

_DOMAINS = 8  # in which a release is tried
_FOUND = 5  # the cheapest near misses, in one explanation
_NODES = 64  # of a domain, on which a release is tried
_USES = 8  # of a node
_ROOMS = 480  # plans for one node per explanation
_ROOM_STEPS = 100  # of such a plan
_SIZES = 3  # smaller minimums that are tried
_MORE = 2  # releases that are added one by one if the first choice does not suffice
_NAMED = 4  # holders named in a sentence
_LIMITS = f"the end of other pods was tried in {_DOMAINS} domains and on {_NODES} nodes of each only"


@dataclass(frozen=True, slots=True)
class GangQuestion:
    """A gang without room, and what the planner needs. `rankings` and `memory` follow the snapshot."""

    gang: Gang
    members: GangMembers
    policy: Policy
    snapshot: Snapshot
    context: EvaluationContext
    rankings: RankingCache
    memory: GangMemory

    def problem(self, size: int) -> GangProblem:
        """The problem of the first members, so many pods."""
        return gang_problem(self.gang, self.members.first(size), self.policy)

    def plan(self, problem: GangProblem) -> GangPlan | GangShortage:
        """Plan on the snapshot. Raises CallBudgetSpent."""
        return plan_gang(problem, self.snapshot, self.context, self.rankings, self.memory)


@dataclass(frozen=True, slots=True)
class GangNearMiss:
    """One change with which the gang has a plan."""

    pods: int  # that would not run: others whose devices are needed, or members that are left out
    devices: int  # of these pods
    sentence: str
    holders: tuple[Holder, ...] = ()  # the others whose devices are needed


@dataclass(frozen=True, slots=True)
class GangNearMisses:
    """The near misses, the cheapest first."""

    found: tuple[GangNearMiss, ...]
    cut_short: str  # why more changes were not tried; '' if all were


def where(level: str, domain: str) -> str:
    """A domain as text, such as 'on node n1' or 'in topology.kubernetes.io/rack=r7'."""
    if not level:
        return "across the cluster"
    return f"on node {domain}" if level == NODE else f"in {level}={domain}"


def gang_near_misses(question: GangQuestion, shortage: GangShortage) -> GangNearMisses:
    """The near misses of a gang. `shortage` is the result of a plan for its minimum. Never raises CallBudgetSpent."""
    releases = _Releases(question, shortage)
    found, cut_short = list[GangNearMiss](), ""
    try:
        for one in chain(_by_constraint(question), _by_minimum(question, shortage), releases.near_misses()):
            found.append(one)
        cut_short = releases.cut_short
    except CallBudgetSpent:
        cut_short = "the work limit of an explanation ended the search for changes: ask again"
    ordered = sorted(found, key=lambda one: (one.pods, one.devices))  # of equal ones, the gang's own changes first
    return GangNearMisses(tuple(ordered[:_FOUND]), cut_short)


def best_domain(question: GangQuestion, problem: GangProblem, shortage: GangShortage) -> Domain | None:
    """The domain with the most room; None without any node."""
    return next(iter(_domains(question, problem, shortage)), None)


def _by_constraint(question: GangQuestion) -> Iterator[GangNearMiss]:
    """The gang without its own constraints on the domain."""
    problem = question.problem(question.gang.missing)
    changes = []
    if problem.topology == "required":
        changes.append((replace(problem, topology="preferred"), "with topology preferred instead of required"))
    if problem.topology_label:
        wanted = f"without the constraint to one value of {problem.topology_label}"
        changes.append((replace(problem, topology_label=""), wanted))
    for changed, wanted in changes:
        found = question.plan(changed)
        if isinstance(found, GangPlan):
            yield GangNearMiss(0, 0, f"fits {wanted}, {where(found.level, found.domain)}")


def _by_minimum(question: GangQuestion, shortage: GangShortage) -> Iterator[GangNearMiss]:
    """The gang with a smaller minimum. A minimum below 2 is not tried: it makes no gang."""
    gang, pods = question.gang, question.members.pods[: question.gang.missing]
    needing = [question.members.requirements.get(pod.uid) for pod in pods]
    sizes = [
        size
        for size in range(1, len(pods))
        if size + gang.placed.total() > 1 and 0 < len(pods[:size]) - needing[:size].count(None) <= shortage.room
    ]
    for size in reversed(sizes[-_SIZES:]):
        if isinstance(question.plan(question.problem(size)), GangPlan):
            lacking = sum(_devices(one) for one in needing[size:] if one is not None)
            smaller = gang.minimum - len(pods) + size
            yield GangNearMiss(
                len(pods) - size, lacking, f"fits with a minimum of {smaller} instead of {gang.minimum} members"
            )
            return


def _devices(requirements: PodRequirements) -> int:
    return sum(request.alternatives[0].count for spec in requirements.specs for request in spec.requests)


class _Release(NamedTuple):
    """The end of some pods on one node, and for how many more members the node then has room."""

    node: str
    uses: tuple[DeviceUse, ...]
    gain: int

    @property
    def pods(self) -> int:
        return sum(max(len(use.holder.pods), 1) for use in self.uses)

    @property
    def devices(self) -> int:
        return sum(use.holder.devices for use in self.uses)


class _Choice(NamedTuple):
    pods: int
    devices: int
    releases: tuple[_Release, ...]


class _Releases:
    """Near misses by the end of other pods, at most one in each domain."""

    def __init__(self, question: GangQuestion, shortage: GangShortage) -> None:
        self._question = question
        self._shortage = shortage
        self._problem = question.problem(question.gang.missing)
        # A member that is placed alone must only find devices: the domain is given.
        self._anywhere = replace(self._problem, topology="none", topology_label="", placed={})
        self._own = {pod.uid for pod in question.gang.waiting}
        self._rooms_left = _ROOMS
        self.cut_short = ""

    def near_misses(self) -> Iterator[GangNearMiss]:
        """Raises CallBudgetSpent."""
        domains = _domains(self._question, self._problem, self._shortage)
        self.cut_short = _LIMITS if len(domains) > _DOMAINS else ""
        for domain in domains[:_DOMAINS]:
            found = self._in(domain)
            if found is not None:
                yield found

    def _in(self, domain: Domain) -> GangNearMiss | None:
        """The end of the fewest pods in a domain that was found, if the gang then has a plan."""
        question, snapshot, budget = self._question, self._question.snapshot, self._question.context.budget
        node_infos = (snapshot.node_infos[name] for name in domain.nodes)
        uses = uses_by_node(node_infos, snapshot, question.gang.key, self._own, budget)
        names = sorted(uses, key=lambda name: (len(uses[name]), _held(uses[name]), natural(name)))
        needed = len(self._problem.members) - self._room_in(domain)
        offers = [one for name in names[:_NODES] for one in self._offers(name, uses[name], needed)]
        chosen = _choose(offers, needed, budget)
        if len(names) > _NODES or self._rooms_left <= 0:
            self.cut_short = _LIMITS
        for _ in range(_MORE + 1):
            if not chosen:
                return None
            found = self._plan_without(chosen)
            if isinstance(found, GangPlan):
                holders = tuple(use.holder for one in chosen for use in one.uses)
                sentence = f"fits {where(found.level, found.domain)} without {_named(holders)}"
                pods, devices = sum(one.pods for one in chosen), sum(one.devices for one in chosen)
                return GangNearMiss(pods, devices, sentence, holders)
            rest = [one for one in offers if all(one.node != other.node for other in chosen)]
            more = _choose(rest, 1, budget)
            chosen = [*chosen, *more] if more else []
        return None

    def _room_in(self, domain: Domain) -> int:
        if (domain.level, domain.name) == (self._shortage.level, self._shortage.domain):
            return self._shortage.room
        nodes = frozenset(domain.nodes)
        members = tuple(replace(member, nodes=nodes) for member in self._anywhere.members)
        found = self._question.plan(replace(self._anywhere, members=members))
        return len(members) if isinstance(found, GangPlan) else found.room

    def _offers(self, name: str, uses: Sequence[DeviceUse], needed: int) -> Iterator[_Release]:
        """Releases on one node, each with room for more members than the one before."""
        ordered = sorted(uses, key=lambda use: (use.holder.devices, use.holder.pods, use.holder.claims))
        largest = list(reversed(ordered))
        before = self._room(name, ())
        most = min(self._room(name, ordered) - before, needed)
        best = 0
        several = (largest[:count] for count in range(2, min(len(uses), _USES) + 1))
        for released in chain(([use] for use in ordered[:_USES]), several):
            if best >= most or self._rooms_left <= 0:
                return
            gain = self._room(name, released) - before
            if gain > best:
                best = gain
                yield _Release(name, tuple(released), gain)

    def _room(self, name: str, released: Collection[DeviceUse]) -> int:
        """How many members the node has room for without these uses."""
        self._rooms_left -= 1
        snapshot = apply_scenario(
            only_nodes(self._question.snapshot, (name,)), (), Scenario(released=_results(released))
        )
        found = plan_gang(self._anywhere, snapshot, self._question.context, steps=_ROOM_STEPS)
        return len(self._anywhere.members) if isinstance(found, GangPlan) else found.room

    def _plan_without(self, releases: Iterable[_Release]) -> GangPlan | GangShortage:
        released = _results(use for one in releases for use in one.uses)
        snapshot = apply_scenario(self._question.snapshot, (), Scenario(released=released))
        return plan_gang(self._problem, snapshot, self._question.context)


def _results(uses: Iterable[DeviceUse]) -> tuple[Result, ...]:
    """Each device once: a use of a pool that several nodes see is on each of them."""
    return tuple({(result.device, result.share_id): result for use in uses for result in use.results}.values())


def _held(uses: Iterable[DeviceUse]) -> int:
    return sum(use.holder.devices for use in uses)


def _choose(offers: Iterable[_Release], needed: int, budget: CallBudget) -> list[_Release]:
    """At most one release of each node with room for so many members together, the fewest pods, then devices.

    None if all do not suffice. Raises CallBudgetSpent.
    """
    cheapest: dict[int, _Choice] = {0: _Choice(0, 0, ())}  # by members, at most `needed`
    for _, group in groupby(offers, key=lambda one: one.node):
        own, before = list(group), list(cheapest.items())
        budget.check()
        for gained, choice in before:
            for one in own:
                total = min(gained + one.gain, needed)
                new = _Choice(choice.pods + one.pods, choice.devices + one.devices, (*choice.releases, one))
                if total not in cheapest or new[:2] < cheapest[total][:2]:
                    cheapest[total] = new
    return list(cheapest[needed].releases) if needed in cheapest else []


def _named(holders: Sequence[Holder]) -> str:
    texts = [_text(holder) for holder in holders[:_NAMED]]
    more = [f"{len(holders) - _NAMED} more"] if len(holders) > _NAMED else []
    return " and ".join([*texts, *more])


def _text(holder: Holder) -> str:
    """A holder as text, such as 'training/llm-0 (8 devices on n1)'."""
    who = ", ".join(holder.pods) or f"claim {', '.join(holder.claims)}"
    count = f"{holder.devices} {'device' if holder.devices == 1 else 'devices'}"
    state = "" if holder.state == ALLOCATED else f", {holder.state}"
    group = f", group {holder.group}" if holder.group else ""
    return f"{who} ({count} on {holder.node}{state}{group})"


def _domains(question: GangQuestion, problem: GangProblem, shortage: GangShortage) -> list[Domain]:
    """The widest domains that may hold the gang: the one with the most room, then those with the most free devices."""
    node_infos = question.snapshot.node_infos
    levels = Domains(problem, question.snapshot, node_infos)
    widest: Sequence[Domain] = ()
    for level in levels.wider():
        widest = level
    widest = widest or levels.single(node_infos)

    def order(domain: Domain) -> tuple[bool, int, object]:
        question.context.budget.check()
        free = 0
        for name in domain.nodes:
            node_info = node_infos[name]
            free += len(node_info.inventory.places) - node_info.busy.bit_count()
        known = (domain.level, domain.name) == (shortage.level, shortage.domain)
        return not known, -free, natural(domain.name)

    return sorted((domain for domain in widest if domain.nodes), key=order)
