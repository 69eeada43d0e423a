"""Requeues pods that Berth rejected.

kube-scheduler does not try a pod again when slices change, if an extender rejected the pod. So the requeuer updates an
annotation of one marker DeviceClass: at most once a second, and only if a rejected pod would now fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice

import structlog

from extender.allocation import NodeState
from extender.cache import CacheListener, ClusterCache
from extender.cluster import ClusterError, WallClock, Writer, now_rfc3339, utc_now
from extender.extension.evaluations import Evaluations, in_steps
from extender.model import MARKER_CLASS, DeadlineExceeded, FairCache
from extender.scheduling import (
    EvaluationContext,
    Placement,
    PodRequirements,
    RankingCache,
    SelectedNodes,
    evaluate,
    ignores_identity,
)

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
        self.touches = 0

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
                    self._evaluations.queue(namespace, ("search", namespace), work, blocks=False)
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


# --- Finds rejected pods that fit on changed nodes, as QueueingHints do for the in-tree plugins of kube-scheduler.


_STEP = 32  # nodes that are taken at a time from the nodes to search


class QueueingHints:
    """Evaluates each equivalence class of rejected pods on the nodes that changed since the last search."""

    def __init__(
        self,
        cache: ClusterCache,
        pods: UnschedulablePods,
        rankings: RankingCache,
        context: Callable[[], EvaluationContext],
        evaluate_later: Callable[[PodRequirements], None],
        kept_from: Callable[[PodRequirements], frozenset[str]],
    ) -> None:
        """`context` returns the context of one step, and `evaluate_later` queues the evaluation of all nodes.

        `kept_from` returns the nodes that a pod must not use, because they are kept for a gang.
        """
        self._cache = cache
        self._unschedulable = pods
        self._rankings = rankings
        self._context = context
        self._evaluate_later = evaluate_later
        self._kept_from = kept_from
        self._versions: dict[str, int] = {}  # of the snapshot that the last search covered, by namespace

    def add(self, uid: str, requirements: PodRequirements, version: int) -> None:
        """A pod fits on no node of the snapshot `version`. If no other pod of its namespace waits, the next search
        starts there."""
        if requirements.namespace not in self._unschedulable.namespaces:
            self._versions[requirements.namespace] = version
        self._unschedulable.add(uid, requirements)

    def find_schedulable(self, namespace: str) -> Iterator[bool]:
        """Search for pods of a namespace in steps of at most one evaluation. The last value is True if a pod fits on a
        changed node.

        The cache may change between two steps; the next search covers such changes. The search after an unfinished
        one starts from the same version again. Raises the first bug after the last value: one must not hide the others.
        """
        found, bug, classes = False, None, self._unschedulable.keys(namespace)
        if not classes:
            self._versions.pop(namespace, None)
            yield False
            return
        snapshot, version = self._cache.snapshot(), self._versions.get(namespace, -1)
        changed = snapshot.changed_since(version)
        states, names = list(snapshot.states_since(version)), list(snapshot.node_infos)
        names = names if changed is None else changed
        for key in classes if names else ():
            requirements = self._unschedulable.requirements(key)
            if requirements is None:
                continue
            try:
                by_state = (
                    requirements.extended is None
                    and not requirements.node_selectors
                    and self._ignores_identity(requirements, self._context())
                )
                kept = self._kept_from(requirements)
                for fits in self._search(requirements, states if by_state else names, kept):
                    yield False
                    if fits and self._has_waiting_pod(key):
                        found = True
                        break
            except DeadlineExceeded:  # a status takes long: an item of the queue finds it slice by slice
                self._evaluate_later(requirements)
                yield False
            except Exception as error:  # noqa: BLE001 - raised below
                bug = bug or error
            if found:
                break
            yield False
        self._versions[namespace] = snapshot.version
        yield found
        if bug is not None:
            raise bug

    def _search(
        self, requirements: PodRequirements, places: Iterable[NodeState | str], kept: frozenset[str]
    ) -> Iterator[bool]:
        """Yield after each step whether the requirements fit on a node of that step. Raises DeadlineExceeded.

        `places` are node names, or states of which one node stands for all. Nodes of `kept` do not count.
        """
        selected, left = SelectedNodes(requirements.node_selectors), iter(places)
        while batch := list(islice(left, _STEP)):
            while batch:
                yield self._search_batch(requirements, selected, batch, kept, self._context())

    def _search_batch(
        self,
        requirements: PodRequirements,
        selected: SelectedNodes,
        places: list[NodeState | str],
        kept: frozenset[str],
        context: EvaluationContext,
    ) -> bool:
        """Remove places from the list until a node fits or one evaluation was made. True if a node fits."""
        ranking = self._rankings.peek(requirements)
        node_infos = self._cache.snapshot().node_infos
        while places:
            place = places.pop()
            names = (place,) if isinstance(place, str) else place.names
            node_info = next((node_infos[name] for name in names if name not in kept and name in node_infos), None)
            if node_info is None or not selected.has(node_info.node, context.deadline):
                continue
            evaluations = ranking.evaluations if ranking is not None else -1
            status = (
                ranking.evaluate(node_info, context)
                if ranking is not None
                else evaluate(node_info, requirements.for_node(node_info.node), context)
            )
            if isinstance(status, Placement):
                return True
            if ranking is None or ranking.evaluations != evaluations:
                break
        return False

    def _ignores_identity(self, requirements: PodRequirements, context: EvaluationContext) -> bool:
        ranking = self._rankings.peek(requirements)
        return ranking.ignores_identity(context) if ranking is not None else ignores_identity(requirements, context)

    def _has_waiting_pod(self, key: Hashable) -> bool:
        """Whether the cache has a pod of the equivalence class. Pods that the cache does not have are removed."""
        for uid in self._unschedulable.pods(key):
            if uid in self._cache.store.pods:
                return True
            self._unschedulable.remove(uid)
        return False


# --- Pods that fitted no node in their last filter request, by equivalence class: its pods fit on the same nodes, and
# belong to one namespace, which pays for their evaluations.


_PODS = 4096


class UnschedulablePods:
    """At most `limit` pods, see FairCache: the namespace with the most loses the one that was rejected longest ago.

    A pod with large claims counts as several: its requirements keep the claims after their deletion.
    """

    def __init__(self, limit: int = _PODS) -> None:
        self._pods: FairCache[str, Hashable] = FairCache(limit)  # UID to equivalence class
        # Key of the equivalence class to the requirements of one of its pods, and the UIDs of all its pods.
        self._classes: dict[Hashable, tuple[PodRequirements, dict[str, None]]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def add(self, uid: str, requirements: PodRequirements) -> None:
        """Remember a pod that fits on no node."""
        self.remove(uid)
        key = requirements.namespace, requirements.key, requirements.node_selectors
        self._classes.setdefault(key, (requirements, {}))[1][uid] = None
        for dropped in self._pods.put(requirements.namespace, uid, key, requirements.counts_as):
            self._remove_pod(*dropped)

    def remove(self, uid: str) -> None:
        """Forget a pod that fits now, or that is bound or deleted."""
        key = self._pods.pop(uid)
        if key is not None:
            self._remove_pod(uid, key)

    def _remove_pod(self, uid: str, key: Hashable) -> None:
        pods = self._classes[key][1]
        del pods[uid]
        if not pods:
            del self._classes[key]

    def uids(self) -> list[str]:
        """UIDs of the pods, the namespaces in turn, the longest waiting of each first."""
        return [uid for uid, _ in self._pods.items()]

    @property
    def namespaces(self) -> list[str]:
        """The namespaces with waiting pods."""
        return self._pods.namespaces

    def waiting(self, requirements: PodRequirements) -> list[str]:
        """UIDs of the waiting pods with these requirements."""
        return self.pods((requirements.namespace, requirements.key, requirements.node_selectors))

    def keys(self, namespace: str) -> list[Hashable]:
        """Keys of the equivalence classes of a namespace that have waiting pods, the longest waiting first."""
        return list(dict.fromkeys(key for _, key in self._pods.of(namespace)))

    def requirements(self, key: Hashable) -> PodRequirements | None:
        """The requirements of one pod of an equivalence class; None if no pod of it waits."""
        found = self._classes.get(key)
        return found[0] if found is not None else None

    def pods(self, key: Hashable) -> list[str]:
        """UIDs of the waiting pods of an equivalence class."""
        return list(self._classes[key][1]) if key in self._classes else []
