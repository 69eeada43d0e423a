"""Taking back what nobody uses: allocations on nodes that no longer fit, allocations of ours that were never reserved,
special claims of attempts that ended half way. The reference's PostFilter does the first; nobody does the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from extender.cluster.errors import ClusterError, NotFound
from extender.cluster.writer import Writer
from extender.mirror.mirror import Mirror
from extender.model.claim import Claim, ObjectKey
from extender.service.special import SpecialClaims
from extender.service.supervisor import Supervisor
from extender.wire.core import decode_pod

_GRACE_SECONDS = 60.0  # far longer than a bind, whose own time-out is 30 s
_ROUND_SECONDS = 5.0


class Collector:
    """Runs beside the service. Each claim is worked on once at a time."""

    def __init__(
        self, mirror: Mirror, writer: Writer, clock: Callable[[], float], supervisor: Supervisor,
        grace_seconds: float = _GRACE_SECONDS,
    ) -> None:
        self._mirror = mirror
        self._supervisor = supervisor
        self._writer = writer
        self._clock = clock
        self._grace = grace_seconds
        self._since: dict[str, float] = {}
        self._special = SpecialClaims(writer)
        self._stale_since: dict[ObjectKey, float] = {}
        self._busy: dict[ObjectKey, asyncio.Task[None]] = {}
        self._log = structlog.get_logger("berth.collect")
        self.deallocated = 0  # allocations on nodes that no longer fit
        self.collected = 0  # allocations of ours that nobody reserved
        self.removed = 0  # special claims of attempts that ended half way

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(min(_ROUND_SECONDS, self._grace))
            self.sweep()

    def sweep(self) -> None:
        """Collect allocations of ours that stayed unreserved for the grace period."""
        now = self._clock()
        waiting = {}
        for key in self._mirror.store.unreserved:
            claim = self._mirror.store.claims[key]
            if not claim.ours or claim.uid in self._mirror.ledger.in_flight:
                continue
            waiting[claim.uid] = since = self._since.get(claim.uid, now)
            if now - since >= self._grace:
                self._start(key, self._collect(claim))
        self._since = waiting
        store = self._mirror.store
        self._stale_since = {key: since for key, since in self._stale_since.items() if key in store.claims}
        for key in self._stale_since:
            if store.claims[key].owner_pod_uid in store.pods:
                self.stale_special(key)

    def unsuitable(self, claim: Claim) -> None:
        """A pod's claim is allocated where the pod cannot go, and nobody else uses it."""
        if claim.uid not in self._mirror.ledger.in_flight:
            self._start(claim.key, self._deallocate(claim))

    def stale_special(self, key: ObjectKey) -> None:
        """A special claim is left of an attempt that ended half way. Where another process of Berth made it, that process
        may still bind the pod: it has the grace period for that."""
        claim = self._mirror.store.claims.get(key)
        if claim is None or claim.owner_pod_uid in self._mirror.ledger.in_flight.values():
            return
        since = self._stale_since.setdefault(key, self._clock())
        if claim.writer in ("", self._writer.identity) or self._clock() - since >= self._grace:
            self._start(key, self._remove(claim))

    def _start(self, key: ObjectKey, work: Coroutine[Any, Any, None]) -> None:
        if key in self._busy:
            work.close()
            return
        task = self._supervisor.spawn("take-back", self._safely(key, work))
        self._busy[key] = task
        task.add_done_callback(lambda _: self._busy.pop(key, None))

    async def _safely(self, key: ObjectKey, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except NotFound:
            pass  # gone already: that is what was wanted
        except ClusterError as error:
            self._log.warning("could not take back", claim=str(key), problem=str(error))

    async def _deallocate(self, claim: Claim) -> None:
        await self._writer.deallocate(claim)
        self.deallocated += 1
        self._log.info("deallocated: the pod cannot go where the claim is allocated", claim=str(claim.key))

    async def _collect(self, claim: Claim) -> None:
        await self._writer.deallocate(claim)
        self.collected += 1
        self._log.info("collected an allocation that nobody reserved", claim=str(claim.key))

    async def _remove(self, claim: Claim) -> None:
        if not await self._waits(claim.owner_pod_uid):
            return  # the pod was bound after all and uses the claim, or it is gone and its claim goes with it
        await self._special.remove(claim.key)
        self.removed += 1

    async def _waits(self, pod_uid: str) -> bool:
        """Whether a pod is not bound, as the API server has it now."""
        known = self._mirror.store.pods.get(pod_uid)
        if known is None:
            return False
        pod = decode_pod(await self._writer.read_pod(known.key))
        return pod.uid == pod_uid and not pod.node_name
