"""Lets one gang at a time collect the freed devices of one domain, so that smaller pods do not starve it.

Off by default (`gang_collect_seconds`). While a gang collects, no other pod gets devices on the nodes of its domain.
After a collection, no gang collects for as long as this one did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import inf

import structlog

from extender.allocation import NodeInfo, Snapshot
from extender.allocation.what_if import hypothetical_snapshot
from extender.api.label_domains import natural
from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.api.reasons import Code
from extender.api.resource_claims import Result
from extender.base.deadline import DeadlineExceeded
from extender.cache import ClusterCache
from extender.gangs.domains import Domain, Domains
from extender.gangs.gang import EmptyNodes, empty_state, gang_minimum, is_incomplete, own_devices
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import (
    NO_ROOM,
    GangMembers,
    GangPlan,
    GangProblem,
    equal_units,
    gang_members,
    gang_problem,
)
from extender.gangs.node_rooms import GangMemory, NodeRooms
from extender.scheduling import EvaluationContext, RankingCache
from extender.scheduling.shortlist import CollectedDomain
from extender.serve.evaluations import in_steps
from extender.serve.filter import FilterService, FilterSink
from extender.serve.gangs.gang_admission import GangAdmission
from extender.serve.gangs.gang_planning import GangPlanning
from extender.serve.gangs.gang_state import GangTimer, GangTimers

_RETRY_SECONDS = 60.0  # before a gang that no domain could hold is tried again
_SEARCH = "collecting"  # the key of the queued search: one gang at a time
_SEARCH_SECONDS = 1.0  # of work for one gang, while others wait
_TIMER = GangTimer.COLLECTING, ""
NODES_PER_STEP = 16  # nodes that are emptied at a time
MAX_TRIES = 8  # attempts to plan on one domain


class GangCollecting:
    """Chooses the gang that collects, and its domain. `clock` returns seconds."""

    def __init__(
        self,
        cache: ClusterCache,
        filter_service: FilterService,
        planning: GangPlanning,
        admission: GangAdmission,
        sink: FilterSink,
        timers: GangTimers,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._filter_service = filter_service
        self._evaluations = filter_service.evaluations
        self._planning = planning
        self._admission = admission
        self._sink = sink
        self._timers = timers
        self._clock = clock
        self._log = structlog.get_logger("berth.gangs")
        self._rests_until = -inf  # no gang may collect before this time

    @property
    def nodes(self) -> int:
        """The number of nodes that are kept for a gang."""
        collected = self._filter_service.collected
        return len(collected.nodes) if collected is not None else 0

    def wake(self) -> None:
        """A gang found no room, or the policy changed: GangMonitor takes the next step soon."""
        self._timers.at(_TIMER, -inf)

    def step(self) -> None:
        """End the collection whose time is over, and queue the search for the domain of the next one."""
        self._expire()
        now, collected = self._clock(), self._filter_service.collected
        if collected is not None:
            self._timers.at(_TIMER, self._deadline(collected))
        elif self._rests_until > now:
            self._timers.at(_TIMER, self._rests_until)
        elif self._may_begin(now) and _SEARCH not in self._evaluations:  # the end of a search takes the next step
            self._search_next(now)

    # -- the choice ------------------------------------------------------------------------------------------

    def _search_next(self, now: float) -> None:
        """Queue the search for the gang that comes first, or wait until it may collect."""
        found = self._admission.next_to_collect()
        if found is None:
            return
        at, key = found
        if at > now:
            self._timers.at(_TIMER, at)
        else:
            self._evaluations.queue(key.namespace, _SEARCH, in_steps(self._search_for(key)), is_awaited=False)

    def _may_begin(self, now: float) -> bool:
        allowed = self._filter_service.policy.gang_collect_seconds > 0
        return allowed and self._filter_service.collected is None and self._rests_until <= now

    def _search_for(self, key: GroupKey) -> Iterator[None]:
        """Let the gang collect if a domain could hold it. Calls are answered between the steps."""
        seconds = max(self._filter_service.policy.gang_collect_seconds, _RETRY_SECONDS)
        self._admission.collects_not_before(key, self._clock() + seconds)
        chosen, worked, began = None, 0.0, self._clock()
        try:
            for found in self._search(key):
                chosen, worked = found, worked + self._clock() - began
                if worked > _SEARCH_SECONDS:
                    break
                yield
                began = self._clock()
        finally:
            self.wake()  # the next gang, also after a bug with this one
        waiting = self._admission.get(key)
        lacks_room = waiting is not None and waiting.reason.code in NO_ROOM
        if chosen is not None and lacks_room and self._may_begin(self._clock()):
            self._begin(chosen)

    def _search(self, key: GroupKey) -> Iterator[CollectedDomain | None]:
        """Search in steps. The last value is the chosen domain, or None."""
        pod = next(iter(self._cache.snapshot().members.get(key, {}).values()), None)
        problem = self._problem(pod) if pod is not None else None
        if problem is None:
            return
        yield None
        try:
            domains = domains_by_room(problem, self._cache.snapshot(), self._context(), self._filter_service.rankings)
        except DeadlineExceeded:
            return
        emptied = EmptyDomains(key, problem, self._context)
        for domain in domains:
            for nodes in emptied.holding(domain, self._cache.snapshot):
                yield CollectedDomain(key, domain.level, domain.name, nodes, self._clock()) if nodes else None
                if nodes:
                    return

    def _context(self) -> EvaluationContext:
        return self._filter_service.evaluation_context(self._evaluations.deadline_of_plan())

    def _problem(self, pod: Pod) -> GangProblem | None:
        """The problem of the gang's minimum. None if the gang does not wait for devices now."""
        gang = self._planning.gang_of(pod)
        snapshot, policy = self._cache.snapshot(), self._filter_service.policy
        if not gang.is_complete or not gang.missing:
            return None
        members = gang_members(gang, snapshot, policy)
        if not isinstance(members, GangMembers):
            return None
        members = members.first(gang.missing)
        try:
            usable = self._planning.usable_nodes(members, self._evaluations.deadline_of_plan())
        except DeadlineExceeded:
            return None
        problem = gang_problem(gang, members, policy, snapshot, usable)
        # A gang that may use any nodes needs a domain to collect in, too.
        return replace(problem, topology="preferred") if problem.topology == "none" else problem

    def _begin(self, chosen: CollectedDomain) -> None:
        self._filter_service.collected = chosen
        self._timers.at(_TIMER, self._deadline(chosen))
        self._log.info(
            "a gang collects the freed devices of a domain",
            group=str(chosen.key),
            level=chosen.level,
            domain=chosen.name,
            nodes=len(chosen.nodes),
            seconds=self._filter_service.policy.gang_collect_seconds,
        )

    # -- the end ---------------------------------------------------------------------------------------------

    def end(self, key: GroupKey, why: str) -> None:
        """End the collection of this gang, if it collects. kube-scheduler retries the pods that it kept away."""
        collected, now = self._filter_service.collected, self._clock()
        if collected is None or collected.key != key:
            return
        self._filter_service.collected = None
        self._rests_until = now + (now - collected.since)
        self._admission.collects_not_before(key, self._rests_until)
        self._log.info("a gang does not collect devices any more", group=str(key), because=why)
        self._admission.plan_again(Code.COLLECTED_FOR_GANG)
        self._sink.fits()
        self.wake()

    def _expire(self) -> None:
        """End the collection whose time is over, or which the policy does not allow any more."""
        collected = self._filter_service.collected
        if collected is not None and self._deadline(collected) <= self._clock():
            allowed = self._filter_service.policy.gang_collect_seconds > 0
            self.end(collected.key, "its time is over" if allowed else "the policy does not allow it any more")

    def _deadline(self, collected: CollectedDomain) -> float:
        return collected.since + self._filter_service.policy.gang_collect_seconds

    def group_changed(self, key: GroupKey) -> None:
        """The members or the minimum of a group without a plan changed: end its collection if it is incomplete now."""
        collected = self._filter_service.collected
        if collected is None or collected.key != key:
            return
        snapshot = self._cache.snapshot()
        membership = next((pod.membership for pod in snapshot.members.get(key, {}).values()), None)
        minimum = gang_minimum(membership, snapshot) if membership is not None else 0
        if membership is None or not minimum or is_incomplete(membership, minimum, snapshot):
            self.end(key, "its minimum does not wait any more")


# -- hypothetical empty domains ------------------------------------------------------------------------------------


def domains_by_room(
    problem: GangProblem, snapshot: Snapshot, context: EvaluationContext, rankings: RankingCache
) -> list[Domain]:
    """The domains that may hold the gang, the nearest level first; in a level, those with the most free room first.

    All nodes without a common label are no domain. Raises DeadlineExceeded.
    """
    memory = GangMemory()
    rooms = [NodeRooms(units, snapshot, context, rankings, memory) for units in equal_units(problem.members)]
    domains = Domains(problem, snapshot, snapshot.node_infos)

    def order(domain: Domain) -> tuple[int, int, object]:
        units = sum(min(one.most.get(name, 0), len(one.units)) for one in rooms for name in domain.nodes)
        free = sum(_free(snapshot.node_infos[name]) for name in domain.nodes)
        return -units, -free, natural(domain.name)

    levels = [domains.single(snapshot.node_infos), *domains.wider()]
    return [domain for level in levels for domain in sorted((one for one in level if one.level), key=order)]


def _free(node_info: NodeInfo) -> int:
    return (node_info.inventory.reachable & ~node_info.busy).bit_count()


class EmptyDomains:
    """Plans one gang on domains in which only the devices of the gang itself are in use.

    Nodes that are equal once they are empty share one state, and so their evaluations. A domain is not tried if its
    nodes are equal to the nodes of a domain that cannot hold the gang.
    """

    def __init__(self, key: GroupKey, problem: GangProblem, evaluation: Callable[[], EvaluationContext]) -> None:
        """`evaluation` returns the context of one attempt."""
        self._key = key
        self._problem = problem
        self._units = equal_units(problem.members)
        self._evaluation = evaluation
        self._rankings = RankingCache()
        self._memory = GangMemory()
        self._empty_nodes = EmptyNodes()
        self._too_small: set[Hashable] = set()
        self._versions = count()

    def holding(self, domain: Domain, newest: Callable[[], Snapshot]) -> Iterator[frozenset[str] | None]:
        """Decide in steps whether the domain could hold the gang; `newest` returns the snapshot of each step.

        The last value has the nodes of the domain that some member could use, and is empty if it cannot hold the gang.
        """
        snapshot = newest()
        kept = own_devices(self._key, snapshot)
        known = [name for name in domain.nodes if name in snapshot.node_infos]
        key = frozenset(Counter(self._equivalence_key(snapshot.node_infos[name], kept) for name in known).items())
        if key in self._too_small:
            yield frozenset()
            return
        emptied: dict[str, NodeInfo] = {}
        for start in range(0, len(known), NODES_PER_STEP):
            snapshot = newest()
            for name in known[start : start + NODES_PER_STEP]:
                if name in snapshot.node_infos:
                    emptied[name] = self._empty_nodes.of(snapshot.node_infos[name], kept.get(name, ()))
            yield None
        for _ in range(MAX_TRIES):
            found = self._planned(hypothetical_snapshot(newest(), emptied, next(self._versions)))
            if found is not None:
                break
            yield None
        if not found:
            self._too_small.add(key)
        yield found or frozenset()

    def _planned(self, snapshot: Snapshot) -> frozenset[str] | None:
        """The nodes that a member could use if the snapshot has room for the gang, else no nodes.

        None if the deadline came first.
        """
        try:
            plan = plan_gang(self._problem, snapshot, self._evaluation(), self._rankings, self._memory)
        except DeadlineExceeded:
            return None
        if not isinstance(plan, GangPlan):
            return frozenset()
        usable = {name for ranking in self._rankings for names, _ in ranking.schedulable() for name in names}
        return frozenset(name for name in usable if any(self._allowed(snapshot.node_infos[name])))

    def _allowed(self, node_info: NodeInfo) -> tuple[int, ...]:
        """For each entry of the equal units, the number of units that may use the node. Devices in use do not count."""
        return tuple(units.allowed_on(node_info.node) for units in self._units)

    def _equivalence_key(self, node_info: NodeInfo, kept: Mapping[str, Sequence[Result]]) -> Hashable:
        """A key: nodes with equal keys have equal room once all other workloads have ended."""
        state = None if node_info.node.name in kept else empty_state(node_info)
        return state or node_info.node.name, self._allowed(node_info), node_info.node.allocatable
