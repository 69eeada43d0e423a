"""A candidate policy compared with the active one: what each would choose for the pods that serve binds.

A comparison is approximate. Serve decided on its own mirror, a moment earlier and among the nodes that kube-scheduler
named. The console reads the pod, which has left the watch with its Binding, and asks both policies on its mirror as it
is by then, with the pod's own devices given back, among all nodes. It counts only a pod for which the active policy
chooses the very devices that serve chose; the others are left out, and their number is told.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import structlog

from extender.allocation.view import Snapshot
from extender.cluster.errors import ClusterError
from extender.console.policies import ActivePolicy
from extender.diagnosis.scenario import Changes, imagine, seen_by_holder
from extender.mirror.mirror import Mirror
from extender.mirror.store import ALL_NODES
from extender.model.budget import Budget, BudgetSpent
from extender.model.claim import Claim, ObjectKey, Pod, Result
from extender.model.device import PoolKey
from extender.model.errors import WireError
from extender.policy import Policy
from extender.records import Bound
from extender.verdict.decision import Candidate, candidate
from extender.verdict.demand import Demand, demand_of
from extender.verdict.evaluate import evaluate
from extender.verdict.evaluator import Evaluator
from extender.verdict.grants import Grant
from extender.verdict.rankings import Rankings
from extender.wire.core import decode_pod

_WAITING = 64  # decisions not compared yet; more are left out and counted
_REMEMBERED = 512  # pods
_WORK_SECONDS = 0.5  # of one comparison; a costlier one is left out
_REST = 4.0  # times as long as a comparison took
_RANKINGS_BYTES = 32 << 20
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One decision under both policies. `candidate` is None where the candidate policy would place the pod nowhere."""

    pod: str
    at: str
    active: Candidate
    candidate: Candidate | None

    @property
    def differs(self) -> bool:
        """Whether node or devices would be others."""
        return self.candidate is None or _place(self.active) != _place(self.candidate)


def _place(chosen: Candidate) -> tuple[str, tuple[str, ...]]:
    return chosen.node, chosen.devices


class Shadow:
    """Runs beside the console; `bound` is called for records and only remembers."""

    def __init__(
        self, mirror: Mirror, evaluator: Evaluator, active: ActivePolicy,
        read_pod: Callable[[ObjectKey], Awaitable[Json]], clock: Callable[[], float] = time.monotonic,
        *, waiting: int = _WAITING, remembered: int = _REMEMBERED, rankings_bytes: int = _RANKINGS_BYTES,
    ) -> None:
        self._mirror = mirror
        self._evaluator = evaluator
        self._active = active
        self._read_pod = read_pod
        self._clock = clock
        self._waiting = waiting
        self._remembered = remembered
        self._rankings = Rankings(rankings_bytes)
        active.follow(self._rankings.clear)
        self._todo: deque[Bound] = deque()
        self._something = asyncio.Event()
        self._known: OrderedDict[str, Comparison] = OrderedDict()  # by pod UID
        self._log = structlog.get_logger("berth.shadow")
        self.policy: Policy | None = None
        self.problem = ""  # why the newest candidate file is not compared
        self.left_out = 0

    def use(self, policy: Policy | None) -> None:
        """Compare with this policy from now on; None ends it."""
        self.policy, self.problem, self.left_out = policy, "", 0
        self._rankings.clear()
        self._todo.clear()
        self._known.clear()

    def refuse(self, problem: str) -> None:
        """The newest candidate is wrong; the last good one stays."""
        self.problem = problem

    def bound(self, record: Bound) -> None:
        """Serve bound a pod."""
        if self.policy is None:
            return
        if len(self._todo) >= self._waiting:
            self.left_out += 1
            return
        self._todo.append(record)
        self._something.set()

    def comparisons(self) -> list[Comparison]:
        """The newest first."""
        return list(reversed(self._known.values()))

    async def run(self, listed: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled, once everything is listed. A comparison that took long is followed by a rest several times
        as long."""
        await listed()
        while True:
            await self._something.wait()
            while self._todo:
                record = self._todo.popleft()
                pod = await self._bound_pod(record)
                began = self._clock()
                if self.policy is not None:
                    self._compare(pod, record, self.policy)
                await asyncio.sleep(_REST * (self._clock() - began))
            self._something.clear()

    async def _bound_pod(self, record: Bound) -> Pod | None:
        """The pod as the API server has it; None where it is gone, or cannot be read."""
        try:
            pod = decode_pod(await self._read_pod(record.pod))
        except (ClusterError, WireError) as error:
            self._log.info("not compared: the pod cannot be read", pod=str(record.pod), problem=str(error))
            return None
        return pod if pod.uid == record.uid else None

    def _compare(self, pod: Pod | None, record: Bound, policy: Policy) -> None:
        comparison = self._compared(pod, record, policy) if pod is not None else None
        if comparison is None:
            self.left_out += 1
            return
        self._known[record.uid] = comparison
        self._known.move_to_end(record.uid)
        if len(self._known) > self._remembered:
            self._known.popitem(last=False)

    def _compared(self, pod: Pod, record: Bound, policy: Policy) -> Comparison | None:
        """None where the active policy does not choose again what serve chose."""
        snapshot, chosen = self._mirror.snapshot(), record.decision.chosen
        given_back, open_claims = self._devices_of(pod, snapshot, chosen)
        before = replace(imagine(snapshot, open_claims, Changes()), reservations={
            uid: one for uid, one in snapshot.reservations.items() if one.pod_uid != pod.uid
        })
        try:
            again = self._choose(pod, before, snapshot, given_back, self._active.policy)
            other = self._choose(pod, before, snapshot, given_back, policy)
        except BudgetSpent:
            again = other = None
        if again is None or _place(again) != _place(chosen):
            return None
        return Comparison(str(pod.key), record.decision.at, chosen, other)

    def _devices_of(self, pod: Pod, snapshot: Snapshot, chosen: Candidate) -> tuple[list[Result], list[Claim]]:
        """What the pod was given by this decision: its devices, and its claims as they were before."""
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
        self, pod: Pod, before: Snapshot, snapshot: Snapshot, given_back: list[Result], policy: Policy
    ) -> Candidate | None:
        """What a policy would choose; None where it would place the pod nowhere. Raises BudgetSpent."""
        demand = demand_of(pod, before, policy)
        if not isinstance(demand, Demand) or demand.pins:
            return None
        budget = Budget(_WORK_SECONDS, sys.maxsize, self._clock)
        budget.keep()
        rules, ranking = self._evaluator.rules(snapshot, budget), self._rankings.at_hand(demand)
        if not ranking.follow(snapshot, rules):
            raise BudgetSpent
        nodes = self._mirror.store.nodes_of({PoolKey(r.device.driver, r.device.pool) for r in given_back}) - {ALL_NODES}
        own = seen_by_holder(snapshot, given_back, nodes)
        found = [(name, grant) for name, grant in ranking.best(None, 1 + len(own)) if name not in own]
        for name, view in own.items():
            verdict = evaluate(view, demand.on(view.node), rules)
            found += [(name, verdict)] if isinstance(verdict, Grant) else []
        if not found:
            return None
        name, grant = min(found, key=lambda one: (-one[1].score, one[0]))
        return candidate(own.get(name) or snapshot.views[name], grant, snapshot)
