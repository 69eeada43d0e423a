"""The admission queue of gangs: may this gang be planned now?

A filter request about a member asks four questions, in this order. (1) Is the gang complete and valid (`missing`)?
(2) Does it wait for a gang that comes first, for the queue of evaluations, or for the end of a pause (`ask`)? (3) Are
there bind slots for its whole minimum (`ask`)? (4) On which nodes must it not form (`occupied_for`)? A gang that gets
no plan becomes a WaitingGang, and its members get the reason.

Bind slots: the bind of each member keeps an HTTP connection while it waits for the others. Connections are limited
(`web/asgi.py`), and so are slots. A gang gets the slots of its whole minimum, or none: two gangs with half of
their slots each would wait forever.

Positions: small new gangs do not overtake a large old one. Slots are kept for the first gang of a namespace, which has
been complete for longest, and for the first one of the namespace that has waited longest for a plan. Nodes are kept for
one gang of all, which has been complete for longest, and which fits on them once others are bound: two gangs never form
on one node, because kube-scheduler could have room there for half of each. A gang loses its position when it waits for
something else, or when kube-scheduler does not ask about it for 15 s after a requeue. Gangs of a namespace that lost
nodes so come after those of others for a minute: a tenant may have many gangs of this kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

from extender.api.pod_groups import GroupKey, GroupSource, Membership
from extender.api.pods import Pod
from extender.api.reasons import Code, Reason
from extender.base.fair_lru import FairLRU
from extender.cache import ClusterCache
from extender.gangs.gang import (
    difference,
    gang_minimum,
    is_incomplete,
    lacking_object,
    may_terminate,
    placed_members,
)
from extender.gangs.gang_problem import MAX_TOGETHER, NO_ROOM
from extender.serve.gangs.bound_members import BoundMembers
from extender.serve.gangs.gang_state import (
    WAITING_EVENTS,
    FormingGang,
    GangEvent,
    GangState,
    GangTimer,
    GangTimers,
    WaitingGang,
    next_state,
)

MAX_REMEMBERED = 4096  # gangs
ABSENT_SECONDS = 15.0  # until a requeued gang loses its position; kube-scheduler retries a pod after 10 s at most
LAST_SECONDS = 60.0  # for which the gangs of a namespace that lost nodes come last
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds until a gang whose plan failed is planned again
CHANGED_SECONDS = 1.0  # until a gang with other members is planned again: a tenant may edit them many times a second
_INVALID = (Code.INVALID, Code.GANG_TOO_LARGE)  # only an edit of the pods or of their group's object can help
_KEEPS_NODES = (GangState.BEHIND, GangState.UNFINISHED, GangState.PLANNABLE)
_WAITS_FOR_OTHERS = (GangState.QUEUED, GangState.BEHIND)
_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """Limits of the slots of all plans."""

    total: int = MAX_TOGETHER + 48  # 64 below the connections to the verbs: the others serve pods outside of gangs
    # Of the plans of one namespace; also of all plans together, without those of small namespaces.
    namespace: int = MAX_TOGETHER
    small: int = 16  # a namespace with at most this many slots is small: it may use those from `namespace` to `total`


@dataclass(slots=True)
class QueuePosition:
    """What is kept for a gang that waits for slots or for nodes."""

    key: GroupKey
    complete_since: float
    states: tuple[GangState, ...]  # the gang keeps the position in these
    since: float  # when the namespace began to wait, or when the last of its plans ended
    slots: int = 0
    nodes: frozenset[str] = frozenset()
    requeued_at: float = inf  # when kube-scheduler was told to retry; infinite if it has asked since

    @property
    def lost_at(self) -> float:
        """When the gang loses the position if kube-scheduler does not ask."""
        return self.requeued_at + ABSENT_SECONDS


@dataclass(slots=True)
class _History:
    """What is remembered of a gang from one plan to the next."""

    complete_since: float | None = None
    failures: int = 0  # plans that failed since a member was bound
    named: str = ""  # UID of the pod that the reasons name since then
    collects_at: float = -inf  # see collects_not_before


class GangAdmission:
    """The gangs that wait, those with a plan, and the positions of those that wait for others. No function here awaits.

    `requeue` lets kube-scheduler retry the pods that Berth rejected. `is_served` tells whether the API server serves
    the PodGroups of a source. `clock` returns seconds. At most MAX_REMEMBERED gangs wait, see FairLRU.
    """

    def __init__(
        self,
        cache: ClusterCache,
        bound_members: BoundMembers,
        timers: GangTimers,
        clock: Callable[[], float],
        requeue: Callable[[], None],
        is_served: Callable[[GroupSource], bool] = lambda _: False,
        limits: SlotLimits | None = None,
    ) -> None:
        self._cache = cache
        self._bound_members = bound_members
        self._timers = timers
        self._clock = clock
        self._requeue = requeue
        self._is_served = is_served
        self._limits = limits or SlotLimits()
        self.forming: dict[GroupKey, FormingGang] = {}  # the gangs with a plan
        self._waiting: FairLRU[GroupKey, WaitingGang] = FairLRU(MAX_REMEMBERED)
        self._histories: FairLRU[GroupKey, _History] = FairLRU(MAX_REMEMBERED)
        self._for_slots: dict[str, QueuePosition] = {}  # by namespace; each is of a gang that waits
        self._for_nodes: QueuePosition | None = None
        self._lost_nodes_at: dict[str, float] = {}  # by namespace, of the last minute

    # -- (1) complete and valid? -----------------------------------------------------------------------------

    def missing(self, pod: Pod, membership: Membership) -> int | Reason:
        """How many members of the pod's gang must still be bound, or why it cannot be planned now. It has no plan.

        0 or less if the pod is a single pod. Some members may be bound without a claim that shows it, or may terminate
        with one, so they are read now and then.
        """
        key, snapshot = membership.key, self._cache.snapshot()
        minimum = gang_minimum(membership, snapshot)
        invalid = membership.problem or difference(pod, membership, minimum, snapshot)
        if invalid:
            return Reason(Code.INVALID, (invalid,))
        if not minimum:
            lacks = lacking_object(membership, snapshot)
            waits = membership.lacks or (lacks and self._is_served(key.source))
            return Reason(Code.GANG_UNKNOWN, (lacks,)) if waits else 0
        if minimum > MAX_TOGETHER:
            return Reason(Code.GANG_TOO_LARGE, (key.name, str(MAX_TOGETHER)))
        if is_incomplete(membership, minimum, snapshot):
            self._bound_members.want(key)
            return Reason(Code.GANG_INCOMPLETE, (key.name, str(minimum)))
        placed = placed_members(key, snapshot)
        is_new = pod.uid not in snapshot.members.get(key, {})  # the known members may be those of an earlier gang
        if may_terminate(key, placed, minimum, snapshot) or (is_new and placed):
            self._bound_members.want(key)
            return Reason(Code.GANG_UNREAD, (key.name,))
        return minimum - len(placed)

    def wait_or_missing(self, pod: Pod, membership: Membership) -> int | Reason:
        """As `missing`; a gang that cannot be planned waits for the end of the reason."""
        found = self.missing(pod, membership)
        if isinstance(found, Reason):
            (self.invalid if found.code in _INVALID else self.wait)(membership.key, pod.uid, found)
        return found

    # -- (2) must it wait? (3) are there slots? --------------------------------------------------------------

    def ask(
        self, key: GroupKey, uid: str, slots: int, waiting: WaitingGang | None, *, is_queued: bool
    ) -> Reason | None:
        """Why the gang of the pod `uid` must wait although it is complete; None if it may be planned now.

        `slots` is the number of its members that must still be bound; `waiting` is the gang if it waits already.
        `is_queued`: its plan is in the queue of evaluations.
        """
        if waiting is not None:
            pauses, is_behind = self._clock() < waiting.retry_at, self._waits_for_other(waiting)
            if is_behind and self._for_nodes is not None and self._for_nodes.key == key:
                self._for_nodes.requeued_at = inf
            if is_behind or is_queued or pauses:
                waiting.note(uid)
                if pauses and not is_queued:
                    self._end_pause_at(key, waiting, waiting.retry_at)
                return waiting.reason
        if self._admit(key, slots):
            return None
        reason = Reason(Code.GANG_QUEUED, (key.name,))
        self.wait(key, uid, reason)
        return reason

    def _waits_for_other(self, waiting: WaitingGang) -> bool:
        """Whether the gang waits for another one, which forms now or has nodes kept."""
        first = self._for_nodes
        return waiting.other is not None and (
            waiting.other in self.forming or (first is not None and waiting.other == first.key)
        )

    def _admit(self, key: GroupKey, slots: int) -> bool:
        """Admit a gang if its slots are free, beside those kept for gangs that wait longer; else note that it waits."""
        complete_since = self.complete_since(key)
        kept = self._kept_from(key, complete_since)
        first = self._for_slots.get(key.namespace)
        if self.plans_to_preempt(key.namespace, slots, kept) is not None:
            if first is not None and first.key == key:
                del self._for_slots[key.namespace]
                self.requeue_waiting()  # it may have no room, and then keeps no slots from others
            return True
        if first is None or complete_since < first.complete_since or first.key == key:
            since = first.since if first is not None else self._clock()
            self._for_slots[key.namespace] = QueuePosition(key, complete_since, (GangState.QUEUED,), since, slots)
        return False

    def _kept_from(self, key: GroupKey, complete_since: float) -> dict[str, int]:
        """The slots that are kept from a gang, by namespace."""
        with_plan = {forming.namespace for forming in self.forming}
        own, found = self._for_slots.get(key.namespace), dict[str, int]()
        if own is not None and own.key != key and own.complete_since < complete_since:
            found[key.namespace] = own.slots
        own_since = own.since if own is not None and key.namespace not in with_plan else inf
        others = [position for name, position in self._for_slots.items() if name not in {key.namespace, *with_plan}]
        other = min(others, key=lambda position: position.since, default=None)
        if other is not None and other.since < own_since:
            found[other.key.namespace] = other.slots
        return found

    def plans_to_preempt(self, namespace: str, slots: int, kept: Mapping[str, int] = _NONE) -> list[FormingGang] | None:
        """The plans that end so that a gang of the namespace gets its slots; None if it must wait.

        `kept` are slots for gangs without a plan, by namespace. All may preempt a plan whose minimum is bound. After a
        time, other namespaces may preempt a plan that waits for members.
        """
        now, used, found = self._clock(), Counter({namespace: slots}) + Counter(kept), list[FormingGang]()
        for plan in self.forming.values():
            used[plan.key.namespace] += plan.slots
        for plan in sorted(self.forming.values(), key=lambda plan: (plan.preemptible_at, plan.since)):
            is_own, fit_together = plan.key.namespace == namespace, self._fit_together(namespace, used)
            if fit_together and used[namespace] <= self._limits.namespace:
                break
            if plan.preemptible_at <= now and (plan.runs or not is_own) and (is_own or not fit_together):
                found.append(plan)
                used[plan.key.namespace] -= plan.slots
        fits = self._fit_together(namespace, used) and used[namespace] <= self._limits.namespace
        return found if fits else None

    def _fit_together(self, namespace: str, used: Counter[str]) -> bool:
        """Whether these slots, by namespace, are within the limits. For a larger namespace, small ones do not count."""
        limits, total = self._limits, used.total()
        if used[namespace] <= limits.small:
            return total <= limits.total
        small = sum(slots for slots in used.values() if slots <= limits.small)
        return total - min(small, limits.total - limits.namespace) <= limits.namespace

    # -- (4) where must it not form? -------------------------------------------------------------------------

    def occupied_for(self, key: GroupKey) -> dict[GroupKey, frozenset[str]]:
        """The nodes on which a gang must not form, by the gang that forms there or for which they are kept.

        A gang with a plan keeps its own nodes, and those for which kube-scheduler sent bind requests.
        """
        found = {other.key: other.planned.plan.nodes for other in self.forming.values() if other.key != key}
        position, forming = self._for_nodes, self.forming.get(key)
        if position is not None and position.key != key and self._order(position) < self._order_of(key):
            own = (
                forming.planned.plan.nodes.union(forming.arrived.values()) if forming is not None else frozenset[str]()
            )
            found[position.key] = position.nodes - own
        return found

    def wait_for_nodes(self, key: GroupKey, uid: str, reason: Reason, other: GroupKey, nodes: frozenset[str]) -> None:
        """Let a gang wait for the gang `other`, and keep the nodes on which it fits for it if it comes first."""
        self.wait(key, uid, reason, other)
        first, since = self._for_nodes, self.complete_since(key)
        if first is None or first.key == key or self._order_of(key) < self._order(first):
            self._for_nodes = QueuePosition(key, since, _KEEPS_NODES, self._clock(), nodes=nodes)

    def _order_of(self, key: GroupKey) -> tuple[bool, float]:
        is_last = self._lost_nodes_at.get(key.namespace, -inf) + LAST_SECONDS > self._clock()
        return is_last, self.complete_since(key)

    def _order(self, position: QueuePosition) -> tuple[bool, float]:
        return self._order_of(position.key)[0], position.complete_since

    @property
    def comes_first(self) -> GroupKey | None:
        """The gang for which nodes are kept; None if there is none."""
        return self._for_nodes.key if self._for_nodes is not None else None

    # -- positions -------------------------------------------------------------------------------------------

    def positions(self) -> Iterator[QueuePosition]:
        """The positions of gangs that wait for slots, and of the one for which nodes are kept."""
        yield from list(self._for_slots.values())
        if self._for_nodes is not None:
            yield self._for_nodes

    def position_lost(self, key: GroupKey) -> None:
        """kube-scheduler did not ask about a gang with a position in time: it loses the position."""
        lost = [position for position in self._positions_of(key) if position.lost_at <= self._clock()]
        if self._for_nodes in lost:
            now, before = self._clock(), self._lost_nodes_at.items()
            self._lost_nodes_at = {name: at for name, at in before if at + LAST_SECONDS > now} | {key.namespace: now}
        self._lose(lost)

    def _leave_positions(self, key: GroupKey, state: GangState) -> None:
        """The gang is in this state from now on: it loses its position unless it keeps it in this state."""
        self._lose([position for position in self._positions_of(key) if state not in position.states])

    def _positions_of(self, key: GroupKey) -> list[QueuePosition]:
        found = self._for_slots.get(key.namespace), self._for_nodes
        return [position for position in found if position is not None and position.key == key]

    def _lose(self, lost: Sequence[QueuePosition]) -> None:
        for position in lost:
            if position is self._for_nodes:
                self._for_nodes = None
            else:
                del self._for_slots[position.key.namespace]
        if lost:
            self.requeue_waiting()

    def preemptible(self, key: GroupKey) -> None:
        """A plan may be preempted from now on: a gang that waits for slots may get them."""
        plan = self.forming.get(key)
        if plan is not None and plan.preemptible_at <= self._clock() and self._any_in(GangState.QUEUED):
            self._requeue_positions()

    def requeue_waiting(self) -> None:
        """Let kube-scheduler retry the gangs that wait for others: some of them may get a plan now."""
        if self._any_in(*_WAITS_FOR_OTHERS):
            self._requeue_positions()

    def _requeue_positions(self) -> None:
        """kube-scheduler retries all rejected pods: from now on it must ask about the gangs that have a position."""
        for position in self.positions():
            self._expect(position)
        self._requeue()

    def _expect(self, position: QueuePosition) -> None:
        """kube-scheduler was told to retry the gang: without a request in time, it loses the position."""
        position.requeued_at = min(position.requeued_at, self._clock())
        self._timers.at((GangTimer.POSITION_LOST, position.key), position.lost_at)

    def plan_ended(self, namespace: str) -> None:
        """A plan of the namespace has ended: the namespace goes to the end of the queue for slots."""
        position = self._for_slots.get(namespace)
        if position is not None:
            position.since = self._clock()

    def _any_in(self, *states: GangState) -> bool:
        return any(gang.state in states for gang in self._waiting.values())

    # -- gangs that wait -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of gangs that wait."""
        return len(self._waiting)

    def get(self, key: GroupKey) -> WaitingGang | None:
        """The gang, if it waits."""
        return self._waiting.get(key)

    @property
    def namespaces(self) -> list[str]:
        """The namespaces with waiting gangs."""
        return self._waiting.namespaces

    def without_room(self, namespace: str, version: int) -> list[GroupKey]:
        """The gangs of a namespace for which an older snapshot than this version had no room, the longest waiting
        first."""
        return [key for key, gang in self._waiting.of(namespace) if gang.version not in (-1, version)]

    def reasons(self) -> Counter[str]:
        """Number of waiting gangs by the code of the reason."""
        return Counter(gang.reason.code.name for gang in self._waiting.values())

    def invalid(self, key: GroupKey, uid: str, reason: Reason) -> None:
        """Note a member that cannot run until a user edits it. A gang that already waits keeps its reason."""
        if not key.name:  # a pod with an annotation about a group may name no group
            return
        gang = self._waiting.get(key)
        if gang is None:
            gang = self._put(key, reason)
        gang.note(uid)

    def wait(self, key: GroupKey, uid: str, reason: Reason, other: GroupKey | None = None) -> None:
        """Let a gang wait for an event that Berth sees: new members, or the end of the plan of the gang `other`."""
        gang = self._waiting.get(key)
        if gang is None or gang.reason != reason:
            if WAITING_EVENTS.get(reason.code) is not GangEvent.PODS_MISSING:
                self.complete_since(key)
            pause = gang.retry_at if gang is not None else -inf  # missing members do not end a pause
            gang = self._put(key, reason)
            gang.retry_at = pause
        gang.other = other
        gang.note(uid)

    def pause(self, key: GroupKey, reason: Reason, version: int = -1, uid: str = "", *, wakes: bool = True) -> None:
        """After a failed plan, give the members this reason during a pause. Each failure in a row doubles the pause.

        `version` is that of the snapshot without room; -1 if the gang did not fail for want of devices. `wakes`:
        whether a plan may succeed later although Berth sees no change.
        """
        history = self._history(key)
        seconds = min(FIRST_PAUSE * 2.0 ** min(history.failures, 16), LONGEST_PAUSE)
        history.failures += 1
        gang = self._pause(key, reason, seconds, uid)
        gang.version, gang.wakes = version, wakes

    def go_on(self, key: GroupKey, reason: Reason, version: int, uid: str) -> None:
        """Give a gang without a plan for the nodes of one filter request this reason, without a pause.

        The next request may name other nodes. For `version` see `pause`.
        """
        gang = self._pause(key, reason, 0.0)
        gang.version, gang.wakes = version, False
        gang.note(uid)

    def postpone(self, key: GroupKey, uid: str, seconds: float) -> Reason:
        """A plan takes longer than a call: kube-scheduler asks again after `seconds`, if the queue takes longer.

        If nodes are kept for the gang, its time to lose them runs.
        """
        reason = Reason(Code.GANG_UNFINISHED, (key.name,))
        self._pause(key, reason, seconds, uid)
        if self._for_nodes is not None and self._for_nodes.key == key:
            self._expect(self._for_nodes)
        return reason

    def plannable(self, key: GroupKey) -> None:
        """The queue has evaluated all that the plan of a gang needs."""
        gang = self._waiting.get(key)
        if gang is not None:
            gang.state = next_state(key, gang.state, GangEvent.PLAN_EVALUATED)
            gang.retry_at = -inf
            self._requeue()

    def _pause(self, key: GroupKey, reason: Reason, seconds: float, uid: str = "") -> WaitingGang:
        self.complete_since(key)
        gang = self._put(key, reason)
        gang.retry_at = self._clock() + seconds
        if uid:
            gang.note(uid)
            self._end_pause_at(key, gang, gang.retry_at)  # kube-scheduler gave up this pod
        return gang

    def _end_pause_at(self, key: GroupKey, gang: WaitingGang, time: float, *, asked: bool = True) -> None:
        """The gang pauses until this time. `asked`: then kube-scheduler must be told, as it asked during the pause."""
        gang.retry_at = time
        gang.asked_early |= asked
        if gang.asked_early:
            self._timers.at((GangTimer.PAUSE_END, key), time)

    def pause_ended(self, key: GroupKey) -> None:
        """Let kube-scheduler retry a gang about which it asked during its pause, if it may get a plan now.

        Without a change, a gang without room is still without room.
        """
        gang, version = self._waiting.get(key), self._cache.snapshot().version
        if gang is not None and gang.asked_early and gang.retry_at <= self._clock():
            gang.asked_early = False
            if gang.wakes or gang.version not in (-1, version):
                self._requeue()

    def _put(self, key: GroupKey, reason: Reason) -> WaitingGang:
        """The gang waits with another reason now. It loses its position if it does not wait for that any more."""
        before = self._waiting.get(key)
        state = before.state if before is not None else GangState.NONE
        event = WAITING_EVENTS.get(reason.code, GangEvent.NO_PLAN)
        gang = WaitingGang(next_state(key, state, event), reason)
        for dropped, _ in self._waiting.put(key.namespace, key, gang):
            self._popped(dropped)
        self._timers.cancel((GangTimer.PAUSE_END, key))
        self._leave_positions(key, gang.state)
        return gang

    def _pop(self, key: GroupKey) -> WaitingGang | None:
        """The gang does not wait any more. Returns it as it waited, if it did."""
        found = self._waiting.pop(key)
        if found is not None:
            self._popped(key)
        return found

    def _popped(self, key: GroupKey) -> None:
        self._timers.cancel((GangTimer.PAUSE_END, key))
        self._leave_positions(key, GangState.NONE)

    def retry_soon(self, key: GroupKey) -> bool:
        """The gang has other members or another minimum: a pause ends soon, since a plan may succeed now.

        At the end of the pause kube-scheduler retries the gang, unless it waits for missing members. Returns whether
        the gang pauses.
        """
        gang, now = self._waiting.get(key), self._clock()
        if gang is None:
            return False
        gang.needs = None
        gang.wakes = True
        retry_at = min(gang.retry_at, now + CHANGED_SECONDS)
        self._end_pause_at(key, gang, retry_at, asked=gang.state is not GangState.MISSING)
        return retry_at > now

    def completed(self, key: GroupKey) -> None:
        """Missing members or the PodGroup exist now: kube-scheduler retries the gang, after its pause if it has one."""
        gang = self._waiting.get(key)
        if gang is not None and self.retry_soon(key):
            self._end_pause_at(key, gang, gang.retry_at)
        else:
            self._requeue()

    def changed_while_planned(self, key: GroupKey) -> None:
        """The plan of the gang ended because the gang changed. It pauses as any gang that changes."""
        self._pause(key, Reason(Code.GANG_CHANGED, (key.name,)), CHANGED_SECONDS)

    def ask_again(self, key: GroupKey, gang: WaitingGang, seconds: float) -> None:
        """The planner could not decide whether the gang fits; kube-scheduler retries after `seconds`."""
        gang.version, gang.wakes = -1, True
        self._end_pause_at(key, gang, self._clock() + seconds)

    def plan_again(self, code: Code) -> None:
        """End the pauses of the gangs that wait with this code."""
        for key, gang in self._waiting.items():
            if gang.reason.code is code:
                self._end_pause_at(key, gang, -inf, asked=False)

    def planned(self, key: GroupKey) -> WaitingGang | None:
        """The gang has a plan. Returns it as it waited, if it did."""
        if self.comes_first == key:
            self._for_nodes = None  # without a requeue: others wait for its plan now
        found = self._pop(key)
        next_state(key, found.state if found is not None else GangState.NONE, GangEvent.PLAN)
        return found

    def gone(self, key: GroupKey) -> None:
        """No member of the gang waits any more."""
        self._pop(key)
        history = self._histories.get(key)
        if history is not None:
            history.complete_since = None
            if history == _History():
                self._histories.pop(key)

    # -- from one plan to the next ---------------------------------------------------------------------------

    def _history(self, key: GroupKey) -> _History:
        found = self._histories.get(key)
        if found is None:
            found = _History()
            self._histories.put(key.namespace, key, found)
        return found

    def complete_since(self, key: GroupKey) -> float:
        """When a filter request first found that enough members of the gang exist; now, if this one is the first."""
        history = self._history(key)
        if history.complete_since is None:
            history.complete_since = self._clock()
        return history.complete_since

    def failures(self, key: GroupKey) -> int:
        """How many plans of the gang failed since a member was bound."""
        history = self._histories.get(key)
        return history.failures if history is not None else 0

    def succeeded(self, key: GroupKey) -> None:
        """A member is bound: the gang does not wait any more, and its failures are forgotten."""
        self._pop(key)
        history = self._histories.pop(key)
        if history is not None and history.collects_at > self._clock():
            self.collects_not_before(key, history.collects_at)

    def named_pod(self, key: GroupKey, uids: Collection[str]) -> str:
        """UID of the pod that the reasons of failed plans name: the one of the last reason if it is one of these."""
        history = self._history(key)
        if history.named not in uids:
            history.named = next(iter(uids))
        return history.named

    def next_to_collect(self) -> tuple[float, GroupKey] | None:
        """Of the gangs without room, the one that may collect devices first, and when.

        Of those that have not collected before, it is the one that has been complete for longest.
        """
        lacking = [key for key, gang in self._waiting.items() if gang.reason.code in NO_ROOM]
        found = [(self.may_collect_at(key), self.complete_since(key), key) for key in lacking]
        at, _, key = min(found, key=lambda entry: entry[:2], default=(0.0, 0.0, None))
        return (at, key) if key is not None else None

    def collects_not_before(self, key: GroupKey, at: float) -> None:
        """The gang has collected devices, or no domain could hold it: it may not collect before this time."""
        self._history(key).collects_at = at

    def may_collect_at(self, key: GroupKey) -> float:
        """When the gang may collect devices again; -inf if the gang may collect now."""
        history = self._histories.get(key)
        return history.collects_at if history is not None else -inf
