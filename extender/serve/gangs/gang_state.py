"""The life of a gang in `berth serve`: its states, and the table of TRANSITIONS that every change follows.

A gang waits until it may have a plan. The plan holds the devices of all members. Then kube-scheduler sends the bind
requests, which wait for each other twice: until all of the minimum came, and until all of these have written their
claims. From then on the gang is committed, and its Bindings are sent.

    waits ──PLAN──▶ PLANNED ──MINIMUM_ARRIVED──▶ WRITING ──MINIMUM_WRITTEN──▶ COMMITTED ──MINIMUM_BOUND──▶ RUNNING
      ▲              │   ▲                        │   │
      │              │   └───────BIND_ENDED───────┘   │
      └─── ENDED ◀───┴──────────────END───────────────┘

The effects of END are in GangPlans.end: the holds end, and the binds that wait for others fail. That of a committed
gang ends only its holds; its Bindings go on. A gang waits in one of the states from MISSING to PAUSED. Each filter
request about one of its members asks the admission queue (gang_admission.py) and the planner again, and what they find
is the event.

| state | ends at the latest | what a member's filter request gets |
|---|---|---|
| MISSING, UNREAD, QUEUED, BEHIND | an event that Berth sees; see gang_admission.py | the reason |
| UNFINISHED | `retry_at`, 5 s after the plan was queued | the reason |
| PLANNABLE | with the next request | a plan, with the time of a whole call |
| PAUSED | `retry_at`: 1 s after the first failed plan, then twice as long each time, up to 30 s | the reason |
| PLANNED, COMMITTED, RUNNING | `ends_at`: some time after the last progress | the planned node |
| WRITING | `deadline` of the plan | the planned node |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from math import inf
from typing import Any

from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import IN_TREE, GroupKey
from extender.api.reasons import Code, Reason
from extender.api.resource_claims import Claim
from extender.base.timers import Timers
from extender.gangs.gang_problem import GangPlan
from extender.gangs.member_limits import NodeLimit
from extender.scheduling import PodRequirements
from extender.scheduling.subgroup_tree import SubGroup

MEMBER_SECONDS = 0.05  # that each member adds to each time limit of its plan
# Seconds until the bind request of a further member. kube-scheduler retries a rejected pod after at most 10 s.
_PATIENCE, _DOUBTFUL_PATIENCE, _FIRST_BIND_SECONDS = 30.0, 15.0, 5.0
_SLOT_SECONDS = 15.0  # that a plan keeps its slots although a gang of another namespace waits for slots


class GangState(StrEnum):
    """The states of a gang."""

    NONE = "no member waits"
    MISSING = "waits for pods, or for its PodGroup"
    UNREAD = "waits until its bound members are read"
    QUEUED = "waits for bind slots"
    BEHIND = "waits for nodes that another gang uses first"
    UNFINISHED = "its plan is in the queue of evaluations"
    PLANNABLE = "the queue has evaluated all that its plan needs"
    PAUSED = "its last plan failed, or a user must edit it"
    PLANNED = "its devices are held, and the bind requests of its minimum come"
    WRITING = "the bind requests of its minimum came, and write their claims"
    COMMITTED = "the claims of its minimum are written, and its Bindings are sent"
    RUNNING = "its minimum is bound, and devices are held for further members"
    ENDED = "its plan ended before, and no member is bound by it"


class GangEvent(StrEnum):
    """The events of a gang."""

    PODS_MISSING = "a filter request found too few pods, or no PodGroup"
    MEMBERS_UNREAD = "a filter request found members that may run or terminate"
    NO_SLOTS = "a filter request found no bind slots for the minimum"
    NODES_TAKEN = "a filter request found a plan on nodes of another gang"
    NO_TIME = "a filter request had too little time for a plan, so it was queued"
    NO_PLAN = "a filter request found no plan or an error of a user, or the last plan failed"
    PLAN = "a filter request found a plan, and all its devices are held"
    PLAN_EVALUATED = "the queue of evaluations ended the work on its plan"
    MINIMUM_ARRIVED = "the bind request of the last member of the minimum came"
    BIND_ENDED = "a bind request of the minimum ended"
    MINIMUM_WRITTEN = "the claims of the minimum passed the write barrier"
    MINIMUM_BOUND = "the Bindings of the minimum are stored"
    END = "the plan ended: a deadline, a deleted member, a failed bind, or nothing is left to bind"


class GangTimer(StrEnum):
    """What is due. GangMonitor has the table of what is done then."""

    PLAN_END = "a plan without progress"
    PREEMPTIBLE = "a plan that others may preempt from now on"
    PAUSE_END = "the end of a pause in which kube-scheduler asked"
    POSITION_LOST = "the position of a gang that kube-scheduler does not ask about"
    COLLECTING = "the begin or the end of a collection"
    READ = "a read of the bound members of a namespace"
    READ_FORGOTTEN = "a read of a namespace that is too old"


GangTimers = Timers[tuple[GangTimer, Any]]
"""The name of a timer is a GroupKey; a namespace for reads; '' for the collection."""


_WITHOUT_PLAN = (
    GangState.NONE,
    GangState.MISSING,
    GangState.UNREAD,
    GangState.QUEUED,
    GangState.BEHIND,
    GangState.UNFINISHED,
    GangState.PLANNABLE,
    GangState.PAUSED,
)
_FOUND_BY_FILTER = {
    GangEvent.PODS_MISSING: GangState.MISSING,
    GangEvent.MEMBERS_UNREAD: GangState.UNREAD,
    GangEvent.NO_SLOTS: GangState.QUEUED,
    GangEvent.NODES_TAKEN: GangState.BEHIND,
    GangEvent.NO_TIME: GangState.UNFINISHED,
    GangEvent.NO_PLAN: GangState.PAUSED,
    GangEvent.PLAN: GangState.PLANNED,
}
TRANSITIONS: dict[tuple[GangState, GangEvent], GangState] = {
    **{(state, event): after for state in _WITHOUT_PLAN for event, after in _FOUND_BY_FILTER.items()},
    # Members may have been created or deleted while the queue worked.
    **{(state, GangEvent.PLAN_EVALUATED): state for state in _WITHOUT_PLAN},
    (GangState.UNFINISHED, GangEvent.PLAN_EVALUATED): GangState.PLANNABLE,
    (GangState.PLANNED, GangEvent.MINIMUM_ARRIVED): GangState.WRITING,
    (GangState.WRITING, GangEvent.MINIMUM_ARRIVED): GangState.WRITING,
    (GangState.PLANNED, GangEvent.BIND_ENDED): GangState.PLANNED,
    (GangState.WRITING, GangEvent.BIND_ENDED): GangState.PLANNED,
    (GangState.WRITING, GangEvent.MINIMUM_WRITTEN): GangState.COMMITTED,
    # A bind whose claims are written may end and come again, while it waits for a driver.
    (GangState.PLANNED, GangEvent.MINIMUM_WRITTEN): GangState.COMMITTED,
    (GangState.COMMITTED, GangEvent.MINIMUM_BOUND): GangState.RUNNING,
    (GangState.PLANNED, GangEvent.END): GangState.ENDED,
    (GangState.WRITING, GangEvent.END): GangState.ENDED,
    # A committed gang goes on, whatever happens to its plan or to single binds.
    **{
        (state, event): state
        for state in (GangState.COMMITTED, GangState.RUNNING)
        for event in (GangEvent.MINIMUM_ARRIVED, GangEvent.BIND_ENDED, GangEvent.MINIMUM_WRITTEN, GangEvent.END)
    },
    (GangState.RUNNING, GangEvent.MINIMUM_BOUND): GangState.RUNNING,
    # The binds of a plan that ended learn of it one after the other.
    **{
        (GangState.ENDED, event): GangState.ENDED
        for event in (GangEvent.MINIMUM_ARRIVED, GangEvent.BIND_ENDED, GangEvent.MINIMUM_WRITTEN, GangEvent.END)
    },
}
WAITING_EVENTS = {
    Code.GANG_INCOMPLETE: GangEvent.PODS_MISSING,
    Code.GANG_UNKNOWN: GangEvent.PODS_MISSING,
    Code.GANG_UNREAD: GangEvent.MEMBERS_UNREAD,
    Code.GANG_QUEUED: GangEvent.NO_SLOTS,
    Code.GANG_WAITS: GangEvent.NODES_TAKEN,
    Code.GANG_UNFINISHED: GangEvent.NO_TIME,
}
"""The event of each reason against a plan; NO_PLAN for the others."""


class InvalidGangTransition(RuntimeError):
    """TRANSITIONS has no entry for this state and event: a bug in Berth."""


def next_state(key: GroupKey, state: GangState, event: GangEvent) -> GangState:
    """The state of a gang after an event."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise InvalidGangTransition(f"group {key}: state {state.value!r} does not allow the event {event.value!r}")
    return after


@dataclass(frozen=True, slots=True)
class PlannedGang:
    """A plan and its input."""

    plan: GangPlan
    requirements: Mapping[str, PodRequirements]  # by UID; only of members that need devices
    equivalence_keys: Mapping[str, str]  # likewise; see GangMembers.equivalence_keys
    without_devices: frozenset[str]  # UIDs of the other members
    last_messages: Mapping[str, str]  # UID to kube-scheduler's last message about the pod before the plan
    names: Mapping[str, ObjectKey]  # UID to the member's name
    subgroups: tuple[SubGroup, ...] = ()  # GangProblem.subgroups
    members: frozenset[str] = field(init=False)  # UIDs of all members of the plan

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", self.without_devices | self.requirements.keys())

    def has_unschedulable(self, own: str) -> bool:
        """Whether kube-scheduler had rejected a member before the plan, with a message without Berth's words `own`."""
        return any(text and own not in text for text in self.last_messages.values())


@dataclass(frozen=True, slots=True)
class WaitsForGang:
    """A gang that fits on these nodes, of which another gang uses some. That gang is to be bound first."""

    other: GroupKey
    nodes: frozenset[str]

    @property
    def reason(self) -> Reason:
        return Reason(Code.GANG_WAITS, (str(self.other),))


@dataclass(slots=True, eq=False)
class FormingGang:
    """A gang with a plan, in one of the states from PLANNED on.

    kube-scheduler has chosen the planned node of the `answered` members, as far as Berth knows. `arrived` has the node
    of each bind request that came, and `written` the members whose claims passed the write barrier. Times are in
    seconds of the service's clock.
    """

    key: GroupKey
    planned: PlannedGang
    quorum: int  # members that must still be bound, so that the minimum runs
    complete_since: float  # see GangAdmission
    since: float  # when its namespace began to hold slots, see GangPlans.add
    deadline: float
    progress_at: float  # time of the plan, or of the last bind request that came for a further member
    doubtful: bool = False  # whether an earlier plan failed, or kube-scheduler has found no node for a member before
    minimum: int = 0  # of the gang when it was planned
    excluded: dict[str, set[str]] = field(default_factory=dict)  # UID to nodes that kube-scheduler rejected
    # UID to the most members equal to it on one node: kube-scheduler rejected one more than this.
    most: dict[str, int] = field(default_factory=dict)
    replans: int = 0
    rejected_with: str = ""  # the reason that members got before the plan; '' if none was rejected
    answered: set[str] = field(default_factory=set)  # UIDs whose filter request got the planned node
    arrived: dict[str, str] = field(default_factory=dict)  # UID to node
    written: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)  # of a committed gang: members that are single pods now, or gone
    state: GangState = GangState.PLANNED
    ended: str = ""  # why the plan ended before the gang was committed; '' if it did not
    _ever_arrived: set[str] = field(default_factory=set)  # UIDs, also of members whose binds ended

    # -- events ----------------------------------------------------------------------------------------------

    def _on(self, event: GangEvent) -> None:
        """The only place where the state changes."""
        self.state = next_state(self.key, self.state, event)

    def arrive(self, uid: str, node: str, now: float) -> None:
        """A bind request came. One that kube-scheduler repeats is no progress."""
        self.arrived[uid] = node
        if uid not in self._ever_arrived:
            self._ever_arrived.add(uid)
            self.progress_at = now
        if self.has_arrived:
            self._on(GangEvent.MINIMUM_ARRIVED)

    def bind_ended(self, uid: str) -> None:
        """The bind of a member ended before it was bound: the others must not count it."""
        self.arrived.pop(uid, None)
        if not self.has_arrived:
            self._on(GangEvent.BIND_ENDED)

    def refuse_node(self, uid: str, *, only_node: bool) -> None:
        """kube-scheduler rejected the planned node of a member: no member equal to it is planned there.

        If kube-scheduler has accepted n of them there, the planner assumes that no node has room for more than n.
        `only_node`: no other was offered. Preemption may have nominated it, which says nothing about other members.
        """
        self.answered.discard(uid)
        self.bind_ended(uid)
        node, keys = self.planned.plan.placements[uid][0], self.planned.equivalence_keys
        equal = [uid] if only_node else [other for other, key in keys.items() if key == keys[uid]]
        for other in equal:
            if other not in self.settled:
                self.excluded.setdefault(other, set()).add(node)
        accepted = self.settled_on(keys[uid])[node]
        if accepted and not only_node:
            self.most |= {other: min(accepted, self.most.get(other, accepted)) for other in equal}

    def write(self, uid: str, now: float) -> None:
        """The claims of a member passed the write barrier. With the last one of the minimum, the gang is committed."""
        self.written.add(uid)
        if len(self.written) >= self.quorum:
            self.progress_at = now
            self._on(GangEvent.MINIMUM_WRITTEN)

    def bind(self, uid: str) -> bool:
        """The Binding of a member is stored. Returns whether it is the last one of the minimum."""
        self.bound.add(uid)
        if len(self.bound) != self.quorum:
            return False
        self._on(GangEvent.MINIMUM_BOUND)
        return True

    def end(self, why: str) -> None:
        """The plan ends."""
        self._on(GangEvent.END)
        if self.state is GangState.ENDED:
            self.ended = self.ended or why

    # -- what follows from the state -------------------------------------------------------------------------

    @property
    def has_arrived(self) -> bool:
        """Whether the bind requests of the minimum are there."""
        return len(self.arrived) >= self.quorum

    @property
    def committed(self) -> bool:
        """Whether Bindings may be sent. This never changes again."""
        return self.state in (GangState.COMMITTED, GangState.RUNNING)

    @property
    def is_decided(self) -> bool:
        """Whether the gang is committed, or its plan has ended before. This never changes again."""
        return self.committed or self.state is GangState.ENDED

    @property
    def runs(self) -> bool:
        """Whether the minimum is bound."""
        return self.state is GangState.RUNNING

    @property
    def ends_at(self) -> float:
        """When the plan ends if no bind request comes for a further member."""
        if self.state is GangState.WRITING:  # a bind call takes 25 s at most
            return self.deadline
        patience = _PATIENCE
        if self.doubtful:
            patience = _DOUBTFUL_PATIENCE if self.arrived else _FIRST_BIND_SECONDS
        return min(self.deadline, self.progress_at + patience + MEMBER_SECONDS * len(self.planned.members))

    @property
    def preemptible_at(self) -> float:
        """When the plan ends if a gang of another namespace needs its slots."""
        if self.state is GangState.RUNNING:
            return -inf
        if self.state is GangState.WRITING:
            return inf
        return self.since + _SLOT_SECONDS + MEMBER_SECONDS * len(self.planned.members)

    @property
    def slots(self) -> int:
        """How many binds of members may wait for each other; at least 1, so that this bounds the number of plans."""
        return 1 if self.runs else self.quorum

    def has_slot(self, uid: str) -> bool:
        """Whether one of the slots is for the bind of this member: the first binds that arrived have them."""
        return not self.runs and uid in islice(self.arrived, self.quorum)

    # -- what a new plan must keep ---------------------------------------------------------------------------

    @property
    def settled(self) -> frozenset[str]:
        """UIDs of the members whose node kube-scheduler has chosen: a new plan must not move them."""
        return frozenset(self.answered | self.arrived.keys())

    def node_of(self, uid: str) -> str | None:
        """The node for which a bind request of the member came, else the planned one; None if it may use any node."""
        planned = self.planned.plan.placements.get(uid)
        return self.arrived.get(uid) or (planned[0] if planned is not None else None)

    @property
    def bound_elsewhere(self) -> list[str]:
        """UIDs of the members with devices whose bind request came for another node than the planned one."""
        placements = self.planned.plan.placements
        return [uid for uid, node in self.arrived.items() if uid in placements and placements[uid][0] != node]

    @property
    def absent(self) -> list[str]:
        """UIDs of the members whose bind request has not come, in rank order."""
        return [uid for uid in self.planned.names if uid not in self.arrived]

    def is_refused_with(self, message: str) -> bool:
        """Whether kube-scheduler's message says that it found no node for a member, for a reason other than Berth's.

        Messages of the in-tree gang scheduling do not count: it writes one after each round, whatever the pod needs.
        """
        own = (f"group {self.key.name}", self.rejected_with)
        is_own = any(known and known in message for known in own)
        return bool(message) and not is_own and self.key.source not in IN_TREE

    def settled_on(self, equivalence_key: str) -> Counter[str]:
        """The number of settled members with this equivalence key, by node."""
        placements, keys = self.planned.plan.placements, self.planned.equivalence_keys
        settled = self.settled & placements.keys()
        return Counter(self.arrived.get(uid, placements[uid][0]) for uid in settled if keys[uid] == equivalence_key)

    def limits(self) -> dict[str, NodeLimit]:
        """The limit of the equivalence class of each member that is not settled, by UID."""
        keys = self.planned.equivalence_keys
        limited = {uid: (keys[uid], self.most[uid]) for uid in (keys.keys() & self.most.keys()) - self.settled}
        limits = {(key, most): NodeLimit(most, self.settled_on(key)) for key, most in set(limited.values())}
        return {uid: limits[key] for uid, key in limited.items()}


@dataclass(frozen=True, slots=True)
class GangNeeds:
    """The needs of the members of a gang without room. A node on which no single one fits makes no room for it."""

    members: tuple[PodRequirements, ...]  # one of each equivalence class
    claims: tuple[Claim, ...]  # of all members; none was allocated or promised
    lacking: int  # members for which the nodes together lack room, at least
    basis: Hashable  # the other inputs of a plan, see GangPlanning


@dataclass(slots=True, eq=False)
class WaitingGang:
    """A gang without a plan, and the reason that its members get meanwhile."""

    state: GangState
    reason: Reason
    other: GroupKey | None = None  # in the state BEHIND: the gang that comes first
    version: int = -1  # of the snapshot without room for the gang; -1 if the gang waits for something else
    retry_at: float = -inf  # no filter request plans the gang before this time
    wakes: bool = True  # whether a plan may succeed after `retry_at` although Berth sees no change
    asked_early: bool = False  # whether kube-scheduler must be told when `retry_at` is over
    needs: GangNeeds | None = None  # as of `version`; None: any changed node may make room
    deallocated: bool = False  # whether the allocations that an earlier attempt left were looked for
    rejected: set[str] = field(default_factory=set)  # UIDs of the first two members that were rejected

    def note(self, uid: str) -> None:
        """Note a rejected member. Two UIDs suffice: at least one of them is not the member that asks next."""
        if len(self.rejected) < 2:  # noqa: PLR2004 - see above
            self.rejected.add(uid)


@dataclass(slots=True)
class GangCounts:
    """Counts of planned, bound and failed gangs since the start of the process, for the metrics."""

    plans: int = 0
    no_plan: Counter[str] = field(default_factory=Counter)  # berth_gangs_not_planned_total, by the code of the reason
    bound: int = 0
    failed: int = 0  # plans that ended before the minimum could be bound
    seconds: float = 0.0  # from the first filter request of a complete gang to its last Binding, over all bound gangs
