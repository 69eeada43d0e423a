"""The plans of the gangs that are being bound: their holds, their members, and their end.

A plan ends when its last member is bound, when a bind before the commit fails, when a member is deleted or rejected, at
its deadline, and when another gang preempts it. Then its holds end, and binds that still wait for other members fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf

import structlog

from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.api.reasons import Code, Reason
from extender.api.resource_claims import Reservation
from extender.base.berth_errors import BerthError
from extender.base.fair_lru import FairLRU
from extender.cache import ClusterCache
from extender.serve.gangs.gang_admission import GangAdmission
from extender.serve.gangs.gang_collecting import GangCollecting
from extender.serve.gangs.gang_state import FormingGang, GangCounts, GangTimer, GangTimers, PlannedGang

MAX_PODS = 4096  # remembered pods whose bind needs no plan


class GangPlans:
    """The plan of each gang that has one. No function here awaits.

    `changed` is called after a plan ended: binds of the gang may wait for it. `clock` returns seconds.
    """

    def __init__(
        self,
        cache: ClusterCache,
        admission: GangAdmission,
        collecting: GangCollecting,
        timers: GangTimers,
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._cache = cache
        self._admission = admission
        self._collecting = collecting
        self._timers = timers
        self._clock = clock
        self._changed = changed
        self._log = structlog.get_logger("berth.gangs")
        self._forming = admission.forming
        # By UID, the group of each pod that is bound as a single pod: the minimum was bound when the pod was filtered,
        # or when its plan ended. Later the cache may lack proof of that.
        self.single_pods: FairLRU[str, GroupKey] = FairLRU(MAX_PODS)
        self.counts = GangCounts()

    # -- begin -----------------------------------------------------------------------------------------------

    def add(self, forming: FormingGang) -> None:
        """Add a plan, and hold its devices. The plans that it preempts end.

        All plans of a namespace count from the time of its first plan. Otherwise a namespace could keep its slots for
        ever, with a new plan before an old one may be preempted. When one of its plans is preempted, the others count
        from now.
        """
        namespace = forming.key.namespace
        forming.since = min([forming.since, *(plan.since for plan in self._plans_of(namespace))])
        for other in self._admission.plans_to_preempt(namespace, forming.slots) or ():
            preempts_namespace = not other.runs and other.key.namespace != namespace
            name = other.key.name
            self._give_up(
                other, f"a group of another namespace waits, and pods of group {name} did not reach bind in time"
            )
            for plan in self._plans_of(other.key.namespace) if preempts_namespace else ():
                plan.since = self._clock()
                self._set_timers(plan)
        self._forming[forming.key] = forming
        self._hold_plan(forming)

    def replan(self, forming: FormingGang, planned: PlannedGang) -> None:
        """The gang has another plan now, in which settled members keep their nodes. Hold its devices."""
        forming.planned = planned
        self._hold_plan(forming)

    def _hold_plan(self, forming: FormingGang) -> None:
        self.hold(forming, forming.planned.plan.placements)
        self._set_timers(forming)
        self.counts.plans += 1

    def _set_timers(self, forming: FormingGang) -> None:
        ends_at, preemptible_at = forming.ends_at, forming.preemptible_at
        self._timers.at((GangTimer.PLAN_END, forming.key), ends_at)
        if self._clock() < preemptible_at < inf:
            self._timers.at((GangTimer.PREEMPTIBLE, forming.key), preemptible_at)

    def _plans_of(self, namespace: str) -> list[FormingGang]:
        return [plan for plan in self._forming.values() if plan.key.namespace == namespace]

    def held_members(self) -> frozenset[str]:
        """UIDs of the members of all plans."""
        return frozenset[str]().union(*(forming.planned.members for forming in self._forming.values()))

    # -- holds -----------------------------------------------------------------------------------------------

    def hold(self, forming: FormingGang, uids: Iterable[str]) -> None:
        """Hold the planned devices of members that are not held yet, if their nodes still exist."""
        node_infos = self._cache.snapshot().node_infos
        found: dict[str, Reservation] = {}
        for uid in uids:
            node, placement = forming.planned.plan.placements[uid]
            node_info = node_infos.get(node)
            if node_info is not None:
                claims = forming.planned.requirements[uid].for_node(node_info.node).pending_claims
                own = placement.holds(uid, claims, node_info, forming.deadline)
                found = own | found  # members may share a claim: the hold of the first one counts
        known = self._cache.reservations.by_claim
        self._cache.hold({uid: held for uid, held in found.items() if uid not in known})

    def is_held(self, forming: FormingGang, uid: str) -> bool:
        """Whether the devices are still reserved: meanwhile a claim may have been deleted or allocated elsewhere."""
        if uid in forming.planned.without_devices:
            return True
        node = forming.planned.plan.placements[uid][0]
        node_info = self._cache.snapshot().node_infos.get(node)
        if node_info is None:
            return False
        for claim in forming.planned.requirements[uid].for_node(node_info.node).pending_claims:
            reservation = self._cache.reservations.by_claim.get(claim.uid)
            if reservation is None:
                cached = self._cache.store.claims.get(claim.key)
                if cached is None or cached.uid != claim.uid or cached.allocation is None:
                    return False
            elif reservation.node != node:
                return False
        return True

    def _is_replaced(self, forming: FormingGang) -> bool:
        """Whether the plan has ended and the gang has a new one: the holds of its members belong to the new plan."""
        return self._forming.get(forming.key, forming) is not forming

    def _release(self, forming: FormingGang, uid: str) -> None:
        if not self._is_replaced(forming):
            self._cache.release(uid)

    def exchange(self, forming: FormingGang, pod: Pod, names: Sequence[str]) -> bool:
        """Give a member the planned node of an equal one, whose node is offered and that kube-scheduler has not asked
        about. Returns whether there is one.

        With a required topology spread, the nodes that kube-scheduler accepts depend on the order of the pods.
        """
        planned, uid = forming.planned, pod.uid
        placements, needs, offered = planned.plan.placements, planned.requirements, set(names)
        users = Counter(claim.uid for one in needs.values() for claim in one.pending_claims)
        unshared = [
            one for one, needed in needs.items() if all(users[claim.uid] == 1 for claim in needed.pending_claims)
        ]
        node = placements[uid][0]
        for other in unshared if uid in unshared else ():
            if other in forming.settled:
                continue
            is_equal = needs[other].key == needs[uid].key and node not in forming.excluded.get(other, ())
            if is_equal and placements[other][0] in offered:
                both = {uid: placements[other], other: placements[uid]}
                forming.planned = replace(planned, plan=replace(planned.plan, placements={**placements, **both}))
                self._cache.release(*both)
                self.hold(forming, both)
                return True
        return False

    # -- members ---------------------------------------------------------------------------------------------

    def bound(self, forming: FormingGang, uid: str) -> None:
        """A member is bound. After the last one, the plan is done."""
        is_last = forming.bind(uid)
        self._cache.store.forget_member(forming.key, uid)
        self._admission.succeeded(forming.key)
        if is_last:
            self._collecting.end(forming.key, "its minimum is bound")
            self.counts.bound += 1
            self.counts.seconds += self._clock() - forming.complete_since
            self._admission.requeue_waiting()
        self._end_if_done(forming)

    def leave(self, forming: FormingGang, uid: str) -> None:
        """A member of a committed gang is a single pod from now on: it is gone, or cannot be bound by the plan."""
        forming.left.add(uid)
        self._release(forming, uid)
        self._cache.freed()
        self._end_if_done(forming)

    def keep(self, forming: FormingGang, uid: str) -> None:
        """Hold the devices of a member of a committed gang whose bind failed, until its next attempt.

        The pod may have been deleted while its bind ran: then there is none.
        """
        if uid in forming.planned.plan.placements.keys() - forming.left and not self._is_replaced(forming):
            self.hold(forming, [uid])

    def bind_ended(self, forming: FormingGang, uid: str) -> None:
        """The bind of a member ended before it was bound: the plan may end earlier now."""
        forming.bind_ended(uid)
        if self._forming.get(forming.key) is forming:
            self._set_timers(forming)

    def retry(self, forming: FormingGang, uid: str) -> None:
        """Await another bind of a member of a committed gang whose bind failed. Without devices, it leaves the plan."""
        forming.progress_at = self._clock()
        self.bind_ended(forming, uid)
        if not self.is_held(forming, uid):
            self.leave(forming, uid)

    def _end_if_done(self, forming: FormingGang) -> None:
        if forming.bound | forming.left >= forming.planned.members:
            self.end(forming, "all members are bound")

    # -- end -------------------------------------------------------------------------------------------------

    def end(self, forming: FormingGang, why: str) -> None:
        """End a plan: its holds end, and binds that wait for other members fail. A committed gang goes on."""
        if self._forming.get(forming.key) is forming:
            del self._forming[forming.key]
            self._timers.cancel((GangTimer.PLAN_END, forming.key))
            self._timers.cancel((GangTimer.PREEMPTIBLE, forming.key))
            self._admission.plan_ended(forming.key.namespace)
        forming.end(why)
        for uid in forming.planned.members - forming.bound if forming.runs else ():
            self.single_pods.put(forming.key.namespace, uid, forming.key)
        for uid in forming.planned.members:
            self._release(forming, uid)
        self._cache.freed()
        self._changed()
        self._admission.requeue_waiting()

    def fail(self, forming: FormingGang, why: str, reason: Reason | None = None) -> None:
        """End a plan, and plan the gang again only after a pause. A committed gang goes on.

        Meanwhile its members get `reason`; by default, it says which bind did not come in time.
        """
        if forming.is_decided:
            return
        self.counts.failed += 1
        self._log.info("a gang was not bound", group=str(forming.key), because=why)
        self.end(forming, why)
        self._admission.pause(forming.key, reason or self._late(forming))

    def bind_failed(self, forming: FormingGang, pod: Pod, error: BerthError) -> None:
        """The bind of a member failed before the gang was committed: the plan ends, and the next reasons say why."""
        reason = Reason(Code.GANG_BIND_FAILED, (forming.key.name, str(pod.key), str(error)))
        self.fail(forming, f"the bind of pod {pod.key} failed: {error}", reason)

    def changed(self, forming: FormingGang, why: str) -> None:
        """End the plan of a gang that has other members or another minimum now."""
        self.end(forming, why)
        self._admission.changed_while_planned(forming.key)

    def _give_up(self, forming: FormingGang, why: str) -> None:
        if forming.committed:
            self.end(forming, why)
        else:
            self.fail(forming, why)

    def expire(self, key: GroupKey) -> FormingGang | None:
        """End the plan of a gang if its deadline passed. Returns the plan that goes on; it may end later by now."""
        forming = self._forming.get(key)
        if forming is None:
            return None
        if self._clock() < forming.ends_at:
            self._timers.at((GangTimer.PLAN_END, key), forming.ends_at)
            return forming
        count, size = len(forming.absent), len(forming.planned.members)
        self._give_up(forming, f"{count} of {size} pods of group {key.name} did not reach bind in time")
        return None

    # -- reasons ---------------------------------------------------------------------------------------------

    def refusal(self, forming: FormingGang, uids: Sequence[str], code: Code = Code.GANG_REFUSED) -> Reason:
        """The reason that names a pod which kube-scheduler did not bind: one of `uids`, or an equal one.

        kube-scheduler may refuse another of some equal pods in each attempt, and it retries pods whose reason changes.
        So the pod of the last reason is named again if it can be.
        """
        keys, names = forming.planned.equivalence_keys, forming.planned.names
        refused = [keys.get(uid) for uid in uids]
        named = self._admission.named_pod(forming.key, [*uids, *(uid for uid in names if keys.get(uid) in refused)])
        return Reason(code, (forming.key.name, str(names[named])))

    def _late(self, forming: FormingGang) -> Reason:
        """The reason after a plan whose binds did not all come in time."""
        pods, absent = self._cache.store.pods, forming.absent
        if not absent:
            uid = next(uid for uid in forming.planned.names if uid not in forming.written)
            problem = "its claims were not written in time"
            return Reason(Code.GANG_BIND_FAILED, (forming.key.name, str(forming.planned.names[uid]), problem))
        refused = [uid for uid in absent if uid in pods and forming.is_refused_with(pods[uid].unschedulable)]
        return self.refusal(forming, refused) if refused else self.refusal(forming, absent, Code.GANG_LATE)
