"""Nominates nodes for pods that wait in kube-scheduler's queue.

kube-scheduler filters the node in a pod's status.nominatedNodeName first, and no other node if that one fits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import structlog
from cachetools import TTLCache

from extender.cache import ClusterCache
from extender.cluster import Backoff, ClusterError, Conflict, Delays, NotFound, Writer
from extender.extension.filter_service import FilterService
from extender.extension.holds import hold
from extender.model import DeadlineExceeded, Pod
from extender.scheduling import Placement, PodRequirements, UsableNodes, gang_minimum, is_incomplete, requirements_of
from extender.wire import has_all

_LEFT = 4  # pods at the head of the queue: kube-scheduler takes them before a write can arrive
_WRITES = 32  # at a time
_PAUSE_SECONDS = 0.02  # between two passes over the queue
_STRETCH = 16  # pods that get no nomination, between two pauses of a pass
_REST = 4.0  # such a pause, as a multiple of the time since the last one
_ACTIVE_SECONDS = 10.0  # after a filter request: longer than the longest back-off of kube-scheduler
_SCHEDULERS = 16
_AVOIDED_SECONDS = 30.0
_AVOIDED_NODES = 512
_DELAYS = Delays(first=1.0, most=60.0)


@dataclass(slots=True)
class _Nomination:
    node: str
    version: str  # resourceVersion of the pod before the write
    priority: int
    filtered: bool = False  # whether a filter request of the pod came since


class Nominator:
    """The background task `nominations`. `clock` returns seconds.

    It nominates only for pods with a schedulerName of which filter requests came lately: a standby gets none. A pod
    gets a nomination only if every pod before it in the queue has devices, or cannot get any now. So no pod loses
    devices to one behind it. Requirements that filter has not evaluated yet stop a pass, too.
    """

    def __init__(
        self,
        cache: ClusterCache,
        filter_service: FilterService,
        writer: Writer,
        clock: Callable[[], float],
        avoided_nodes: int = _AVOIDED_NODES,
    ) -> None:
        self._cache = cache
        self._filter_service = filter_service
        self._writer = writer
        self._clock = clock
        self._active: TTLCache[str, None] = TTLCache(_SCHEDULERS, _ACTIVE_SECONDS, clock)  # schedulerNames
        # Nodes that kube-scheduler rejected, or cleared, for a pod to which Berth had nominated them.
        self._avoided: TTLCache[str, None] = TTLCache(avoided_nodes, _AVOIDED_SECONDS, clock)
        self._nominations: dict[str, _Nomination] = {}  # by UID of pods that wait with a node nominated by Berth
        self._usable = UsableNodes()
        self._backoff = Backoff(_DELAYS, clock)
        self._changed = asyncio.Event()
        self._log = structlog.get_logger("berth.nominations")
        self.results: Counter[str] = Counter()

    @property
    def nominated(self) -> int:
        """How many waiting pods have a node that this process nominated."""
        return len(self._nominations)

    @property
    def avoided(self) -> frozenset[str]:
        """Nodes that are not nominated for a while."""
        return frozenset(self._avoided)

    def filtering(self, pod: Pod, names: Sequence[str]) -> None:
        """kube-scheduler asks about a pod. Call this before each filter request."""
        if not self._filter_service.policy.nominate:
            return
        self._active[pod.scheduler] = None
        self._give_way(pod)
        nomination = self._nominations.get(pod.uid)
        if nomination is not None:
            nomination.filtered = True
            if pod.nominated_node == nomination.node and not has_all(names, (nomination.node,)):
                self._avoided[nomination.node] = None
                self.results["rejected"] += 1
        self._changed.set()

    def pods_changed(self) -> None:
        """Nominate soon for pods that may have come."""
        if self._filter_service.policy.nominate:
            self._changed.set()

    async def run(self, rebuilt: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled. See Rebuilds.done for `rebuilt`."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await rebuilt()
            await asyncio.sleep(_PAUSE_SECONDS if await self._nominate() else self._backoff.next())

    def _give_way(self, pod: Pod) -> None:
        """End the holds of pods with a lower priority for which no filter request came since their nomination."""
        ended = [
            self._cache.release(uid)
            for uid, nomination in self._nominations.items()
            if nomination.priority < pod.priority and not nomination.filtered
        ]
        if any(ended):
            self._cache.freed()

    async def _nominate(self) -> bool:
        """One pass over the queues. False if a write failed, and not because its pod had changed."""
        self._forget_ended()
        room = max(0, min(self._filter_service.policy.nominate - len(self._nominations), _WRITES))
        found = chain.from_iterable(self._chosen(name) for name in list(self._active))
        writes, in_vain, began = list[asyncio.Task[bool]](), 0, self._clock()
        async with asyncio.TaskGroup() as group:
            for pod in found if room else ():
                if pod is None:
                    in_vain += 1
                    if in_vain % _STRETCH == 0:
                        await asyncio.sleep(_REST * (self._clock() - began))
                        began = self._clock()
                    continue
                writes.append(group.create_task(self._write(pod, self._nominations[pod.uid])))
                self._changed.set()
                await asyncio.sleep(0)  # calls of kube-scheduler go first
                if len(writes) == room:
                    break
        return all(write.result() for write in writes)

    def _forget_ended(self) -> None:
        """Drop nominations of pods that are bound or deleted, or whose nomination kube-scheduler cleared."""
        for uid, nomination in list(self._nominations.items()):
            pod = self._cache.store.pods.get(uid)
            if pod is None:
                del self._nominations[uid]
            elif pod.resource_version != nomination.version and pod.nominated_node != nomination.node:
                self.results["cleared"] += 1
                self._avoided[nomination.node] = None
                self._end(uid, nomination)

    def _chosen(self, scheduler: str) -> Iterator[Pod | None]:
        """The next pods of a queue, each after its node is chosen and its devices are held; None for a pod without."""
        left = _LEFT
        for found in self._waiting(scheduler):
            if found is None or left:
                left -= found is not None
                yield None
                continue
            pod, requirements = found
            best = self._best(pod, requirements)
            if best is None:
                return
            if not best:
                yield None
            for node, placement in best:
                node_info = self._cache.snapshot().node_infos[node]
                deadline = self._clock() + requirements.policy.hold_seconds
                hold(self._cache, pod.uid, requirements, node_info, placement, deadline)
                self._nominations[pod.uid] = _Nomination(node, pod.resource_version, pod.priority)
                yield pod

    def _waiting(self, scheduler: str) -> Iterator[tuple[Pod, PodRequirements] | None]:
        """The next pods without reserved devices, up to the first whose node depends on other pods.

        None for a pod that was looked at and cannot have a nomination now.
        """
        store, reserved = self._cache.store, self._cache.reservations.by_claim
        most = _LEFT + 2 * self._filter_service.policy.nominate
        for uid in list(islice(store.scheduling_queue.first(scheduler), most)):
            pod = store.pods.get(uid)
            if pod is None or self._cache.held_for(uid) or uid in self._nominations:
                continue
            if self._lacks_members(pod):
                continue
            requirements = requirements_of(pod, self._cache.snapshot(), self._filter_service.policy)
            if not isinstance(requirements, PodRequirements):
                yield None
                continue
            if self._is_tied(pod, requirements):
                return
            free = requirements.pending_claims and not any(c.uid in reserved for c in requirements.pending_claims)
            yield (pod, requirements) if free else None

    def _lacks_members(self, pod: Pod) -> bool:
        """Whether the pod belongs to a gang that is not complete: kube-scheduler may keep it back for any time."""
        group, snapshot = pod.membership, self._cache.snapshot()
        return group is not None and is_incomplete(group, gang_minimum(group, snapshot), snapshot)

    def _is_tied(self, pod: Pod, requirements: PodRequirements) -> bool:
        """Whether the node depends on other pods or claims, or bind writes to the pod's status."""
        shared = any(self._cache.store.is_shared(claim.key) for claim in requirements.pending_claims)
        pinned = bool(requirements.pending_claims and requirements.node_selectors)
        other = pod.membership is not None or pod.has_own_nodes or requirements.extended is not None
        return shared or pinned or other

    def _best(self, pod: Pod, requirements: PodRequirements) -> list[tuple[str, Placement]] | None:
        """The best node, if one fits; None if filter has not evaluated every node yet."""
        ranking, store = self._filter_service.rankings.peek(requirements), self._cache.store
        if ranking is None:
            return None
        if not self._filter_service.update_ranking(pod, requirements, ranking, self._cache.snapshot()):
            return None
        try:
            with self._filter_service.evaluation(pod.key.namespace) as context:
                usable = self._usable.of([pod], store.nodes, store.nodes_version, context.deadline).get(pod.uid)
        except DeadlineExceeded:
            return None
        without = self._filter_service.kept_from(requirements) | self.avoided
        return ranking.best(usable, 1, without)

    async def _write(self, pod: Pod, nomination: _Nomination) -> bool:
        """False if the write failed, and not because the pod changed."""
        try:
            await self._writer.nominate(pod, nomination.node)
        except ClusterError as error:
            late = isinstance(error, Conflict | NotFound)
            self.results["late" if late else "failed"] += 1
            if not late:
                self._log.warning("could not nominate a node", pod=str(pod.key), problem=str(error))
            self._end(pod.uid, nomination)
            return late
        self.results["written"] += 1
        return True

    def _end(self, uid: str, nomination: _Nomination) -> None:
        """End a nomination and its hold. The hold of a later filter request stays."""
        del self._nominations[uid]
        if not nomination.filtered and self._cache.release(uid):
            self._cache.freed()
