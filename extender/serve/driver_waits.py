"""Waits of binds for the drivers: a claim may have binding conditions (KEP-5007), and its pod is bound once they hold.

A driver has no deadline, and each bind that waits keeps an HTTP connection. So the number of such binds is limited, and
one call waits at most `binding_wait_seconds`. The others, and what takes longer, end with BindPending: the devices stay
allocated, and kube-scheduler calls again, until `binding_timeout_seconds` have passed since the allocation.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from extender.api.resource_claims import Claim
from extender.cache import ClusterCache
from extender.cluster import WallClock, seconds_since
from extender.policy import Policy
from extender.runtime.cache_tasks import WatchProgress
from extender.scheduling.requirements import Readiness, readiness
from extender.serve.binding_cycle import BindingCycle, BindPending, ConditionsFailed


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """How many binds may wait for drivers at the same time. The others fail at once, and kube-scheduler calls again.

    Members of a gang have slots of their own. A bind that waits for the bind of another pod, or for the write that
    reserves a shared claim, needs no slot: it waits for answers of the API server, as all binds do.
    """

    total: int = 48  # with the slots of gangs, 16 below the connections to the verbs
    namespace: int = 32


class DriverWaits:
    """The binds that wait for binding conditions now. `wall_clock` is compared with the time of an allocation."""

    def __init__(
        self, cache: ClusterCache, progress: WatchProgress, wall_clock: WallClock, limits: WaitLimits | None = None
    ) -> None:
        self._cache = cache
        self._progress = progress
        self._wall_clock = wall_clock
        self._limits = limits or WaitLimits()
        self._waiting: Counter[str] = Counter()  # binds by namespace
        self._ended = False

    def end(self) -> None:
        """The process ends: from now on, a bind that would wait ends with BindPending."""
        self._ended = True

    async def wait(self, cycle: BindingCycle, claims: list[Claim], policy: Policy) -> bool:
        """Wait until the drivers have met all binding conditions of the claims. Returns whether one had to be awaited.

        Raises BindPending at the end of this call's time, or if too many wait; kube-scheduler then calls again. A
        longer wait could send the Binding after kube-scheduler gave up the node. Raises ConditionsFailed if a driver
        reports a failure, or at the end of `binding_timeout_seconds`.
        """
        end, waited = cycle.started + policy.binding_wait_seconds, False
        for claim in claims:
            if self._state(claim) is Readiness.READY:
                continue
            waited = True
            stamp = claim.allocation.timestamp if claim.allocation is not None else ""
            left = policy.binding_timeout_seconds - seconds_since(stamp, self._wall_clock)
            seconds = min(left, end - asyncio.get_running_loop().time())
            await self._wait_for(cycle, claim, seconds)
            state = self._state(claim)
            if state is Readiness.READY:
                continue
            if state is Readiness.WAITING and (self._ended or seconds < left):
                raise BindPending(f"waiting for binding conditions of claim {claim.key}")
            why = "are not met: binding timeout" if state is Readiness.WAITING else "failed"
            raise ConditionsFailed(claim, f"binding conditions of claim {claim.key} {why}")
        return waited

    async def _wait_for(self, cycle: BindingCycle, claim: Claim, seconds: float) -> None:
        """Raises BindPending at once if too many pods wait."""
        decided = partial(self._is_decided, claim)
        if decided() or seconds <= 0:
            return
        own = cycle.forming is not None and cycle.forming.has_slot(cycle.pod.uid)
        with nullcontext(own) if own else self.slot(cycle.pod.key.namespace) as may_wait:
            if not may_wait:
                raise BindPending(f"too many pods wait for binding conditions, as those of claim {claim.key}")
            await self._progress.wait_for(decided, seconds)

    def _is_decided(self, claim: Claim) -> bool:
        """Whether the drivers reported that the devices of a claim are ready or failed, or the process ends."""
        return self._ended or self._state(claim) is not Readiness.WAITING

    def _state(self, claim: Claim) -> Readiness:
        return readiness(self._cache.store.claims.get(claim.key, claim))

    @contextmanager
    def slot(self, namespace: str) -> Iterator[bool]:
        """A slot for one bind; False if there is none for its namespace."""
        waiting, limits = self._waiting, self._limits
        if waiting[namespace] >= limits.namespace or waiting.total() >= limits.total:
            yield False
            return
        waiting[namespace] += 1
        try:
            yield True
        finally:
            waiting[namespace] -= 1
            if not waiting[namespace]:
                del waiting[namespace]
