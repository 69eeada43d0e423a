"""Whether nodes that changed help a pod that was rejected: what QueueingHints are to kube-scheduler's own plugins."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice

from extender.allocation.view import NodeView
from extender.mirror.mirror import Mirror
from extender.model.budget import BudgetSpent
from extender.model.selector import NodeSelector
from extender.service.unschedulable import UnschedulablePods
from extender.verdict.demand import Demand
from extender.verdict.evaluate import Rules, evaluate
from extender.verdict.grants import Grant
from extender.verdict.rankings import Rankings
from extender.verdict.seen import is_blind

_STEP = 32  # nodes looked at between two steps


class Hints:
    """Looks at every class of rejected pods on every node that changed since the look before."""

    def __init__(
        self, mirror: Mirror, pods: UnschedulablePods, rankings: Rankings,
        evaluation: Callable[[Demand], AbstractContextManager[Rules]],
        postpone: Callable[[Demand, Sequence[str]], None],
    ) -> None:
        self._mirror = mirror
        self._pods = pods
        self._rankings = rankings
        self._evaluation = evaluation
        self._postpone = postpone
        self._version = -1  # of the snapshot up to which changes were looked at

    def rejected(self, uid: str, demand: Demand, version: int) -> None:
        """A pod fits on no node of a snapshot. Where no other waits, changes before that snapshot help nobody."""
        if not len(self._pods):
            self._version = version
        self._pods.add(uid, demand)

    def look(self) -> Iterator[bool]:
        """Steps of at most one evaluation; the last one says whether some pod fits on a node that changed. Between
        two steps anything may happen: what changes during a look is for the next one, which an unfinished look leaves
        everything to."""
        if not len(self._pods):
            yield False
            return
        snapshot = self._mirror.snapshot()
        changed = snapshot.changed_since(self._version)
        views = (
            [view for name in changed if (view := snapshot.views.get(name))]
            if changed is not None
            else list(snapshot.views.values())
        )
        of_each_state = list({view.state: view for view in views}.values())
        for key in self._pods.classes() if views else ():
            demand = self._pods.demand(key)
            if demand is None:
                continue
            try:
                with self._evaluation(demand) as rules:
                    by_state = demand.extended is None and not demand.pins and self._is_blind(demand, rules)
                for fits in self._looks(demand, of_each_state if by_state else views):
                    yield False
                    if fits and self._waits(key):
                        self._version = snapshot.version
                        yield True
                        return
            except BudgetSpent:
                self._postpone(demand, self._pods.pods(key))
                yield False
            yield False
        self._version = snapshot.version
        yield False

    def _looks(self, demand: Demand, views: Iterable[NodeView]) -> Iterator[bool]:
        """Steps that say whether the demand fits on one of the nodes looked at since the step before.

        Raises BudgetSpent.
        """
        pins, left = demand.pins, iter(views)
        while some := list(islice(left, _STEP)):
            while some:
                with self._evaluation(demand) as rules:
                    fits = self._look_at(demand, pins, some, rules)
                yield fits

    def _look_at(self, demand: Demand, pins: Sequence[NodeSelector], views: list[NodeView], rules: Rules) -> bool:
        """Take nodes off the list until one fits or was evaluated."""
        ranking = self._rankings.peek(demand)
        while views:
            view = views.pop()
            if not all(pin.matches(view.node.name, view.node.labels) for pin in pins):
                continue
            judged = ranking.evaluations if ranking is not None else -1
            verdict = ranking.judge(view, rules) if ranking is not None else evaluate(view, demand.on(view.node), rules)
            if isinstance(verdict, Grant) and self._is_as_seen(view):
                return True
            if ranking is None or ranking.evaluations != judged:
                break
        return False

    def _is_blind(self, demand: Demand, rules: Rules) -> bool:
        ranking = self._rankings.peek(demand)
        return ranking.is_blind(rules) if ranking is not None else is_blind(demand, rules)

    def _is_as_seen(self, view: NodeView) -> bool:
        """Whether the node has not changed meanwhile; one that has is in the next look."""
        now = self._mirror.snapshot().views.get(view.node.name)
        return now is not None and now.state is view.state

    def _waits(self, key: Hashable) -> bool:
        """Whether some pod of a class is still there; those filtered after they had gone are forgotten."""
        for uid in self._pods.pods(key):
            if uid in self._mirror.store.pods:
                return True
            self._pods.remove(uid)
        return False
