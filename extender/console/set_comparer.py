"""Compares the GPUs of each bound pod with those that first fit would have taken, for the page."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import chain

from extender.allocation import NodeInfo, Snapshot
from extender.allocation.what_if import with_devices_released
from extender.cache import ClusterCache
from extender.console.decision_history import DecidedPod, DecisionHistory
from extender.diagnosis import ComparedSets, compare_sets
from extender.model import Claim, Deadline, PoolKey
from extender.scheduling import Evaluator

_WAITING = 256  # decisions in the queue; those beyond get no comparison
_WORK_SECONDS = 0.05  # of one comparison
_REST = 4.0  # pause after a comparison, as a multiple of the time that it took
_LATE_SECONDS = 1.0  # before the comparisons: decisions about pods that were bound a moment later come meanwhile


@dataclass(slots=True)
class _Queued:
    """A decision with the node as it was then: it may show devices of pods that were bound `later`."""

    decided: DecidedPod
    node_info: NodeInfo
    later: list[tuple[str, ...]] = field(default_factory=list)  # the devices of each such pod
    lacks_later: bool = False  # a later pod found the queue full, so `later` is not complete


class SetComparer:
    """A background task of the console. `bound` queues a decision with the node as it is then; `run` compares it.

    The devices of pods that are bound later count as free: `bound` notes them in the queued decisions of the node.
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
        self._queue: deque[_Queued] = deque()
        self._queued = asyncio.Event()
        self.left_out = 0  # not compared: the queue was full for the decision, or for a later one of its node

    def bound(self, decided: DecidedPod) -> None:
        """Queue the decision of a bind, if it gave the pod devices."""
        chosen = decided.decision.chosen
        if not chosen.devices:
            return
        is_full = len(self._queue) >= self._most
        for earlier in self._queue:
            if earlier.decided.decision.chosen.node == chosen.node:
                earlier.lacks_later |= is_full
                earlier.later += [] if is_full else [chosen.devices]
        if is_full:
            self.left_out += 1
            return
        node_info = self._cache.snapshot().node_infos.get(chosen.node)
        if node_info is None:
            return
        self._queue.append(_Queued(decided, node_info))
        self._queued.set()

    async def run(self, listed: Callable[[], Awaitable[None]], rebuilt: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled, once every kind is listed. A pause several times as long follows each comparison.

        See Rebuilds.done for `rebuilt`.
        """
        await listed()
        while True:
            await self._queued.wait()
            await asyncio.sleep(_LATE_SECONDS)
            self._queued.clear()
            while self._queue:
                await rebuilt()
                began = self._clock()
                self._compare(self._queue.popleft())
                await asyncio.sleep(_REST * (self._clock() - began))

    def _compare(self, one: _Queued) -> None:
        """Compare one decision, unless the result could be wrong or its claims have changed."""
        if one.lacks_later:
            self.left_out += 1
            return
        snapshot = self._cache.snapshot()
        claims = _claims(one.decided, snapshot)
        found = self._sets_of(one, claims, snapshot) if claims else None
        if found is not None:
            self._history.record_sets(one.decided.uid, found)

    def _sets_of(self, one: _Queued, claims: list[Claim], snapshot: Snapshot) -> ComparedSets | None:
        deadline = Deadline(_WORK_SECONDS, self._clock)
        context = self._evaluator.evaluation_context(snapshot, deadline)
        others = [claim for claim in _claims_with(set(chain.from_iterable(one.later)), snapshot) if claim not in claims]
        results = [result for claim in others if claim.allocation is not None for result in claim.allocation.results]
        node_info = with_devices_released(one.node_info, results, idle=False)
        return compare_sets(node_info, claims, snapshot.classes, context)


def _claims(decided: DecidedPod, snapshot: Snapshot) -> list[Claim]:
    """The claims that this decision allocated, by key; none unless they have exactly its devices."""
    devices = set(decided.decision.chosen.devices)
    found = [claim for claim in _claims_with(devices, snapshot) if claim.is_reserved_for(decided.uid)]
    return found if set[str]().union(*map(_devices, found)) == devices else []


def _claims_with(devices: set[str], snapshot: Snapshot) -> list[Claim]:
    """The claims whose devices are all among these, by key."""
    pools = {_pool(device) for device in devices}
    claims = {claim.key: claim for pool in pools for claim in snapshot.claims_on(pool)}
    return [claim for _, claim in sorted(claims.items()) if (own := _devices(claim)) and own <= devices]


def _devices(claim: Claim) -> set[str]:
    return {str(result.device) for result in claim.allocation.results} if claim.allocation is not None else set()


def _pool(device: str) -> PoolKey:
    """The pool of driver/pool/device; the name of a pool may have slashes."""
    driver, _, rest = device.partition("/")
    return PoolKey(driver, rest.rpartition("/")[0])
