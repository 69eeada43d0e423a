"""Why a pod goes where it goes, or nowhere: one explanation, made in small steps so that no filter waits for it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import nsmallest
from types import MappingProxyType

from extender.allocation.observe import CAUSES, Recorder
from extender.allocation.search import Search
from extender.allocation.view import Interned, NodeView, Snapshot
from extender.model.budget import BudgetSpent
from extender.model.claim import Claim, Pod
from extender.model.errors import InvalidClaim, OutOfBudget, WireError
from extender.model.pieces import breathe, in_pieces, run_out
from extender.model.reasons import Code, Reason
from extender.model.text import REASON_BYTES, cut
from extender.policy import Policy
from extender.verdict import nearest
from extender.verdict.decision import Candidate, candidate
from extender.verdict.demand import Blocked, Demand, NotOurs, NotReady, demand_of
from extender.verdict.evaluate import Refusal, Rules, Verdict, evaluate, problem_for
from extender.verdict.grants import Grant
from extender.verdict.narrate import narrate
from extender.verdict.nearest import Alike, Holders, Miss
from extender.verdict.ranking import Ranking, State
from extender.verdict.terms import Look, TermFinding, term_findings

_EXAMPLES = 3  # nodes named per group
_BEST = 5
_STEP = 4  # states of nodes looked at between two breaths
_STEP_SECONDS = 0.02  # of work in one such step, see Budget
_ELSEWHERE = Refusal(Reason(Code.ELSEWHERE))
Views = Mapping[str, NodeView]
_CAUSES = 4  # device-level causes named per group
_CAUSE_BYTES = 1024  # of one: it may name each of a hundred devices


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes refused for the same reason; `causes` are those of the first of them, device by device."""

    code: str
    reason: str
    nodes: int
    examples: tuple[str, ...]
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """outcome is 'fits', 'refused', 'blocked', 'waiting' or 'not-ours'."""

    pod: str
    outcome: str
    sentence: str
    nodes: int = 0
    fitting: int = 0
    best: tuple[Candidate, ...] = ()
    groups: tuple[Group, ...] = ()
    misses: tuple[str, ...] = ()
    terms: tuple[str, ...] = field(default=())
    narration: tuple[str, ...] = ()  # the search on one node, where somebody asked for it


@dataclass(slots=True)
class ByReason:
    """Nodes refused for one reason, and the first of them that looks as `shown` does."""

    shown: Alike
    nodes: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, alike: Alike) -> None:
        self.nodes += alike.nodes
        if alike.first[0] < self.shown.first[0]:
            self.shown = alike
        for name in alike.first[:_EXAMPLES]:
            if len(self.examples) >= _EXAMPLES and name > self.examples[-1]:
                break  # they are in order
            insort(self.examples, name)
            del self.examples[_EXAMPLES:]


@dataclass(slots=True)
class Refused:
    """Refused nodes: in one state, by the text of their reason, and by how their devices look."""

    alike: list[Alike] = field(default_factory=list)
    reasons: dict[str, ByReason] = field(default_factory=dict)
    looks: dict[Interned | None, Look] = field(default_factory=dict)
    nodes: int = 0

    def add(self, alike: Alike) -> None:
        self.alike.append(alike)
        self.nodes += alike.nodes
        view, nodes = self.looks.get(alike.view.state.appearance, (alike.view, 0))
        self.looks[alike.view.state.appearance] = view, nodes + alike.nodes
        known = self.reasons.get(alike.refusal.text)
        if known is None:
            known = self.reasons[alike.refusal.text] = ByReason(alike)
        known.add(alike)


def explain(
    pod: Pod,
    snapshot: Snapshot,
    policy: Policy,
    rules: Rules,
    ranking: Ranking | None = None,
    own: Views = MappingProxyType({}),
    narrated: str = "",
) -> Iterator[Explanation | None]:
    """Steps that end with the explanation; None stands for a breath. `ranking` is one that is at hand, if any; `own` are
    the few nodes that look different to this pod; `narrated` is a node whose search is told in full. Raises WireError where
    that is not known."""
    demand = demand_of(pod, snapshot, policy)
    name = str(pod.key)
    yield None
    match demand:
        case NotOurs():
            yield Explanation(name, "not-ours", f"pod {name} asks for no devices: Berth lets it pass")
        case NotReady():
            yield Explanation(name, "waiting", demand.message)
        case Blocked():
            yield Explanation(name, "blocked", f"pod {name} fits nowhere: {demand.reason}", len(snapshot.views))
        case Demand():
            told: tuple[str, ...] = ()
            if narrated:
                shown = own.get(narrated) or _known(narrated, snapshot)
                told = yield from in_pieces(partial(narrate, shown, demand, rules))
            of_its_own = Ranking(demand, as_of=True)
            if ranking is None:
                yield from in_pieces(partial(run_out, of_its_own.catch_up(snapshot, rules)))
            for step in _explain(name, demand, snapshot, rules, ranking or of_its_own, own):
                yield replace(step, narration=told) if step is not None else None


def _known(node: str, snapshot: Snapshot) -> NodeView:
    if node not in snapshot.views:
        raise WireError("narrate", f"node {node!r} is not known")
    return snapshot.views[node]


def _explain(
    name: str, demand: Demand, snapshot: Snapshot, rules: Rules, ranking: Ranking, own: Views
) -> Iterator[Explanation | None]:
    yield from _caught_up(ranking, snapshot, rules)
    allowed = _allowed(demand, snapshot) if demand.pins else None
    yield None
    verdicts: dict[str, Verdict] = {}
    for node, view in own.items():
        if allowed is None or node in allowed:
            verdicts[node] = yield from in_pieces(partial(evaluate, view, demand.on(view.node), rules))
            yield None
    leading = _best(ranking, allowed, verdicts)
    yield None
    refused, nodes, views = Refused(), 0, snapshot.views
    for position, state in enumerate(_states(ranking, snapshot, allowed, verdicts)):
        first = [name for name in state.first if name in views]
        nodes += state.nodes if first else 0
        if first and isinstance(state.verdict, Refusal):
            refused.add(Alike(state.verdict, state.nodes, first, own.get(first[0]) or views[first[0]]))
        if position % _STEP == 0:
            yield None
    best: list[Candidate] = []
    for n, grant in leading:
        best += [candidate(own.get(n) or views[n], grant, snapshot)] if n in views else []
        yield None
    fitting = nodes - refused.nodes
    tried: list[NodeView] = []
    for found_nodes in nearest.worth_trying(refused.alike):
        tried = found_nodes or tried
        yield None
    holders: Holders = {}
    for index in nearest.claims_on((*(one.shown.view for one in refused.reasons.values()), *tried), snapshot) if refused.alike else ():
        holders = index or holders
        yield None
    groups: list[Group] = []
    for one in sorted(refused.reasons.values(), key=lambda one: (-one.nodes, one.shown.refusal.text)):
        groups.append((yield from in_pieces(partial(_group, one, demand, rules, holders))))
        yield None
    if fitting:
        where = f"; {best[0].node} is best: {', '.join(best[0].devices) or 'nothing left to allocate'}" if best else ""
        sentence = f"pod {name} fits on {fitting} of {nodes} nodes{where}"
        yield Explanation(name, "fits", sentence, nodes, fitting, tuple(best), tuple(groups))
        return
    terms: list[TermFinding] = []
    blind = ranking.is_blind(rules)
    for step in term_findings(demand, snapshot, refused.looks.values() if blind else None, rules.budget):
        terms = step or terms
        yield None
    misses: list[Miss] = []
    counted = nearest.by_count(demand, refused.alike, rules, blind=blind)
    for steps in (counted, nearest.by_giving_back(tried, demand, rules, holders, blind=blind)):
        for found in steps:
            misses += found or []
            yield None
    misses += nearest.by_capacity(demand, (view for view, _ in refused.looks.values())) + nearest.by_terms(terms)
    told = tuple(dict.fromkeys(miss.sentence for miss in sorted(misses, key=lambda miss: miss.cost)))
    while refused.alike:  # let go of in steps too: at once it would take as long as many of them
        del refused.alike[-_STEP:]
        yield None
    yield Explanation(
        name, "refused", _why(name, groups, told), nodes, 0, (), tuple(groups), told, tuple(term.sentence() for term in terms)
    )


def _caught_up(ranking: Ranking, snapshot: Snapshot, rules: Rules) -> Iterator[None]:
    """Steps in which a ranking that filter uses, too, catches up. Nothing may come between while it finds a verdict,
    so each step has a budget of its own. Raises BudgetSpent once that of all is spent."""
    done = False
    while not done:
        try:
            yield from ranking.catch_up(snapshot, replace(rules, budget=rules.budget.part(_STEP_SECONDS)))
            done = True
        except BudgetSpent:
            rules.budget.check()
        yield None


def _best(ranking: Ranking, allowed: set[str] | None, own: Mapping[str, Verdict]) -> list[tuple[str, Grant]]:
    """The best nodes, where those of `own` have other verdicts than the ranking's."""
    found = [(name, grant) for name, grant in ranking.best(allowed, _BEST + len(own)) if name not in own]
    found += [(name, verdict) for name, verdict in own.items() if isinstance(verdict, Grant)]
    return sorted(found, key=lambda one: (-one[1].score, one[0]))[:_BEST]


def _states(ranking: Ranking, snapshot: Snapshot, allowed: set[str] | None, own: Mapping[str, Verdict]) -> Iterator[State]:
    """States of the snapshot's nodes; those that are not allowed are in one, because a claim lies elsewhere."""
    known = snapshot.views
    yield from (State(verdict, 1, [name]) for name, verdict in own.items())
    if allowed is None:
        # `ranking` may belong to a newer snapshot by now: nodes that only that one has are left out. One that took the place
        # of another meanwhile passes here, and is left out by its name.
        yield from ranking.states(known if ranking.nodes != len(known) else None, own)
        return
    elsewhere = nsmallest(_EXAMPLES, known.keys() - allowed)
    if elsewhere:
        yield State(_ELSEWHERE, len(known) - len(allowed), elsewhere)
    yield from ranking.states(allowed, own)


def _why(name: str, groups: list[Group], misses: tuple[str, ...]) -> str:
    if not groups:
        return f"pod {name} fits nowhere: Berth knows no node"
    most = groups[0]
    nearest_miss = f"; {misses[0]}" if misses else ""
    return f"pod {name} fits nowhere: {most.reason} on {most.nodes} of {sum(g.nodes for g in groups)} nodes{nearest_miss}"


def _allowed(demand: Demand, snapshot: Snapshot) -> set[str]:
    """Nodes that claims which are allocated already do not rule out."""
    return {n for n, v in snapshot.views.items() if all(pin.matches(n, v.node.labels) for pin in demand.pins)}


def _group(one: ByReason, demand: Demand, rules: Rules, holders: Holders) -> Group:
    view, reason = one.shown.view, one.shown.refusal.reason
    others = nearest.holders_on(view, holders) if reason.code in nearest.CAN_BE_FREED else ()
    breathe()
    return Group(reason.code.name, one.shown.refusal.text, one.nodes, tuple(one.examples), _causes(view, demand, rules, others))


def _causes(view: NodeView, demand: Demand, rules: Rules, holders: Iterable[Claim]) -> tuple[str, ...]:
    """What stood in the way of each device on one node, and what it had instead."""
    demand = demand.on(view.node)
    if not demand.open:
        return ()
    recorder = Recorder()
    try:
        Search(problem_for(view, demand, rules), budget=demand.policy.search_steps, observer=recorder).run()
    except (InvalidClaim, OutOfBudget) as error:
        return (cut(str(error), REASON_BYTES),) if str(error) else ()
    breathe()
    devices: dict[tuple[str, str], list[str]] = {}
    for number, ((_, bit), (cause, detail)) in enumerate(sorted(recorder.causes.items())):
        devices.setdefault((cause, detail), []).append(view.inventory.places[bit].id.device)
        if number % _STEP == 0:
            breathe()
    found = [
        f"{', '.join(sorted(set(names)))}: {CAUSES[cause]}{f' ({detail})' if detail else ''}"
        for (cause, detail), names in devices.items()
    ]
    found += [nearest.held_by(claim) for claim in holders]
    found = [cut(cause, _CAUSE_BYTES) for cause in found]
    return (*found[:_CAUSES], f"and {len(found) - _CAUSES} more") if len(found) > _CAUSES else tuple(found)
