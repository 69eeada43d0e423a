"""Verdicts shared by equal demands on equal nodes, and nodes ranked per demand.

Nodes that a demand cannot tell apart share one verdict. Most demands read no identity of a device: for them a class of
nodes is a NodeState of the snapshot, which lists its nodes, so a ranking keeps one verdict per state and nothing per
node. Other demands keep NodeClasses of their own. A ranking follows the snapshots of one mirror: it judges only classes
without a verdict, and when facts about the fleet change, it makes every grant anew.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Container, Hashable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from extender.allocation.view import Fleet, NodeState, NodeView, Snapshot
from extender.model.budget import BudgetSpent
from extender.model.claim import DeviceRequest
from extender.model.reasons import Code
from extender.verdict.classes import NodeClass, NodeClasses
from extender.verdict.demand import Demand
from extender.verdict.evaluate import Refusal, Rules, Verdict, evaluate
from extender.verdict.grants import Grant
from extender.verdict.seen import IdentityCheck, seen

_NAME = itemgetter(0)
_FIRST = 3  # nodes named per state
_REFRESHED = 2  # classes judged again in one call when facts about the fleet changed
# Estimated bytes, measured with tracemalloc over half-full fleets (docs/performance.md).
_BASE_BYTES, _VERDICT_BYTES, _REFUSAL_BYTES, _GRANT_BYTES, _PICK_BYTES, _NODE_BYTES, _CLASS_BYTES = (
    4096,
    64,
    640,
    480,
    112,
    80,
    320,
)


class State(NamedTuple):
    """Nodes that share a verdict."""

    verdict: Verdict
    nodes: int
    first: list[str]  # the first few of them by name


class Ranking:
    """All nodes for one demand: verdict per class of nodes, and grants by falling score.

    `vacant` classes without nodes, or an eighth of those with nodes, keep their grants, and as many their refusals,
    because their state often returns.
    """

    def __init__(self, demand: Demand, *, vacant: int = 16) -> None:
        self.demand = demand
        self._vacant = vacant
        self._room = 2 * vacant  # verdicts before those of vacant classes are dropped
        self._classes: NodeClasses | None = None  # None: the states of the snapshot
        self._nodes: Mapping[int, NodeState | NodeClass] = {}  # classes that some node is in, by number
        self._pending: dict[int, NodeView] = {}  # classes to judge, each with a view in it
        self._refused: dict[int, Refusal] = {}
        self._refusals: dict[str, Refusal] = {}  # by text: thousands of classes share one
        self._granted: dict[int, Grant] = {}
        self._order: list[int] = []  # those granted, by falling score
        self._request: DeviceRequest | None = None  # the only one, where grants of other demands are shared
        self._own_grants = 0  # those that are not shared
        self._own_picks = 0  # devices in them
        self._version = -1
        self._fleet: Fleet | None = None
        self._rules: Rules | None = None  # of the call at hand
        self._stale: list[int] = []  # granted by older facts about the fleet
        self._blind: dict[object, bool] = {}  # by key of the demand as nodes have to serve it
        self._checks: dict[object, IdentityCheck] = {}  # the same, where that is not known yet
        self.evaluations = 0  # searches made; the rest was remembered

    def follow(self, snapshot: Snapshot, rules: Rules) -> bool:
        """Catch up with a snapshot; the work grows with the number of nodes that changed. False where the budget was
        spent before the end: what was done stays done, and the next call goes on. Facts about the fleet change scores
        only, so each call makes just a few grants anew by them; `refresh` makes the rest."""
        try:
            # Classes that an earlier call left come first: the search that its budget cut off then has a whole budget.
            self._judge_pending(rules)
            self._begin(rules)
            if self._classes is None:
                self._find_states(snapshot)
                self._judge_pending(rules)
            else:
                self._judge_classes(self._classes, snapshot, rules)
        except BudgetSpent:
            return False
        with suppress(BudgetSpent):
            self._refresh(snapshot, rules, _REFRESHED)
        return True

    def refresh(self, snapshot: Snapshot, rules: Rules) -> bool:
        """After `follow` with the same snapshot: make all grants anew that rest on older facts about the fleet. False
        where the budget was spent before the end."""
        try:
            self._refresh(snapshot, rules, len(self._stale))
        except BudgetSpent:
            return False
        return True

    def judge(self, view: NodeView, rules: Rules) -> Verdict:
        """The verdict of a view, remembered for its class; the ranking itself stays where it is."""
        self._begin(rules)
        found = view.state.number if self._classes is None else self._classes.of_view(view)
        verdict = self._known(found)
        return verdict if verdict is not None else self._judge(found, view, rules)

    @property
    def stale(self) -> bool:
        """Whether some verdicts are of older facts about the fleet."""
        return bool(self._stale)

    @property
    def left(self) -> int:
        """Nodes that have no verdict yet."""
        return sum(len(self._names(one)) for one in self._pending) + (
            self._classes.left if self._classes is not None else 0
        )

    def verdict(self, view: NodeView) -> Verdict | None:
        """The verdict of a node; None for one that is not judged."""
        found = view.state.number if self._classes is None else self._classes.of(view.node.name)
        return self._known(found) if found is not None else None

    def states(self, among: Container[str] | None = None, without: Collection[str] = ()) -> list[State]:
        """All states of nodes that have a verdict; a grant may name the request of an equal demand. With `among`, other
        nodes do not count; those few `without` never do."""
        verdicts = chain[tuple[int, Verdict]](self._granted.items(), self._refused.items())
        found = (_state(verdict, self._names(one), among, without) for one, verdict in verdicts if one in self._nodes)
        return [state for state in found if state.nodes]

    def reasons(self) -> dict[str, str]:
        """Why each node that cannot serve the demand cannot."""
        found: dict[str, str] = {}
        for one, refusal in self._refused.items():
            found.update(dict.fromkeys(self._names(one), refusal.text))
        return found

    def refused(self) -> Counter[str]:
        """Nodes by the text of the reason why they cannot serve the demand."""
        found: Counter[str] = Counter()
        for one, refusal in self._refused.items():
            found[refusal.text] += len(self._names(one))
        return found

    def main_refusal(self) -> Code | None:
        """The code of the reason that refuses most nodes; None where none is refused."""
        found: Counter[Code] = Counter()
        for one, refusal in self._refused.items():
            found[refusal.reason.code] += len(self._names(one))
        return max(found, key=lambda code: (found[code], code.name), default=None)

    @property
    def groups(self) -> int:
        """Verdicts that are remembered."""
        return len(self._granted) + len(self._refused)

    @property
    def nodes(self) -> int:
        """Nodes that have a verdict."""
        return sum(len(self._names(one)) for one in chain(self._granted, self._refused))

    @property
    def estimated_bytes(self) -> int:
        """About what the ranking keeps in memory of its own; what others share is not counted."""
        specs = sum(len(spec.content) for spec in self.demand.specs)
        own = len(self._classes) * _NODE_BYTES + self.groups * _CLASS_BYTES if self._classes is not None else 0
        verdicts = self.groups * _VERDICT_BYTES + len(self._refusals) * _REFUSAL_BYTES
        return _BASE_BYTES + specs + own + verdicts + self._own_grants * _GRANT_BYTES + self._own_picks * _PICK_BYTES

    def best(self, names: set[str] | None, count: int) -> list[tuple[str, Grant]]:
        """The best nodes among `names` (None: all), ties by name."""
        found: list[tuple[str, Grant]] = []
        equal: list[tuple[str, Grant]] = []  # of one score
        score = None
        for one in self._order:
            nodes = self._nodes.get(one)
            if nodes is None:
                continue
            grant = self._grant(one)
            if grant.score != score:
                found += sorted(equal, key=_NAME)[: count - len(found)]
                if len(found) >= count:
                    return found
                equal, score = [], grant.score
            some = nodes.names if names is None else [name for name in nodes.names if name in names]
            equal += [(name, grant) for name in some[: count - len(found)]]
        return found + sorted(equal, key=_NAME)[: count - len(found)]

    def _names(self, one: int) -> Sequence[str]:
        found = self._nodes.get(one)
        return found.names if found is not None else ()

    def _falling(self, one: int) -> float:
        return -self._granted[one].score

    def _grant(self, one: int) -> Grant:
        """The grant of a class, from now on with this demand's request: the best ones are few and are asked for
        again."""
        grant = self._granted[one]
        if self._is_foreign(grant):
            grant = self._granted[one] = self._told(grant)
            self._count(grant, 1)
        return grant

    def _is_foreign(self, grant: Grant) -> bool:
        """Whether it is the grant of another demand, which this one shares."""
        return self._request is not None and grant.solution.picks[0][0].request is not self._request

    def _told(self, grant: Grant) -> Grant:
        return grant.to(self._request) if self._request is not None and self._is_foreign(grant) else grant

    def _known(self, one: int) -> Verdict | None:
        grant = self._granted.get(one)
        return self._told(grant) if grant is not None else self._refused.get(one)

    # -- following -------------------------------------------------------------------------------------------

    def _begin(self, rules: Rules) -> None:
        """The first rules decide whether states tell all that the demand sees of a node."""
        self._rules = rules
        if self._fleet is None and (self.demand.extended is not None or not self._is_blind(self.demand, rules)):
            self._classes = NodeClasses(self._key)
            self._nodes = self._classes.occupied
        if rules.fleet is not self._fleet:
            self._fleet = rules.fleet
            self._stale = list(self._order)

    def _judge_pending(self, rules: Rules) -> None:
        while self._pending:
            one, view = self._pending.popitem()
            if one not in self._granted and one not in self._refused:
                try:
                    self._judge(one, view, rules)
                except BudgetSpent:
                    self._pending[one] = view
                    raise

    def _find_states(self, snapshot: Snapshot) -> None:
        """States without a verdict, among those of nodes that changed."""
        changed = snapshot.changed_since(self._version) if self._version >= 0 else None
        views, granted, refused = snapshot.views, self._granted, self._refused
        self._nodes = snapshot.states
        if changed is None:
            changed = [state.names[0] for state in snapshot.states.values()]
        for name in changed:
            view = views.get(name)
            if view is not None and view.state.number not in granted and view.state.number not in refused:
                self._pending[view.state.number] = view
        self._version = snapshot.version

    def _judge_classes(self, classes: NodeClasses, snapshot: Snapshot, rules: Rules) -> None:
        """Judge the classes that nodes which changed are in now, each as soon as a node is sorted into it: so a call
        whose budget ends early has verdicts to show. Raises BudgetSpent."""
        for one, view in classes.follow(snapshot):
            rules.budget.keep()
            if one not in self._granted and one not in self._refused:
                self._pending[one] = view
                self._judge_pending(rules)

    def _key(self, view: NodeView) -> Hashable:
        assert self._rules is not None, "classes are made and followed after the rules are known"
        demand, rules = self.demand.on(view.node), self._rules
        if view.state.appearance is not None and self._is_blind(demand, rules):
            return demand.key, view.state.number
        return demand.key, view.state.signature.number, *seen(view, demand, rules)

    def _is_blind(self, demand: Demand, rules: Rules) -> bool:
        """Whether the demand looks at no identity of a device."""
        found = self._blind.get(demand.key)
        if found is None:
            check = self._checks.setdefault(demand.key, IdentityCheck(demand))
            found = self._blind[demand.key] = check.is_blind(rules)
            del self._checks[demand.key]
        return found

    def is_blind(self, rules: Rules) -> bool:
        """Whether the demand looks at no identity of a device. Raises BudgetSpent."""
        return self._is_blind(self.demand, rules)

    def _judge(self, one: int, view: NodeView, rules: Rules) -> Verdict:
        if self.groups >= self._room:
            self._forget_vacant()
        verdict = self._remember(one, evaluate(view, self.demand.on(view.node), rules))
        rules.budget.keep()
        return verdict

    def _remember(self, one: int, verdict: Verdict) -> Verdict:
        self.evaluations += 1
        if isinstance(verdict, Refusal):
            verdict = self._refused[one] = self._refusals.setdefault(verdict.text, verdict)
        else:
            self._rank(one, verdict)
        return verdict

    def _refresh(self, snapshot: Snapshot, rules: Rules, most: int) -> None:
        """Make up to so many grants anew by the newest facts about the fleet. Raises BudgetSpent."""
        made = 0
        while self._stale and made < most:
            one = self._stale.pop()
            view = self._view_in(one, snapshot)
            try:
                verdict = evaluate(view, self.demand.on(view.node), rules) if view is not None else None
            except BudgetSpent:
                self._stale.append(one)
                raise
            self._forget(one)
            if verdict is not None:  # otherwise no node is in the class: it is judged when one comes into it
                self._remember(one, verdict)
                rules.budget.keep()
                made += 1

    def _view_in(self, one: int, snapshot: Snapshot) -> NodeView | None:
        return next((view for name in self._names(one) if (view := snapshot.views.get(name)) is not None), None)

    # -- remembering -----------------------------------------------------------------------------------------

    def _rank(self, one: int, grant: Grant) -> None:
        if grant.origin is not None and self.demand.extended is None:
            self._request, grant = grant.solution.picks[0][0].request, grant.origin
        else:
            self._count(grant, 1)
        self._granted[one] = grant
        insort(self._order, one, key=self._falling)

    def _count(self, grant: Grant, sign: int) -> None:
        """One grant more, or less, that is not shared."""
        self._own_grants += sign
        self._own_picks += sign * sum(map(len, grant.solution.picks))

    def _forget(self, one: int) -> None:
        """Drop a verdict; the class is judged again once a node comes into it."""
        self._refused.pop(one, None)
        grant = self._granted.get(one)
        if grant is not None:
            position = bisect_left(self._order, -grant.score, key=self._falling)
            del self._order[self._order.index(one, position)]
            del self._granted[one]
            if not self._is_foreign(grant):
                self._count(grant, -1)
        if self._classes is not None:
            self._classes.forget(one)

    def _forget_vacant(self) -> None:
        """Drop the verdicts of classes that no node is in, but the newest few."""
        kept = max(self._vacant, len(self._nodes) // 8)
        for verdicts in (self._granted, self._refused):
            for one in [one for one in verdicts if one not in self._nodes][:-kept]:
                self._forget(one)
        self._refusals = {refusal.text: refusal for refusal in self._refused.values()}
        self._room = self.groups + 2 * kept


def _state(verdict: Verdict, names: Sequence[str], among: Container[str] | None, without: Collection[str]) -> State:
    some = names if among is None else [name for name in names if name in among]
    if not without:
        return State(verdict, len(some), list(some[:_FIRST]))
    left_out = [name for name in without if some[bisect_left(some, name) :][:1] == [name]]
    first = [name for name in some[: _FIRST + len(left_out)] if name not in left_out]
    return State(verdict, len(some) - len(left_out), first[:_FIRST])
