"""Whether nodes that changed help a pod that was rejected: what QueueingHints are to kube-scheduler's own plugins."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice

from extender.allocation import NodeInfo
from extender.cache import ClusterCache
from extender.extension.unschedulable_pods import UnschedulablePods
from extender.model import CallBudgetSpent, NodeSelector
from extender.scheduling import EvaluationContext, Placement, PodRequirements, RankingCache, evaluate, ignores_identity

_STEP = 32  # nodes looked at between two steps


class QueueingHints:
    """Looks at every class of rejected pods on every node that changed since the look before."""

    def __init__(
        self,
        cache: ClusterCache,
        pods: UnschedulablePods,
        rankings: RankingCache,
        evaluation: Callable[[PodRequirements], AbstractContextManager[EvaluationContext]],
        postpone: Callable[[PodRequirements, Sequence[str]], None],
    ) -> None:
        self._cache = cache
        self._unschedulable = pods
        self._rankings = rankings
        self._evaluation = evaluation
        self._postpone = postpone
        self._version = -1  # of the snapshot up to which changes were looked at

    def add(self, uid: str, requirements: PodRequirements, version: int) -> None:
        """A pod fits on no node of a snapshot. Where no other waits, changes before that snapshot help nobody."""
        if not len(self._unschedulable):
            self._version = version
        self._unschedulable.add(uid, requirements)

    def find_schedulable(self) -> Iterator[bool]:
        """Steps of at most one evaluation; the last one says whether some pod fits on a node that changed. Between
        two steps anything may happen: what changes during a look is for the next one, which an unfinished look leaves
        everything to."""
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
        of_each_state = list({node_info.state: node_info for node_info in node_infos}.values())
        for key in self._unschedulable.classes() if node_infos else ():
            requirements = self._unschedulable.demand(key)
            if requirements is None:
                continue
            try:
                with self._evaluation(requirements) as context:
                    by_state = (
                        requirements.extended is None
                        and not requirements.node_selectors
                        and self._ignores_identity(requirements, context)
                    )
                for fits in self._search(requirements, of_each_state if by_state else node_infos):
                    yield False
                    if fits and self._waits(key):
                        self._version = snapshot.version
                        yield True
                        return
            except CallBudgetSpent:
                self._postpone(requirements, self._unschedulable.pods(key))
                yield False
            yield False
        self._version = snapshot.version
        yield False

    def _search(self, requirements: PodRequirements, node_infos: Iterable[NodeInfo]) -> Iterator[bool]:
        """Steps that say whether the demand fits on one of the nodes looked at since the step before.

        Raises BudgetSpent.
        """
        pins, left = requirements.node_selectors, iter(node_infos)
        while some := list(islice(left, _STEP)):
            while some:
                with self._evaluation(requirements) as context:
                    fits = self._search_some(requirements, pins, some, context)
                yield fits

    def _search_some(
        self,
        requirements: PodRequirements,
        pins: Sequence[NodeSelector],
        node_infos: list[NodeInfo],
        context: EvaluationContext,
    ) -> bool:
        """Take nodes off the list until one fits or was evaluated."""
        ranking = self._rankings.peek(requirements)
        while node_infos:
            node_info = node_infos.pop()
            if not all(pin.matches(node_info.node.name, node_info.node.labels) for pin in pins):
                continue
            judged = ranking.evaluations if ranking is not None else -1
            status = (
                ranking.evaluate(node_info, context)
                if ranking is not None
                else evaluate(node_info, requirements.for_node(node_info.node), context)
            )
            if isinstance(status, Placement) and self._is_unchanged(node_info):
                return True
            if ranking is None or ranking.evaluations != judged:
                break
        return False

    def _ignores_identity(self, requirements: PodRequirements, context: EvaluationContext) -> bool:
        ranking = self._rankings.peek(requirements)
        return ranking.ignores_identity(context) if ranking is not None else ignores_identity(requirements, context)

    def _is_unchanged(self, node_info: NodeInfo) -> bool:
        """Whether the node has not changed meanwhile; one that has is in the next look."""
        now = self._cache.snapshot().node_infos.get(node_info.node.name)
        return now is not None and now.state is node_info.state

    def _waits(self, key: Hashable) -> bool:
        """Whether some pod of a class is still there; those filtered after they had gone are forgotten."""
        for uid in self._unschedulable.pods(key):
            if uid in self._cache.store.pods:
                return True
            self._unschedulable.remove(uid)
        return False
