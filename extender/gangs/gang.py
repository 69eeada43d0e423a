"""A gang: the members of a pod group that must be placed and bound together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from extender.allocation import NodeInfo, Snapshot
from extender.allocation.nodes import NodeState
from extender.allocation.what_if import with_own_pools_released
from extender.api.group_topology import AskedTopology, GroupTopology, group_topology
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import NEEDED_OBJECTS, GroupKey, Membership, minimum_of
from extender.api.pods import Pod
from extender.api.resource_claims import Result
from extender.scheduling.subgroup_tree import (
    BoundMember,
    SubGroup,
    difference_of,
    lacking_subgroup,
    members_with_index,
    needed_members,
    rank_order,
    subgroups_disagreement,
    subgroups_of,
    subgroups_problem,
)


@dataclass(frozen=True, slots=True)
class Gang:
    """The members of a gang as of one snapshot."""

    key: GroupKey
    minimum: int  # members that must run together
    waiting: tuple[Pod, ...]  # members without a node, in rank order
    placed: Counter[str]  # node to number of members that are bound there
    topology: AskedTopology
    topology_label: str  # of which the group's object asks for one value; '' for no such constraint
    timeout_seconds: float  # 0 if neither an object nor an annotation sets it
    has_subgroups: bool  # whether a waiting member asks for sub-groups
    bound: tuple[BoundMember, ...] = ()  # those of `placed` whose sub-group is known; empty without sub-groups
    # A sub-group of which fewer pods exist than its minimum, and that minimum.
    lacking_subgroup: tuple[str, int] | None = field(init=False)
    is_complete: bool = field(init=False)  # whether enough members exist, also of each sub-group
    missing: int = field(init=False)  # how many members must still be bound, so that the minimum runs

    def __post_init__(self) -> None:
        lacking, placed = None, self.placed.total()
        if self.has_subgroups:
            lacking = lacking_subgroup(self.waiting, self.bound, placed - len(self.bound))
        object.__setattr__(self, "lacking_subgroup", lacking)
        object.__setattr__(self, "is_complete", len(self.waiting) + placed >= self.minimum and lacking is None)
        object.__setattr__(self, "missing", max(self.minimum - placed, 0))

    def topology_in(self, levels: Sequence[str]) -> GroupTopology:
        """What the gang must have with the levels of a policy."""
        return group_topology(self.topology, self.topology_label, levels)

    def problem(self, levels: Sequence[str]) -> str:
        """Why no plan can give a complete gang what it asks for, with the levels of a policy; '' if one can."""
        found = _annotated_difference(self.key, self.waiting) or self.topology_in(levels).problem
        if found or not self.has_subgroups:
            return found
        return subgroups_problem(self.key.name, self.waiting, self.bound, self.minimum, levels)

    def subgroups(self, levels: Sequence[str], snapshot: Snapshot) -> tuple[SubGroup, ...]:
        """The sub-groups of the gang with the levels of a policy."""
        return subgroups_of(self.waiting, self.bound, levels, snapshot) if self.has_subgroups else ()

    def needed(self, pods: Sequence[Pod]) -> frozenset[str]:
        """UIDs of those of the pods without which a sub-group lacks pods of its own minimum."""
        return needed_members(pods, self.bound) if self.has_subgroups else frozenset()


def gang_minimum(membership: Membership, snapshot: Snapshot) -> int:
    """How many members of the group must run together; 0 if the group is no gang."""
    return minimum_of(membership, snapshot.group_policies.get(membership.policy_key))


def lacking_object(membership: Membership, snapshot: Snapshot) -> str:
    """The object that alone could say how many members must run together, if it does not exist; '' if it does."""
    if membership.lacks or membership.minimum or membership.policy_key in snapshot.group_policies:
        return membership.lacks
    needed = NEEDED_OBJECTS.get(membership.key.source)
    return f"{needed.kind} {membership.owner}" if needed is not None else ""


def is_incomplete(membership: Membership, minimum: int, snapshot: Snapshot) -> bool:
    """Whether too few members exist. The cost does not grow with the size of a group that is far from complete."""
    key = membership.key
    missing = minimum - len(snapshot.members.get(key, ()))
    if missing <= 0:
        return False
    claims, bound = snapshot.claims_of_group(key), snapshot.bound_members.get(key, {})
    return len(claims) + len(bound) < missing or len(placed_members(key, snapshot)) < missing


def placed_members(key: GroupKey, snapshot: Snapshot) -> dict[str, str]:
    """UID to node of the bound members: pods that are not waiting, and that have a claim of the group reserved.

    The claims do not show members without devices, and do not tell that a member terminates. `bound_members` of the
    snapshot may say so.
    """
    waiting = snapshot.members.get(key, {})
    found = {**snapshot.users_of_group(key), **snapshot.bound_members.get(key, {})}
    return {uid: node for uid, node in found.items() if node and uid not in waiting}


def own_claims(key: GroupKey, snapshot: Snapshot) -> dict[ObjectKey, str]:
    """The claims of the group with their nodes, without those of pods that terminate or are gone."""
    gone = {uid for uid, node in snapshot.bound_members.get(key, {}).items() if not node}
    return {
        one: node
        for one, node in snapshot.claims_of_group(key).items()
        if not gone
        or (claim := snapshot.claims.get(one)) is None
        or not claim.reserved_for
        or any(consumer.uid not in gone for consumer in claim.reserved_for)
    }


def may_terminate(key: GroupKey, placed: Mapping[str, str], minimum: int, snapshot: Snapshot) -> bool:
    """Whether the minimum counts members as bound, of those `placed`, that only their claims show.

    Such members may belong to an earlier gang of this name, and terminate.
    """
    read = snapshot.bound_members.get(key, {})
    return len(placed.keys() & read.keys()) < min(len(placed), minimum)


def gang_of(pod: Pod, membership: Membership, snapshot: Snapshot) -> Gang:
    """The gang of a pod. The pod itself counts, even if the cache does not have it yet."""
    key, policy = membership.key, snapshot.group_policies.get(membership.policy_key)
    minimum = minimum_of(membership, policy)
    known = snapshot.members.get(key, {})
    # Pods of another scheduler never reach Berth's filter, so the gang must not wait for them.
    waiting = {uid: member for uid, member in known.items() if member.scheduler == pod.scheduler} | {pod.uid: pod}
    has_subgroups = any(one.membership is not None and one.membership.subgroups.constrain for one in waiting.values())
    return Gang(
        key,
        minimum,
        tuple(sorted(waiting.values(), key=rank_order)),
        Counter(placed_members(key, snapshot).values()),
        membership.topology,
        policy.topology_label if policy is not None else "",
        membership.timeout_seconds or (policy.timeout_seconds if policy is not None else 0.0),
        has_subgroups,
        tuple(members_with_index(key, snapshot)) if has_subgroups else (),
    )


def disagreement(key: GroupKey, members: Sequence[Pod]) -> str:
    """How the members disagree about their group, with the names of two of them; '' if they agree.

    The fault of an invalid annotation, if a member has one.
    """
    return _annotated_difference(key, members) or subgroups_disagreement(key.name, members)


def _annotated_difference(key: GroupKey, members: Sequence[Pod]) -> str:
    """As `disagreement`, without what they say of the group's sub-groups."""
    for member in members:
        if member.membership is not None and member.membership.problem:
            return f"pod {member.key} of group {key.name}: {member.membership.problem}"
    return difference_of(f"group {key.name}", members, _ANNOTATED)


def difference(pod: Pod, membership: Membership, minimum: int, snapshot: Snapshot) -> str:
    """How the pod and the first known member disagree about their gang; '' if they agree, or if there is no gang.

    `minimum` is what the pod says.
    """
    first = next(iter(snapshot.members.get(membership.key, {}).values()), pod)
    if first is pod or first.membership is None or not (minimum or gang_minimum(first.membership, snapshot)):
        return ""
    return disagreement(membership.key, (first, pod))


def _annotated(value: Callable[[Membership], Hashable]) -> Callable[[Pod], Hashable]:
    return lambda pod: value(pod.membership) if pod.membership is not None else ""


_ANNOTATED = {
    "their minimum (berth.dev/group-min)": _annotated(lambda own: own.minimum),
    "berth.dev/group-timeout in seconds": _annotated(lambda own: own.timeout_seconds),
    "berth.dev/group-topology": _annotated(lambda own: own.topology.nearness),
    "their required level": _annotated(lambda own: own.topology.required.name if own.topology.required else ""),
    "their preferred level": _annotated(lambda own: own.topology.preferred.name if own.topology.preferred else ""),
}


# -- if all other workloads ended ----------------------------------------------------------------------------------


class EmptyNodes:
    """Nodes without the workloads of others. Nodes that are equal once they are empty share one state."""

    def __init__(self) -> None:
        self._states: dict[Hashable, NodeState] = {}

    def of(self, node_info: NodeInfo, kept: Sequence[Result]) -> NodeInfo:
        """The node on which only the devices `kept`, and those of pools that other nodes share, are in use."""
        found, state = with_own_pools_released(node_info, kept), None if kept else empty_state(node_info)
        return replace(found, state=self._states.setdefault(state, found.state)) if state is not None else found


def empty_state(node_info: NodeInfo) -> Hashable | None:
    """A key: nodes with equal keys have equal statuses without their workloads. None if no other node has this key."""
    attribute_signature = node_info.state.attribute_signature
    if attribute_signature is None or not all(pool.is_own for pool in node_info.inventory.pools):
        return None
    return attribute_signature.number, node_info.drift, node_info.agent_is_fresh


def own_devices(key: GroupKey, snapshot: Snapshot) -> dict[str, list[Result]]:
    """The devices of a gang, by node."""
    found: dict[str, list[Result]] = {}
    for one, node in own_claims(key, snapshot).items():
        claim = snapshot.claims.get(one)
        if claim is not None and claim.allocation is not None:
            found.setdefault(node, []).extend(claim.allocation.results)
    return found
