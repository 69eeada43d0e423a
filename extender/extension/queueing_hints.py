"""Finds rejected pods that fit on changed nodes, as QueueingHints do for the in-tree plugins of kube-scheduler."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice

from extender.allocation import NodeState
from extender.cache import ClusterCache
from extender.extension.unschedulable_pods import UnschedulablePods
from extender.model import CallBudgetSpent
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
        evaluation: Callable[[str], AbstractContextManager[EvaluationContext]],
        postpone: Callable[[PodRequirements, Sequence[str]], None],
        kept_from: Callable[[PodRequirements], frozenset[str]],
    ) -> None:
        """`kept_from` returns the nodes that a pod must not use, because they are kept for a gang."""
        self._cache = cache
        self._unschedulable = pods
        self._rankings = rankings
        self._evaluation = evaluation
        self._postpone = postpone
        self._kept_from = kept_from
        self._version = -1  # of the snapshot that the last search covered

    def add(self, uid: str, requirements: PodRequirements, version: int) -> None:
        """A pod fits on no node of the snapshot `version`. If no other pod waits, the next search starts there."""
        if not len(self._unschedulable):
            self._version = version
        self._unschedulable.add(uid, requirements)

    def find_schedulable(self) -> Iterator[bool]:
        """Search in steps of at most one evaluation. The last value is True if a pod fits on a changed node.

        The cache may change between two steps; the next search covers such changes. The search after an unfinished
        one starts from the same version again. Raises the first bug after the last value: one must not hide the others.
        """
        found, bug = False, None
        if not len(self._unschedulable):
            yield False
            return
        snapshot = self._cache.snapshot()
        changed = snapshot.changed_since(self._version)
        states, names = list(snapshot.states_since(self._version)), list(snapshot.node_infos)
        names = names if changed is None else changed
        for key in self._unschedulable.keys() if names else ():
            requirements = self._unschedulable.requirements(key)
            if requirements is None:
                continue
            try:
                with self._evaluation(requirements.namespace) as context:
                    by_state = (
                        requirements.extended is None
                        and not requirements.node_selectors
                        and self._ignores_identity(requirements, context)
                    )
                kept = self._kept_from(requirements)
                for fits in self._search(requirements, states if by_state else names, kept):
                    yield False
                    if fits and self._has_waiting_pod(key):
                        found = True
                        break
            except CallBudgetSpent:
                self._postpone(requirements, self._unschedulable.pods(key))
                yield False
            except Exception as error:  # noqa: BLE001 - raised below
                bug = bug or error
            if found:
                break
            yield False
        self._version = snapshot.version
        yield found
        if bug is not None:
            raise bug

    def _search(
        self, requirements: PodRequirements, places: Iterable[NodeState | str], kept: frozenset[str]
    ) -> Iterator[bool]:
        """Yield after each step whether the requirements fit on a node of that step. Raises CallBudgetSpent.

        `places` are node names, or states of which one node stands for all. Nodes of `kept` do not count.
        """
        selected, left = SelectedNodes(requirements.node_selectors), iter(places)
        while batch := list(islice(left, _STEP)):
            while batch:
                with self._evaluation(requirements.namespace) as context:
                    fits = self._search_batch(requirements, selected, batch, kept, context)
                yield fits

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
            if node_info is None or not selected.has(node_info.node, context.budget):
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
