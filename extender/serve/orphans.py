"""Collects orphans: allocations and special claims that no pod uses.

These are allocations on nodes where their pod cannot run, allocations by Berth that never got a consumer or whose pod
lacks another claim, and special claims of binds that did not complete, also those that were never allocated. PostFilter
of the in-tree plugin deallocates the first kind; Kubernetes has no controller that collects the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from cachetools import TTLCache

from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import Claim
from extender.base.fair_lru import FairLRU
from extender.cache import ClusterCache
from extender.cluster import ClusterError, NotFound, Writer
from extender.runtime.supervisor import Supervisor
from extender.serve.undo import IN_FLIGHT_GRACE_SECONDS, deallocate_unused, is_bound, remove_special

_MAX_RUNNING = 32  # half of the connections to the API server
_MAX_WAITING = 4096  # operations; beyond that, the next filter request or sweep asks for it again
_GRACE_SECONDS = 60.0  # longer than a bind, which times out after 30 s
_ROUND_SECONDS = 5.0
_MAX_RESTING = 4096  # claims
_CLAIMS_PER_TIME_SLICE = 1000  # some 0.5 ms; then calls of kube-scheduler may go first

Operation = Callable[[], Coroutine[Any, Any, None]]


class OrphanCollector:
    """A background task of serve, see Releases.

    `is_binding` returns whether this process runs a bind of the pod with this UID. `clock` returns seconds. An orphan
    is collected after `grace_seconds`; tests do not wait.
    """

    def __init__(
        self,
        cache: ClusterCache,
        writer: Writer,
        clock: Callable[[], float],
        supervisor: Supervisor,
        is_binding: Callable[[str], bool],
        grace_seconds: float = _GRACE_SECONDS,
    ) -> None:
        self._cache = cache
        self._writer = writer
        self._clock = clock
        self._is_binding = is_binding
        self._grace = grace_seconds
        self._since: dict[str, float] = {}  # claim UID to the time when first seen without a pod that can use it
        self._leftovers: dict[str, ObjectKey] = {}  # special claims of binds that did not complete, by UID
        self._releases = Releases(supervisor)
        # Claims of PodGroups that are in use: a check lists pods, which is costly, and waiting pods cause many checks.
        self._resting: TTLCache[ObjectKey, None] = TTLCache(_MAX_RESTING, min(_ROUND_SECONDS, grace_seconds), clock)
        self._log = structlog.get_logger("berth.collect")
        self.unsuitable = 0  # berth_claims_deallocated_total: claims whose pod could not use the allocation
        self.without_consumer = 0  # berth_claims_collected_total: Berth's allocations without a consumer
        self.removed = 0  # berth_extended_claims_removed_total: special claims of binds that did not complete
        self.skipped = 0  # berth_claims_kept_total: claims that changed or are in use, as a fresh read showed

    @property
    def busy(self) -> int:
        """How many claims have an operation that runs or waits."""
        return len(self._releases)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(min(_ROUND_SECONDS, self._grace))
            await self.sweep()

    async def sweep(self) -> None:
        """Collect left-over special claims, and allocations by Berth that no pod could use for the grace period."""
        blocked = await self._of_blocked_pods()
        store, now, waiting = self._cache.store, self._clock(), {}
        unreserved = (store.claims[key] for key in store.without_consumer if store.claims[key].is_of_berth)
        work = [(one, self._collect if one.allocation is not None else self._remove_second) for one in unreserved]
        work += [(claim, self._deallocate) for claim in blocked]
        for claim, release in work:
            waiting[claim.uid] = since = self._since.get(claim.uid, now)
            if now - since >= self._grace:
                self._start(claim.key, partial(release, claim))
        self._since = waiting
        self._leftovers = {uid: key for uid, key in self._leftovers.items() if self._leftover(key, uid)}
        for key in list(self._leftovers.values()):
            self.remove_stale_special(key)

    async def _of_blocked_pods(self) -> list[Claim]:
        """The allocations by Berth that are reserved for one waiting pod alone, if the pod lacks another claim.

        kube-scheduler sends no filter request for such a pod. Its last bind failed, and so did the undo.
        """
        store, found = self._cache.store, []
        for number, key in enumerate(list(store.waited_for), start=1):
            if number % _CLAIMS_PER_TIME_SLICE == 0:
                await asyncio.sleep(0)
            claim = store.claims.get(key)
            if claim is None or claim.allocation is None or not claim.is_of_berth or len(claim.reserved_for) != 1:
                continue
            pod = store.pods.get(claim.reserved_for[0].uid)
            if pod is not None and not pod.node_name and self._lacks_claim(pod):
                found.append(claim)
        return found

    def _lacks_claim(self, pod: Pod) -> bool:
        """Whether a claim of the pod does not exist, or is being deleted."""
        claims = [self._cache.store.claims.get(key) for key in pod.claim_keys]
        return any(claim is None or (claim.deleting and not claim.is_reserved_for(pod.uid)) for claim in claims)

    def deallocate_unsuitable(self, claim: Claim) -> None:
        """Deallocate a claim whose pod cannot use the allocation, unless a bound pod uses the claim."""
        self._start(claim.key, partial(self._deallocate, claim))

    def remove_stale_special(self, key: ObjectKey) -> None:
        """Delete a special claim of a bind that did not complete, perhaps of a process that has ended."""
        claim = self._cache.store.claims.get(key)
        if claim is not None and claim.special_for and not self._is_binding(claim.special_for):
            self._leftovers[claim.uid] = key  # a sweep tries again if this does not succeed
            self._start(key, partial(self._remove, claim))

    def _leftover(self, key: ObjectKey, uid: str) -> bool:
        """Whether the claim is still the special claim of a pod in the cache."""
        claim = self._cache.store.claims.get(key)
        return claim is not None and claim.uid == uid and claim.special_for in self._cache.store.pods

    def _start(self, key: ObjectKey, work: Callable[[], Awaitable[None]]) -> None:
        if key not in self._resting:
            self._releases.start(key, partial(self._safely, key, work))

    async def _safely(self, key: ObjectKey, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except NotFound:
            pass  # already deleted
        except ClusterError as error:
            self._log.warning("could not release a claim", claim=str(key), problem=str(error))

    async def _read_unchanged(self, known: Claim) -> Claim | None:
        """Read a claim. None if its UID, allocation or consumers differ from `known`. Raises ClusterError, NotFound."""
        fresh = await self._writer.read_claim(known.key)
        same = (fresh.uid, fresh.allocation, fresh.reserved_for) == (known.uid, known.allocation, known.reserved_for)
        return fresh if same else None

    async def _deallocate(self, claim: Claim) -> None:
        fresh = await self._read_unchanged(claim)
        if fresh is None or not await deallocate_unused(self._writer, fresh):
            self._skip(claim)
            if fresh is not None and any(consumer.resource != "pods" for consumer in fresh.reserved_for):
                self._resting[claim.key] = None
            return
        self.unsuitable += 1
        self._log.info("deallocated: the pod cannot use the allocation", claim=str(claim.key))

    async def _collect(self, claim: Claim) -> None:
        fresh = await self._read_unchanged(claim)
        if fresh is None or not fresh.is_of_berth:
            self._skip(claim)
            return
        await self._writer.deallocate(fresh)
        self.without_consumer += 1
        self._log.info("deallocated: the allocation was never reserved", claim=str(claim.key))

    async def _remove(self, claim: Claim) -> None:
        (consumer,) = claim.reserved_for
        pod = ObjectKey(claim.key.namespace, consumer.name)
        fresh = await self._read_unchanged(claim)
        if fresh is None or await is_bound(self._writer, pod, consumer.uid):
            self._skip(claim)
            return
        # The Binding of another process, or of a bind with an unknown outcome, may be on its way. A bind that sends one
        # later sees the announcement, or becomes its allocator.
        announced = await self._writer.announce_release(fresh) if fresh.is_of_berth else fresh
        await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)
        if not await remove_special(self._writer, announced, pod, consumer.uid):
            self._skip(claim)
            return
        self.removed += 1
        self._log.info("deleted the special claim of a bind that did not complete", claim=str(claim.key), pod=str(pod))

    async def _remove_second(self, claim: Claim) -> None:
        """Delete a special claim that was never allocated, if its pod is bound with another one."""
        store = self._cache.store
        others = [store.claims[key] for key in store.special_claims.get((claim.key.namespace, claim.owner_pod_uid), ())]
        for consumer in (other.reserved_for[0] for other in others[:1]):
            pod, reserved = ObjectKey(claim.key.namespace, consumer.name), replace(claim, reserved_for=(consumer,))
            if not reserved.special_for or store.waited_for.get(claim.key) or self._is_binding(consumer.uid):
                return
            unchanged = await self._read_unchanged(claim) is not None
            if not unchanged or not await is_bound(self._writer, pod, consumer.uid):
                return
            if await remove_special(self._writer, claim, pod, consumer.uid):
                self.removed += 1
                self._log.info("deleted a second special claim", claim=str(claim.key), pod=str(pod))

    def _skip(self, claim: Claim) -> None:
        self.skipped += 1
        self._log.info("not released: the claim changed or is in use", claim=str(claim.key))


class Releases:
    """Operations on claims that no pod can use: one on a claim at a time, 32 in all, the namespaces in turn.

    Each sends several requests, and may wait for seconds. A tenant may have thousands of claims that need one, and
    binds use the same connections to the API server.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._running: set[ObjectKey] = set()
        self._waiting: FairLRU[ObjectKey, None] = FairLRU(_MAX_WAITING)
        self._operations: dict[ObjectKey, Operation] = {}  # of the claims that wait

    def __len__(self) -> int:
        """How many claims have an operation that runs or waits."""
        return len(self._running) + len(self._waiting)

    def start(self, key: ObjectKey, operation: Operation) -> None:
        """Run an operation on a claim soon, unless one runs.

        It replaces an operation that waits, whose claim may have changed since: that operation would do nothing, and
        nothing might ask for another one for minutes.
        """
        if key in self._running:
            return
        self._operations[key] = operation
        if key not in self._waiting:
            for dropped, _ in self._waiting.put(key.namespace, key, None):
                del self._operations[dropped]
            self._begin()

    def _begin(self) -> None:
        while len(self._running) < _MAX_RUNNING and (found := self._waiting.pop_next()) is not None:
            key, _ = found
            self._running.add(key)
            task = self._supervisor.spawn("release", self._operations.pop(key)())
            task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: ObjectKey, _: asyncio.Task[None]) -> None:
        self._running.discard(key)
        self._begin()
