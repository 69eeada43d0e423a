"""The domains, such as one rack, in which a gang or a part of it runs and must stay: later and new pods go there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.api.group_topology import NO_TOPOLOGY, ONE_NODE, GroupTopology, group_topology
from extender.api.label_domains import LabelDomains
from extender.api.nodes import Node
from extender.api.pod_groups import Membership, minimum_of
from extender.policy import Policy
from extender.scheduling.domain_uses import path_labels
from extender.scheduling.gang_parts import GangPart, bound_parts, parts_of, rank_order


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
    return _domain_of_most(level, placed, snapshot, policy) if level else None


def part_domains(
    parts: Sequence[GangPart], snapshot: Snapshot, policy: Policy
) -> Iterator[tuple[GangPart, RunningDomain]]:
    """Each part that has bound members in a domain, also those in other parts, with that domain."""
    for part in parts:
        domain = _domain_of_most(part.level, part.placed, snapshot, policy)
        if domain is not None:
            yield part, domain
        yield from part_domains(part.parts, snapshot, policy)


def left_part(
    parts: Iterable[GangPart], planned: Mapping[str, str], uids: Collection[str], snapshot: Snapshot, policy: Policy
) -> str:
    """Which planned node of these members is not in the domain of their part; '' if none is.

    `planned` is UID to node of all members of the plan.
    """
    for part in parts:
        nodes = Counter(part.placed) + Counter(planned[uid] for uid in part.members if uid in planned)
        domain = _domain_of_most(part.level, nodes, snapshot, policy)
        for node in (planned[uid] for uid in part.members if uid in planned and uid in uids):
            if domain is None or node not in domain.nodes:
                where = str(domain) if domain is not None else f"in a domain of {part.level}"
                return f"node {node} is not {where}, where the pods of {part.name} must be"
        found = left_part(part.parts, planned, uids, snapshot, policy)
        if found:
            return found
    return ""


def _domain_of_most(level: str, placed: Mapping[str, int], snapshot: Snapshot, policy: Policy) -> RunningDomain | None:
    is_node = level == ONE_NODE
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
    """The names of the nodes that a pod of a running gang must not use: the gang, or a part of it, runs elsewhere."""
    if membership is None or membership.problem:
        return []
    group = snapshot.group_policies.get(membership.policy_key)
    label = group.topology_label if group is not None else ""
    if not label and membership.topology == NO_TOPOLOGY and not membership.parts.constrain:
        return []
    if not minimum_of(membership, group):
        return []
    gone = {uid for uid, node in snapshot.bound_members.get(membership.key, {}).items() if not node}
    users = snapshot.users_of_group(membership.key)
    placed = Counter(node for uid, node in users.items() if uid not in gone)
    domain = running_domain(group_topology(membership.topology, label, policy.group_levels), placed, snapshot, policy)
    inside = [domain.nodes] if domain is not None else []
    if membership.parts.constrain:
        inside += (domain.nodes for domain in _own_part_domains(membership, snapshot, policy))
    return [node.name for node in nodes if not all(node.name in names for names in inside)] if inside else []


def _own_part_domains(membership: Membership, snapshot: Snapshot, policy: Policy) -> Iterator[RunningDomain]:
    """The domains of the parts of a waiting pod that run."""
    pods = sorted(snapshot.members.get(membership.key, {}).values(), key=rank_order)
    uid = next((pod.uid for pod in pods if pod.membership == membership), "")
    parts = parts_of(pods, tuple(bound_parts(membership.key, snapshot)), policy.group_levels, snapshot)
    for part, domain in part_domains(parts, snapshot, policy):
        if uid in part.members:
            yield domain
