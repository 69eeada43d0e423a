"""The states of a gang in `berth serve`: it waits, or it forms, which means that it has a plan and is being bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from extender.gangs.gang_problem import GangPlan, NodeLimit
from extender.model import Claim, Code, GroupKey, GroupSource, ObjectKey, Reason
from extender.scheduling import PodRequirements

_MEMBER_SECONDS = 0.05  # for each member
# Seconds until the bind request of a further member. kube-scheduler retries a rejected pod after at most 10 s.
_PATIENCE, _DOUBTFUL_PATIENCE, _FIRST_BIND_SECONDS = 30.0, 15.0, 5.0
_SLOT_SECONDS = 15.0  # that a plan keeps its slots although a gang of another namespace waits for slots


@dataclass(frozen=True, slots=True)
class PlannedGang:
    """A plan and its input."""

    plan: GangPlan
    requirements: Mapping[str, PodRequirements]  # by UID; only of members that need devices
    equivalence_keys: Mapping[str, str]  # likewise; see GangMembers.equivalence_keys
    without_devices: frozenset[str]  # UIDs of the other members
    last_messages: Mapping[str, str]  # UID to kube-scheduler's last message about the pod before the plan
    names: Mapping[str, ObjectKey]  # UID to the member's name

    def has_unschedulable(self, own: str) -> bool:
        """Whether kube-scheduler had rejected a member before the plan, with a message without Berth's words `own`."""
        return any(text and own not in text for text in self.last_messages.values())

    @property
    def members(self) -> frozenset[str]:
        """UIDs of all members of the plan."""
        return self.without_devices | self.requirements.keys()

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes of the plan."""
        return self.plan.nodes


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
    """A gang with a plan. Its devices are held until its members are bound, or until the plan ends.

    kube-scheduler has chosen the planned node of the `answered` members, as far as Berth knows. `arrived` has the node
    of each bind request that came; `written` the members whose claims passed the write barrier. Once `quorum`
    members are written, the gang is committed: their Bindings may be sent. Times are in seconds of the service's clock.
    """

    key: GroupKey
    planned: PlannedGang
    quorum: int  # members that must still be bound, so that the minimum runs
    complete_since: float  # see WaitingGangs
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
    ever_arrived: set[str] = field(default_factory=set)  # UIDs, also of members whose binds ended
    written: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)  # of a committed gang: members that are placed alone, or are gone
    committed: bool = False
    ended: str = ""  # why the plan ended before the gang was committed; '' if it did not

    @property
    def is_decided(self) -> bool:
        """Whether the gang is committed, or its plan has ended before. This never changes again."""
        return self.committed or bool(self.ended)

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
        return bool(message) and not is_own and self.key.source is not GroupSource.CORE

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

    @property
    def runs(self) -> bool:
        """Whether the minimum is bound."""
        return len(self.bound) >= self.quorum

    @property
    def slots(self) -> int:
        """How many binds of members may wait for each other; at least 1, so that this bounds the number of plans."""
        return 1 if self.runs else self.quorum

    def has_slot(self, uid: str) -> bool:
        """Whether one of the slots is for the bind of this member: the first binds that arrived have them."""
        return not self.runs and uid in islice(self.arrived, self.quorum)

    @property
    def gives_way_at(self) -> float:
        """When the plan ends if a gang of another namespace needs its slots; infinite while claims are written."""
        if self.runs:
            return -inf
        keeps = _SLOT_SECONDS + _MEMBER_SECONDS * len(self.planned.members)
        return inf if self._is_written else self.since + keeps

    @property
    def _is_written(self) -> bool:
        """Whether the claims of the minimum are being written; a bind call takes 25 s at most."""
        return len(self.arrived) >= self.quorum and not self.committed

    @property
    def ends_at(self) -> float:
        """When the plan ends if no bind request comes for a further member."""
        if self._is_written:
            return self.deadline
        patience = _PATIENCE
        if self.doubtful:
            patience = _DOUBTFUL_PATIENCE if self.arrived else _FIRST_BIND_SECONDS
        return min(self.deadline, self.progress_at + patience + _MEMBER_SECONDS * len(self.planned.members))


@dataclass(frozen=True, slots=True)
class GangNeeds:
    """The needs of the members of a gang without room. A node on which none of them fits alone makes no room for it."""

    members: tuple[PodRequirements, ...]  # one of each equivalence class
    claims: tuple[Claim, ...]  # of all members; none was allocated or promised
    lacking: int  # members for which the nodes together lack room, at least
    basis: Hashable  # the other inputs of a plan, see GangPlanning


@dataclass(slots=True, eq=False)
class WaitingGang:
    """A gang without a plan, and the reason that its members get meanwhile."""

    reason: Reason
    other: GroupKey | None = None  # the gang whose end this one waits for
    version: int = -1  # of the snapshot without room for the gang; -1 if the gang waits for something else
    retry_at: float = -inf  # no filter request plans the gang before this time
    wakes: bool = True  # whether a plan may succeed after `retry_at` although Berth sees no change
    asked_early: bool = False  # whether kube-scheduler asked about a member before `retry_at`, or the gang changed
    needs: GangNeeds | None = None  # as of `version`; None: any changed node may make room
    has_turn: bool = False  # the next filter request may plan the gang with the time of a whole call
    freed: bool = False  # whether the allocations that an earlier attempt left were looked for
    rejected: set[str] = field(default_factory=set)  # UIDs of the first two members that were rejected

    def note(self, uid: str) -> None:
        """Note a rejected member. Two UIDs suffice: at least one of them is not the member that asks next."""
        if len(self.rejected) < 2:  # noqa: PLR2004 - see above
            self.rejected.add(uid)


@dataclass(slots=True)
class GangCounts:
    """Counts of planned, bound and failed gangs since the start of the process, for the metrics."""

    plans: int = 0
    no_plan: Counter[str] = field(default_factory=Counter)  # attempts to plan that failed, by the code of the reason
    bound: int = 0
    failed: int = 0  # plans that ended before the minimum could be bound
    seconds: float = 0.0  # from the first filter request of a complete gang to its last Binding, over all bound gangs
