"""Makes kube-scheduler retry the pods that Berth rejected, when one of them fits.

kube-scheduler does not try a pod again when slices change, if an extender rejected the pod. So after each change that
may make devices available, the requeuer queues a search for each namespace with rejected pods or gangs (`Evaluations`).
The search evaluates them on the changed nodes (`QueueingHints`, and `GangHints` for gangs). If one fits, the requeuer
updates an annotation of the marker DeviceClass, at most once a second, and kube-scheduler tries all rejected pods
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator

import structlog

from extender.api.device_classes import MARKER_CLASS
from extender.base.deadline import DeadlineExceeded
from extender.cache import CacheListener, ClusterCache
from extender.cluster import ClusterError, WallClock, Writer, now_rfc3339, utc_now
from extender.scheduling import Placement, PodRequirements, SelectedNodes
from extender.serve.evaluations import Evaluations, in_steps
from extender.serve.filter import FilterService

ANNOTATION = "berth.dev/wake"
_PAUSE_SECONDS = 1.0


class Requeuer(CacheListener):
    """A background task of serve. Call `supply_changed` after every event that may make devices available.

    `namespaces` returns those with rejected pods, and `search` searches one of them in steps, whose last value is True
    if a pod fits; both come with `run`. The searches are items of the queue of evaluations. `pause` is in seconds.
    """

    def __init__(
        self, writer: Writer, evaluations: Evaluations, wall_clock: WallClock = utc_now, pause: float = _PAUSE_SECONDS
    ) -> None:
        self._writer = writer
        self._wall_clock = wall_clock
        self._evaluations = evaluations
        self._pause = pause
        self._changed = asyncio.Event()
        self._log = structlog.get_logger("berth.wake")
        self._supply_changed = False
        self._due: set[str] = set()  # namespaces to search, because of changes that no search has begun with
        self._touch_pending = False  # a rejected pod fits, and the DeviceClass is not updated yet
        self.touches = 0  # berth_wakes_total

    def supply_changed(self) -> None:
        """Search soon for a rejected pod that fits now."""
        self._supply_changed = True
        self._changed.set()

    freed = supply_changed  # of CacheListener: the end of a reservation

    def requeue_now(self) -> None:
        """Update the DeviceClass soon without a search: the caller found that a rejected pod fits."""
        self._touch_pending = True
        self._changed.set()

    async def run(self, namespaces: Callable[[], Iterable[str]], search: Callable[[str], Iterator[bool]]) -> None:
        """Run until cancelled. An update that failed is repeated after the pause."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._supply_changed:
                self._supply_changed = False
                self._due.update(namespaces())
                for namespace in self._due:
                    work = in_steps(self._searches(namespace, search))
                    self._evaluations.queue(namespace, ("search", namespace), work, is_awaited=False)
            pending, self._touch_pending = self._touch_pending, False
            try:
                pending = pending and not await self._touch()
            finally:
                if pending:
                    self.requeue_now()
            await asyncio.sleep(self._pause)

    def _searches(self, namespace: str, search: Callable[[str], Iterator[bool]]) -> Iterator[None]:
        """Search, and again if the supply changed meanwhile."""
        while namespace in self._due:
            self._due.discard(namespace)
            for fits in search(namespace):
                if fits:
                    self.requeue_now()
                yield

    async def _touch(self) -> bool:
        try:
            await self._writer.touch_class(MARKER_CLASS, ANNOTATION, now_rfc3339(self._wall_clock))
        except ClusterError as error:
            self._log.warning("could not requeue waiting pods", device_class=MARKER_CLASS, problem=str(error))
            return False
        self.touches += 1
        return True


class QueueingHints:
    """Finds rejected pods that fit on changed nodes, as QueueingHints do for the in-tree plugins of kube-scheduler.

    It evaluates each equivalence class of rejected pods on the nodes that changed since the last search.
    """

    def __init__(self, cache: ClusterCache, filter_service: FilterService) -> None:
        self._cache = cache
        self._filter_service = filter_service
        self._unschedulable = filter_service.unschedulable

    def find_schedulable(self, namespace: str) -> Iterator[bool]:
        """Search for pods of a namespace in steps of at most one evaluation. The last value is True if a pod fits on a
        changed node.

        The cache may change between two steps; the next search covers such changes. The search after an unfinished
        one starts from the same version again. Raises the first bug after the last value: one must not hide the others.
        """
        found, bug, classes = False, None, self._unschedulable.keys(namespace)
        if not classes:
            self._unschedulable.searched.pop(namespace, None)
            yield False
            return
        snapshot = self._cache.snapshot()
        changed = snapshot.changed_since(self._unschedulable.searched.get(namespace, -1))
        names = list(snapshot.node_infos) if changed is None else changed
        for key in classes if names else ():
            requirements = self._unschedulable.requirements(key)
            if requirements is None:
                continue
            try:
                for fits in self._search(requirements, names):
                    yield False
                    if fits and self._has_waiting_pod(key):
                        found = True
                        break
            except DeadlineExceeded:  # a status takes long: an item of the queue finds it slice by slice
                self._filter_service.queue_evaluation(requirements)
                yield False
            except Exception as error:  # noqa: BLE001 - raised below
                bug = bug or error
            if found:
                break
            yield False
        self._unschedulable.searched[namespace] = snapshot.version
        yield found
        if bug is not None:
            raise bug

    def _search(self, requirements: PodRequirements, names: Iterable[str]) -> Iterator[bool]:
        """For each of these nodes, whether the requirements fit there. Raises DeadlineExceeded."""
        service, selected = self._filter_service, SelectedNodes(requirements.node_selectors)
        kept = service.kept_from(requirements)
        for name in names:
            node_info, context = (
                self._cache.snapshot().node_infos.get(name),
                service.evaluation_context(service.evaluations.deadline_of_step()),
            )
            if node_info is None or name in kept or not selected.has(node_info.node, context.deadline):
                continue
            yield isinstance(service.node_status(requirements, node_info, context), Placement)

    def _has_waiting_pod(self, key: Hashable) -> bool:
        """Whether the cache has a pod of the equivalence class. Pods that the cache does not have are removed."""
        for uid in self._unschedulable.pods(key):
            if uid in self._cache.store.pods:
                return True
            self._unschedulable.remove(uid)
        return False
