"""Lets one gang at a time collect the freed devices of one domain, so that smaller pods do not starve it.

Off by default (`gang_collect_seconds`). While a gang collects, no other pod gets devices on the nodes of its domain.
After a collection, no gang collects for as long as this one did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

import structlog

from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.api.reasons import Code
from extender.base.deadline import DeadlineExceeded
from extender.cache import ClusterCache
from extender.gangs.empty_domains import EmptyDomains, domains_by_room
from extender.gangs.gang import gang_minimum, is_incomplete, own_claims
from extender.gangs.gang_problem import NO_ROOM, GangMembers, GangProblem, gang_members, gang_problem
from extender.gangs.node_rooms import GangMemory
from extender.scheduling import EvaluationContext
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
        snapshot = self._cache.snapshot()
        try:
            domains = domains_by_room(problem, snapshot, self._context(), self._filter_service.rankings, GangMemory())
        except DeadlineExceeded:
            return
        emptied = EmptyDomains(problem, own_claims(key, snapshot), self._context)
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
