"""Whether nodes that changed help a pod that was rejected: what QueueingHints are to kube-scheduler's own plugins."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from extender.allocation.view import NodeView, Snapshot
from extender.mirror.mirror import Mirror
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
        self, mirror: Mirror, pods: UnschedulablePods, rankings: Rankings, rules: Callable[[Snapshot], Rules]
    ) -> None:
        self._mirror = mirror
        self._pods = pods
        self._rankings = rankings
        self._rules = rules
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
        snapshot = self._mirror.present()
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
            rules = self._rules(self._mirror.present())
            by_state = demand.extended is None and not demand.pins and is_blind(demand, rules)
            for fits in self._looks(demand, of_each_state if by_state else views, rules):
                yield False
                if fits and self._waits(key):
                    self._version = snapshot.version
                    yield True
                    return
            yield False
        self._version = snapshot.version
        yield False

    def _looks(self, demand: Demand, views: Iterable[NodeView], rules: Rules) -> Iterator[bool]:
        """Steps that say whether the demand fits on one of the nodes looked at since the step before."""
        ranking, pins = self._rankings.peek(demand), demand.pins
        for position, view in enumerate(views, 1):
            if not all(pin.matches(view.node.name, view.node.labels) for pin in pins):
                verdict = None
            elif ranking is not None:
                judged = ranking.evaluations
                verdict = ranking.judge(view, rules)
                if ranking.evaluations != judged:
                    yield False
            else:
                verdict = evaluate(view, demand.on(view.node), rules)
                yield False
            if isinstance(verdict, Grant) and self._is_as_seen(view):
                yield True
            elif position % _STEP == 0:
                yield False

    def _is_as_seen(self, view: NodeView) -> bool:
        """Whether the node has not changed meanwhile; one that has is in the next look."""
        now = self._mirror.present().views.get(view.node.name)
        return now is not None and now.state is view.state

    def _waits(self, key: Hashable) -> bool:
        """Whether some pod of a class is still there; those filtered after they had gone are forgotten."""
        for uid in self._pods.pods(key):
            if uid in self._mirror.store.pods:
                return True
            self._pods.remove(uid)
        return False
