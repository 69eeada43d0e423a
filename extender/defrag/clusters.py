"""A cluster in which pods were restarted or placed that, in truth, were not: where would these pods go?

It answers with the code of filter (NodeRanking) and of the gang planner (plan_gang). kube-scheduler's own part is
modelled: node selectors, required node affinity, taints, and the CPU, memory and pods of each node.

A search makes thousands of such clusters, so none costs more than what changed in it. Rankings follow the cluster as it
is. A cluster has the names of its changed nodes, which are evaluated apart.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from extender.allocation import NodeInfo, Snapshot
from extender.allocation.what_if import hypothetical_snapshot, with_devices_allocated, with_devices_released
from extender.api.label_domains import natural
from extender.api.nodes import only_node
from extender.api.pod_amounts import NO_LIMIT, Amounts
from extender.api.pods import Pod
from extender.api.reasons import FREEABLE_CODES
from extender.api.resource_claims import Allocation, Claim, Result
from extender.api.resource_slices import PoolKey
from extender.base.text_limits import counted
from extender.defrag.restarts import Asked, Packing, Restart, Sizes, again
from extender.explain import PlannerCaches, free_devices, holders_of_usable
from extender.explain.scenario import with_new_group, without_allocations
from extender.gangs.gang import Gang, gang_minimum, gang_of
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import GangMembers, GangPlan, GangShortage, gang_members, gang_problem, plan_sizes
from extender.policy import Policy
from extender.scheduling import (
    EvaluationContext,
    FilterStatus,
    NodeRanking,
    Placement,
    PodRequirements,
    RankingCache,
    evaluate,
    may_run,
    requirements_of,
)
from extender.scheduling.requirements import Skip

_MAX_NAMED = 3  # claims of a node
_DEVICELESS = "pods without devices are never restarted"
_NOT_ALLOWED = "a node selector, node affinity or taint keeps the pod from the node"
_TOO_LITTLE = "too little CPU, memory or room for pods is left"
_MAX_LIKELY = 64  # nodes that may be the best for a member of a gang
Nodes = frozenset[str]
NO_NODES: Nodes = frozenset()


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes, and the restarts that free devices there, the cheapest first.

    `bound` is what it costs at least that the pods fit here, which they do not without any restart.
    """

    nodes: Sequence[str]
    restarts: Sequence[Restart]
    bound: float


@dataclass(slots=True)
class Memory:
    """What all clusters that come from one share. `base` is the cluster as it is."""

    base: Snapshot
    policy: Policy
    context: EvaluationContext
    free: Counter[int] | None = None  # see `Cluster.count_free`; None, too, if numbers of GPUs say nothing
    packing: Packing = field(default_factory=Packing)
    closed: Nodes = NO_NODES  # nodes that none of the pods may use
    rankings: RankingCache = field(default_factory=RankingCache)
    usable: dict[object, Nodes] = field(default_factory=dict)  # by node selectors and tolerations
    statuses: dict[object, dict[NodeInfo, FilterStatus]] = field(default_factory=dict)  # by requirements key
    # By requirements key, then by node and the names of its restarts: what room for a pod costs there at least.
    bounds: dict[object, dict[tuple[NodeInfo, tuple[str, ...]], float]] = field(default_factory=dict)
    by_node: Mapping[str, Sequence[Restart]] = field(default_factory=dict)  # the restarts that may be proposed
    domains: dict[object, Sequence[Domain]] = field(default_factory=dict)  # of the base, by what a pod asks; in order
    renewed: dict[str, Asked] = field(default_factory=dict)  # by name of the restart
    order: dict[str, int] = field(default_factory=dict)  # the place of each node among the others, by name
    seeing: dict[PoolKey, list[str]] = field(default_factory=dict)  # pool to the nodes that may use its devices
    # Most of the nodes of a cluster have changed as in another one. A node that is the same has its status already.
    freed: dict[tuple[NodeInfo, tuple[str, ...]], NodeInfo] = field(default_factory=dict)  # by names of restarts
    filled: dict[tuple[NodeInfo, tuple[Result, ...]], NodeInfo] = field(default_factory=dict)
    plans: PlannerCaches = field(default_factory=PlannerCaches)
    versions: Iterator[int] = field(default_factory=count)  # of the snapshots of plans

    def ranking(self, requirements: PodRequirements) -> NodeRanking:
        """The ranking of the cluster as it is. Raises DeadlineExceeded."""
        found = self.rankings.get_or_create(requirements)
        if not found.update(self.base, self.context):
            self.context.deadline.exceed()
        return found

    def place_of(self, domain: Domain) -> tuple[float, int]:
        """Sorts domains: those that cost least first."""
        return domain.bound, self.order[domain.nodes[0]]

    def without(self, node_info: NodeInfo, restarts: Sequence[Restart]) -> NodeInfo:
        """The node after these pods ended."""
        key = node_info, tuple([one.name for one in restarts])
        found = self.freed.get(key)
        if found is None:
            results = [result for one in restarts for result in one.results]
            found = self.freed[key] = with_devices_released(node_info, results)
        return found

    def with_allocated(self, node_info: NodeInfo, results: Sequence[Result]) -> NodeInfo:
        """The node with these devices in use, too."""
        if any(one.consumed is not None for one in results):  # a mapping, which is no key
            return with_devices_allocated(node_info, results)
        key = node_info, tuple(results)
        found = self.filled.get(key)
        if found is None:
            found = self.filled[key] = with_devices_allocated(node_info, results)
        return found

    def status(self, node_info: NodeInfo, requirements: PodRequirements) -> FilterStatus:
        """The status of a node for requirements, evaluated once. Raises DeadlineExceeded."""
        known = self.statuses.setdefault(requirements.key, {})
        return known.get(node_info) or self.evaluated(node_info, requirements, known)

    def evaluated(
        self, node_info: NodeInfo, requirements: PodRequirements, known: dict[NodeInfo, FilterStatus]
    ) -> FilterStatus:
        """See `status`; `known` are those of these requirements."""
        found = known[node_info] = evaluate(node_info, requirements.for_node(node_info.node), self.context)
        return found

    def again(self, restart: Restart) -> Asked:
        """See restarts.again."""
        found = self.renewed.get(restart.name)
        if found is None:
            found = self.renewed[restart.name] = again(restart)
        return found


@dataclass(frozen=True, slots=True)
class Cluster:
    """One of them. `left` has what pods that stay leave of each node."""

    snapshot: Snapshot  # without `states`: a plan makes those of its nodes
    left: Mapping[str, Amounts]
    memory: Memory
    changed: Nodes = NO_NODES  # those whose devices and pods may not be as they are in the base

    @classmethod
    def of(cls, snapshot: Snapshot, left: Mapping[str, Amounts], policy: Policy, context: EvaluationContext) -> Cluster:
        """The cluster as it is."""
        memory = Memory(snapshot, policy, context)
        for name, info in snapshot.node_infos.items():
            for pool in info.inventory.pools:
                memory.seeing.setdefault(pool.key, []).append(name)
        memory.order.update((name, place) for place, name in enumerate(sorted(snapshot.node_infos, key=natural)))
        return cls(replace(snapshot, states={}, node_infos=dict(snapshot.node_infos)), left, memory)

    # -- restarts ------------------------------------------------------------------------------------------------

    def without(self, restarts: Sequence[Restart]) -> Cluster:
        """The cluster after these pods ended. What creates them again has not done so yet."""
        if not restarts:
            return self
        ended = [claim for one in restarts for claim in one.claims]
        snapshot = without_allocations(self.snapshot, ended)
        renewed = {claim.key: claim for one in restarts for claim in self.memory.again(one).claims}
        known = ChainMap(renewed, snapshot.claims)  # type: ignore[arg-type]  # the second is never written
        left = {**self.left, **self._left_without(restarts)}
        freeing: dict[str, list[Restart]] = {}
        for one in restarts:
            pools = {PoolKey(result.device.driver, result.device.pool) for result in one.results}
            for name in {name for pool in pools for name in self.memory.seeing.get(pool, ())}:
                freeing.setdefault(name, []).append(one)
        infos = dict(snapshot.node_infos)
        for name, own in freeing.items():
            infos[name] = self.memory.without(infos[name], own)
        changed = {name for one in restarts for name in one.nodes & infos.keys()}.union(freeing)
        return self._with(replace(snapshot, claims=known, node_infos=infos), left, changed)

    def _left_without(self, restarts: Sequence[Restart]) -> Mapping[str, Amounts]:
        by_node: dict[str, list[Restart]] = {}
        for one in restarts:
            for name in one.nodes:
                by_node.setdefault(name, []).append(one)
        return {name: self.left_without(name, own) for name, own in by_node.items()}

    def _with(self, snapshot: Snapshot, left: Mapping[str, Amounts], changed: Iterable[str]) -> Cluster:
        return Cluster(snapshot, left, self.memory, self.changed.union(changed))

    def left_without(self, node: str, restarts: Iterable[Restart]) -> Amounts:
        """The amounts that a node has free after these pods ended."""
        found = self.left.get(node, NO_LIMIT)
        for one in restarts:
            for pod in one.pods:
                if pod.node_name == node:
                    found = found.plus(one.requests.get(pod.uid, Amounts(pods=1)))
        return found

    def count_free(self, pods: Iterable[Pod]) -> None:
        """Count the free GPUs of the cluster as it is, of the nodes that one of these pods may use."""
        memory, infos = self.memory, self.memory.base.node_infos
        kinds = {(pod.node_selectors, pod.tolerations): pod for pod in pods}
        memory.closed = frozenset(infos).difference(*map(self.runnable, kinds.values()))
        is_whole = not any(info.inventory.gpus & ~info.inventory.simple for info in infos.values())
        memory.free = Counter(self._free_gpus(name, info) for name, info in infos.items()) if is_whole else None

    def free_by_node(self) -> Counter[int] | None:
        """Nodes by their free GPUs; None if some have parts of GPUs or shares, which numbers of GPUs do not count."""
        if self.memory.free is None:
            return None
        found = self.memory.free.copy()
        for name in self.changed:
            found[self._free_gpus(name, self.memory.base.node_infos[name])] -= 1
            found[self._free_gpus(name, self.snapshot.node_infos[name])] += 1
        return found

    def least_waiting(self, restarts: Iterable[Sizes], wanted: Mapping[int, int]) -> float:
        """The GPUs of restarted pods that wait at least, beside wanted pods, which are counted by their GPUs."""
        free = self.free_by_node()
        return self.memory.packing.least_waiting(free, wanted, restarts) if free is not None else 0

    def _free_gpus(self, name: str, info: NodeInfo) -> int:
        return 0 if name in self.memory.closed else (info.inventory.gpus & ~info.busy).bit_count()

    # -- places --------------------------------------------------------------------------------------------------

    def place(self, asked: Asked, barred: Nodes = NO_NODES, among: Sequence[str] | None = None) -> Placed | None:
        """The pods placed, without use of the barred nodes and of those not `among`; None if none finds a place.

        A gang is placed as a whole, or at least its minimum. Other pods are placed one by one, as many as find places.
        Raises DeadlineExceeded.
        """
        cluster = self.knowing(asked)
        gang = cluster.gang(asked)
        if gang is not None:
            return _place_gang(cluster, asked, gang, barred, among)
        places = dict[str, str]()
        for pod in asked.pods:
            found = _place_pod(cluster, asked, pod, barred, among)
            if found is not None:
                cluster = found.cluster
                places |= found.nodes
        return Placed(cluster, places) if places else None

    def with_placements(
        self,
        asked: Asked,
        placements: Mapping[str, tuple[str, Placement]],
        requirements: Mapping[str, PodRequirements],
    ) -> Placed:
        """The cluster with the devices, CPU and memory of these placements in use. Both mappings are by UID of the pod.

        A claim that several of the pods share has devices once, and binds the others to its node.
        """
        infos, left, taken = dict(self.snapshot.node_infos), dict(self.left), dict[str, Claim]()
        amounts = {pod.uid: asked.amounts(pod) for pod in asked.pods}
        for uid, (node, placement) in placements.items():
            own, results = requirements[uid].for_node(infos[node].node).pending_claims, list[Result]()
            for claim, devices in zip(own, placement.results(infos[node]), strict=True):
                if claim.uid not in taken:
                    taken[claim.uid] = replace(claim, allocation=Allocation(devices, node_selector=only_node(node)))
                    results += devices
            infos[node] = self.memory.with_allocated(infos[node], results)
            left[node] = left.get(node, NO_LIMIT).minus(amounts[uid])
        snapshot, nodes = replace(self.snapshot, node_infos=infos), {uid: node for uid, (node, _) in placements.items()}
        if len(asked.pods) > 1:  # a later one may share a claim
            placed = {claim.key: claim for claim in taken.values()}
            claims = ChainMap(placed, snapshot.claims)  # type: ignore[arg-type]  # the second is never written
            snapshot = replace(snapshot, claims=claims)
        return Placed(self._with(snapshot, left, nodes.values()), nodes)

    def with_plan(self, asked: Asked, members: GangMembers, plan: GangPlan, barred: Nodes = NO_NODES) -> Placed | None:
        """The cluster after a plan, with places for the members without devices; None if one finds none.

        Berth plans no node for these, but the gang needs them to run.
        """
        placed = self.with_placements(asked, plan.placements, members.requirements)
        others = [pod for pod in members.pods if pod.uid not in members.requirements]
        found = _placed_without_devices(placed.cluster, asked, others, barred) if others else None
        if found is not None:
            return Placed(found.cluster, {**placed.nodes, **found.nodes})
        return None if others else placed

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
        if asked.is_started or pod.membership is None or not gang_minimum(pod.membership, self.snapshot):
            return None
        found = gang_of(pod, pod.membership, self.snapshot)
        return found if found.missing else None

    def runnable(self, pod: Pod) -> Nodes:
        """The nodes that a pod may use, whatever runs there."""
        key = pod.node_selectors, pod.tolerations
        known = self.memory.usable.get(key)
        if known is None:
            infos = self.memory.base.node_infos
            known = frozenset(name for name, info in infos.items() if may_run(pod, info.node))
            self.memory.usable[key] = known
        return known

    def offers(self, asked: Asked, pod: Pod, barred: Nodes, requirements: PodRequirements | None = None) -> Offers:
        """The nodes that kube-scheduler may offer for a pod."""
        return Offers(self, self.runnable(pod), barred, asked.amounts(pod), requirements)

    def refusal(self, asked: Asked) -> str:
        """Why the first of these pods that needs devices fits alone on no node; '' if it fits on one.

        Of the nodes with matching devices, if there are some. The one with the most free devices is named, with who
        holds the others. Raises DeadlineExceeded.
        """
        cluster = self.knowing(asked)
        pod = next((one for one in asked.pods if one.may_need_devices), asked.pods[0])
        requirements = requirements_of(pod, cluster.snapshot, self.memory.policy)
        if not isinstance(requirements, PodRequirements):
            return ""
        offers, found = cluster.offers(asked, pod, NO_NODES, requirements), dict[tuple[int, str], list[NodeInfo]]()
        for name, info in cluster.snapshot.node_infos.items():
            status = self.memory.status(info, requirements)
            if isinstance(status, Placement):
                if name in offers:
                    return ""
                near, text = 2, _TOO_LITTLE if offers.allows(name) else _NOT_ALLOWED
            else:
                near, text = int(status.reason.code in FREEABLE_CODES), status.text
            found.setdefault((near, text), []).append(info)
        if not found:
            return ""
        near, text = max(found, key=lambda one: (one[0], len(found[one]), one[1]))
        if not near:
            return text
        nodes = found[near, text]
        if near == 1 and (even_empty := self._refusal_of_empty(nodes, requirements)):
            return f"no node can have these devices, even if it is empty: {even_empty}"
        first = max(nodes, key=lambda info: (free_devices(info), info.node.name))
        held = holders_of_usable(first, cluster.snapshot, requirements, self.memory.context)[:_MAX_NAMED]
        held += (_DEVICELESS,) * (text == _TOO_LITTLE)
        others = f" and {counted(len(nodes) - 1, 'other node')}" if len(nodes) > 1 else ""
        return f"{text} on {first.node.name}{others}" + (f" ({'; '.join(held)})" if held else "")

    def _refusal_of_empty(self, nodes: Iterable[NodeInfo], requirements: PodRequirements) -> str:
        """Why the first of these nodes has no room if nothing is in use there; '' if one would have room then."""
        base, memory, text, seen = self.memory.base, self.memory, "", set[object]()
        for info in nodes:
            alike = info.state.attribute_signature or info.node.name
            if alike in seen:
                continue
            seen.add(alike)
            claims = {claim.key: claim for pool in info.inventory.pools for claim in base.claims_on(pool.key)}
            used = [one for claim in claims.values() if claim.allocation for one in claim.allocation.results]
            status = memory.status(with_devices_released(base.node_infos[info.node.name], used), requirements)
            if isinstance(status, Placement):
                return ""
            text = text or status.text
        return text

    def plan(
        self, asked: Asked, gang: Gang, members: GangMembers, names: Sequence[str], barred: Nodes = NO_NODES
    ) -> GangPlan | GangShortage:
        """A plan for these members on these nodes alone. Raises DeadlineExceeded."""
        nodes, known = dict[str, frozenset[str]](), dict[object, frozenset[str]]()
        for pod in members.pods:
            key = pod.node_selectors, pod.tolerations, asked.amounts(pod)
            if key not in known:
                offers = self.offers(asked, pod, barred)
                known[key] = frozenset(name for name in names if name in offers)
            nodes[pod.uid] = known[key]
        memory, infos = self.memory, self.snapshot.node_infos
        problem = gang_problem(gang, members, memory.policy, self.snapshot, nodes)
        snapshot = hypothetical_snapshot(self.snapshot, {name: infos[name] for name in names}, next(memory.versions))
        return plan_gang(problem, snapshot, memory.context, memory.plans.rankings, memory.plans.memory)


class Offers:
    """The nodes that kube-scheduler may offer for a pod; with requirements, without those that do not match them."""

    def __init__(
        self, cluster: Cluster, runnable: Nodes, barred: Nodes, amounts: Amounts, requirements: PodRequirements | None
    ) -> None:
        self._cluster = cluster
        self._runnable = runnable
        self._barred = barred
        self._amounts = amounts
        self._requirements = requirements if requirements is not None and requirements.node_selectors else None

    def __contains__(self, name: object) -> bool:
        if name not in self._runnable or name in self._barred or not isinstance(name, str):
            return False
        return self._cluster.left.get(name, NO_LIMIT).has(self._amounts) and self._matches(name)

    def allows(self, name: str) -> bool:
        """Whether the pod's constraints admit a node. It ignores what is free there, and `_barred`."""
        return name in self._runnable and self._matches(name)

    def _matches(self, name: str) -> bool:
        snapshot = self._cluster.snapshot
        return (
            self._requirements is None or self._requirements.mismatch(snapshot.node_infos[name].node, snapshot) is None
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """A cluster in which pods were placed, and their nodes by UID."""

    cluster: Cluster
    nodes: Mapping[str, str]


def _place_pod(cluster: Cluster, asked: Asked, pod: Pod, barred: Nodes, among: Sequence[str] | None) -> Placed | None:
    requirements, memory = requirements_of(pod, cluster.snapshot, cluster.memory.policy), cluster.memory
    if isinstance(requirements, Skip):
        return _placed_without_devices(cluster, asked, [pod], barred)
    if not isinstance(requirements, PodRequirements):
        return None
    offers = cluster.offers(asked, pod, barred, requirements)
    best: tuple[float, str, Placement] | None = None
    known = memory.statuses.setdefault(requirements.key, {})
    for name in cluster.changed if among is None else among:
        if name in offers:
            info = cluster.snapshot.node_infos[name]
            found = known.get(info) or memory.evaluated(info, requirements, known)
            if isinstance(found, Placement) and (best is None or (-found.score, name) < best[:2]):
                best = -found.score, name, found
    if among is None:
        for name, placement in memory.ranking(requirements).best(offers, 1, cluster.changed):
            if best is None or (-placement.score, name) < best[:2]:
                best = -placement.score, name, placement
    if best is None:
        return None
    return cluster.with_placements(asked, {pod.uid: best[1:]}, {pod.uid: requirements})


def _placed_without_devices(cluster: Cluster, asked: Asked, pods: Iterable[Pod], barred: Nodes) -> Placed | None:
    """Pods without devices, each on the first node with room for it; None if one finds none."""
    nodes, left = dict[str, str](), dict(cluster.left)
    for pod in pods:
        offers = replace(cluster, left=left).offers(asked, pod, barred)
        name = min((name for name in cluster.runnable(pod) if name in offers), default="")
        if not name:
            return None
        nodes[pod.uid] = name
        left[name] = left.get(name, NO_LIMIT).minus(asked.amounts(pod))
    return Placed(replace(cluster, left=left), nodes)


def _place_gang(
    cluster: Cluster, asked: Asked, gang: Gang, barred: Nodes, among: Sequence[str] | None
) -> Placed | None:
    policy = cluster.memory.policy
    members = gang_members(gang, cluster.snapshot, policy)
    if not isinstance(members, GangMembers) or not gang.is_complete or gang.problem(policy.group_levels):
        return None
    for size in plan_sizes(gang, members):
        own = members.first(size)
        for names in (among,) if among is not None else _likely_first(cluster, asked, own, barred):
            found = cluster.plan(asked, gang, own, names, barred)
            if isinstance(found, GangPlan):
                placed = cluster.with_plan(asked, own, found, barred)
                if placed is not None:
                    return placed
    return None


def _likely_first(cluster: Cluster, asked: Asked, members: GangMembers, barred: Nodes) -> Iterator[Sequence[str]]:
    """The nodes on which a gang may be planned: first the best ones of each member, then all."""
    names, kinds = dict.fromkeys(sorted(cluster.changed)), set[object]()
    for pod in members.pods:
        requirements = members.requirements.get(pod.uid)
        if requirements is not None and requirements.key not in kinds:
            kinds.add(requirements.key)
            offers = cluster.offers(asked, pod, barred, requirements)
            names |= dict.fromkeys(name for name, _ in cluster.memory.ranking(requirements).best(offers, _MAX_LIKELY))
    infos = cluster.snapshot.node_infos
    if len(names) < len(infos) // 2:
        yield list(names)
    yield list(infos)
