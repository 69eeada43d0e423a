"""Why a pod goes where it goes, or nowhere: one explanation of a pod on a snapshot."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from types import MappingProxyType

from extender.allocation.view import Interned, NodeView, Snapshot
from extender.diagnosis import near_misses
from extender.diagnosis.near_misses import Alike, Miss
from extender.diagnosis.search_trace import SearchTrace, causes, narrate, trace
from extender.diagnosis.selector_stats import Look, term_findings
from extender.model.budget import BudgetSpent
from extender.model.claim import Pod
from extender.model.errors import WireError
from extender.model.reasons import Code, Reason
from extender.policy import Policy
from extender.verdict.decision import Candidate, candidate
from extender.verdict.demand import Blocked, Demand, NotOurs, NotReady, demand_of
from extender.verdict.evaluate import Refusal, Rules, Verdict, evaluate
from extender.verdict.grants import Grant
from extender.verdict.ranking import Ranking, State

_EXAMPLES = 3  # nodes named per group
_BEST = 5
_ELSEWHERE = Refusal(Reason(Code.ELSEWHERE))
Views = Mapping[str, NodeView]


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
) -> Explanation:
    """The explanation of a pod. `ranking` is one of the snapshot's mirror for the pod's demand, if the caller has one;
    `own` are the few nodes that look different to this pod; `narrated` is a node whose search is told in full. Raises
    WireError where that node is not known, and BudgetSpent."""
    demand = demand_of(pod, snapshot, policy)
    name = str(pod.key)
    match demand:
        case NotOurs():
            return Explanation(name, "not-ours", f"pod {name} asks for no devices: Berth lets it pass")
        case NotReady():
            return Explanation(name, "waiting", demand.message)
        case Blocked():
            sentence = f"pod {name} fits nowhere: {demand.reason}"
            return Explanation(name, "blocked", sentence, len(snapshot.views))
        case Demand():
            traces = _Traces(demand, rules)
            told: tuple[str, ...] = ()
            if narrated:
                told = narrate(traces.of(own.get(narrated) or _known(narrated, snapshot)), rules)
            found = _explain(name, snapshot, ranking or Ranking(demand), own, traces)
            return replace(found, narration=told)


class _Traces:
    """Searches on the nodes that are shown, each made once."""

    def __init__(self, demand: Demand, rules: Rules) -> None:
        self.demand = demand
        self.rules = rules
        self._found: dict[str, SearchTrace] = {}

    def of(self, view: NodeView) -> SearchTrace:
        name = view.node.name
        if name not in self._found:
            self._found[name] = trace(view, self.demand, self.rules)
        return self._found[name]


def _known(node: str, snapshot: Snapshot) -> NodeView:
    if node not in snapshot.views:
        raise WireError("narrate", f"node {node!r} is not known")
    return snapshot.views[node]


def _explain(name: str, snapshot: Snapshot, ranking: Ranking, own: Views, traces: _Traces) -> Explanation:
    demand, rules, views = traces.demand, traces.rules, snapshot.views
    if not (ranking.follow(snapshot, rules) and ranking.refresh(snapshot, rules)):
        raise BudgetSpent
    allowed = _allowed(demand, snapshot) if demand.pins else None
    verdicts = {
        node: evaluate(view, demand.on(view.node), rules)
        for node, view in own.items()
        if allowed is None or node in allowed
    }
    refused, nodes = Refused(), 0
    for state in _states(ranking, snapshot, allowed, verdicts):
        nodes += state.nodes
        if isinstance(state.verdict, Refusal):
            first = state.first[0]
            refused.add(Alike(state.verdict, state.nodes, state.first, own.get(first) or views[first]))
    tried = near_misses.worth_trying(refused.alike)
    holders = near_misses.claims_on((*(one.shown.view for one in refused.reasons.values()), *tried), snapshot)
    groups = _groups(refused, holders, traces)
    fitting = nodes - refused.nodes
    if fitting:
        best = [candidate(own.get(n) or views[n], grant, snapshot) for n, grant in _best(ranking, allowed, verdicts)]
        return Explanation(name, "fits", _where(name, nodes, fitting, best), nodes, fitting, tuple(best), groups)
    blind = ranking.is_blind(rules)
    terms = term_findings(demand, snapshot, refused.looks.values() if blind else None, rules.budget)
    misses: list[Miss] = [
        *near_misses.by_count(demand, refused.alike, rules, blind=blind),
        *near_misses.by_giving_back(tried, demand, rules, holders, blind=blind),
        *near_misses.by_capacity(demand, (view for view, _ in refused.looks.values())),
        *near_misses.by_terms(terms),
    ]
    told = tuple(dict.fromkeys(miss.sentence for miss in sorted(misses, key=lambda miss: miss.cost)))
    sentences = tuple(term.sentence() for term in terms)
    return Explanation(name, "refused", _why(name, groups, told), nodes, 0, (), groups, told, sentences)


def _best(ranking: Ranking, allowed: set[str] | None, own: Mapping[str, Verdict]) -> list[tuple[str, Grant]]:
    """The best nodes, where those of `own` have other verdicts than the ranking's."""
    found = [(name, grant) for name, grant in ranking.best(allowed, _BEST + len(own)) if name not in own]
    found += [(name, verdict) for name, verdict in own.items() if isinstance(verdict, Grant)]
    return sorted(found, key=lambda one: (-one[1].score, one[0]))[:_BEST]


def _states(
    ranking: Ranking, snapshot: Snapshot, allowed: set[str] | None, own: Mapping[str, Verdict]
) -> Iterator[State]:
    """States of all nodes; those that are not allowed are in one, because a claim lies elsewhere."""
    yield from (State(verdict, 1, [name]) for name, verdict in own.items())
    if allowed is not None:
        elsewhere = nsmallest(_EXAMPLES, snapshot.views.keys() - allowed)
        if elsewhere:
            yield State(_ELSEWHERE, len(snapshot.views) - len(allowed), elsewhere)
    yield from ranking.states(allowed, own)


def _where(name: str, nodes: int, fitting: int, best: list[Candidate]) -> str:
    sentence = f"pod {name} fits on {fitting} of {nodes} nodes"
    if not best:
        return sentence
    return f"{sentence}; {best[0].node} is best: {', '.join(best[0].devices) or 'nothing left to allocate'}"


def _why(name: str, groups: tuple[Group, ...], misses: tuple[str, ...]) -> str:
    if not groups:
        return f"pod {name} fits nowhere: Berth knows no node"
    most, nodes = groups[0], sum(group.nodes for group in groups)
    nearest = f"; {misses[0]}" if misses else ""
    return f"pod {name} fits nowhere: {most.reason} on {most.nodes} of {nodes} nodes{nearest}"


def _allowed(demand: Demand, snapshot: Snapshot) -> set[str]:
    """Nodes that claims which are allocated already do not rule out."""
    return {n for n, v in snapshot.views.items() if all(pin.matches(n, v.node.labels) for pin in demand.pins)}


def _groups(refused: Refused, holders: near_misses.Holders, traces: _Traces) -> tuple[Group, ...]:
    """Refused nodes by reason, the most frequent reason first."""
    ordered = sorted(refused.reasons.values(), key=lambda one: (-one.nodes, one.shown.refusal.text))
    return tuple(_group(one, holders, traces) for one in ordered)


def _group(one: ByReason, holders: near_misses.Holders, traces: _Traces) -> Group:
    view, refusal = one.shown.view, one.shown.refusal
    freeable = refusal.reason.code in near_misses.CAN_BE_FREED
    others = near_misses.holders_on(view, holders) if freeable else ()
    why = causes(traces.of(view), map(near_misses.held_by, others))
    return Group(refusal.reason.code.name, refusal.text, one.nodes, tuple(one.examples), why)
