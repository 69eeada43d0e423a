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
from extender.service.supervisor import Supervisor

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

    def unsuitable(self, claim: Claim) -> None:
        """A pod's claim is allocated where the pod cannot go, and nobody else uses it."""
        if claim.uid not in self._mirror.ledger.in_flight:
            self._start(claim.key, self._deallocate(claim))

    def stale_special(self, key: ObjectKey) -> None:
        """A special claim is left of an attempt that ended half way."""
        claim = self._mirror.store.claims.get(key)
        if claim is not None and claim.owner_pod_uid not in self._mirror.ledger.in_flight.values():
            self._start(key, self._remove(key))

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

    async def _remove(self, key: ObjectKey) -> None:
        await self._writer.delete_claim(key)
        self.removed += 1
