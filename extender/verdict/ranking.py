"""Verdicts shared by equal demands on equal nodes, and nodes ranked per demand.

Nodes that a demand cannot tell apart form a group and share one verdict: a group is known by what is asked and what its
nodes look like, never by names: (signature of the view, match masks of every request, the pattern of values that
constraints compare). A ranking follows the snapshots: only nodes that changed are sorted again, and when facts about the
fleet change, every group is judged once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from extender.allocation.view import Fleet, NodeView, Snapshot
from extender.model.reasons import Code
from extender.verdict.demand import Demand
from extender.verdict.evaluate import Refusal, Rules, Verdict, evaluate
from extender.verdict.grants import Grant
from extender.verdict.seen import is_blind, seen

_STEP = 2  # nodes sorted between two steps
_GATHERED = 60  # nodes gathered between two steps
_PLACED = 250  # nodes in one state put into their group between two steps
_FIRST = 3  # nodes named per state
_REFRESHED = 2  # groups judged again in one call when facts about the fleet changed
_MAX_GROUPS = 50_000  # distinct states remembered per demand; real fleets have about a thousand


@dataclass(slots=True, eq=False)
class _Group:
    """Nodes that the demand cannot tell apart, in order of their names; empty ones are kept, their state often returns."""

    view: NodeView  # one that looks as all of them do
    demand: Demand  # as these nodes have to serve it
    fleet: Fleet  # facts that the verdict is relative to
    verdict: Verdict
    names: list[str] = field(default_factory=list)


Alike = Mapping[tuple[int, int], Mapping[str, None]]
"""Names of nodes by (signature, appearance)."""


class State(NamedTuple):
    """Nodes that share a verdict."""

    verdict: Verdict
    nodes: int
    first: list[str]  # the first few of them by name


class _Reader:
    """Somebody who reads states in steps; `before` are groups as they were before they changed meanwhile."""

    def __init__(self, among: Container[str] | None, without: Collection[str]) -> None:
        self._among = among
        self._without = without
        self.before: dict[_Group, State] = {}

    def look(self, group: _Group) -> State:
        names = group.names if self._among is None else [name for name in group.names if name in self._among]
        if not self._without:
            return State(group.verdict, len(names), names[:_FIRST])
        left_out = [name for name in self._without if names[bisect_left(names, name) :][:1] == [name]]
        first = [name for name in names[: _FIRST + len(left_out)] if name not in left_out]
        return State(group.verdict, len(names) - len(left_out), first[:_FIRST])


class Ranking:
    """All nodes for one demand: verdict per node, and grants by falling score."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self._groups: dict[object, _Group] = {}
        self._group_of: dict[str, _Group] = {}
        self._by_score: dict[float, list[_Group]] = {}
        self._scores: list[float] = []  # falling
        self._blind: dict[object, bool] = {}  # by key of the demand as nodes have to serve it
        self._version = -1
        self._todo: set[str] = set()  # nodes that changed and are not sorted yet
        self._runs = 0  # times that somebody began to catch up
        self._latest: tuple[Mapping[str, NodeView], Rules] | None = None  # whoever works on, works on the newest
        self._fleet: Fleet | None = None
        self._stale: list[_Group] = []  # judged by older facts about the fleet
        self._readers: list[_Reader] = []
        self.evaluations = 0  # searches made; the rest was remembered

    def follow(self, snapshot: Snapshot, rules: Rules, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Catch up with a snapshot; the work grows with what changed. False where `give_up` said so before the end: what
        was done stays done. Facts about the fleet change scores only, so they reach the groups a few at a time."""
        for _ in self._sort_all(snapshot, rules, snapshot.alike(snapshot.version)):
            if give_up():
                return False
        for _ in zip(range(_REFRESHED), self._refresh(), strict=False):
            pass
        return True

    def catch_up(self, snapshot: Snapshot, rules: Rules) -> Iterator[None]:
        """Catch up with everything in steps, for callers that others must not wait for."""
        yield from self._sort_all(snapshot, rules, None)
        yield from self._refresh()

    @property
    def stale(self) -> bool:
        """Whether some verdicts are of older facts about the fleet."""
        return bool(self._stale)

    @property
    def left(self) -> int:
        """Nodes that are not sorted yet."""
        return len(self._todo)

    def _sort_all(self, snapshot: Snapshot, rules: Rules, alike: Alike | None) -> Iterator[None]:
        """`alike` are the snapshot's nodes by state, for those who read all of it at once."""
        changed = snapshot.changed_since(self._version) if self._version >= 0 else None
        self._latest = snapshot.views, rules
        self._runs += 1
        if rules.fleet is not self._fleet:
            self._fleet = rules.fleet
            self._stale = list(self._groups.values())
        if alike is not None and self._is_bare(rules):
            yield from self._place_all(snapshot, rules, alike)
        elif changed is None:
            yield from self._find_changes(snapshot, rules)
        else:
            self._todo = self._todo.union(changed) if self._todo else set(changed)  # an emptied set keeps the room it once had, and pop() searches it
            self._version = snapshot.version
        if alike is None and self._is_bare(rules):
            yield from self._place_in_steps(snapshot, rules)
        position = 0
        while self._todo:
            name = self._todo.pop()
            views, rules = self._latest
            judged = self.evaluations
            self._sort(name, views.get(name), rules)
            position += 1
            if position % _STEP == 0 or self.evaluations != judged:
                yield

    def let_go(self) -> Iterator[None]:
        """Forget everything in steps: at once it would take as long as many of them."""
        self._by_score.clear()
        for table in (self._groups, self._group_of):
            while table:
                for _ in range(min(_GATHERED, len(table))):
                    table.popitem()
                yield

    def verdict(self, name: str) -> Verdict | None:
        """The verdict of a node; None for one that is not known."""
        group = self._group_of.get(name)
        return group.verdict if group is not None else None

    def states(self, among: Container[str] | None = None, without: Collection[str] = ()) -> Iterator[State]:
        """All states of nodes, as they are when the first is taken: what changes before the last is not seen. With `among`,
        other nodes do not count; those few `without` never do."""
        reader = _Reader(among, without)
        self._readers.append(reader)
        try:
            for group in list(self._groups.values()):
                state = reader.before.pop(group, None) or reader.look(group)
                if state.nodes:
                    yield state
        finally:
            self._readers.remove(reader)

    def reasons(self) -> dict[str, str]:
        """Why each node that cannot serve the demand cannot."""
        found: dict[str, str] = {}
        for group in self._groups.values():
            if isinstance(group.verdict, Refusal):
                found.update(dict.fromkeys(group.names, group.verdict.text))
        return found

    def refused(self) -> Counter[str]:
        """Nodes by the text of the reason why they cannot serve the demand."""
        found: Counter[str] = Counter()
        for group in self._groups.values():
            if group.names and isinstance(group.verdict, Refusal):
                found[group.verdict.text] += len(group.names)
        return found

    def main_refusal(self) -> Code | None:
        """The code of the reason that refuses most nodes; None where none is refused."""
        found: Counter[Code] = Counter()
        for group in self._groups.values():
            if isinstance(group.verdict, Refusal):
                found[group.verdict.reason.code] += len(group.names)
        return max(found, key=lambda code: (found[code], code.name), default=None)

    @property
    def groups(self) -> int:
        """Distinct states of nodes that are remembered."""
        return len(self._groups)

    @property
    def nodes(self) -> int:
        """Nodes that have a verdict."""
        return len(self._group_of)

    def best(self, names: set[str] | None, count: int) -> list[tuple[str, Grant]]:
        """The best nodes among `names` (None: all), ties by name."""
        found: list[tuple[str, Grant]] = []
        for score in self._scores:
            left = count - len(found)
            equal: list[tuple[str, Verdict]] = []
            for group in self._by_score[score]:
                some = group.names if names is None else [name for name in group.names if name in names]
                equal += [(name, group.verdict) for name in some[:left]]
            found += sorted(equal, key=itemgetter(0))[:left]  # type: ignore[arg-type] # only grants have a score
            if len(found) >= count:
                break
        return found

    def _is_bare(self, rules: Rules) -> bool:
        """Whether there is no node yet, and a group can be looked up once for all that look alike."""
        return not self._group_of and self.demand.extended is None and self._is_blind(self.demand, rules)

    def _place_all(self, snapshot: Snapshot, rules: Rules, alike: Alike) -> Iterator[None]:
        """All nodes of a bare ranking, in steps between which nobody else goes on."""
        self._todo = set()
        for (_, appearance), names in alike.items():
            if appearance < 0:
                self._todo.update(names)
                continue
            group = self._changing(self._group(snapshot.views[next(iter(names))], rules))
            group.names = sorted([*group.names, *names])
            self._group_of.update(dict.fromkeys(names, group))
            yield
        self._version = snapshot.version

    def _place_in_steps(self, snapshot: Snapshot, rules: Rules) -> Iterator[None]:
        """The same for who lets others in."""
        views, mine = snapshot.views, self._runs
        left: dict[tuple[int, int], Mapping[str, None]] = {}
        for found in _by_state(views):
            left = found
            yield
        while left:
            (_, appearance), names = left.popitem()
            for some in _batches(names if appearance >= 0 else (), _PLACED):
                latest = self._latest[0] if self._latest is not None and mine != self._runs else None  # between two steps somebody went on
                fresh = some if latest is None else [n for n in some if n in self._todo and latest.get(n) is views[n]]
                if not fresh:
                    continue
                group = self._changing(self._group(views[fresh[0]], rules))
                group.names = sorted([*group.names, *fresh])
                self._group_of.update(dict.fromkeys(fresh, group))
                self._todo.difference_update(fresh)
                yield

    def _find_changes(self, snapshot: Snapshot, rules: Rules) -> Iterator[None]:
        """Nodes to sort, where nobody remembers which changed since: those whose state is no longer that of their group. The
        version comes last: who goes on between two steps begins anew, and then nothing is left here."""
        mine, self._version = self._runs, -1
        for some in _batches(snapshot.views):
            self._todo.update(some if not self._group_of else [n for n in some if not self._is_settled(n, snapshot.views[n], rules)])
            yield
            if mine != self._runs:
                return
        for some in _batches(self._group_of):
            self._todo.update(name for name in some if name not in snapshot.views)
            yield
            if mine != self._runs:
                return
        self._version = snapshot.version

    def _is_settled(self, name: str, view: NodeView, rules: Rules) -> bool:
        """Whether a node surely belongs to the group that it is in."""
        group = self._group_of.get(name)
        return (
            group is not None
            and (view.signature, view.appearance) == (group.view.signature, group.view.appearance)
            and view.appearance >= 0
            and self.demand.extended is None
            and self._is_blind(self.demand, rules)
        )

    def _sort(self, name: str, view: NodeView | None, rules: Rules) -> None:
        """Put a node into the group that it belongs to now."""
        old = self._group_of.pop(name, None)
        if old is not None:
            del self._changing(old).names[bisect_left(old.names, name)]
        if view is not None:
            group = self._group_of[name] = self._changing(self._group(view, rules))
            insort(group.names, name)

    def _group(self, view: NodeView, rules: Rules) -> _Group:
        demand = self.demand.on(view.node)
        if view.appearance >= 0 and self._is_blind(demand, rules):
            key: tuple[object, ...] = (demand.key, view.signature, view.appearance)
        else:
            key = (demand.key, view.signature, *seen(view, demand, rules))
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= _MAX_GROUPS:
                self._drop_empty()
            group = self._groups[key] = _Group(view, demand, rules.fleet, evaluate(view, demand, rules))
            self.evaluations += 1
            self._rank(group)
        return group

    def _changing(self, group: _Group) -> _Group:
        for reader in self._readers:
            if group not in reader.before:
                reader.before[group] = reader.look(group)
        return group

    def _is_blind(self, demand: Demand, rules: Rules) -> bool:
        """Whether the demand looks at no identity of a device."""
        found = self._blind.get(demand.key)
        if found is None:
            found = self._blind[demand.key] = is_blind(demand, rules)
        return found

    def _rank(self, group: _Group) -> None:
        if isinstance(group.verdict, Grant):
            self._by_score.setdefault(group.verdict.score, []).append(group)
            if len(self._by_score) != len(self._scores):
                insort(self._scores, group.verdict.score, key=lambda score: -score)

    def _unrank(self, group: _Group) -> None:
        if isinstance(group.verdict, Grant):
            score = group.verdict.score
            self._by_score[score].remove(group)
            if not self._by_score[score]:
                del self._by_score[score]
                self._scores.remove(score)

    def _refresh(self) -> Iterator[None]:
        """Judge groups again by the newest facts about the fleet, one a step."""
        while self._stale and self._latest is not None:
            group, (_, rules) = self._stale.pop(), self._latest
            if group.fleet is rules.fleet:
                continue
            self._unrank(self._changing(group))
            group.verdict, group.fleet = evaluate(group.view, group.demand, rules), rules.fleet
            self.evaluations += 1
            self._rank(group)
            yield

    def _drop_empty(self) -> None:
        self._groups = {key: group for key, group in self._groups.items() if group.names}
        self._stale = [group for group in self._stale if group.names]
        self._by_score.clear()
        self._scores.clear()
        for group in self._groups.values():
            self._rank(group)


def _by_state(views: Mapping[str, NodeView]) -> Iterator[dict[tuple[int, int], Mapping[str, None]]]:
    """Steps that end with all nodes by state."""
    found: defaultdict[tuple[int, int], dict[str, None]] = defaultdict(dict)
    for some in _batches(views):
        for name in some:
            view = views[name]
            found[view.signature, view.appearance][name] = None
        yield found  # type: ignore[misc] # who reads it writes nothing into the values


def _batches(names: Iterable[str], size: int = _GATHERED) -> Iterator[list[str]]:
    """All of them as they are now, a few at a time."""
    left = iter(list(names))
    while some := list(islice(left, size)):
        yield some
