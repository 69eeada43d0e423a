"""The domain in which a gang or a sub-group runs and must stay, such as one rack: later and new pods go there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.api.group_topology import NO_TOPOLOGY, ONE_NODE, GroupTopology, group_topology
from extender.api.nodes import Node
from extender.api.pod_groups import Membership, minimum_of
from extender.policy import Policy
from extender.scheduling.domain_uses import path_labels
from extender.scheduling.subgroup_tree import SubGroup, members_with_index, rank_order, subgroups_of


class RunningDomain(NamedTuple):
    """The level, ONE_NODE or a label, the name of the node or of the domain, and the names of its nodes."""

    level: str
    name: str
    nodes: frozenset[str]

    def __str__(self) -> str:
        return f"on node {self.name}" if self.level == ONE_NODE else f"in {self.level}={self.name}"


def running_domain(
    topology: GroupTopology, placed: Mapping[str, int], snapshot: Snapshot, policy: Policy
) -> RunningDomain | None:
    """The domain of most members that run; None if the gang may use several domains, or if no member is in one.

    `placed` is node to number of members. If 'required' members run on nodes without the level, it is one node.
    """
    if topology.nearness == ONE_NODE:
        return _domain_of_most(ONE_NODE, placed, snapshot, policy)
    level = topology.required_label(policy.group_levels)
    domain = _domain_of_most(level, placed, snapshot, policy) if level else None
    if domain is None and topology.nearness == "required" and level != topology.label:
        return _domain_of_most(ONE_NODE, placed, snapshot, policy)
    return domain


def subgroup_domains(
    subgroups: Sequence[SubGroup], snapshot: Snapshot, policy: Policy
) -> Iterator[tuple[SubGroup, RunningDomain]]:
    """Each sub-group that has bound members in a domain, also those of its inner ones, with that domain."""
    for one in subgroups:
        domain = _domain_of_most(one.level, one.placed, snapshot, policy)
        if domain is not None:
            yield one, domain
        yield from subgroup_domains(one.inner, snapshot, policy)


def left_subgroup(
    subgroups: Iterable[SubGroup], planned: Mapping[str, str], uids: Collection[str], snapshot: Snapshot, policy: Policy
) -> str:
    """Which planned node of these members is not in the domain of their sub-group; '' if none is.

    `planned` is UID to node of all members of the plan.
    """
    for one in subgroups:
        nodes = Counter(one.placed) + Counter(planned[uid] for uid in one.members if uid in planned)
        domain = _domain_of_most(one.level, nodes, snapshot, policy)
        for node in (planned[uid] for uid in one.members if uid in planned and uid in uids):
            if domain is None or node not in domain.nodes:
                where = str(domain) if domain is not None else f"in a domain of {one.level}"
                return f"node {node} is not {where}, where the pods of {one.name} must be"
        found = left_subgroup(one.inner, planned, uids, snapshot, policy)
        if found:
            return found
    return ""


def _domain_of_most(level: str, placed: Mapping[str, int], snapshot: Snapshot, policy: Policy) -> RunningDomain | None:
    domains = snapshot.domains(path_labels(level, policy.group_levels))
    name = domains.of_most(placed)
    return RunningDomain(level, name, domains.nodes[name]) if name is not None else None


def outside_domain(
    membership: Membership | None, nodes: Iterable[Node], snapshot: Snapshot, policy: Policy
) -> list[str]:
    """The names of the nodes that a pod of a running gang must not use: the gang, or its sub-group, runs elsewhere."""
    if membership is None or membership.problem:
        return []
    group = snapshot.group_policies.get(membership.policy_key)
    label = group.topology_label if group is not None else ""
    if not label and membership.topology == NO_TOPOLOGY and not membership.subgroups.constrain:
        return []
    if not minimum_of(membership, group):
        return []
    gone = {uid for uid, node in snapshot.bound_members.get(membership.key, {}).items() if not node}
    users = snapshot.users_of_group(membership.key)
    placed = Counter(node for uid, node in users.items() if uid not in gone)
    domain = running_domain(group_topology(membership.topology, label, policy.group_levels), placed, snapshot, policy)
    inside = [domain.nodes] if domain is not None else []
    if membership.subgroups.constrain:
        inside += (domain.nodes for domain in _own_subgroup_domains(membership, snapshot, policy))
    return [node.name for node in nodes if not all(node.name in names for names in inside)] if inside else []


def _own_subgroup_domains(membership: Membership, snapshot: Snapshot, policy: Policy) -> Iterator[RunningDomain]:
    """The domains of the sub-groups of a waiting pod that run."""
    pods = sorted(snapshot.members.get(membership.key, {}).values(), key=rank_order)
    uid = next((pod.uid for pod in pods if pod.membership == membership), "")
    bound = tuple(members_with_index(membership.key, snapshot))
    subgroups = subgroups_of(pods, bound, policy.group_levels, snapshot)
    for one, domain in subgroup_domains(subgroups, snapshot, policy):
        if uid in one.members:
            yield domain
