"""A gang that waits for room: the answer about it, the question to the planner, its room, and who has the devices.

An answer is a GangExplanation. A GangQuestion is a complete gang on a snapshot, and it can be asked again without the
pods of some DeviceUse. `most_room` counts the members that fit together, and `widest_domains` gives the places to try.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from extender.allocation import NodeInfo, Snapshot
from extender.api.label_domains import natural
from extender.api.pod_groups import name_on_claims
from extender.api.resource_claims import Claim, Reservation, Result
from extender.api.resource_slices import PoolKey
from extender.base.deadline import DeadlineExceeded
from extender.explain.near_misses import devices_for
from extender.explain.scenario import Scenario, apply_scenario
from extender.gangs.domains import NODE, Domain, Domains
from extender.gangs.gang import Gang, own_claims
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import (
    MAX_TOGETHER,
    GangMember,
    GangMembers,
    GangPlan,
    GangProblem,
    GangShortage,
    UnreadyMember,
    gang_members,
    gang_problem,
)
from extender.gangs.node_rooms import GangMemory
from extender.policy import Policy
from extender.scheduling import EvaluationContext, PodRequirements, RankingCache, UsableNodes
from extender.scheduling.requirements import needs_reservation

ALLOCATED = "allocated"
GroupName = tuple[str, str]
"""Namespace and GroupKey.on_claims."""
_MAX_TRIES = 64  # sets of members that differ
Plan = Callable[[GangProblem], GangPlan | GangShortage]


@dataclass(frozen=True, slots=True)
class Holder:
    """Pods that have devices of one node. `state` is allocated, held or binding."""

    node: str
    devices: int
    pods: tuple[str, ...]  # several pods share a claim; empty if no pod uses the claim
    claims: tuple[str, ...]  # empty for a reservation
    state: str
    group: str  # of the pods, its name; '' without one


@dataclass(frozen=True, slots=True)
class GangNearMiss:
    """One change with which the gang has a plan."""

    pods: int  # number of pods that would not run: other pods, with all pods of their groups, or members left out
    devices: int  # number of devices of these pods
    sentence: str
    holders: tuple[Holder, ...] = ()  # the other pods whose devices the gang needs


@dataclass(frozen=True, slots=True)
class ExplainedMember:
    """A pod of the group. `state` is bound, held, binding, waiting, gated, deleted or not-ours; `reason` is what
    kube-scheduler wrote about its last attempt, `since` its creation (RFC 3339).
    """

    pod: str
    state: str
    node: str = ""  # on which it is bound or has devices
    reason: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True)
class PlannedMember:
    """Where a member would be placed now, or has devices held."""

    pod: str
    node: str
    devices: tuple[str, ...]  # driver/pool/device


@dataclass(frozen=True, slots=True)
class ExplainedSubGroup:
    """A slice or a sub-group: `pods` must be in one domain of `level`.

    `domain` is where it is planned. Without a plan it is the one with the most room for it alone, for `room`
    pods.
    """

    part: str
    pods: int
    level: str
    domain: str
    room: int


@dataclass(frozen=True, slots=True)
class GangExplanation:
    """The explanation of a group; explain.md has the meaning of each `outcome`."""

    group: str
    source: str  # the field, label or annotation by which its pods name it
    outcome: str
    sentence: str
    minimum: int = 0
    bound: int = 0
    missing: int = 0  # members that must still be bound
    topology: str = ""
    topology_label: str = ""
    members: tuple[ExplainedMember, ...] = ()
    since: str = ""  # RFC 3339; '' if no pod waits
    since_event: str = ""  # 'all pods exist' or 'the first pod exists'
    level: str = ""  # the domain of the plan or of the bound members, or the one with the most room
    domain: str = ""
    room: int = 0  # members that fit there
    room_if_empty: int | None = None  # members for which a domain has room if all other pods end; None if not known
    plan: tuple[PlannedMember, ...] = ()
    misses: tuple[GangNearMiss, ...] = ()  # changes that would make it fit, the cheapest first
    cut_short: str = ""  # why not all changes were tried
    holders: tuple[Holder, ...] = ()  # of devices in the domain `held_in`, the most devices first
    more_holders: int = 0
    held_in: str = ""  # the domain with the most room as text, such as 'on node n1'
    parts: tuple[ExplainedSubGroup, ...] = ()  # slices and sub-groups


@dataclass(frozen=True, slots=True)
class PlannerCaches:
    """The planner's memory between plans: both fields follow the snapshots of one cache."""

    rankings: RankingCache = field(default_factory=RankingCache)
    memory: GangMemory = field(default_factory=GangMemory)


@dataclass(frozen=True, slots=True)
class GangQuestion:
    """A gang without room, and what the planner needs. `caches` follow the snapshot.

    `usable` are the nodes that a member could use if all other workloads ended; None if they are not known.
    """

    gang: Gang
    members: GangMembers
    policy: Policy
    snapshot: Snapshot
    context: EvaluationContext
    caches: PlannerCaches
    usable: frozenset[str] | None = None
    constraints: UsableNodes = field(default_factory=lambda: UsableNodes(MAX_TOGETHER))
    usable_by_size: dict[int, dict[str, frozenset[str]]] = field(default_factory=dict)  # the results of usable_nodes

    def problem(self, size: int) -> GangProblem:
        """The problem of the first `size` members."""
        members, usable = self.members.first(size), self.usable_nodes(size)
        return gang_problem(self.gang, members, self.policy, self.snapshot, usable)

    def usable_nodes(self, size: int) -> dict[str, frozenset[str]]:
        """By UID, the nodes on which kube-scheduler may place the first `size` members, as UsableNodes.of.

        Raises DeadlineExceeded, but not for members of a size that was asked for before.
        """
        found = self.usable_by_size.get(size)
        if found is None:
            nodes = {name: info.node for name, info in self.snapshot.node_infos.items()}
            pods, version = self.members.first(size).pods, self.snapshot.version
            found = self.usable_by_size[size] = self.constraints.of(pods, nodes, version, self.context.deadline)
        return found

    def without(self, claims: Sequence[Claim]) -> GangQuestion | None:
        """The question as if these claims had no devices; None if a member has no requirements then."""
        if not claims:
            return self
        snapshot = apply_scenario(self.snapshot, (), Scenario(deallocated=tuple(claims)))
        members = gang_members(self.gang, snapshot, self.policy)
        if isinstance(members, UnreadyMember):
            return None
        return replace(self, snapshot=snapshot, members=members, caches=PlannerCaches())

    def plan(self, problem: GangProblem) -> GangPlan | GangShortage:
        """Plan on the snapshot. Raises DeadlineExceeded."""
        return plan_gang(problem, self.snapshot, self.context, self.caches.rankings, self.caches.memory)

    def has_room(self, uids: Collection[str]) -> bool:
        """Whether the members with these UIDs fit, alone; False if the time is over before that is known."""
        problem = self.problem(self.gang.missing)
        members = tuple(member for member in problem.members if member.uid in uids)
        try:
            return isinstance(self.plan(replace(problem, members=members)), GangPlan)
        except DeadlineExceeded:
            return False


def where(level: str, domain: str) -> str:
    """A domain as text, such as 'on node n1' or 'in topology.kubernetes.io/rack=r7'."""
    if not level:
        return "across the cluster"
    return f"on node {domain}" if level == NODE else f"in {level}={domain}"


def widest_domains(question: GangQuestion, shortage: GangShortage) -> list[Domain]:
    """The widest domains that may hold the gang: the one with the most room, then those with the most free devices.

    A node that is in none of them is a domain of its own. Each domain has only its usable nodes. Raises
    DeadlineExceeded.
    """
    node_infos = question.snapshot.node_infos
    usable = node_infos.keys() if question.usable is None else node_infos.keys() & question.usable
    problem = question.problem(question.gang.missing)
    levels = Domains(problem, question.snapshot, usable)
    widest: Sequence[Domain] = ()
    for level in levels.wider():
        widest = level
    within = {name for domain in widest for name in domain.nodes}
    widest = [*widest, *levels.single(usable - within)]  # a single node needs no label of a wider level

    roomy = levels.of_level(shortage.level).nodes.get(shortage.domain, frozenset()) if shortage.level else frozenset()

    def order(domain: Domain) -> tuple[bool, int, object]:
        question.context.deadline.check()
        free = sum(free_devices(node_infos[name]) for name in domain.nodes)
        return roomy.isdisjoint(domain.nodes), -free, natural(domain.name)

    return sorted((domain for domain in widest if domain.nodes), key=order)


def free_devices(node_info: NodeInfo) -> int:
    """The number of devices of a node that a pod could still have for itself alone."""
    return len(node_info.inventory.devices) - node_info.busy.bit_count()


# -- room ----------------------------------------------------------------------------------------------------------


def most_room(problem: GangProblem, shortage: GangShortage, plan: Plan) -> GangShortage:
    """The shortage of the problem, with the most members that have a plan.

    The smallest members of the kinds that fit alone come first, then other sets: two small members can fit in place of
    a large one. `most` says whether all sets of one more member were tried. Never raises DeadlineExceeded.
    """
    search = _MostRoom(problem, shortage, plan)
    try:
        search.run()
    except DeadlineExceeded:
        search.found = replace(search.found, most=False)
    return search.found


class _MostRoom:
    def __init__(self, problem: GangProblem, shortage: GangShortage, plan: Plan) -> None:
        self._problem = problem
        self._plan = plan
        self._gave_up = False
        self.found = shortage

    def run(self) -> None:
        """Raises DeadlineExceeded."""
        kinds = sorted(equal_members(self._problem.members), key=lambda kind: devices_asked(kind[0].requirements))
        room_for = [self._fits(kind[:1]) for kind in kinds]
        fitting = [kind for kind, fits in zip(kinds, room_for, strict=True) if fits]
        self._first_of([member for kind in fitting for member in kind])
        kinds = [*fitting, *(kind for kind, fits in zip(kinds, room_for, strict=True) if not fits)]
        tries = _MAX_TRIES
        while self.found.room + 1 < len(self._problem.members):
            fits, self._gave_up = False, False
            for chosen in subsets(kinds, self.found.room + 1):
                tries -= 1
                fits = tries >= 0 and self._fits(chosen)
                if fits or tries < 0:
                    break
            if not fits:
                most = tries >= 0 and not self._gave_up
                # If no set of one more member fits, then all do not: the planner need not have given up.
                self.found = replace(self.found, most=most, gave_up=self.found.gave_up and not most)
                return
        self.found = replace(self.found, most=not self.found.gave_up)

    def _first_of(self, members: Sequence[GangMember]) -> None:
        """The most of the first of these members."""
        most = min(len(members), len(self._problem.members) - 1)
        while self.found.room < most:
            middle = (self.found.room + most + 1) // 2
            most = most if self._fits(members[:middle]) else middle - 1

    def _fits(self, members: Sequence[GangMember]) -> bool:
        found = self._plan(replace(self._problem, members=tuple(members)))
        if isinstance(found, GangShortage):
            self._gave_up |= found.gave_up
            return False
        if len(members) > self.found.room:
            self.found = replace(self.found, room=len(members), level=found.level, domain=found.domain)
        return True


def devices_asked(requirements: PodRequirements) -> int:
    """How many devices a member asks for."""
    return sum(request.alternatives[0].count for spec in requirements.specs for request in spec.requests)


def equal_members(members: Sequence[GangMember]) -> list[list[GangMember]]:
    """The members by their needs. Those with an allocated or a shared claim are equal only to others with the same."""
    times = Counter(claim.uid for member in members for claim in member.requirements.pending_claims if claim.uid)
    found: dict[Hashable, list[GangMember]] = {}
    for member in members:
        needs = member.requirements
        shared = frozenset(claim.uid for claim in needs.pending_claims if times[claim.uid] > 1)
        pinned = frozenset(claim.uid for claim in needs.allocated_claims)
        key = (needs.key, shared, pinned, member.nodes, member.excluded, member.limits)
        found.setdefault(key, []).append(member)
    return list(found.values())


def subsets(kinds: Sequence[Sequence[GangMember]], size: int) -> Iterator[tuple[GangMember, ...]]:
    """The sets of so many members that differ in the number of some kind."""
    if not kinds:
        if not size:
            yield ()
        return
    first, rest = kinds[0], kinds[1:]
    left = sum(map(len, rest))
    for count in range(min(len(first), size), max(size - left, 0) - 1, -1):
        for more in subsets(rest, size - count):
            yield (*first[:count], *more)


# -- who has the devices ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A holder with the devices that become free when its pods end, on this node and on others."""

    holder: Holder
    results: tuple[Result, ...]
    group: GroupName | None = None  # of the pods
    group_pods: int = 0  # pods of the group that have devices: they are worth nothing without each other
    claims: tuple[Claim, ...] = ()  # with these devices, as far as they are known

    @property
    def stopped(self) -> int:
        """The number of pods that stop if these pods end: all pods of a group stop together."""
        return max(len(self.holder.pods), self.group_pods, 1)


def stopped_pods(uses: Iterable[DeviceUse]) -> int:
    """The number of pods that stop if all these uses end. A group with several of the uses counts once."""
    groups: dict[GroupName, int] = {}
    alone = 0
    for use in uses:
        if use.group is None:
            alone += use.stopped
        else:
            groups[use.group] = max(groups.get(use.group, 0), use.stopped)
    return alone + sum(groups.values())


def reservations_by_pod(snapshot: Snapshot) -> dict[str, list[Reservation]]:
    """Pod UID to its reservations. An allocation ends the reservation of its claim."""
    found: dict[str, list[Reservation]] = {}
    for reservation in snapshot.reservations.values():
        found.setdefault(reservation.pod_uid, []).append(reservation)
    return found


def uses_by_node(question: GangQuestion, names: Iterable[str]) -> dict[str, list[DeviceUse]]:
    """The uses of devices that the gang could have, by pods outside of it, for each of these nodes that has any.

    Raises DeadlineExceeded.
    """
    snapshot, needed = question.snapshot, question.members.requirements
    own, kinds = needed.keys(), {one.key: one for one in needed.values()}.values()
    own_of_group = own_claims(question.gang.key, snapshot)
    reserved: dict[str, list[Reservation]] = {}
    for reservation in snapshot.reservations.values():
        if reservation.pod_uid not in own:
            reserved.setdefault(reservation.node, []).append(reservation)
    found, sizes = {}, dict[GroupName, int]()
    for name in names:
        question.context.deadline.check()
        node_info = snapshot.node_infos[name]
        pools = [pool.key for pool in node_info.inventory.pools]
        uses: dict[object, DeviceUse] = {}
        claims = {claim.key: claim for pool in pools for claim in snapshot.claims_on(pool)}
        for _, claim in sorted(claims.items()):
            if claim.key not in own_of_group and not any(consumer.uid in own for consumer in claim.reserved_for):
                _add(uses, _of_claim(name, claim, pools))
        for reservation in reserved.get(name, ()):
            _add(uses, _of_reservation(reservation, snapshot))
        wanted, index = devices_for(node_info, kinds, question.context) if uses else 0, node_info.inventory.index
        of_gang = [
            _with_group(use, snapshot, sizes)
            for use in uses.values()
            if any(wanted >> bit & 1 for one in use.results if (bit := index.get(one.device)) is not None)
        ]
        if of_gang:
            found[name] = of_gang
    return found


def uses_of_shared_claims(question: GangQuestion) -> list[DeviceUse]:
    """The uses of allocated claims that members share with others and that only these others use: they pin members."""
    snapshot, needed, uses = question.snapshot, question.members.requirements, dict[object, DeviceUse]()
    own, shared, used = own_claims(question.gang.key, snapshot), dict[str, Claim](), set[str]()
    for pod in (pod for pod in question.members.pods if pod.uid in needed):
        for claim in needed[pod.uid].allocated_claims:
            shared[claim.uid] = claim
            if claim.key in own or not needs_reservation(claim, pod):
                used.add(claim.uid)
    for claim in (claim for uid, claim in shared.items() if uid not in used):
        devices = {result.device for result in claim.allocation.results} if claim.allocation is not None else ()
        infos = snapshot.node_infos.values()
        nodes = (one for one in infos if any(one.inventory.index.get(device) is not None for device in devices))
        if (node_info := next(nodes, None)) is not None:
            _add(uses, _of_claim(node_info.node.name, claim, [pool.key for pool in node_info.inventory.pools]))
    return [_with_group(use, snapshot, {}) for use in uses.values()]


def _with_group(use: DeviceUse, snapshot: Snapshot, sizes: dict[GroupName, int]) -> DeviceUse:
    """The use with its group. `sizes` has the groups that are known already."""
    if not use.holder.group or not use.holder.pods:
        return use
    group = use.holder.pods[0].partition("/")[0], use.holder.group
    if group not in sizes:
        claims = (snapshot.claims.get(key) for key in snapshot.group_claims.get(group, ()))
        sizes[group] = len({pod.uid for claim in claims if claim is not None for pod in claim.reserved_for})
    return replace(use, group=group, group_pods=sizes[group])


def _add(uses: dict[object, DeviceUse], use: DeviceUse) -> None:
    """Add a use, joined with the other claims of the same pods."""
    if not use.results:
        return
    new = use.holder
    key = (new.pods, new.state) if new.pods else new.claims
    old = uses.get(key)
    if old is not None:
        devices, claims = old.holder.devices + new.devices, (*old.holder.claims, *new.claims)
        joined = Holder(new.node, devices, new.pods, claims, new.state, old.holder.group or new.group)
        use = DeviceUse(joined, (*old.results, *use.results), claims=(*old.claims, *use.claims))
    uses[key] = use


def _of_claim(node: str, claim: Claim, pools: Collection[PoolKey]) -> DeviceUse:
    allocated = claim.allocation.results if claim.allocation is not None else ()
    results = tuple(result for result in allocated if not result.admin_access)
    here = sum(PoolKey(result.device.driver, result.device.pool) in pools for result in results)
    pods = tuple(f"{claim.key.namespace}/{consumer.name}" for consumer in claim.reserved_for)
    holder = Holder(node, here, pods, (str(claim.key),), ALLOCATED, name_on_claims(claim.group))
    return DeviceUse(holder, results, claims=(claim,))


def _of_reservation(reservation: Reservation, snapshot: Snapshot) -> DeviceUse:
    pod = snapshot.pods.get(reservation.pod_uid)
    pods = (str(pod.key) if pod is not None else reservation.pod_uid,)
    group = pod.membership.key.name if pod is not None and pod.membership is not None else ""
    results = tuple(result for result in reservation.results if not result.admin_access)
    return DeviceUse(Holder(reservation.node, len(results), pods, (), reservation.state.value, group), results)
