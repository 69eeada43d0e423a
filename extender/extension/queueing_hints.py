"""Finds rejected pods that fit on changed nodes, as QueueingHints do for the in-tree plugins of kube-scheduler."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice

from extender.allocation.nodes import NodeState
from extender.cache import ClusterCache
from extender.extension.unschedulable_pods import UnschedulablePods
from extender.model import DeadlineExceeded
from extender.scheduling import (
    EvaluationContext,
    Placement,
    PodRequirements,
    RankingCache,
    SelectedNodes,
    evaluate,
    ignores_identity,
)

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
