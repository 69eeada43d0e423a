"""Compares the GPUs of each bound pod with those that first fit would have taken, for the page."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable

from extender.allocation import NodeInfo, Snapshot
from extender.cache import ClusterCache
from extender.console.decision_history import DecisionHistory
from extender.diagnosis import ComparedSets, compare_sets
from extender.model import CallBudget, Claim, PoolKey
from extender.records import Bound
from extender.scheduling import Evaluator

_WAITING = 256  # decisions in the queue; those beyond get no comparison
_WORK_SECONDS = 0.05  # of one comparison
_REST = 4.0  # pause after a comparison, as a multiple of the time that it took
_LATE_SECONDS = 1.0  # until the next look for claims that the watch does not show yet
_LOOKS = 5  # for the claims of one pod


class SetComparer:
    """A background task of the console. `bound` queues a decision with the node as it is then; `run` compares it.

    So the devices of pods that are bound later count as free.
    """

    def __init__(
        self,
        cache: ClusterCache,
        evaluator: Evaluator,
        history: DecisionHistory,
        clock: Callable[[], float],
        waiting: int = _WAITING,
    ) -> None:
        self._cache = cache
        self._evaluator = evaluator
        self._history = history
        self._clock = clock
        self._most = waiting
        self._queue: deque[tuple[Bound, NodeInfo, int]] = deque()  # with the number of looks
        self._queued = asyncio.Event()
        self.left_out = 0  # decisions that found the queue full

    def bound(self, record: Bound) -> None:
        """Queue the decision of a bind, if it gave the pod devices."""
        if not record.decision.chosen.devices:
            return
        if len(self._queue) >= self._most:
            self.left_out += 1
            return
        node_info = self._cache.snapshot().node_infos.get(record.decision.chosen.node)
        if node_info is None:
            return
        self._queue.append((record, node_info, 1))
        self._queued.set()

    async def run(self, listed: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled, once every kind is listed. A pause several times as long follows each comparison."""
        await listed()
        while True:
            await self._queued.wait()
            self._queued.clear()
            late = []
            while self._queue:
                record, node_info, looks = self._queue.popleft()
                began = self._clock()
                if not self._compare(record, node_info) and looks < _LOOKS:
                    late.append((record, node_info, looks + 1))
                await asyncio.sleep(_REST * (self._clock() - began))
            if late:
                await asyncio.sleep(_LATE_SECONDS)
                self._queue.extend(late)
                self._queued.set()

    def _compare(self, record: Bound, node_info: NodeInfo) -> bool:
        """Compare one decision. Returns whether the watch shows its claims."""
        snapshot = self._cache.snapshot()
        claims = _claims(record, snapshot)
        found = self._compared(node_info, claims, snapshot) if claims else None
        if found is not None:
            self._history.record_sets(record.uid, found)
        return bool(claims)

    def _compared(self, node_info: NodeInfo, claims: list[Claim], snapshot: Snapshot) -> ComparedSets | None:
        budget = CallBudget(_WORK_SECONDS, sys.maxsize, self._clock)
        budget.mark_progress()
        context = self._evaluator.evaluation_context(snapshot, budget)
        return compare_sets(node_info, claims, snapshot.classes, context)


def _claims(record: Bound, snapshot: Snapshot) -> list[Claim]:
    """The claims that this decision allocated, by key; none while the watch does not show all their devices."""
    devices = set(record.decision.chosen.devices)
    pools = {_pool(device) for device in devices}
    claims = {claim.key: claim for pool in pools for claim in snapshot.claims_on(pool)}
    found, seen = list[Claim](), set[str]()
    for _, claim in sorted(claims.items()):
        own = {str(result.device) for result in claim.allocation.results} if claim.allocation is not None else set()
        if own and own <= devices and claim.is_reserved_for(record.uid):
            found.append(claim)
            seen |= own
    return found if seen == devices else []


def _pool(device: str) -> PoolKey:
    """The pool of driver/pool/device; the name of a pool may have slashes."""
    driver, _, rest = device.partition("/")
    return PoolKey(driver, rest.rpartition("/")[0])
