"""Answers filter requests of gang members: no member gets a node before all of them have one.

The first filter request after the gang is complete plans all members on one snapshot and holds all their devices. Each
member's filter request then gets exactly its planned node. No function here awaits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from math import inf

from extender.api.extender_v1 import has_all
from extender.api.group_topology import group_topology
from extender.api.pod_groups import IN_TREE, GroupKey, GroupSource, Membership
from extender.api.pods import Pod
from extender.api.reasons import Code, Reason
from extender.base.deadline import Deadline, DeadlineExceeded
from extender.cache import ClusterCache
from extender.gangs.gang import Gang, gang_minimum, placed_members
from extender.gangs.gang_problem import NO_ROOM, incomplete
from extender.scheduling.requirements import leftover_claims
from extender.scheduling.running_domain import left_subgroup, running_domain
from extender.serve.binding_cycle import BindError
from extender.serve.filter import FilterResult, FilterService, FilterSink
from extender.serve.gangs.bound_members import BoundMembers, Read
from extender.serve.gangs.gang_admission import GangAdmission, SlotLimits
from extender.serve.gangs.gang_collecting import GangCollecting
from extender.serve.gangs.gang_planning import GangPlanning
from extender.serve.gangs.gang_plans import GangPlans
from extender.serve.gangs.gang_state import (
    MEMBER_SECONDS,
    FormingGang,
    GangState,
    GangTimers,
    PlannedGang,
    WaitsForGang,
)

_MAY_FIT_LATER = (*NO_ROOM, Code.GANG_NO_DOMAIN, Code.GANG_GAVE_UP, Code.COLLECTED_FOR_GANG)
_NOT_PLANNED = (GangState.MISSING, GangState.UNREAD, GangState.QUEUED, GangState.BEHIND)
# New plans after kube-scheduler rejected a planned node, besides one for each equivalence class of members.
MAX_REPLANS = 3
RETRY_SECONDS = 5.0  # until kube-scheduler is told to ask again about a gang whose plan takes longer than a call


class GangScheduler:
    """Plans gangs, holds their devices, and answers filter requests of their members.

    `changed` is called after a plan ended or was made: binds of the gang may wait for it. For the other parameters see
    GangAdmission.
    """

    def __init__(
        self,
        cache: ClusterCache,
        filter_service: FilterService,
        planning: GangPlanning,
        read_bound_members: Read,
        sink: FilterSink,
        clock: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
        is_served: Callable[[GroupSource], bool] = lambda _: False,
        slots: SlotLimits | None = None,
    ) -> None:
        self._cache = cache
        self._filter_service = filter_service
        self._evaluations = filter_service.evaluations
        self._planning = planning
        self._sink = sink
        self._clock = clock
        self._changed = changed
        self.timers = GangTimers()
        self.bound_members = BoundMembers(cache, read_bound_members, self.timers, clock)
        self.admission = GangAdmission(cache, self.bound_members, self.timers, clock, sink.fits, is_served, slots)
        self.collecting = GangCollecting(cache, filter_service, planning, self.admission, sink, self.timers, clock)
        self.plans = GangPlans(cache, self.admission, self.collecting, self.timers, clock, changed)
        self.forming = self.admission.forming  # the gangs with a plan
        self.counts = self.plans.counts

    # -- filter ----------------------------------------------------------------------------------------------

    def filter(self, pod: Pod, names: Sequence[str]) -> FilterResult:
        """Answer a filter request of any pod. A pod in no gang, or in a gang that runs already, is a single pod."""
        membership = pod.membership
        if membership is not None:
            key, forming = membership.key, self.forming.get(membership.key)
            self.plans.single_pods.pop(pod.uid)
            found = self._filter(pod, membership, names)
            if found is not None:
                return found
            if forming.runs if forming is not None else gang_minimum(membership, self._cache.snapshot()):
                self.plans.single_pods.put(key.namespace, pod.uid, key)
        held = ((node, key) for key, forming in self.forming.items() for node in forming.planned.plan.nodes)
        return self._filter_service.filter(pod, names, held)

    def _filter(self, pod: Pod, membership: Membership, names: Sequence[str]) -> FilterResult | None:
        key = membership.key
        forming = self.plans.expire(key)
        if forming is not None and not membership.problem:
            return self._follow(forming, pod, names)
        missing = self.admission.wait_or_missing(pod, membership)
        waiting = self.admission.get(key)
        if isinstance(missing, Reason):
            refusal: Reason | None = missing
        elif missing <= 0:
            return None
        else:
            is_queued = waiting is not None and _plan_of(key) in self._evaluations
            refusal = self.admission.ask(key, pod.uid, missing, waiting, is_queued=is_queued)
        if refusal is None:
            return self._plan(pod, key, names, is_whole=waiting is not None and waiting.state is GangState.PLANNABLE)
        self._deallocate_unused(pod, key)
        return self._rejected(names, refusal)

    def _deallocate_unused(self, pod: Pod, key: GroupKey) -> None:
        """While a gang waits for others, what an earlier attempt allocated only keeps devices from other pods."""
        waiting = self.admission.get(key)
        if waiting is None or waiting.deallocated or waiting.state not in _NOT_PLANNED:
            return
        if not self._evaluations.has_time(key.namespace):
            return
        waiting.deallocated = True
        for claim in self._planning.unused_allocations(self._planning.gang_of(pod)):
            self._sink.unsuitable(claim)

    def _follow(self, forming: FormingGang, pod: Pod, names: Sequence[str]) -> FilterResult | None:
        """The answer while the gang has a plan."""
        planned, uid = forming.planned, pod.uid
        if uid in forming.left or (uid not in planned.members and forming.runs):
            return None
        if uid not in planned.members:
            return self._rejected(names, Reason(Code.GANG_FORMING, (forming.key.name,)))
        if uid in planned.without_devices:
            return self._answer(forming, pod)
        is_held, is_new_round = self.plans.is_held(forming, uid), self._is_new_round(forming, pod)
        is_offered = is_held and has_all(names, [planned.plan.placements[uid][0]])
        if is_offered and not is_new_round:
            return self._answer(forming, pod)
        may_exchange = is_held and not is_new_round and pod.constraints.requires_spread
        if not is_offered and may_exchange and self.plans.exchange(forming, pod, names):
            return self._answer(forming, pod)
        if not is_offered and forming.committed:
            self.plans.leave(forming, uid)
            return None
        if not is_offered and is_held:
            again = self._other_placement if is_new_round else self._plan_elsewhere
            return again(forming, pod, names)
        self.plans.end(forming, f"a new attempt to schedule pod {pod.key} began")
        return self._plan(pod, forming.key, names, since=forming.since)

    def _other_placement(self, forming: FormingGang, pod: Pod, names: Sequence[str]) -> FilterResult:
        """The in-tree gang scheduling tries one topology domain after the other, and then binds the best one.

        The plan for an earlier domain stays if this one has no room.
        """
        gang = self._planning.gang_of(pod)
        try:
            found = self._planned(gang, pod, names, None)
        except DeadlineExceeded:
            found = Reason(Code.GANG_UNFINISHED, (gang.key.name,))
        if not isinstance(found, PlannedGang):
            return self._rejected(names, found if isinstance(found, Reason) else found.reason)
        self.plans.end(forming, "kube-scheduler tries another topology domain")
        return self._form(gang, pod, names, found, None, forming.since)

    def _plan_elsewhere(self, forming: FormingGang, pod: Pod, names: Sequence[str]) -> FilterResult | None:
        """kube-scheduler rejected the planned node of a member: plan again without it, a few times."""
        forming.refuse_node(pod.uid, only_node=len(names) == 1)
        if forming.replans < MAX_REPLANS + len(set(forming.planned.equivalence_keys.values())):
            return self._plan(pod, forming.key, names, forming)
        self.plans.end(forming, f"kube-scheduler rejected the planned nodes of pod {pod.key}")
        return self._no_plan(forming.key, pod, names, self.plans.refusal(forming, [pod.uid]))

    def _is_new_round(self, forming: FormingGang, pod: Pod) -> bool:
        """Whether the in-tree gang scheduling tries the group once more: it asks about all members before it binds."""
        return forming.key.source in IN_TREE and pod.uid in forming.answered and not forming.arrived

    # -- plans -----------------------------------------------------------------------------------------------

    def _plan(
        self,
        pod: Pod,
        key: GroupKey,
        names: Sequence[str],
        before: FormingGang | None = None,
        since: float = inf,
        *,
        is_whole: bool = False,
    ) -> FilterResult | None:
        """Plan the gang. None if its minimum runs already, so that the pod is a single pod.

        `before` has an earlier plan, whose settled members keep their nodes. `since` is the time of a plan that this
        one replaces. For `is_whole` see `_planned`.
        """
        if before is None and not is_whole and not self._evaluations.has_time(key.namespace):
            return self._postponed(key, pod, names)
        gang = self._planning.gang_of(pod)
        if not gang.missing:
            return None
        if not gang.is_complete and before is None:  # some of the pods that exist have another scheduler
            reason = incomplete(gang)
            self.admission.pause(key, reason, uid=pod.uid, wakes=False)
            return self._rejected(names, reason)
        self._cache.release(*{*self._cache.store.members.get(key, ()), pod.uid})
        try:
            found = self._planned(gang, pod, names, before, is_whole=is_whole)
        except DeadlineExceeded:
            if before is not None:
                self.plans.end(before, f"planning again for pod {pod.key} takes longer than a call")
            self._cache.freed()
            return self._postponed(key, pod, names)
        if isinstance(found, PlannedGang):
            return self._form(gang, pod, names, found, before, since)
        self._cache.freed()
        answer = self._without_plan(gang, pod, names, found, before)
        self._deallocate_unused(pod, key)
        return answer

    def _without_plan(
        self,
        gang: Gang,
        pod: Pod,
        names: Sequence[str],
        found: WaitsForGang | Reason,
        before: FormingGang | None,
    ) -> FilterResult:
        """The answer if the planner found no plan; that of `before`, if there is one, ends."""
        reason = found.reason if isinstance(found, WaitsForGang) else found
        self.counts.no_plan[reason.code.name] += 1
        if before is not None:
            if reason.code is Code.GANG_REFUSED:
                reason = self.plans.refusal(before, [pod.uid])
            self.plans.end(before, str(reason))
        if isinstance(found, WaitsForGang):
            self.admission.wait_for_nodes(gang.key, pod.uid, reason, found.other, found.nodes)
            return self._rejected(names, reason)
        for claim in self._planning.unused_allocations(gang):
            self._sink.unsuitable(claim)
        if reason.code is Code.EXTENDED_STALE:
            snapshot = self._cache.snapshot()
            for leftover in (one for member in gang.waiting for one in leftover_claims(member, snapshot)):
                self._sink.stale_special(leftover)
        return self._no_plan(gang.key, pod, names, reason)

    def _planned(
        self,
        gang: Gang,
        pod: Pod,
        names: Sequence[str] | None,
        before: FormingGang | None,
        *,
        is_whole: bool = False,
    ) -> PlannedGang | WaitsForGang | Reason:
        """See GangPlanning.plan. `is_whole`: with the time of a whole call, whatever the namespace has left."""
        give = self._evaluations.full_deadline if is_whole else self._evaluations.deadline_of_call
        with give(gang.key.namespace) as deadline:
            return self._planning.plan(gang, pod, names, self.admission.occupied_for(gang.key), before, deadline)

    def _postponed(self, key: GroupKey, pod: Pod, names: Sequence[str]) -> FilterResult:
        """The answer while the plan of a gang is queued."""
        self._evaluations.queue(key.namespace, _plan_of(key), partial(self._plan_later, key))
        return self._rejected(names, self.admission.postpone(key, pod.uid, RETRY_SECONDS))

    def _plan_later(self, key: GroupKey, _: Deadline) -> bool:
        """An item of the queue: find out whether the gang has a plan, or can have none.

        The next filter request then has the time of a whole call. It repeats the plan for the nodes that it offers, and
        finds all evaluations. A plan that takes longer although all of them are known is given up until that request.
        """
        member = next(iter(self._cache.store.members.get(key, {}).values()), None)
        if member is None:
            return True
        deadline = self._evaluations.deadline_of_plan()
        try:
            self._planning.plan(self._planning.gang_of(member), member, None, {}, None, deadline)
        except DeadlineExceeded:
            return not deadline.progressed
        self.admission.plannable(key)
        return True

    def _form(
        self,
        gang: Gang,
        pod: Pod,
        names: Sequence[str],
        planned: PlannedGang,
        before: FormingGang | None,
        since: float,
    ) -> FilterResult:
        now, forming, waiting = self._clock(), before, self.admission.planned(gang.key)
        if forming is None:
            complete_since = self.admission.complete_since(gang.key)
            members = MEMBER_SECONDS * len(planned.members)
            deadline = now + members + (gang.timeout_seconds or self._filter_service.policy.gang_seconds)
            since = min(since, now)  # its slots are used since then
            forming = FormingGang(gang.key, planned, gang.missing, complete_since, since, deadline, progress_at=now)
            forming.minimum = gang.minimum
            # The in-tree gang scheduling binds right after its filter requests, and does not say that a round failed.
            forming.doubtful = bool(self.admission.failures(gang.key)) or gang.key.source in IN_TREE
            forming.doubtful |= planned.has_unschedulable(f"group {gang.key.name}")
            forming.rejected_with = str(waiting.reason) if waiting is not None else ""
            self.plans.add(forming)
        else:
            forming.replans += 1
            self.plans.replan(forming, planned)
        if waiting is not None and waiting.rejected - {pod.uid}:
            self._sink.fits()  # kube-scheduler must ask again about the members that were rejected
        self._changed()
        if pod.uid not in planned.members:
            return self._rejected(names, Reason(Code.GANG_FORMING, (gang.key.name,)))
        return self._answer(forming, pod)

    def _answer(self, forming: FormingGang, pod: Pod) -> FilterResult:
        forming.answered.add(pod.uid)
        if pod.uid in forming.planned.without_devices:
            return FilterResult()
        return FilterResult([forming.planned.plan.placements[pod.uid][0]])

    def _no_plan(self, key: GroupKey, pod: Pod, names: Sequence[str], reason: Reason) -> FilterResult:
        snapshot, may_fit_later = self._cache.snapshot(), reason.code in _MAY_FIT_LATER
        version = snapshot.version if may_fit_later else -1
        if key.source in IN_TREE and len(names) < len(snapshot.node_infos):
            self.admission.go_on(key, reason, version, pod.uid)  # the next call may name another topology domain
        else:
            # Berth sees when a gang fits to which kube-scheduler offered all nodes. It cannot know other offers.
            wakes = reason.code is not Code.INVALID and not (may_fit_later and len(names) >= len(snapshot.node_infos))
            self.admission.pause(key, reason, version, pod.uid, wakes=wakes)
        self.collecting.wake()
        return self._rejected(names, reason)

    def _rejected(self, names: Sequence[str], reason: Reason) -> FilterResult:
        text = str(reason)
        self._filter_service.unschedulable_reasons[reason.code.name] += 1
        return FilterResult([], dict.fromkeys(names, text))

    # -- bind ------------------------------------------------------------------------------------------------

    def forming_for(self, pod: Pod, membership: Membership) -> FormingGang | None:
        """The plan by which a member is bound; None if it is bound as a single pod.

        Raises BindError if its gang has no plan, or if Berth does not know whether its minimum runs: this process has
        not answered the pod's last filter request, or answered it with a plan that ended before the minimum was bound.
        """
        forming = self.plans.expire(membership.key)
        if forming is not None and pod.uid in forming.planned.members:
            return forming if pod.uid not in forming.left else None
        if forming.runs if forming is not None else self.plans.single_pods.get(pod.uid) == membership.key:
            return None
        problem = self.admission.missing(pod, membership)
        if forming is not None:
            problem = Reason(Code.GANG_FORMING, (membership.key.name,))
        if isinstance(problem, int) and problem <= 0:
            return None
        why = f": {problem}" if isinstance(problem, Reason) else " any more"
        raise BindError(f"group {membership.key.name} has no plan for pod {pod.key}{why}")

    def outside_domain(self, forming: FormingGang, membership: Membership, uids: Collection[str]) -> str:
        """Which of these members' nodes is not in the one domain that the gang, or its sub-group, needs; '' if none is.

        The planner chose nodes of one domain; then the labels of a node changed.
        """
        snapshot, policy = self._cache.snapshot(), self._filter_service.policy
        group = snapshot.group_policies.get(membership.policy_key)
        label = group.topology_label if group is not None else ""
        topology = group_topology(membership.topology, label, policy.group_levels)
        label = topology.required_label(policy.group_levels)
        placed = Counter(placed_members(forming.key, snapshot).values())
        placements = forming.planned.plan.placements
        planned = {uid: node for uid in placements if (node := forming.node_of(uid)) is not None}
        domain = running_domain(topology, placed or Counter(planned.values()), snapshot, policy) if label else None
        for node in (planned[uid] for uid in uids if uid in planned) if label else ():
            if domain is None or node not in domain.nodes:
                where = str(domain) if domain is not None else f"in a domain of {label}"
                return f"node {node} is not {where}, where the pods of group {forming.key.name} must be"
        return left_subgroup(forming.planned.subgroups, planned, uids, snapshot, policy)

    def follow_kube_scheduler(self, forming: FormingGang) -> None:
        """The binds of the minimum came, some of them for other nodes than the planned ones: plan for these nodes.

        The in-tree gang scheduling asks about several topology domains and binds in one of them. Berth holds only the
        devices of the last one, and no claim is written yet.
        """
        pods = self._cache.store.members.get(forming.key, {})
        pod = next((pods[uid] for uid in forming.arrived if uid in pods), None)
        if pod is None:
            return
        self._cache.release(*forming.planned.members)
        forming.answered.intersection_update(forming.arrived)
        gang = self._planning.gang_of(pod)
        try:
            found = self._planned(gang, pod, None, forming, is_whole=True)
        except DeadlineExceeded:
            found = Reason(Code.GANG_UNFINISHED, (gang.key.name,))
        if not isinstance(found, PlannedGang):
            reason = found if isinstance(found, Reason) else found.reason
            why = f"kube-scheduler chose other nodes than Berth: {reason}"
            self.plans.fail(forming, why, self.plans.refusal(forming, forming.bound_elsewhere))
            return
        self.plans.replan(forming, found)


def _plan_of(key: GroupKey) -> Hashable:
    """The key of the queued plan of a gang."""
    return "plan", key
