"""The planner's input and output: the members of one plan with the nodes that each may use, their units, and the plan.

A plan has a node and devices for every member, in the tightest domain that has room for all of them. The last part has
the reasons of gangs without a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from extender.allocation import NodeInfo, Pick, Snapshot, Solution
from extender.api.group_topology import ONE_NODE, GroupTopology
from extender.api.nodes import Node, NodeSelector
from extender.api.pod_groups import GroupKey, GroupSource
from extender.api.pods import HOSTNAME, Pod
from extender.api.reasons import Code, Reason
from extender.api.resource_claims import Claim
from extender.base.deadline import Deadline
from extender.base.text_limits import first_few
from extender.gangs.gang import Gang
from extender.gangs.member_limits import NO_PREFERRED_AFFINITY, NodeLimit, PreferredAffinity, limits_between
from extender.policy import Policy
from extender.scheduling import NO_PREFERENCE, NodePreference, Placement, PodRequirements, requirements_of
from extender.scheduling.requirements import ErrorStatus, UnschedulableAndUnresolvable, needs_reservation
from extender.scheduling.running_domain import running_domain, subgroup_domains
from extender.scheduling.subgroup_tree import SubGroup

# Each bind of a minimum keeps a connection until the others have come, see serve/gangs/gang_admission.py.
MAX_TOGETHER = 400
_NONE: Mapping[str, Collection[str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GangMember:
    """A member to place."""

    uid: str
    requirements: PodRequirements
    rank: int  # members are placed in this order on neighbouring nodes
    nodes: frozenset[str] | None = None  # nodes on which kube-scheduler may run the pod; None: all
    excluded: frozenset[str] = frozenset()  # nodes that kube-scheduler rejected for the pod
    limits: tuple[NodeLimit, ...] = ()
    prefers: NodePreference = NO_PREFERENCE


@dataclass(frozen=True, slots=True)
class GangProblem:
    """The constraints of a plan."""

    members: tuple[GangMember, ...]
    levels: tuple[str, ...]  # group_levels: node labels, the nearest first; a single node is nearer than all of them
    topology: str  # GroupTopology.nearness
    topology_label: str = ""  # all members on one value of this label, in every topology; '' for no constraint
    placed: Mapping[str, int] = field(default_factory=dict)  # node to number of members that are bound there
    preferred_level: str = ""  # GroupTopology.preferred; need not be in `levels`, see Domains.levels
    preferred_affinity: PreferredAffinity = NO_PREFERRED_AFFINITY
    subgroups: tuple[
        SubGroup, ...
    ] = ()  # each in one domain of its level; some of their members may not be in `members`


@dataclass(frozen=True, slots=True)
class GangPlan:
    """The node and the devices of every member."""

    placements: Mapping[str, tuple[str, Placement]]  # UID to node and placement
    level: str  # 'node', the label of the level, or '' if no level has a domain with room for all
    domain: str  # the name of the node or the value of the label; '' if level is ''

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(node for node, _ in self.placements.values())


@dataclass(frozen=True, slots=True)
class GangShortage:
    """No plan exists, or none was found. `explain` fills in the most room, see most_room."""

    members: int  # members to place
    room: int = 0  # members that one admissible domain has room for
    level: str = ""
    domain: str = ""
    gave_up: bool = False  # the search ended at its step limit: a plan may exist
    most: bool = False  # whether no domain has room for more members than `room`


# -- making the problem --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GangMembers:
    """The members of one plan."""

    pods: tuple[Pod, ...]  # in rank order
    requirements: Mapping[str, PodRequirements]  # by UID; only of members that need devices
    needed: frozenset[str] = frozenset()  # UIDs of those without which a sub-group lacks pods of its own minimum

    def equivalence_keys(self, deadline: Deadline) -> dict[str, str]:
        """By UID of each member that needs devices, the UID of the first one equal to it.

        Equal members are offered the same nodes. Raises DeadlineExceeded.
        """
        found: dict[str, str] = {}
        first: dict[Hashable, str] = {}
        for pod in self.pods:
            requirements = self.requirements.get(pod.uid)
            if requirements is not None:
                deadline.check_time()  # large constraints take long to hash and compare
                asked = tuple(one.requests for one in pod.containers)
                own = pod.uid if pod.has_own_nodes else ""
                key = requirements.key, pod.node_selectors, pod.tolerations, asked, own
                found[pod.uid] = first.setdefault(key, pod.uid)
        return found

    def first(self, count: int, kept: Collection[str] = ()) -> GangMembers:
        """The members of `kept`, then those that are needed, and then the first ones in rank order, up to `count`."""
        # Stable: otherwise in rank order.
        ordered = sorted(self.pods, key=lambda pod: (pod.uid not in kept, pod.uid not in self.needed))
        return self.only({pod.uid for pod in ordered[:count]})

    def only(self, chosen: Collection[str]) -> GangMembers:
        """The members with these UIDs."""
        pods = tuple(pod for pod in self.pods if pod.uid in chosen)
        requirements = {pod.uid: self.requirements[pod.uid] for pod in pods if pod.uid in self.requirements}
        return GangMembers(pods, requirements, self.needed)


@dataclass(frozen=True, slots=True)
class UnreadyMember:
    """A member without requirements. No member is planned before all have them."""

    pod: Pod
    why: ErrorStatus | UnschedulableAndUnresolvable


def gang_members(
    gang: Gang, snapshot: Snapshot, policy: Policy, kept: Collection[str] = ()
) -> GangMembers | UnreadyMember:
    """The members that may be planned together, with their requirements, or the first one that has none.

    These are the first waiting members in rank order, and those of `kept`, as far as their claims have reservations
    left.
    """
    pods = tuple(pod for rank, pod in enumerate(gang.waiting) if rank < MAX_TOGETHER or pod.uid in kept)
    requirements = {}
    for member in pods:
        match found := requirements_of(member, snapshot, policy):
            case PodRequirements():
                requirements[member.uid] = found
            case ErrorStatus() | UnschedulableAndUnresolvable():
                return UnreadyMember(member, found)
    members = GangMembers(pods, requirements, gang.needed(pods))
    without = _without_reservation(members, kept, snapshot)
    if not without:
        return members
    if len(pods) - len(without) < gang.missing:
        pod = next(pod for pod in pods if pod.uid in without)
        claim = without[pod.uid]
        params = gang.key.name, str(claim.key), str(claim.reservations_left)
        return UnreadyMember(pod, UnschedulableAndUnresolvable(Reason(Code.GANG_CLAIM_FULL, params)))
    return members.only({pod.uid for pod in pods} - without.keys())


def _without_reservation(members: GangMembers, kept: Collection[str], snapshot: Snapshot) -> dict[str, Claim]:
    """By UID of each member for which a claim has no reservation left once those before it have theirs, the claim.

    A claim of the PodGroup has one reservation for all its pods, see BindingCycle.consumer.
    """
    ordered = sorted(members.pods, key=lambda pod: pod.uid not in kept)
    wanted = {
        pod.uid: {
            (claim.uid, pod.group if pod.group and _is_of_pod_group(claim, pod, snapshot) else pod.uid): claim
            for claim in members.requirements[pod.uid].claims
            if not claim.extended and needs_reservation(claim, pod)
        }
        for pod in ordered
        if pod.uid in members.requirements
    }
    left: dict[str, int] = {}  # by UID of the claim
    reserved: set[tuple[str, str]] = set()  # UIDs of the claim and of the pod, or the name of its PodGroup
    found: dict[str, Claim] = {}
    for uid, needed in wanted.items():
        new = [claim for entry, claim in needed.items() if entry not in reserved]
        full = next((one for one in new if not left.setdefault(one.uid, one.reservations_left)), None)
        if full is not None:
            found[uid] = full
            continue
        reserved.update(needed)
        for claim in new:
            left[claim.uid] -= 1
    return found


def _is_of_pod_group(claim: Claim, pod: Pod, snapshot: Snapshot) -> bool:
    """Whether the PodGroup of the pod owns the claim, or lists it as the pod does."""
    if claim.owner_group is not None and claim.owner_group.name == pod.group:
        return True
    policy = snapshot.group_policies.get(GroupKey(pod.key.namespace, GroupSource.CORE, pod.group))
    entries = policy.claims if policy is not None else ()
    return any(entry.claim_name == claim.key.name and entry in pod.claims for entry in entries)


def plan_sizes(gang: Gang, members: GangMembers, kept: int = 0) -> tuple[int, ...]:
    """How many members a plan should have: all of them, or else as many as the minimum needs, `kept` at least.

    Where sub-groups have a minimum, only as many as needed: bind waits for a number of members, whichever they are.
    """
    least = max(gang.missing, kept)
    if members.needed:
        return (least,)
    return tuple(dict.fromkeys((max(len(members.pods), least), least)))


def gang_problem(
    gang: Gang,
    members: GangMembers,
    policy: Policy,
    snapshot: Snapshot,
    nodes: Mapping[str, frozenset[str]],
    excluded: Mapping[str, Collection[str]] = _NONE,
    limits: Mapping[str, NodeLimit] = MappingProxyType({}),
    offered: Collection[str] | None = None,
) -> GangProblem:
    """The problem of these members of a gang.

    By UID: `nodes` are the only ones that a member may use, and it must not use those `excluded`; `limits` are those
    that kube-scheduler has shown. For `offered` see limits_between.
    """
    between = limits_between(members.pods, snapshot, gang.placed, offered)
    wanted = tuple(
        GangMember(
            pod.uid,
            found,
            rank,
            nodes.get(pod.uid),
            frozenset(excluded.get(pod.uid, ())),
            (*([limits[pod.uid]] if pod.uid in limits else ()), *between.limits.get(pod.uid, ())),
            NodePreference(pod.preferred_nodes, pod.tolerations),
        )
        for rank, pod in enumerate(members.pods)
        if (found := members.requirements.get(pod.uid)) is not None
    )
    levels = policy.group_levels
    subgroups = gang.subgroups(levels, snapshot)
    topology = _with_affinity(gang.topology_in(levels), between.together, levels)
    return GangProblem(
        wanted, levels, topology.nearness, topology.label, gang.placed, topology.preferred, between.preferred, subgroups
    )


def _with_affinity(topology: GroupTopology, label: str, levels: Sequence[str]) -> GroupTopology:
    """The topology of a gang whose members must all be in one domain of `label`, too.

    If it is not known which of two labels is nearer, that of the topology counts: kube-scheduler checks the other.
    """
    if label == HOSTNAME:
        return replace(topology, nearness=ONE_NODE)
    if not label or topology.nearness in (ONE_NODE, "required"):
        return topology
    both = (topology.label or label, label)
    if both[0] != label and not (both[0] in levels and label in levels):
        return topology
    return replace(topology, label=min(both, key=levels.index) if both[0] != label else label)


# -- units ---------------------------------------------------------------------------------------------------------
# Members that must be placed on one node together. Most units have one member. Members that share a pending claim form
# one unit, because they use one allocation. The first of them takes the devices of the claim, and the others need only
# their remaining claims.


UnitPlacement = tuple[Placement, ...]
"""The devices of each member of a unit. A claim that an earlier member of the unit has taken has no devices in it."""

Placed = list[tuple[str, UnitPlacement]]
"""The node and the devices of each of some equal units."""

_ALL_DEVICES = 32  # a request of mode All counts as this many devices when units are ordered by size


class Admissible(NamedTuple):
    """The nodes that a unit may use, with or without free devices."""

    nodes: frozenset[frozenset[str]]  # a node must be in all of them
    excluded: frozenset[str]
    selectors: frozenset[NodeSelector]  # a node must match all of them

    @property
    def pin(self) -> str | None:
        """The only node that can be admissible; None if several can be."""
        for names in self.nodes:
            if len(names) == 1:
                return next(iter(names))
        return next((selector.node for selector in self.selectors if selector.node is not None), None)

    def allows(self, node: Node) -> bool:
        return (
            node.name not in self.excluded
            and all(node.name in names for names in self.nodes)
            and all(selector.matches(node.name, node.labels) for selector in self.selectors)
        )

    def among(self, names: Sequence[str], node_infos: Mapping[str, NodeInfo]) -> Sequence[str]:
        """Those of the nodes that it allows."""
        for nodes in self.nodes:
            names = [name for name in names if name in nodes]
        if not self.excluded and not self.selectors:
            return names
        return [name for name in names if self.allows(node_infos[name].node)]


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Members that must be placed on one node, in rank order."""

    members: tuple[GangMember, ...]
    admissible: Admissible
    pin: str | None  # that of `admissible`


@dataclass(frozen=True, slots=True, eq=False)
class EqualUnits:
    """Units with equal requirements, in rank order: all may use the same nodes, or each is pinned to one node."""

    steps: tuple[PodRequirements, ...]  # of each member of the first unit, without the claims of earlier members
    limits: tuple[tuple[NodeLimit, ...], ...]  # of each member of a unit
    admissible: Admissible | None  # of all units; None if they are pinned
    units: list[Unit] = field(default_factory=list)
    pinned: dict[str, list[Unit]] = field(default_factory=dict)  # by node

    def allowed_on(self, node: Node) -> int:
        """The number of units that may use the node, with or without free devices."""
        if self.admissible is not None:
            return len(self.units) if self.admissible.allows(node) else 0
        return sum(unit.admissible.allows(node) for unit in self.pinned.get(node.name, ()))

    @property
    def size(self) -> int:
        """The number of devices that one unit asks for, by its first alternatives."""
        return sum(_size(step) for step in self.steps)


def equal_units(members: Iterable[GangMember]) -> list[EqualUnits]:
    """The equal units of a gang, by the rank of the first."""
    found: dict[object, EqualUnits] = {}
    for unit in _units(members):
        steps = _steps(unit)
        limits = tuple(member.limits for member in unit.members)
        admissible = unit.admissible if unit.pin is None else None  # or units with different pins would not be equal
        key = (tuple(step.key for step in steps), limits, admissible)
        if key not in found:
            found[key] = EqualUnits(steps, limits, admissible)
        found[key].units.append(unit)
        if unit.pin is not None:
            found[key].pinned.setdefault(unit.pin, []).append(unit)
    return list(found.values())


def _order(member: GangMember) -> tuple[int, str]:
    return member.rank, member.uid


def _units(members: Iterable[GangMember]) -> list[Unit]:
    """The members, joined where they share a pending claim."""
    joined: dict[str, list[GangMember]] = {}  # claim UID to the members of its unit
    groups: dict[int, list[GangMember]] = {}
    for member in sorted(members, key=_order):
        own, claims = [member], _pending(member)
        for other in {id(found): found for uid in claims if (found := joined.get(uid)) is not None}.values():
            groups.pop(id(own), None)
            other.extend(own)
            joined |= {uid: other for one in own for uid in _pending(one)}
            own = other
        groups[id(own)] = own
        joined |= dict.fromkeys(claims, own)
    return sorted(map(_unit, groups.values()), key=lambda unit: _order(unit.members[0]))


def _pending(member: GangMember) -> list[str]:
    """The UIDs of its claims; those of extended resources have none yet."""
    return [claim.uid for claim in member.requirements.pending_claims if claim.uid]


def _unit(group: list[GangMember]) -> Unit:
    admissible = Admissible(
        frozenset(member.nodes for member in group if member.nodes is not None),
        frozenset[str]().union(*(member.excluded for member in group)),
        frozenset(selector for member in group for selector in member.requirements.node_selectors),
    )
    return Unit(tuple(sorted(group, key=_order)), admissible, admissible.pin)


def _steps(unit: Unit) -> tuple[PodRequirements, ...]:
    taken: set[str] = set()
    found = []
    for member in unit.members:
        found.append(_without(member.requirements, taken))
        taken.update(_pending(member))
    return tuple(found)


def _without(requirements: PodRequirements, taken: set[str]) -> PodRequirements:
    """The requirements without the claims that another member takes."""
    left = [i for i, claim in enumerate(requirements.pending_claims) if claim.uid not in taken]
    if len(left) == len(requirements.pending_claims):
        return requirements
    return replace(
        requirements,
        pending_claims=tuple(requirements.pending_claims[i] for i in left),
        claim_names=tuple(requirements.claim_names[i] for i in left),
        specs=tuple(requirements.specs[i] for i in left),
        key=(*requirements.key, "claims", tuple(left)),
    )


def _size(requirements: PodRequirements) -> int:
    requests = (request.alternatives[0] for spec in requirements.specs for request in spec.requests)
    return sum(one.count if one.mode == "ExactCount" else _ALL_DEVICES for one in requests if not one.admin_access)


def member_placements(
    unit: Unit, placements: UnitPlacement, name: str, node_infos: Mapping[str, NodeInfo]
) -> dict[str, Placement]:
    """The placement of each member on a node, by UID, with the devices of all its pending claims in their order.

    The claims that members share have equal devices in each of their placements.
    """
    if len(unit.members) == 1:
        return {unit.members[0].uid: placements[0]}
    node, shared = node_infos[name].node, dict[str, tuple[tuple[Pick, ...], tuple[int, ...]]]()
    found: dict[str, Placement] = {}
    for member, step, own in zip(unit.members, _steps(unit), placements, strict=True):
        for claim, picks, chosen in zip(step.for_node(node).pending_claims, *own.solution, strict=True):
            shared[claim.uid] = picks, chosen
        parts = [shared[claim.uid] for claim in member.requirements.for_node(node).pending_claims]
        solution = Solution(tuple(picks for picks, _ in parts), tuple(chosen for _, chosen in parts))
        found[member.uid] = Placement(solution, own.parts, own.score, own.ring_gbps)
    return found


# -- reasons -------------------------------------------------------------------------------------------------------


_MAX_NAMED = 3  # sub-groups that a reason names
_MAX_PLANNED = 8  # sub-groups that are planned alone to name those without room; a plan takes some 30 ms
NO_ROOM = (Code.GANG_NO_ROOM, Code.GANG_DOMAIN_FULL)


def _levels(subgroups: Iterable[SubGroup]) -> Iterator[str]:
    for one in subgroups:
        yield one.level
        yield from _levels(one.inner)


def incomplete(gang: Gang) -> Reason:
    """Why a gang that is not complete waits."""
    if gang.lacking_subgroup is not None:
        subgroup, minimum = gang.lacking_subgroup
        return Reason(Code.GANG_INCOMPLETE, (f"{gang.key.name} (sub-group {subgroup})", str(minimum)))
    return Reason(Code.GANG_INCOMPLETE, (gang.key.name, str(gang.minimum)))


def _may_have_devices(node_info: NodeInfo) -> bool:
    inventory = node_info.inventory
    return bool(inventory.devices) or any(pool.incomplete for pool in inventory.pools)


def _lacking_label(gang: Gang, snapshot: Snapshot, group_levels: Sequence[str]) -> str:
    """A label that the gang needs for its domains, and that no node with devices has; '' for none."""
    topology, node_infos = gang.topology_in(group_levels), snapshot.node_infos
    levels = _levels(gang.subgroups(group_levels, snapshot))
    for label in dict.fromkeys((topology.required_label(group_levels), topology.label, *levels)):
        labelled = (name for names in snapshot.domains((label,)).nodes.values() for name in names if name in node_infos)
        if label not in ("", ONE_NODE) and not any(_may_have_devices(node_infos[name]) for name in labelled):
            return label
    return ""


def no_room(gang: Gang, snapshot: Snapshot, policy: Policy, has_room: Callable[[Collection[str]], bool]) -> Reason:
    """Why the planner found no plan without giving up.

    No domain has room, or that of the members that run has none, or no node with devices has the label of a domain.
    `has_room` plans the members with these UIDs alone.
    """
    label = _lacking_label(gang, snapshot, policy.group_levels)
    if label:
        return Reason(Code.GANG_NO_DOMAIN, (gang.key.name, label))
    topology, subgroups = gang.topology_in(policy.group_levels), gang.subgroups(policy.group_levels, snapshot)
    returning = [(one, domain) for one, domain in subgroup_domains(subgroups, snapshot, policy) if not one.inner]
    if returning and sum(len(one.members) for one, _ in returning) == len(gang.waiting):
        if 1 < len(returning) <= _MAX_PLANNED:  # without one that lacks room alone, all of them lack room together
            returning = [one for one in returning if not has_room(one[0].members)] or returning
        names = first_few(list(dict.fromkeys(one.name for one, _ in returning)), _MAX_NAMED)
        domains = first_few(list(dict.fromkeys(str(domain) for _, domain in returning)), _MAX_NAMED)
        return Reason(Code.GANG_DOMAIN_FULL, (f"{gang.key.name} ({names})", domains))
    domain = running_domain(topology, gang.placed, snapshot, policy)
    if domain is not None:
        return Reason(Code.GANG_DOMAIN_FULL, (gang.key.name, str(domain)))
    return Reason(Code.GANG_NO_ROOM, (gang.key.name,))
