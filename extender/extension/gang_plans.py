"""The plans of the gangs that are being bound, and their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import structlog

from extender.cache import ClusterCache
from extender.extension.bind_slots import BindSlots, SlotLimits, SlotQueue
from extender.extension.gang_collecting import GangCollecting
from extender.extension.gang_holds import hold, is_held
from extender.extension.gang_state import FormingGang, GangCounts, WaitingGang
from extender.extension.gang_turn import GangTurn
from extender.extension.sinks import FilterSink
from extender.extension.waiting_gangs import WaitingGangs
from extender.model import BerthError, Code, FairLRU, GroupKey, Pod, Reason

_KEEP_THE_TURN = (Code.GANG_WAITS, Code.GANG_UNFINISHED)  # reasons of the gang with the turn
_PODS = 4096  # remembered pods whose bind needs no plan
_WAIT_FOR_OTHERS = (Code.GANG_WAITS, Code.GANG_QUEUED)  # reasons of gangs that wait for the end of other plans


class GangPlans:
    """The plan of each gang that has one. No function here awaits.

    `changed` is called after a plan ended: binds of the gang may wait for it. `clock` returns seconds.
    """

    def __init__(
        self,
        cache: ClusterCache,
        waiting: WaitingGangs,
        collecting: GangCollecting,
        sink: FilterSink,
        clock: Callable[[], float],
        changed: Callable[[], None],
        limits: SlotLimits,
    ) -> None:
        self._cache = cache
        self._waiting = waiting
        self._collecting = collecting
        self._sink = sink
        self._clock = clock
        self._changed = changed
        self._slots = BindSlots(clock, limits)
        self._queue = SlotQueue(clock)
        self.turn = GangTurn(clock, lambda key: self._waits(key, *_KEEP_THE_TURN))
        self._log = structlog.get_logger("berth.gangs")
        self.forming: dict[GroupKey, FormingGang] = {}
        # By UID, the group of each pod whose bind needs no plan: the minimum was bound when the pod was filtered, or
        # when its plan ended. Later the cache may lack proof of that.
        self.alone: FairLRU[str, GroupKey] = FairLRU(_PODS)
        self.counts = GangCounts()

    def add(self, forming: FormingGang) -> None:
        """Add a plan. Plans that give way to it end.

        All plans of a namespace count from the time of its first plan. Otherwise a namespace could keep its slots for
        ever, with a new plan before an old one gives way. When one of its plans has given way, the others count from
        now.
        """
        namespace = forming.key.namespace
        forming.since = min([forming.since, *(plan.since for plan in self._plans_of(namespace))])
        for other in self._slots.plans_in_the_way(namespace, forming.slots, self.forming.values()) or ():
            gives_way_to_other = not other.runs and other.key.namespace != namespace
            self._give_way(other)
            for plan in self._plans_of(other.key.namespace) if gives_way_to_other else ():
                plan.since = self._clock()
        self.forming[forming.key] = forming

    def _plans_of(self, namespace: str) -> list[FormingGang]:
        return [plan for plan in self.forming.values() if plan.key.namespace == namespace]

    def occupied_for(self, key: GroupKey) -> dict[GroupKey, frozenset[str]]:
        """The nodes on which a gang must not form, by the gang that forms there or that has the turn.

        A gang with a plan keeps its own nodes, and those for which kube-scheduler sent bind requests.
        """
        found = {other.key: other.planned.nodes for other in self.forming.values() if other.key != key}
        turn, forming = self.turn.before(key, self._waiting.complete_since(key)), self.forming.get(key)
        if turn is not None:
            own = forming.planned.nodes.union(forming.arrived.values()) if forming is not None else frozenset[str]()
            found[turn.key] = turn.nodes - own
        return found

    def waits_for_other(self, waiting: WaitingGang) -> bool:
        """Whether the gang waits for another one, which forms now or has the turn."""
        return waiting.other is not None and (waiting.other in self.forming or waiting.other == self.turn.key)

    def left_turn(self, key: GroupKey) -> None:
        """Take the turn from a gang that waits for no other one any more: gangs that wait for it may get a plan."""
        if self.turn.leave(key):
            self._requeue_waiting()

    def have_slots(self, key: GroupKey, count: int) -> bool:
        """Whether a gang can get `count` slots for its binds now, beside those kept for gangs that wait longer."""
        complete_since = self._waiting.complete_since(key)
        with_plan = {other.namespace for other in self.forming}
        kept = self._queue.kept_from(key, complete_since, with_plan, lambda one: self._waits(one, Code.GANG_QUEUED))
        if self._slots.plans_in_the_way(key.namespace, count, self.forming.values(), kept) is not None:
            if self._queue.leave(key):
                self._requeue_waiting()  # it may have no room, and then keeps no slots from others
            return True
        self._queue.wait(key, count, complete_since)
        return False

    def _waits(self, key: GroupKey, *codes: Code) -> bool:
        waiting = self._waiting.get(key)
        return waiting is not None and waiting.reason.code in codes

    def held_members(self) -> frozenset[str]:
        """UIDs of the members of all plans."""
        return frozenset[str]().union(*(forming.planned.members for forming in self.forming.values()))

    def end(self, forming: FormingGang, why: str) -> None:
        """End a plan: its holds end, and binds that wait for other members fail. A committed gang goes on."""
        if self.forming.get(forming.key) is forming:
            del self.forming[forming.key]
            self._queue.move_to_end(forming.key.namespace)
        if not forming.committed:
            forming.ended = forming.ended or why
        for uid in forming.planned.members - forming.bound if forming.runs else ():
            self.alone.put(forming.key.namespace, uid, forming.key)
        for uid in forming.planned.members:
            self._release(forming, uid)
        self._cache.freed()
        self._changed()
        self._requeue_waiting()

    def _is_replaced(self, forming: FormingGang) -> bool:
        """Whether the plan has ended and the gang has a new one: the holds of its members belong to the new plan."""
        return self.forming.get(forming.key, forming) is not forming

    def _release(self, forming: FormingGang, uid: str) -> None:
        if not self._is_replaced(forming):
            self._cache.release(uid)

    def _requeue_waiting(self) -> None:
        if self._waiting.any_for(*_WAIT_FOR_OTHERS):
            self._queue.requeued()
            self.turn.requeued()
            self._sink.fits()

    def bind_failed(self, forming: FormingGang, pod: Pod, error: BerthError) -> None:
        """The bind of a member failed before the gang was committed: the plan ends, and the next reasons say why."""
        if forming.committed or forming.ended:
            return
        reason = Reason(Code.GANG_BIND_FAILED, (forming.key.name, str(pod.key), str(error)))
        self.fail(forming, f"the bind of pod {pod.key} failed: {error}", reason)

    def fail(self, forming: FormingGang, why: str, reason: Reason | None = None) -> None:
        """End a plan, and plan the gang again only after a pause. Meanwhile its members get `reason`; by default, it
        says which bind did not come in time."""
        if forming.committed or forming.ended:
            return
        self.counts.failed += 1
        self._log.info("a gang was not bound", group=str(forming.key), because=why)
        self.end(forming, why)
        self._waiting.pause(forming.key, reason or self._late(forming))

    def refusal(self, forming: FormingGang, uids: Sequence[str], code: Code = Code.GANG_REFUSED) -> Reason:
        """The reason that names a pod which kube-scheduler did not bind: one of `uids`, or an equal one.

        kube-scheduler may refuse another of some equal pods in each attempt, and it retries pods whose reason changes.
        So the pod of the last reason is named again if it can be.
        """
        keys, named = forming.planned.equivalence_keys, self._waiting.named_pod(forming.key)
        if named not in forming.planned.names or keys.get(named) not in [keys.get(uid) for uid in uids]:
            named = uids[0]
            self._waiting.name_pod(forming.key, named)
        return Reason(code, (forming.key.name, str(forming.planned.names[named])))

    def _late(self, forming: FormingGang) -> Reason:
        """The reason after a plan whose binds did not all come in time."""
        pods, absent = self._cache.store.pods, forming.absent
        if not absent:
            uid = next(uid for uid in forming.planned.names if uid not in forming.written)
            problem = "its claims were not written in time"
            return Reason(Code.GANG_BIND_FAILED, (forming.key.name, str(forming.planned.names[uid]), problem))
        refused = [uid for uid in absent if uid in pods and forming.is_refused_with(pods[uid].unschedulable)]
        return self.refusal(forming, refused) if refused else self.refusal(forming, absent, Code.GANG_LATE)

    def changed(self, forming: FormingGang, why: str) -> None:
        """End the plan of a gang that has other members or another minimum now."""
        self.end(forming, why)
        self._waiting.changed_while_planned(forming.key)

    def _give_way(self, forming: FormingGang) -> None:
        name = forming.key.name
        self.fail(forming, f"a group of another namespace waits, and pods of group {name} did not reach bind in time")
        if forming.committed:
            self.end(forming, "")

    def bound(self, forming: FormingGang, uid: str) -> None:
        """A member is bound. After the last one, the plan is done."""
        forming.bound.add(uid)
        self._cache.member_bound(forming.key, uid)
        self._waiting.succeeded(forming.key)
        if len(forming.bound) == forming.quorum:
            self._collecting.end(forming.key, "its minimum is bound")
            self.counts.bound += 1
            self.counts.seconds += self._clock() - forming.complete_since
            self._requeue_waiting()
        self._end_if_done(forming)

    def leave(self, forming: FormingGang, uid: str) -> None:
        """Place a member of a committed gang alone from now on: it is gone, or cannot be bound by the plan."""
        forming.left.add(uid)
        self._release(forming, uid)
        self._cache.freed()
        self._end_if_done(forming)

    def keep(self, forming: FormingGang, uid: str) -> None:
        """Hold the devices of a member of a committed gang whose bind failed, until its next attempt.

        The pod may have been deleted while its bind ran: then there is none.
        """
        if uid in forming.planned.plan.placements.keys() - forming.left and not self._is_replaced(forming):
            hold(self._cache, forming, [uid])

    def retry(self, forming: FormingGang, uid: str) -> None:
        """Await another bind of a member of a committed gang whose bind failed. Without devices, place it alone."""
        forming.arrived.pop(uid, None)
        forming.progress_at = self._clock()
        if not is_held(self._cache, forming, uid):
            self.leave(forming, uid)

    def _end_if_done(self, forming: FormingGang) -> None:
        if forming.bound | forming.left >= forming.planned.members:
            self.end(forming, "all members are bound")

    def expire(self) -> None:
        """End the plans whose deadline passed."""
        now = self._clock()
        for forming in [forming for forming in self.forming.values() if forming.ends_at <= now]:
            members, name = forming.planned.members, forming.key.name
            absent = len(forming.absent)
            self.fail(forming, f"{absent} of {len(members)} pods of group {name} did not reach bind in time")
            if forming.committed:
                self.end(forming, "")

    def requeue_due(self) -> None:
        """Let kube-scheduler retry the gangs that wait for slots or for another gang, if more may get a plan now."""
        gives_way, lost_place = self._slots.began_to_give_way(self.forming.values()), self._queue.lost_place()
        if (gives_way or lost_place) and self._waiting.any_for(Code.GANG_QUEUED):
            self._queue.requeued()
            self._sink.fits()
        if self.turn.lost():
            self._requeue_waiting()

    @property
    def next_deadline(self) -> float:
        """The earliest time at which `expire` or `requeue_due` has work; infinite if there is none."""
        ends = min((forming.ends_at for forming in self.forming.values()), default=inf)
        slots = min(self._slots.next_deadline(self.forming.values()), self._queue.next_deadline)
        return min(ends, slots, self.turn.next_deadline)
