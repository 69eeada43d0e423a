"""Verdicts shared by equal demands on equal nodes, and nodes ranked per demand.

A verdict is remembered by what is asked and what the node looks like, never by names: (signature of the view, match
masks of every request, the pattern of values that constraints compare). A ranking follows the snapshots: only nodes
that changed are judged again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

from extender.allocation.constraints import attribute_values
from extender.allocation.view import NodeView, Snapshot
from extender.model.errors import InvalidClaim
from extender.verdict.demand import Demand
from extender.verdict.evaluate import Grant, Rules, Verdict, evaluate, problem_for

_STEP = 25  # nodes judged between two steps
_MAX_VERDICTS = 50_000  # distinct states remembered per demand; real fleets have about a thousand


class Ranking:
    """All nodes for one demand: verdict per node, and grants by falling score."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.verdicts: dict[str, Verdict] = {}
        self._by_score: dict[float, list[str]] = {}  # names in order, so that the best few need no sorting
        self._scores: list[float] = []
        self._memory: dict[object, Verdict] = {}
        self.refused: Counter[str] = Counter()  # nodes by the text of their reason
        self._version = -1
        self._fleet: object = None

    def follow(self, snapshot: Snapshot, rules: Rules) -> None:
        """Catch up with a snapshot; the work grows with what changed."""
        for _ in self.catch_up(snapshot, rules):
            pass

    def catch_up(self, snapshot: Snapshot, rules: Rules) -> Iterator[None]:
        """follow() in steps, for callers that others must not wait for."""
        if snapshot.fleet is not self._fleet:
            self._fleet = snapshot.fleet
            self._memory.clear()
            self._version = -1
        changed = snapshot.changed_since(self._version) if self._version >= 0 else None
        names: Iterable[str] = changed if changed is not None else {*snapshot.views, *self.verdicts}
        for position, name in enumerate(names, 1):
            self._judge(name, snapshot.views.get(name), rules)
            if position % _STEP == 0:
                yield
        self._version = snapshot.version

    def best(self, names: set[str] | None, count: int) -> list[tuple[str, Grant]]:
        """The best nodes among `names` (None: all), ties by name."""
        found: list[tuple[str, Grant]] = []
        for score in self._scores:
            group = self._by_score[score]
            for name in group:
                if names is not None and name not in names:
                    continue
                verdict = self.verdicts[name]
                assert isinstance(verdict, Grant)
                found.append((name, verdict))
                if len(found) >= count:
                    return found
        return found

    def _judge(self, name: str, view: NodeView | None, rules: Rules) -> None:
        old = self.verdicts.pop(name, None)
        if isinstance(old, Grant):
            self._remove(name, old.score)
        elif old is not None:
            self.refused[old.text] -= 1
        if view is None:
            return
        verdict = self._verdict(view, rules)
        self.verdicts[name] = verdict
        if isinstance(verdict, Grant):
            self._insert(name, verdict.score)
        else:
            self.refused[verdict.text] += 1

    def _remove(self, name: str, score: float) -> None:
        group = self._by_score[score]
        del group[bisect_left(group, name)]
        if not group:
            del self._by_score[score]
            self._scores.remove(score)

    def _insert(self, name: str, score: float) -> None:
        group = self._by_score.get(score)
        if group is None:
            group = self._by_score[score] = []
            self._scores.append(score)
            self._scores.sort(reverse=True)
        insort(group, name)

    def _verdict(self, view: NodeView, rules: Rules) -> Verdict:
        demand = self.demand.on(view.node)
        key = (demand.key, view.signature, *_seen(view, demand, rules))
        found = self._memory.get(key)
        if found is None:
            found = evaluate(view, demand, rules)
            if len(self._memory) >= _MAX_VERDICTS:
                self._memory.clear()
            self._memory[key] = found
        return found


def _seen(view: NodeView, demand: Demand, rules: Rules) -> Iterator[object]:
    """What the demand's selectors and constraints see of a node."""
    problem = problem_for(view, demand, rules)
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for request in spec.requests:
            for alternative in request.alternatives:
                try:
                    selection = problem.select(name, alternative)
                except InvalidClaim as error:
                    yield str(error)
                    return
                yield selection.match
                yield selection.error
        for constraint in spec.constraints:
            yield _pattern(view, constraint.attribute, rules)


def _pattern(view: NodeView, attribute: str, rules: Rules) -> tuple[object, ...]:
    """Values of an attribute, renamed by first occurrence: nodes that group their devices alike are alike."""
    numbers: dict[object, int] = {}
    found: list[object] = []
    for place in view.inventory.places:
        values = attribute_values(place.device, attribute, place.id.driver, lists=rules.features.list_attributes)
        if values is None:
            found.append(-1)
        elif len(values[1]) == 1:
            found.append(numbers.setdefault(values, len(numbers)))
        else:
            found.append(values)
    return tuple(found)


class Rankings:
    """A bounded set of rankings; the least recently asked demand goes first."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._known: OrderedDict[object, Ranking] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, demand: Demand, snapshot: Snapshot, rules: Rules) -> Ranking:
        """The ranking of a demand, up to date with the snapshot."""
        ranking = self._known.get(demand.key)
        if ranking is None:
            ranking = self._known[demand.key] = Ranking(demand)
            if len(self._known) > self._limit:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(demand.key)
        ranking.follow(snapshot, rules)
        return ranking

    def known(self, demand: Demand) -> bool:
        """Whether a ranking of the demand is at hand."""
        return demand.key in self._known

    def clear(self) -> None:
        self._known.clear()
