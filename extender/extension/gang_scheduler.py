"""Answers filter requests of gang members: no member gets a node before all of them have one.

The first filter request after the gang is complete plans all members on one snapshot and holds all their devices. Each
member's filter request then gets exactly its planned node. No function here awaits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from math import inf

import structlog

from extender.cache import ClusterCache
from extender.extension.binding_cycle import BindError
from extender.extension.bound_members import BoundMembers
from extender.extension.filter_service import FilterResult, FilterService
from extender.extension.gang_collecting import GangCollecting
from extender.extension.gang_holds import hold, is_held
from extender.extension.gang_planning import GangPlanning
from extender.extension.gang_state import FormingGang, GangCounts, PlannedGang, WaitingGang
from extender.extension.sinks import FilterSink
from extender.extension.waiting_gangs import WaitingGangs
from extender.model import CallBudgetSpent, Code, GroupKey, GroupSource, Membership, Pod, Reason
from extender.scheduling import (
    MOST_TOGETHER,
    Gang,
    difference,
    gang_minimum,
    gang_of,
    is_incomplete,
    placed_members,
)
from extender.wire import has_all

_MAY_FIT_LATER = (Code.GANG_NO_ROOM, Code.GANG_NO_DOMAIN, Code.GANG_GAVE_UP, Code.COLLECTED_FOR_GANG)
_REPLANS = 3  # new plans after kube-scheduler rejected a planned node, besides one for each kind of members
_WAITING = 4096  # remembered gangs that wait; the least recently used one is dropped first
_MEMBER_SECONDS = 0.05  # that each member adds to the life of a plan


class GangScheduler:
    """Plans gangs, holds their devices, and answers filter requests of their members.

    `changed` is called after a plan ended or was made: binds of the gang may wait for it. `clock` returns seconds.
    """

    def __init__(
        self,
        cache: ClusterCache,
        filter_service: FilterService,
        planning: GangPlanning,
        bound_members: BoundMembers,
        sink: FilterSink,
        clock: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
        remembered_gangs: int = _WAITING,
    ) -> None:
        self._cache = cache
        self._filter_service = filter_service
        self._planning = planning
        self._sink = sink
        self._clock = clock
        self._bound_members = bound_members
        self._changed = changed
        self._log = structlog.get_logger("berth.gangs")
        self.forming: dict[GroupKey, FormingGang] = {}
        self.counts = GangCounts()
        self.waiting = WaitingGangs(clock, remembered_gangs)
        self.rescheduled = asyncio.Event()  # set if `next_deadline` may be earlier, or if bound members must be read
        self.collecting = GangCollecting(cache, filter_service, planning, self.waiting, sink, clock)

    # -- filter ----------------------------------------------------------------------------------------------

    def filter(self, pod: Pod, names: Sequence[str]) -> FilterResult:
        """Answer a filter request of any pod. A pod in no gang, or in a gang that runs already, is placed alone."""
        found = self._filter(pod, pod.membership, names) if pod.membership is not None else None
        return found if found is not None else self._tell_holders(self._filter_service.filter(pod, names))

    def _tell_holders(self, result: FilterResult) -> FilterResult:
        """Name the gang for which the devices of a node are held."""
        held = str(Reason(Code.HELD))
        for forming in self.forming.values() if result.failed else ():
            text = str(Reason(Code.HELD_FOR_GANG, (str(forming.key),)))
            result.failed.update({node: text for node in forming.planned.nodes if result.failed.get(node) == held})
        return result

    def _filter(self, pod: Pod, membership: Membership, names: Sequence[str]) -> FilterResult | None:
        if membership.problem:
            return self._rejected(pod, names, Reason(Code.INVALID, (membership.problem,)))
        key = membership.key
        self.expire()
        forming = self.forming.get(key)
        if forming is not None:
            return self._follow(forming, pod, membership, names)
        snapshot = self._cache.snapshot()
        minimum = gang_minimum(membership, snapshot)
        different = difference(pod, membership, snapshot)
        if different:
            return self._rejected(pod, names, Reason(Code.INVALID, (different,)))
        if not minimum:
            return None
        if minimum > MOST_TOGETHER:
            return self._rejected(pod, names, Reason(Code.GANG_TOO_LARGE, (key.name, str(MOST_TOGETHER))))
        if is_incomplete(membership, minimum, snapshot):
            return self._incomplete(pod, membership, names)
        if len(placed_members(key, snapshot)) >= minimum:
            return None
        waiting = self.waiting.get(key)
        if waiting is not None and (self._clock() < waiting.retry_at or self._waits_for_other(waiting)):
            waiting.note(pod.uid)
            if not waiting.asked_early:
                waiting.asked_early = True
                self.rescheduled.set()
            return self._rejected(pod, names, waiting.reason)
        return self._plan(pod, membership, names)

    def _incomplete(self, pod: Pod, membership: Membership, names: Sequence[str]) -> FilterResult:
        """Too few members exist. Some may be bound without a claim that shows it, so they are read now and then."""
        key = membership.key
        if self._bound_members.want(key):
            self.rescheduled.set()
        return self._wait(key, pod, names, Reason(Code.GANG_INCOMPLETE, (key.name,)))

    def _waits_for_other(self, waiting: WaitingGang) -> bool:
        """Whether the gang waits for the end of another gang's plan."""
        reason = waiting.reason
        return reason.code is Code.GANG_WAITS and any(str(key) == reason.params[0] for key in self.forming)

    def _follow(
        self, forming: FormingGang, pod: Pod, membership: Membership, names: Sequence[str]
    ) -> FilterResult | None:
        """The answer while the gang has a plan."""
        planned, uid = forming.planned, pod.uid
        if forming.committed and (uid in forming.left or uid not in planned.members):
            return None
        if uid not in planned.members:
            return self._rejected(pod, names, Reason(Code.GANG_FORMING, (forming.key.name,)))
        if uid in planned.without_devices:
            return self._answer(forming, pod, names)
        if is_held(self._cache, forming, uid) and has_all(names, [planned.plan.placements[uid][0]]):
            if not self._is_new_round(forming, pod):
                return self._answer(forming, pod, names)
        elif forming.committed:
            self.leave(forming, uid)
            return None
        elif self._is_new_round(forming, pod) and is_held(self._cache, forming, uid):
            return self._other_placement(forming, pod, membership, names)
        elif is_held(self._cache, forming, uid) and not self._is_new_round(forming, pod):
            return self._plan_elsewhere(forming, pod, membership, names)
        self.end(forming, f"a new attempt to schedule pod {pod.key} began")
        return self._plan(pod, membership, names)

    def _other_placement(
        self, forming: FormingGang, pod: Pod, membership: Membership, names: Sequence[str]
    ) -> FilterResult:
        """The in-tree gang scheduling tries one topology domain after the other, and then binds the best one.

        The plan for an earlier domain stays if this one has no room.
        """
        gang = gang_of(pod, membership, self._cache.snapshot())
        others = [other for other in self.forming.values() if other is not forming]
        try:
            found = self._planning.plan(gang, pod, names, others, None)
        except CallBudgetSpent:
            found = Reason(Code.GANG_UNFINISHED, (gang.key.name,))
        if isinstance(found, Reason):
            return self._rejected(pod, names, found)
        self.end(forming, "kube-scheduler tries another topology domain")
        return self._form(gang, pod, names, found, None)

    def _plan_elsewhere(
        self, forming: FormingGang, pod: Pod, membership: Membership, names: Sequence[str]
    ) -> FilterResult | None:
        """kube-scheduler rejected the planned node of a member: plan again without it, a few times."""
        forming.answered.discard(pod.uid)
        forming.arrived.discard(pod.uid)
        self._exclude(forming, pod.uid, forming.planned.plan.placements[pod.uid][0], alone=len(names) == 1)
        if forming.replans < _REPLANS + len(set(forming.planned.kinds.values())):
            return self._plan(pod, membership, names, forming)
        self.end(forming, f"kube-scheduler rejected the planned nodes of pod {pod.key}")
        return self._no_plan(forming.key, pod, names, Reason(Code.GANG_REFUSED, (forming.key.name,)))

    def _exclude(self, forming: FormingGang, uid: str, node: str, *, alone: bool) -> None:
        """Exclude a node that kube-scheduler rejected for a member, for all members of its kind.

        If kube-scheduler has accepted n of them there, the planner assumes that no node has room for more than n.
        `alone`: preemption may have nominated the only node that was offered, which says nothing about other members.
        """
        kinds = forming.planned.kinds
        for other in [uid] if alone else kinds.keys() - forming.settled:
            if kinds[other] == kinds[uid]:
                forming.excluded.setdefault(other, set()).add(node)
        accepted = forming.settled_on(kinds[uid])[node]
        if accepted and not alone:
            forming.most[kinds[uid]] = min(accepted, forming.most.get(kinds[uid], accepted))

    def _is_new_round(self, forming: FormingGang, pod: Pod) -> bool:
        """Whether the in-tree gang scheduling tries the group once more: it asks about all members before it binds."""
        return forming.key.source is GroupSource.CORE and pod.uid in forming.answered and not forming.arrived

    # -- plans -----------------------------------------------------------------------------------------------

    def _plan(
        self, pod: Pod, membership: Membership, names: Sequence[str], before: FormingGang | None = None
    ) -> FilterResult | None:
        """Plan the gang. None if its minimum runs already, so that the pod is placed alone.

        `before` has an earlier plan, whose settled members keep their nodes.
        """
        gang = gang_of(pod, membership, self._cache.snapshot())
        if not gang.missing:
            return None
        self._release({*self._cache.store.members.get(membership.key, ()), pod.uid})
        others = [forming for key, forming in self.forming.items() if key != gang.key]
        try:
            found = self._planning.plan(gang, pod, names, others, before)
        except CallBudgetSpent:
            if before is not None:
                self.end(before, f"planning again for pod {pod.key} takes longer than a call")
            self._cache.freed()
            unfinished = Reason(Code.GANG_UNFINISHED, (gang.key.name,))
            self.waiting.postpone(gang.key, unfinished, pod.uid, self._filter_service.limits.retry_seconds)
            self.rescheduled.set()
            return self._rejected(pod, names, unfinished)
        if isinstance(found, PlannedGang):
            return self._form(gang, pod, names, found, before)
        self._cache.freed()
        self.counts.no_plan[found.code.name] += 1
        if before is not None:
            self.end(before, str(found))
        if found.code is Code.GANG_WAITS:
            return self._wait(gang.key, pod, names, found)
        for claim in self._planning.unused_allocations(gang):
            self._sink.unsuitable(claim)
        return self._no_plan(gang.key, pod, names, found)

    def _form(
        self, gang: Gang, pod: Pod, names: Sequence[str], planned: PlannedGang, before: FormingGang | None
    ) -> FilterResult:
        now, forming, waiting = self._clock(), before, self.waiting.pop(gang.key)
        if forming is None:
            complete_since = min(now, waiting.complete_since) if waiting is not None else now
            members = _MEMBER_SECONDS * len(planned.members)
            deadline = now + members + (gang.timeout_seconds or self._filter_service.policy.gang_seconds)
            forming = FormingGang(gang.key, planned, gang.missing, complete_since, now, deadline, progress_at=now)
            forming.minimum = gang.minimum
            # The in-tree gang scheduling binds right after its filter requests, and does not say that a round failed.
            forming.doubtful = bool(self.waiting.failures(gang.key)) or gang.key.source is GroupSource.CORE
            forming.doubtful |= planned.has_unschedulable(f"group {gang.key.name}")
            forming.rejected_with = str(waiting.reason) if waiting is not None else ""
            self.forming[gang.key] = forming
        else:
            forming.planned, forming.replans = planned, forming.replans + 1
        hold(self._cache, forming)
        self.counts.plans += 1
        self.rescheduled.set()
        if waiting is not None and waiting.rejected - {pod.uid}:
            self._sink.fits()  # kube-scheduler must ask again about the members that were rejected
        self._changed()
        if pod.uid not in planned.members:
            return self._rejected(pod, names, Reason(Code.GANG_FORMING, (gang.key.name,)))
        return self._answer(forming, pod, names)

    def _answer(self, forming: FormingGang, pod: Pod, names: Sequence[str]) -> FilterResult:
        forming.answered.add(pod.uid)
        if pod.uid in forming.planned.without_devices:
            return FilterResult()
        self._sink.attempted(pod, 1, len(names))
        return FilterResult([forming.planned.plan.placements[pod.uid][0]])

    def _wait(self, key: GroupKey, pod: Pod, names: Sequence[str], reason: Reason) -> FilterResult:
        if self.waiting.wait(key, pod.uid, reason) and pod.membership is not None:
            # An earlier attempt may have left allocations, which only keep devices from other pods.
            gang = gang_of(pod, pod.membership, self._cache.snapshot())
            for claim in self._planning.unused_allocations(gang):
                self._sink.unsuitable(claim)
        return self._rejected(pod, names, reason)

    def _no_plan(self, key: GroupKey, pod: Pod, names: Sequence[str], reason: Reason) -> FilterResult:
        snapshot, may_fit_later = self._cache.snapshot(), reason.code in _MAY_FIT_LATER
        if key.source is GroupSource.CORE and len(names) < len(snapshot.node_infos):
            return self._rejected(pod, names, reason)  # the next call may name the nodes of another topology domain
        # The cache shows when a gang that was offered all nodes fits. kube-scheduler alone knows when it offers others.
        wakes = reason.code is not Code.INVALID and not (may_fit_later and len(names) >= len(snapshot.node_infos))
        self.waiting.pause(key, reason, snapshot.version if may_fit_later else -1, pod.uid, wakes=wakes)
        self.rescheduled.set()
        self.collecting.wake()
        return self._rejected(pod, names, reason)

    def _rejected(self, pod: Pod, names: Sequence[str], reason: Reason) -> FilterResult:
        text = str(reason)
        self._sink.attempted(pod, 0, len(names), [(text, len(names))])
        self._filter_service.unschedulable_reasons[reason.code.name] += 1
        return FilterResult([], dict.fromkeys(names, text))

    # -- bind ------------------------------------------------------------------------------------------------

    def forming_for(self, pod: Pod) -> FormingGang | None:
        """The plan by which a pod is bound; None if it is bound alone. Raises BindError if its gang has no plan."""
        membership = pod.membership
        if membership is None:
            return None
        self.expire()
        forming = self.forming.get(membership.key)
        if forming is not None and pod.uid in forming.planned.members:
            return forming if pod.uid not in forming.left else None
        snapshot = self._cache.snapshot()
        minimum = gang_minimum(membership, snapshot)
        if not minimum or (forming is not None and forming.committed) or not gang_of(pod, membership, snapshot).missing:
            return None
        raise BindError(f"group {membership.key.name} has no plan for pod {pod.key} any more")

    def held_members(self) -> frozenset[str]:
        """UIDs of the members of all plans."""
        return frozenset[str]().union(*(forming.planned.members for forming in self.forming.values()))

    # -- the end of a plan -----------------------------------------------------------------------------------

    def end(self, forming: FormingGang, why: str) -> None:
        """End a plan: its holds end, and binds that wait for other members fail. A committed gang goes on."""
        if self.forming.get(forming.key) is forming:
            del self.forming[forming.key]
        if not forming.committed:
            forming.ended = forming.ended or why
        self._release(forming.planned.members)
        self._cache.freed()
        self._changed()
        if self.waiting.any_for(Code.GANG_WAITS):
            self._sink.fits()

    def fail(self, forming: FormingGang, why: str) -> None:
        """End a plan that kube-scheduler or the API server prevented, and plan the gang again only after a pause."""
        if forming.committed or forming.ended:
            return
        self.counts.failed += 1
        self._log.info("a gang was not bound", group=str(forming.key), because=why)
        self.end(forming, why)
        self.waiting.pause(forming.key, Reason(Code.GANG_REFUSED, (forming.key.name,)))

    def bound(self, forming: FormingGang, uid: str) -> None:
        """A member is bound. After the last one, the plan is done."""
        forming.bound.add(uid)
        self._cache.member_bound(forming.key, uid)
        self.waiting.succeeded(forming.key)
        if len(forming.bound) == forming.quorum:
            self.collecting.end(forming.key, "its minimum is bound")
            self.counts.bound += 1
            self.counts.seconds += self._clock() - forming.complete_since
        self._end_if_done(forming)

    def leave(self, forming: FormingGang, uid: str) -> None:
        """A member of a committed gang is gone or cannot be bound by the plan: it is placed alone from now on."""
        forming.left.add(uid)
        self._cache.release(uid)
        self._cache.freed()
        self._end_if_done(forming)

    def _end_if_done(self, forming: FormingGang) -> None:
        if forming.bound | forming.left >= forming.planned.members:
            self.end(forming, "all members are bound")

    def _release(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._cache.release(uid)

    def expire(self) -> None:
        """End the plans whose deadline passed."""
        now = self._clock()
        for forming in [forming for forming in self.forming.values() if forming.ends_at <= now]:
            members, name = forming.planned.members, forming.key.name
            absent = len(members - forming.arrived)
            self.fail(forming, f"{absent} of {len(members)} pods of group {name} did not reach bind in time")
            if forming.committed:
                self.end(forming, "")

    @property
    def next_deadline(self) -> float:
        """The earliest time at which `expire` has work; infinite if there is none."""
        return min((forming.ends_at for forming in self.forming.values()), default=inf)
