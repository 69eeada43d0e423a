"""Near misses of a gang by the end of other pods: the fewest pods that were found, in each of a few domains.

Two searches choose the pods. The first counts how many more members each node has room for without some of its pods,
and adds these numbers: that is right for equal members. The second ends all pods of some nodes, and then takes back
the end of every pod that the plan does not need. The planner confirms the result on the whole snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.diagnosis.device_holders import ALLOCATED, DeviceUse, stopped_pods, uses_by_node
from extender.diagnosis.gang_question import GangNearMiss, GangQuestion, where, widest_domains
from extender.diagnosis.scenario import Scenario, apply_scenario, only_nodes
from extender.model import Deadline, Result, counted
from extender.scheduling import MAX_STEPS, Domain, GangPlan, GangProblem, GangShortage, held_results, natural, plan_gang

_DOMAINS = 8  # in which the end of pods is tried
_NODES = 64  # of a domain, whose pods are tried
_USES = 8  # of a node, in the first search
_PLANS = 480  # for a few nodes, in one explanation
_STEPS = 100  # of such a plan
_NAMED = 4  # holders named in a sentence
_LIMITS = f"the end of other pods was tried in {_DOMAINS} domains and on {_NODES} nodes of each only"

Uses = Mapping[str, Sequence[DeviceUse]]


class _Offer(NamedTuple):
    """The end of some pods of one node, and for how many more members the node then has room."""

    node: str
    uses: tuple[DeviceUse, ...]
    gain: int


class _Choice(NamedTuple):
    pods: int
    devices: int
    uses: tuple[DeviceUse, ...]


class GangReleases:
    """Near misses by the end of other pods, at most one in each domain. `cut_short` is the limit that ended it."""

    def __init__(self, question: GangQuestion, shortage: GangShortage) -> None:
        """`shortage` is the result of a plan for the minimum."""
        self._question = question
        self._shortage = shortage
        self._problem = question.problem(question.gang.missing)
        # On a single node, members must only find devices: the domain is given.
        self._anywhere = replace(self._problem, topology="none", topology_label="", placed={})
        self._own = {pod.uid for pod in question.gang.waiting}
        self._plans_left = _PLANS
        self.cut_short = ""

    def near_misses(self) -> Iterator[GangNearMiss]:
        """Raises DeadlineExceeded."""
        domains = widest_domains(self._question, self._shortage)
        self.cut_short = _LIMITS if len(domains) > _DOMAINS else ""
        for domain in domains[:_DOMAINS]:
            found = self._in(domain)
            if found is not None:
                yield found

    def _in(self, domain: Domain) -> GangNearMiss | None:
        question, snapshot = self._question, self._question.snapshot
        node_infos = (snapshot.node_infos[name] for name in domain.nodes)
        uses = uses_by_node(node_infos, snapshot, question.gang.key, self._own, question.context.deadline)
        names = sorted(uses, key=lambda name: (stopped_pods(uses[name]), _devices(uses[name]), natural(name)))
        if len(names) > _NODES:
            self.cut_short = _LIMITS
        for ended in self._searches(domain, {name: uses[name] for name in names[:_NODES]}):
            found = self._plan(self._problem, snapshot, ended) if ended else None
            if isinstance(found, GangPlan):
                holders = tuple(use.holder for use in ended)
                sentence = f"fits {where(found.level, found.domain)} without {_named(ended)}"
                return GangNearMiss(stopped_pods(ended), _devices(ended), sentence, holders)
        return None

    def _searches(self, domain: Domain, uses: Uses) -> Iterator[Sequence[DeviceUse]]:
        needed = len(self._problem.members) - self._room_in(domain)
        offers = [offer for name in uses for offer in self._offers(name, uses[name], needed)]
        yield _choose(offers, needed, self._question.context.deadline)
        yield self._by_removal(domain, uses)

    def _plan(
        self, problem: GangProblem, snapshot: Snapshot, ended: Iterable[DeviceUse], steps: int = MAX_STEPS
    ) -> GangPlan | GangShortage:
        """Plan without these uses."""
        changed = apply_scenario(snapshot, (), Scenario(released=_results(ended)))
        return plan_gang(problem, changed, self._question.context, steps=steps)

    def _small_plan(
        self, problem: GangProblem, snapshot: Snapshot, ended: Iterable[DeviceUse]
    ) -> GangPlan | GangShortage | None:
        """Plan for a few nodes; None if the number of such plans is used up."""
        if self._plans_left <= 0:
            self.cut_short = _LIMITS
            return None
        self._plans_left -= 1
        return self._plan(problem, snapshot, ended, steps=_STEPS)

    # -- by addition -----------------------------------------------------------------------------------------

    def _room_in(self, domain: Domain) -> int:
        if (domain.level, domain.name) == (self._shortage.level, self._shortage.domain):
            return self._shortage.room
        nodes = frozenset(domain.nodes)
        members = tuple(replace(member, nodes=nodes) for member in self._anywhere.members)
        found = self._question.plan(replace(self._anywhere, members=members))
        return len(members) if isinstance(found, GangPlan) else found.room

    def _offers(self, name: str, uses: Sequence[DeviceUse], needed: int) -> Iterator[_Offer]:
        """Ends of pods on one node, each with room for more members than the one before."""

        def rank(use: DeviceUse, stopped: int) -> tuple[int, int, tuple[str, ...], tuple[str, ...]]:
            return stopped, use.holder.devices, use.holder.pods, use.holder.claims

        ordered = sorted(uses, key=lambda use: rank(use, use.stopped))
        largest = sorted(uses, key=lambda use: rank(use, -use.stopped), reverse=True)
        snapshot = only_nodes(self._question.snapshot, (name,))
        before = self._room(snapshot, ())
        most = min(self._room(snapshot, ordered) - before, needed)
        best = 0
        several = (largest[:count] for count in range(2, min(len(uses), _USES) + 1))
        for ended in chain(([use] for use in ordered[:_USES]), several):
            if best >= most:
                return
            gain = self._room(snapshot, ended) - before
            if gain > best:
                best = gain
                yield _Offer(name, tuple(ended), gain)

    def _room(self, snapshot: Snapshot, ended: Collection[DeviceUse]) -> int:
        """How many members a single node has room for without these uses."""
        found = self._small_plan(self._anywhere, snapshot, ended)
        if found is None:
            return 0
        return len(self._anywhere.members) if isinstance(found, GangPlan) else found.room

    # -- by removal ------------------------------------------------------------------------------------------

    def _by_removal(self, domain: Domain, uses: Uses) -> Sequence[DeviceUse]:
        """The uses of the first few nodes, without those that the plan does not need; none if there is no plan."""
        snapshot = only_nodes(self._question.snapshot, (*uses, *self._freest(domain, uses)))
        names = list(uses)
        plan, low, high = self._small_plan(self._problem, snapshot, _of(names, uses)), 1, len(names)
        if not isinstance(plan, GangPlan):
            return ()
        while low < high:
            middle = (low + high) // 2
            found = self._small_plan(self._problem, snapshot, _of(names[:middle], uses))
            if isinstance(found, GangPlan):
                plan, high = found, middle
            else:
                low = middle + 1
        needed = self._touched(plan, _of(names[:high], uses))
        if not isinstance(self._small_plan(self._problem, snapshot, needed), GangPlan):
            needed = _of(names[:high], uses)  # the use of one device can keep another device from the plan
        for use in sorted(needed, key=lambda use: (-use.stopped, use.holder.devices)):
            fewer = [other for other in needed if other is not use]
            if isinstance(self._small_plan(self._problem, snapshot, fewer), GangPlan):
                needed = fewer
        return needed

    def _freest(self, domain: Domain, uses: Uses) -> list[str]:
        """The other nodes of the domain with the most free devices."""
        free = {}
        for name in domain.nodes:
            if name not in uses:
                node_info = self._question.snapshot.node_infos[name]
                free[name] = len(node_info.inventory.devices) - node_info.busy.bit_count()
        return sorted(free, key=lambda name: (-free[name], natural(name)))[:_NODES]

    def _touched(self, plan: GangPlan, uses: Sequence[DeviceUse]) -> Sequence[DeviceUse]:
        """The uses of devices that the plan takes."""
        node_infos = self._question.snapshot.node_infos
        taken = {
            result.device
            for name, placement in plan.placements.values()
            for result in held_results(node_infos[name], placement)
        }
        return [use for use in uses if any(result.device in taken for result in use.results)]


def _of(names: Iterable[str], uses: Uses) -> Sequence[DeviceUse]:
    return [use for name in names for use in uses[name]]


def _results(uses: Iterable[DeviceUse]) -> tuple[Result, ...]:
    """Each device once: several nodes can list the same use of a shared pool."""
    return tuple({(result.device, result.share_id): result for use in uses for result in use.results}.values())


def _devices(uses: Iterable[DeviceUse]) -> int:
    return sum(use.holder.devices for use in uses)


def _choose(offers: Iterable[_Offer], needed: int, deadline: Deadline) -> Sequence[DeviceUse]:
    """At most one offer of each node, with room for `needed` members together: the fewest pods, then devices.

    None if all do not suffice. Raises DeadlineExceeded.
    """
    cheapest: dict[int, _Choice] = {0: _Choice(0, 0, ())}  # by members, at most `needed`
    for _, group in groupby(offers, key=lambda offer: offer.node):
        own, before = list(group), list(cheapest.items())
        deadline.check()
        for gained, choice in before:
            for offer in own:
                total = min(gained + offer.gain, needed)
                uses = (*choice.uses, *offer.uses)
                pods, devices = stopped_pods(uses), choice.devices + _devices(offer.uses)
                if total not in cheapest or (pods, devices) < cheapest[total][:2]:
                    cheapest[total] = _Choice(pods, devices, uses)
    return cheapest[needed].uses if needed in cheapest else ()


def _named(uses: Sequence[DeviceUse]) -> str:
    texts = [_text(use) for use in uses[:_NAMED]]
    more = [f"{len(uses) - _NAMED} more"] if len(uses) > _NAMED else []
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
