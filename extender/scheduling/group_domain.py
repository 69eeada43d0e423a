"""The domain, such as one rack, in which a gang runs that must stay in one: its later and replaced pods go there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.api.group_topology import NO_TOPOLOGY, ONE_NODE, GroupTopology, group_topology
from extender.api.label_domains import LabelDomains
from extender.api.nodes import Node
from extender.api.pod_groups import Membership, minimum_of
from extender.policy import Policy
from extender.scheduling.domain_uses import path_labels


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

    `placed` is node to number of members.
    """
    is_node = topology.nearness == ONE_NODE
    level = ONE_NODE if is_node else topology.required_label(policy.group_levels)
    if not level:
        return None
    domains = LabelDomains() if is_node else snapshot.domains(path_labels(level, policy.group_levels))
    values = Counter[str]()
    for node, number in placed.items():
        value = node if is_node else domains.name_of.get(node)
        if value is not None and node in snapshot.node_infos:
            values[value] += number
    name = min(values, key=lambda value: (-values[value], value), default="")
    return RunningDomain(level, name, frozenset((name,)) if is_node else domains.nodes[name]) if values else None


def outside_domain(
    membership: Membership | None, nodes: Iterable[Node], snapshot: Snapshot, policy: Policy
) -> list[str]:
    """The names of the nodes that a pod of a running gang must not use, because the gang must stay in its domain."""
    if membership is None or membership.problem:
        return []
    group = snapshot.group_policies.get(membership.policy_key)
    label = group.topology_label if group is not None else ""
    if (not label and membership.topology == NO_TOPOLOGY) or not minimum_of(membership, group):
        return []
    gone = {uid for uid, node in snapshot.bound_members.get(membership.key, {}).items() if not node}
    users = snapshot.users_of_group(membership.key)
    placed = Counter(node for uid, node in users.items() if uid not in gone)
    domain = running_domain(group_topology(membership.topology, label, policy.group_levels), placed, snapshot, policy)
    return [node.name for node in nodes if node.name not in domain.nodes] if domain is not None else []
