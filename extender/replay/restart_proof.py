"""The proof of an advice to restart pods: serve's own filter, gangs, holds and binds place all these pods again.

The cluster is virtual, and so is its time. The pods that are restarted have ended, and are created again. The nodes
that are to become free have a taint that only the wanted pods tolerate: without it, a restarted pod may take a node
before the wanted pods exist, or while a gang pauses after a failed plan. When the wanted pods have their places, the
taint goes, and all that still wait are tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from extender.api.nodes import Node
from extender.api.pods import SCHEDULER, Pod
from extender.api.resource_slices import PoolKey
from extender.base.berth_errors import BerthError
from extender.cache import ClusterCache
from extender.defrag import RESERVED, TOLERATION, Advice, Asked, again
from extender.gangs.gang import gang_minimum
from extender.policy import Policy
from extender.replay.placers import placer_of, placing_of
from extender.replay.virtual_api import VirtualApi
from extender.replay.virtual_cluster import VirtualCluster, in_virtual_time
from extender.replay.virtual_scheduler import NodeRoom, Offer, Placing, Waiting, likely_reason
from extender.scheduling import may_run
from extender.serve import Decisions

_ROUND_SECONDS, _ROUNDS = 60.0, 10  # longer than the pauses of gangs and the back-offs of pods
_SEED = 1


@dataclass(frozen=True, slots=True)
class Proof:
    """Where pods were placed. `reasons` has why others wait. `problem`: the proof ended with an error."""

    nodes: Mapping[str, str] = field(default_factory=dict)  # by UID
    reasons: Mapping[str, str] = field(default_factory=dict)  # by UID
    problem: str = ""


def prove(
    cluster: ClusterCache,
    room: NodeRoom,
    wanted: Asked,
    advice: Advice,
    policy: Policy,
    bound: Sequence[Pod] = (),
) -> Proof:
    """Place the wanted pods and those that are restarted on the nodes of `room`, which has what the others leave.

    `bound` are the pods of the wanted group that have nodes already.
    """
    try:
        return in_virtual_time(_Restarts(cluster, room, wanted, advice, policy, bound).run())
    except (BerthError, RuntimeError, ValueError) as error:
        return Proof(problem=str(error))


class _Restarts:
    """See prove. `run` must run in a VirtualLoop."""

    def __init__(
        self,
        cluster: ClusterCache,
        room: NodeRoom,
        wanted: Asked,
        advice: Advice,
        policy: Policy,
        bound: Sequence[Pod],
    ) -> None:
        self._known = cluster
        self._room = room
        self._wanted = wanted
        self._restarted = [again(one) for one in advice.restarts]
        self._freed = {claim.key for one in (*advice.restarts, *advice.ends) for claim in one.claims}
        self._reserved = advice.reserved
        self._policy = policy
        self._bound_before = bound
        self._nodes: dict[str, str] = {}
        self._classes: dict[str, Hashable] = {}  # of the queue, by UID

    async def run(self) -> Proof:
        """Place all pods."""
        self._cluster = VirtualCluster(self._policy, self._bound)
        decisions, api = self._cluster.decisions, self._cluster.api
        self._cache = decisions.cache
        self._copy_what_stays()
        for pod in self._bound_before:
            api.know_bound(pod)
        placing = _Selecting(decisions, api, len(self._room.names), self._policy)
        await self._cluster.run(placing, self._room, _SEED, self._restart)
        reasons = {one.pod.uid: likely_reason(one.reasons) for one in self._cluster.scheduler.waiting}
        return Proof(self._nodes, reasons)

    def _copy_what_stays(self) -> None:
        """The nodes, with the claims that have devices there and stay, and the claims of the wanted pods."""
        store, cache = self._known.store, self._cache
        for name in self._room.names:
            cache.apply_node(name, store.nodes[name])
        pools, nodes = set[PoolKey](), {"", *self._room.names}
        for name, published in self._known.slices.published.items():
            if published.selection.node_name in nodes:
                cache.apply_slice(name, published, inf)  # no agent ages
                pools.add(published.pool)
        for name, rule in self._known.slices.rules.items():
            cache.apply_rule(name, rule)
        for name, class_ in store.classes.items():
            cache.apply_class(name, class_)
        for name, labels in store.namespaces.items():
            cache.apply_namespace(name, labels)
        for of, group in {**store.group_policies, **self._wanted.policies}.items():
            cache.apply_group_policy(of, group)
        staying = {claim.key for pool in pools for claim in store.claims_on(pool)} - self._freed
        own = {key for pod in self._wanted.pods for key in pod.claim_keys} & store.claims.keys()
        for key in sorted(staying.union(key for key in own if store.claims[key].allocation is None)):
            cache.apply_claim(key, store.claims[key])

    async def _restart(self) -> None:
        """Reserve the nodes, create all pods, free the nodes, and wait until no pod can be placed any more.

        As the commands of an advice say, the wanted pods tolerate the taint only when the others have ended. Before,
        those that exist may take any other node that became free, which is then to be reserved, too.
        """
        free = {name: _without_taint(self._cache.store.nodes[name]) for name in sorted(self._reserved)}
        for name, node in free.items():
            self._cache.apply_node(name, replace(node, taints=(*node.taints, RESERVED)))
        if not self._wanted.is_new:
            self._create(self._wanted)
            await asyncio.sleep(_ROUND_SECONDS)
        for asked in self._restarted:
            self._create(asked)
        await self._rounds(lambda: not self._cluster.scheduler.has_work)
        self._create_tolerant()
        await self._rounds(lambda: all(pod.uid in self._nodes for pod in self._wanted.pods))
        for name, node in free.items():
            self._cache.apply_node(name, node)
        await self._rounds(lambda: not self._cluster.scheduler.has_work)

    async def _rounds(self, is_done: Callable[[], bool]) -> None:
        """Try all pods that wait again and again."""
        for _ in range(_ROUNDS):
            self._cluster.scheduler.requeue()
            await asyncio.sleep(_ROUND_SECONDS)
            if is_done():
                return

    def _create_tolerant(self) -> None:
        """Create the wanted pods with the toleration, or add it to those that wait."""
        left = [pod for pod in self._wanted.pods if pod.uid not in self._nodes]
        for pod in left:
            if pod.uid in self._classes:
                self._cluster.scheduler.remove(pod.uid, self._classes[pod.uid])
        tolerant = tuple(replace(pod, tolerations=(*pod.tolerations, TOLERATION)) for pod in left)
        self._create(replace(self._wanted, pods=tolerant))

    def _create(self, asked: Asked) -> None:
        for pod in asked.pods:
            own = pod.claim_keys
            self._cluster.api.create(pod, [claim for claim in asked.claims if claim.key in own])
        snapshot = self._cache.snapshot()
        for pod in asked.pods:
            in_gang = pod.membership is not None and gang_minimum(pod.membership, snapshot) > 0
            of: Hashable = pod.membership.key if in_gang and pod.membership is not None else pod.uid
            self._classes[pod.uid] = of
            usable = frozenset(name for name in self._room.names if may_run(pod, self._known.store.nodes[name]))
            self._cluster.scheduler.add(Waiting(pod, of, of, asked.amounts(pod), in_gang, nodes=usable))

    def _bound(self, uid: str, node: str) -> None:
        self._nodes[uid] = node


def _without_taint(node: Node) -> Node:
    """The node without the taint of an earlier advice: a wanted pod that tolerates it may be the one it is for."""
    return replace(node, taints=tuple(one for one in node.taints if one.key != RESERVED.key))


class _Selecting:
    """Berth's placing for its pods, kube-scheduler's for the others, on the nodes that the pods may use."""

    def __init__(self, decisions: Decisions, api: VirtualApi, nodes: int, policy: Policy) -> None:
        self._cache = decisions.cache
        self._own: Placing = placing_of(placer_of("berth", policy), decisions, api, nodes)
        self._other: Placing = placing_of(placer_of("emptiest node"), decisions, api, nodes)

    def _of(self, pod: Pod) -> Placing:
        return self._own if pod.scheduler == SCHEDULER else self._other

    def offer(self, pod: Pod, names: Sequence[str]) -> Offer:
        """See Placing.offer."""
        nodes = self._cache.store.nodes
        return self._of(pod).offer(pod, [name for name in names if may_run(pod, nodes[name])])

    async def bind(self, pod: Pod, node: str) -> None:
        """See Placing.bind."""
        await self._of(pod).bind(pod, node)
