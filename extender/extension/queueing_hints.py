"""Finds rejected pods that fit on changed nodes, as QueueingHints do for the in-tree plugins of kube-scheduler."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import NamedTuple

from extender.allocation import NodeInfo
from extender.cache import ClusterCache
from extender.extension.unschedulable_pods import UnschedulablePods
from extender.model import CallBudgetSpent, NodeSelector
from extender.scheduling import EvaluationContext, Placement, PodRequirements, RankingCache, evaluate, ignores_identity

_STEP = 32  # nodes that are taken at a time from the nodes to search


class _Scope(NamedTuple):
    """The nodes to search for a class of pods: those outside of `kept`; with `by_state`, one node of each state."""

    kept: frozenset[str]
    by_state: bool  # whether nodes of one state have equal results


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
        one starts from the same version again.
        """
        if not len(self._unschedulable):
            yield False
            return
        snapshot = self._cache.snapshot()
        changed = snapshot.changed_since(self._version)
        node_infos = (
            [node_info for name in changed if (node_info := snapshot.node_infos.get(name))]
            if changed is not None
            else list(snapshot.node_infos.values())
        )
        to_search: dict[_Scope, list[NodeInfo]] = {}
        for key in self._unschedulable.keys() if node_infos else ():
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
                scope = _Scope(self._kept_from(requirements), by_state)
                if scope not in to_search:
                    to_search[scope] = _to_search(node_infos, scope)
                for fits in self._search(requirements, to_search[scope], scope):
                    yield False
                    if fits and self._has_waiting_pod(key):
                        self._version = snapshot.version
                        yield True
                        return
            except CallBudgetSpent:
                self._postpone(requirements, self._unschedulable.pods(key))
                yield False
            yield False
        self._version = snapshot.version
        yield False

    def _search(self, requirements: PodRequirements, node_infos: Iterable[NodeInfo], scope: _Scope) -> Iterator[bool]:
        """Yield after each step whether the requirements fit on a node of that step. Raises CallBudgetSpent."""
        pins, left = requirements.node_selectors, iter(node_infos)
        while batch := list(islice(left, _STEP)):
            while batch:
                with self._evaluation(requirements.namespace) as context:
                    fits = self._search_batch(requirements, pins, batch, scope, context)
                yield fits

    def _search_batch(
        self,
        requirements: PodRequirements,
        pins: Sequence[NodeSelector],
        node_infos: list[NodeInfo],
        scope: _Scope,
        context: EvaluationContext,
    ) -> bool:
        """Remove nodes from the list until a node fits or one evaluation was made. True if a node fits."""
        ranking = self._rankings.peek(requirements)
        while node_infos:
            node_info = node_infos.pop()
            if not all(pin.matches(node_info.node.name, node_info.node.labels) for pin in pins):
                continue
            evaluations = ranking.evaluations if ranking is not None else -1
            status = (
                ranking.evaluate(node_info, context)
                if ranking is not None
                else evaluate(node_info, requirements.for_node(node_info.node), context)
            )
            if isinstance(status, Placement) and self._is_current(node_info, scope):
                return True
            if ranking is None or ranking.evaluations != evaluations:
                break
        return False

    def _ignores_identity(self, requirements: PodRequirements, context: EvaluationContext) -> bool:
        ranking = self._rankings.peek(requirements)
        return ranking.ignores_identity(context) if ranking is not None else ignores_identity(requirements, context)

    def _is_current(self, node_info: NodeInfo, scope: _Scope) -> bool:
        """Whether the node, or one that it stands for, is still in this state. The next search covers the others."""
        now = self._cache.snapshot().node_infos.get(node_info.node.name)
        if now is not None and now.state is node_info.state:
            return True
        return scope.by_state and any(name not in scope.kept for name in node_info.state.names)

    def _has_waiting_pod(self, key: Hashable) -> bool:
        """Whether the cache has a pod of the class. Pods that the cache does not have are removed."""
        for uid in self._unschedulable.pods(key):
            if uid in self._cache.store.pods:
                return True
            self._unschedulable.remove(uid)
        return False


def _to_search(node_infos: list[NodeInfo], scope: _Scope) -> list[NodeInfo]:
    found = [node_info for node_info in node_infos if node_info.node.name not in scope.kept]
    return list({node_info.state: node_info for node_info in found}.values()) if scope.by_state else found
