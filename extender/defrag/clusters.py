"""A cluster in which pods were restarted or placed that, in truth, were not: where would these pods go?

It answers with the code of filter (NodeRanking) and of the gang planner (plan_gang). kube-scheduler's own part is
modelled: node selectors, required node affinity, taints, and the CPU, memory and places of each node.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from extender.allocation import Snapshot
from extender.allocation.what_if import hypothetical_snapshot, with_devices_allocated
from extender.api.nodes import Node
from extender.api.pod_amounts import NO_LIMIT, Amounts
from extender.api.pods import Pod
from extender.api.resource_claims import Result
from extender.defrag.restarts import Asked, Restart, again
from extender.explain import Scenario, apply_scenario, with_new_group
from extender.gangs.gang import Gang, gang_minimum, gang_of
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import (
    GangMembers,
    GangPlan,
    GangProblem,
    GangShortage,
    gang_members,
    gang_problem,
    plan_sizes,
)
from extender.policy import Policy
from extender.scheduling import EvaluationContext, Placement, PodRequirements, RankingCache, may_run, requirements_of
from extender.scheduling.requirements import Skip

Nodes = frozenset[str]
NO_NODES: Nodes = frozenset()


@dataclass(slots=True)
class Memory:
    """What all clusters that come from one share."""

    policy: Policy
    context: EvaluationContext
    rankings: RankingCache = field(default_factory=RankingCache)
    versions: count[int] = field(default_factory=count)
    usable: dict[object, Nodes] = field(default_factory=dict)  # by node selectors and tolerations


@dataclass(frozen=True, slots=True)
class Cluster:
    """One of them. `left` has what pods that stay leave of each node."""

    snapshot: Snapshot
    left: Mapping[str, Amounts]
    memory: Memory

    @classmethod
    def of(cls, snapshot: Snapshot, left: Mapping[str, Amounts], policy: Policy, context: EvaluationContext) -> Cluster:
        """The cluster as it is."""
        return _changed(Memory(policy, context), snapshot, left)

    # -- restarts ------------------------------------------------------------------------------------------------

    def without(self, restarts: Sequence[Restart]) -> Cluster:
        """The cluster after these pods ended. What creates them again has not done so yet."""
        if not restarts:
            return self
        ended = Scenario(deallocated=tuple(claim for one in restarts for claim in one.claims))
        snapshot = apply_scenario(self.snapshot, [claim for one in restarts for claim in again(one).claims], ended)
        return _changed(self.memory, snapshot, self._left_without(restarts))

    def left_without(self, node: str, restarts: Iterable[Restart]) -> Amounts:
        """The amounts that a node has free after these pods ended."""
        found = self.left.get(node, NO_LIMIT)
        for one in restarts:
            for pod in one.pods:
                if pod.node_name == node:
                    found = found.plus(one.requests.get(pod.uid, Amounts(pods=1)))
        return found

    def _left_without(self, restarts: Sequence[Restart]) -> Mapping[str, Amounts]:
        nodes = {name for one in restarts for name in one.nodes}
        return {**self.left, **{name: self.left_without(name, restarts) for name in nodes}}

    # -- places --------------------------------------------------------------------------------------------------

    def place(self, asked: Asked, barred: Nodes = NO_NODES) -> Placed | None:
        """The pods placed, without use of the barred nodes; None if they find no place.

        A gang is placed as a whole, or at least its minimum. Other pods are placed one by one, all or none. Raises
        DeadlineExceeded.
        """
        cluster = self.knowing(asked)
        gang = cluster.gang(asked)
        if gang is not None:
            return _place_gang(cluster, asked, gang, barred)
        places = dict[str, str]()
        for pod in asked.pods:
            found = _place_pod(cluster, asked, pod, barred)
            if found is None:
                return None
            cluster = found.cluster
            places |= found.nodes
        return Placed(cluster, places)

    def knowing(self, asked: Asked) -> Cluster:
        """The cluster with the claims of these pods, and with their group."""
        claims = {claim.key: claim for claim in asked.claims}
        known = ChainMap(claims, self.snapshot.claims)  # type: ignore[arg-type]  # the second is never written
        snapshot = replace(self.snapshot, claims=known)
        membership = asked.pods[0].membership
        if asked.is_new and membership is not None and membership.key.name:
            snapshot = with_new_group(snapshot, membership.key, asked.pods, asked.policies)
        return replace(self, snapshot=snapshot)

    def gang(self, asked: Asked) -> Gang | None:
        """The gang of these pods, which `knowing` made known; None if each is placed alone."""
        pod = asked.pods[0]
        if pod.membership is None or not gang_minimum(pod.membership, self.snapshot):
            return None
        found = gang_of(pod, pod.membership, self.snapshot)
        return found if found.missing else None

    def usable(self, pod: Pod, amounts: Amounts, barred: Nodes = NO_NODES) -> Nodes:
        """The nodes that kube-scheduler may offer for a pod."""
        return frozenset(name for name in self.runnable(pod) - barred if self.left.get(name, NO_LIMIT).has(amounts))

    def runnable(self, pod: Pod) -> Nodes:
        """The nodes that a pod may use, whatever runs there."""
        key = pod.node_selectors, pod.tolerations
        known = self.memory.usable.get(key)
        if known is None:
            infos = self.snapshot.node_infos
            known = frozenset(name for name, info in infos.items() if may_run(pod, info.node))
            self.memory.usable[key] = known
        return known

    def refusal(self, asked: Asked) -> str:
        """The reason of most nodes for the first of these pods alone; '' if it fits on one. Raises DeadlineExceeded."""
        cluster = self.knowing(asked)
        requirements = requirements_of(asked.pods[0], cluster.snapshot, self.memory.policy)
        if not isinstance(requirements, PodRequirements):
            return ""
        ranking = self.memory.rankings.get_or_create(requirements)
        if not ranking.update(cluster.snapshot, self.memory.context):
            self.memory.context.deadline.exceed()
        found = Counter(ranking.reasons().values())
        return max(found, key=lambda text: (found[text], text), default="")

    def problem(self, asked: Asked, gang: Gang, members: GangMembers, barred: Nodes = NO_NODES) -> GangProblem:
        """The problem of the planner for these members."""
        nodes = {pod.uid: self.usable(pod, asked.amounts(pod), barred) for pod in members.pods}
        return gang_problem(gang, members, self.memory.policy, self.snapshot, nodes)

    def plan(self, problem: GangProblem) -> GangPlan | GangShortage:
        """Plan on the snapshot of this cluster. Raises DeadlineExceeded."""
        return plan_gang(problem, self.snapshot, self.memory.context)


@dataclass(frozen=True, slots=True)
class Placed:
    """A cluster in which pods were placed, and their nodes by UID."""

    cluster: Cluster
    nodes: Mapping[str, str]


def _changed(memory: Memory, snapshot: Snapshot, left: Mapping[str, Amounts]) -> Cluster:
    """Another cluster. Rankings may follow it: no two clusters have one version."""
    found = hypothetical_snapshot(snapshot, snapshot.node_infos, next(memory.versions))
    return Cluster(found, left, memory)


def _place_pod(cluster: Cluster, asked: Asked, pod: Pod, barred: Nodes) -> Placed | None:
    requirements = requirements_of(pod, cluster.snapshot, cluster.memory.policy)
    usable = cluster.usable(pod, asked.amounts(pod), barred)
    if isinstance(requirements, Skip):
        return Placed(cluster, {pod.uid: min(usable)}) if usable else None
    if not isinstance(requirements, PodRequirements):
        return None
    nodes: Iterable[Node] = (cluster.snapshot.node_infos[name].node for name in usable)
    if requirements.node_selectors:
        mismatched = requirements.mismatches(nodes, cluster.snapshot)
        usable = usable.difference(*mismatched.values())
    ranking = cluster.memory.rankings.get_or_create(requirements)
    if not ranking.update(cluster.snapshot, cluster.memory.context):
        cluster.memory.context.deadline.exceed()
    for node, placement in ranking.best(usable, 1):
        return _with_placements(cluster, asked, {pod.uid: (node, placement)})
    return None


def _place_gang(cluster: Cluster, asked: Asked, gang: Gang, barred: Nodes) -> Placed | None:
    members = gang_members(gang, cluster.snapshot, cluster.memory.policy)
    if not isinstance(members, GangMembers):
        return None
    sizes = [len(members.pods)] if asked.is_whole else plan_sizes(gang, members)
    for size in sizes:
        found = cluster.plan(cluster.problem(asked, gang, members.first(size), barred))
        if isinstance(found, GangPlan):
            return _with_placements(cluster, asked, found.placements)
    return None


def _with_placements(cluster: Cluster, asked: Asked, placements: Mapping[str, tuple[str, Placement]]) -> Placed:
    """The cluster with the devices, CPU and memory of these placements in use."""
    infos, left = dict(cluster.snapshot.node_infos), dict(cluster.left)
    amounts = {pod.uid: asked.amounts(pod) for pod in asked.pods}
    for uid, (node, placement) in placements.items():
        results: list[Result] = [one for claim in placement.results(infos[node]) for one in claim]
        infos[node] = with_devices_allocated(infos[node], results)
        left[node] = left.get(node, NO_LIMIT).minus(amounts[uid])
    changed = _changed(cluster.memory, replace(cluster.snapshot, node_infos=infos), left)
    return Placed(changed, {uid: node for uid, (node, _) in placements.items()})
