"""Compares a candidate policy with the active one: the nodes and devices that each chooses for bound pods.

A comparison is approximate. Serve decided earlier, on its own cache, and among the nodes that kube-scheduler named. The
console evaluates both policies later, on its own cache, among all nodes, with the pod's devices released. It reads the
pod from the API server, since a bound pod is no longer in the watch. A pod is only compared if the active policy
chooses the same devices as serve did. `left_out` counts all other pods.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog
from cachetools import LRUCache

from extender.allocation import Snapshot
from extender.cache import ALL_NODES, ClusterCache
from extender.cluster import ClusterError
from extender.console.active_policy import ActivePolicy
from extender.diagnosis import Scenario, apply_scenario, without_own_holds
from extender.model import CallBudget, CallBudgetSpent, Claim, ObjectKey, Pod, PoolKey, Result
from extender.policy import Policy
from extender.records import Bound
from extender.scheduling import (
    Evaluator,
    Placement,
    PodRequirements,
    RankingCache,
    ScoredNode,
    evaluate,
    requirements_of,
    scored_node,
)

_WAITING = 64  # decisions in the queue; a full queue rejects further decisions
_REMEMBERED = 512  # comparisons
_WORK_SECONDS = 0.05  # for each policy, in one attempt at a comparison; the rankings keep what it evaluated
_ATTEMPTS = 10  # at one comparison; a costlier pod is not compared
_REST = 4.0  # pause after an attempt, as a multiple of the time that it took
_RANKINGS_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """One decision under both policies. `candidate` is None if the candidate policy finds no node."""

    pod: str
    at: str
    active: ScoredNode
    candidate: ScoredNode | None

    @property
    def differs(self) -> bool:
        """Whether the candidate policy chooses another node or other devices."""
        return self.candidate is None or _place(self.active) != _place(self.candidate)


def _place(chosen: ScoredNode) -> tuple[str, tuple[str, ...]]:
    return chosen.node, chosen.devices


class ShadowPolicy:
    """A background task of the console. `bound` only queues a decision; `run` compares it."""

    def __init__(
        self,
        cache: ClusterCache,
        evaluator: Evaluator,
        active: ActivePolicy,
        read_pod: Callable[[ObjectKey], Awaitable[Pod]],
        clock: Callable[[], float] = time.monotonic,
        *,
        waiting: int = _WAITING,
        remembered: int = _REMEMBERED,
    ) -> None:
        self._cache = cache
        self._evaluator = evaluator
        self._active = active
        self._read_pod = read_pod
        self._clock = clock
        self._waiting = waiting
        self._rankings = RankingCache(_RANKINGS_BYTES)
        active.follow(self._rankings.clear)
        self._queue: deque[Bound] = deque()
        self._queued = asyncio.Event()
        self._known: LRUCache[str, Comparison] = LRUCache(remembered)  # by pod UID
        self._log = structlog.get_logger("berth.shadow")
        self.policy: Policy | None = None
        self.problem = ""  # why the newest candidate file is not used; empty if it is
        self.left_out = 0  # bound pods that were not compared

    def use_policy(self, policy: Policy | None) -> None:
        """Start to compare with this candidate policy; None stops the comparison. Earlier results are dropped."""
        self.policy, self.problem, self.left_out = policy, "", 0
        self._rankings.clear()
        self._queue.clear()
        self._known.clear()

    def reject_policy(self, problem: str) -> None:
        """Note why the newest candidate file is not valid. The last valid candidate stays in use."""
        self.problem = problem

    def bound(self, record: Bound) -> None:
        """Queue the decision of a bind."""
        if self.policy is None:
            return
        if len(self._queue) >= self._waiting:
            self.left_out += 1
            return
        self._queue.append(record)
        self._queued.set()

    def comparisons(self) -> list[Comparison]:
        """All remembered comparisons, the newest first."""
        return list(self._known.values())[::-1]

    async def run(self, listed: Callable[[], Awaitable[None]], rebuilt: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled, once every kind is listed. A pause several times as long follows each attempt.

        See Rebuilds.done for `rebuilt`.
        """
        await listed()
        while True:
            await self._queued.wait()
            while self._queue:
                record = self._queue.popleft()
                pod = await self._bound_pod(record)
                for number in range(1, _ATTEMPTS + 1):
                    await rebuilt()
                    began = self._clock()
                    has_ended = self.policy is None or self._compare(pod, record, self.policy, number)
                    await asyncio.sleep(_REST * (self._clock() - began))
                    if has_ended:
                        break
            self._queued.clear()

    async def _bound_pod(self, record: Bound) -> Pod | None:
        """Read the pod; None if it does not exist or cannot be read."""
        try:
            pod = await self._read_pod(record.pod)
        except ClusterError as error:
            self._log.info("not compared: the pod cannot be read", pod=str(record.pod), problem=str(error))
            return None
        return pod if pod.uid == record.uid else None

    def _compare(self, pod: Pod | None, record: Bound, policy: Policy, attempt: int) -> bool:
        """Make an attempt at a comparison. Returns whether it is the last one."""
        try:
            comparison = self._comparison(pod, record, policy) if pod is not None else None
        except CallBudgetSpent:
            if attempt < _ATTEMPTS:
                return False
            comparison = None
        if comparison is None:
            self.left_out += 1
        else:
            self._known[record.uid] = comparison
        return True

    def _comparison(self, pod: Pod, record: Bound, policy: Policy) -> Comparison | None:
        """Compare the policies; None if the active policy does not choose the node and the devices that serve chose.

        Raises CallBudgetSpent.
        """
        snapshot, chosen = self._cache.snapshot(), record.decision.chosen
        released, open_claims = self._devices_of(pod, snapshot, chosen)
        before = replace(
            apply_scenario(snapshot, open_claims, Scenario()),
            reservations={uid: one for uid, one in snapshot.reservations.items() if one.pod_uid != pod.uid},
        )
        active = self._choose(pod, before, snapshot, released, self._active.policy)
        candidate = self._choose(pod, before, snapshot, released, policy)
        if active is None or _place(active) != _place(chosen):
            return None
        return Comparison(str(pod.key), record.decision.at, chosen, candidate)

    def _devices_of(self, pod: Pod, snapshot: Snapshot, chosen: ScoredNode) -> tuple[list[Result], list[Claim]]:
        """The devices that this decision gave the pod, and its claims as they were before the bind."""
        given: list[Result] = []
        claims: list[Claim] = []
        for name in {entry.claim_name or pod.claim_statuses.get(entry.name) or "" for entry in pod.claims}:
            claim = snapshot.claims.get(ObjectKey(pod.key.namespace, name))
            reservation = snapshot.reservations.get(claim.uid) if claim is not None else None
            if claim is None:
                continue
            if claim.allocation is not None:
                results: tuple[Result, ...] = claim.allocation.results
            else:
                results = reservation.results if reservation is not None else ()
            if all(str(result.device) in chosen.devices for result in results):
                given += results
                claims.append(replace(claim, allocation=None, reserved_for=()))
        return given, claims

    def _choose(
        self, pod: Pod, before: Snapshot, snapshot: Snapshot, released: list[Result], policy: Policy
    ) -> ScoredNode | None:
        """The choice of a policy; None if it finds no node. Raises CallBudgetSpent."""
        requirements = requirements_of(pod, before, policy)
        if not isinstance(requirements, PodRequirements) or requirements.node_selectors:
            return None
        budget = CallBudget(_WORK_SECONDS, sys.maxsize, self._clock)
        budget.mark_progress()
        context, ranking = (
            self._evaluator.evaluation_context(snapshot, budget),
            self._rankings.get_or_create(requirements),
        )
        if not ranking.update(snapshot, context):
            raise CallBudgetSpent
        nodes = self._cache.store.nodes_of({PoolKey(r.device.driver, r.device.pool) for r in released}) - {ALL_NODES}
        own = without_own_holds(snapshot, released, nodes)
        found = [(name, placement) for name, placement in ranking.best(None, 1 + len(own)) if name not in own]
        for name, node_info in own.items():
            status = evaluate(node_info, requirements.for_node(node_info.node), context)
            found += [(name, status)] if isinstance(status, Placement) else []
        if not found:
            return None
        name, placement = min(found, key=lambda one: (-one[1].score, one[0]))
        return scored_node(own.get(name) or snapshot.node_infos[name], placement, requirements, snapshot)
