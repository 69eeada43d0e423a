"""Why a pod goes where it goes, or nowhere: one explanation, made in small steps so that no filter waits for it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from extender.allocation.observe import CAUSES, Recorder
from extender.allocation.search import Search
from extender.allocation.view import NodeView, Snapshot
from extender.model.claim import Claim, Pod
from extender.model.errors import InvalidClaim, OutOfBudget, WireError
from extender.model.reasons import Code, Reason
from extender.policy import Policy
from extender.scoring.parts import Part
from extender.verdict import nearest
from extender.verdict.demand import Blocked, Demand, NotOurs, NotReady, demand_of
from extender.verdict.evaluate import Grant, Refusal, Rules, problem_for
from extender.verdict.narrate import narrate
from extender.verdict.nearest import Holders, Miss
from extender.verdict.ranking import Ranking
from extender.verdict.terms import TermFinding, term_findings
from extender.verdict.verbs import held_results

_EXAMPLES = 3  # nodes named per group
_BEST = 5
_STEP = 50  # verdicts looked at between two breaths
_ELSEWHERE = Refusal(Reason(Code.ELSEWHERE))
_CAUSES = 4  # device-level causes named per group


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes refused for the same reason; `causes` are those of the first of them, device by device."""

    code: str
    reason: str
    nodes: int
    examples: tuple[str, ...]
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that can serve the pod."""

    node: str
    score: float
    devices: tuple[str, ...]
    ring_gbps: float
    best_gbps: float  # of any set of that size anywhere in the fleet
    source: str  # where the links are known from
    parts: tuple[Part, ...]


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


def explain(
    pod: Pod, snapshot: Snapshot, policy: Policy, rules: Rules, ranking: Ranking | None = None, narrated: str = ""
) -> Iterator[Explanation | None]:
    """Steps that end with the explanation; None stands for a breath. `ranking` is one that is at hand, if any; `narrated` is
    a node whose search is told in full. Raises WireError where that is not known."""
    demand = demand_of(pod, snapshot, policy)
    name = str(pod.key)
    match demand:
        case NotOurs():
            yield Explanation(name, "not-ours", f"pod {name} asks for no devices: Berth lets it pass")
        case NotReady():
            yield Explanation(name, "waiting", demand.message)
        case Blocked():
            yield Explanation(name, "blocked", f"pod {name} fits nowhere: {demand.reason}", len(snapshot.views))
        case Demand():
            told = narrate(_known(narrated, snapshot), demand, rules) if narrated else ()
            for step in _explain(name, demand, snapshot, rules, ranking or Ranking(demand)):
                yield replace(step, narration=told) if step is not None else None


def _known(node: str, snapshot: Snapshot) -> NodeView:
    if node not in snapshot.views:
        raise WireError("narrate", f"node {node!r} is not known")
    return snapshot.views[node]


def _explain(name: str, demand: Demand, snapshot: Snapshot, rules: Rules, ranking: Ranking) -> Iterator[Explanation | None]:
    for _ in ranking.catch_up(snapshot, rules):
        yield None
    # Taken in one go: from the next breath on `ranking` may belong to a newer snapshot.
    states = ranking.states()
    allowed = _allowed(demand, snapshot) if demand.pins else None
    best = tuple(candidate(snapshot.views[n], grant, snapshot) for n, grant in ranking.best(allowed, _BEST))
    yield None
    refusals: dict[str, Refusal] = {}
    members: dict[Reason, list[str]] = {}
    nodes = sum(len(names) for _, names in states)
    for position, (node, verdict) in enumerate(((name, verdict) for verdict, names in states for name in names), 1):
        refusal = _ELSEWHERE if allowed is not None and node not in allowed else verdict
        if isinstance(refusal, Refusal):
            refusals[node] = refusal
            members.setdefault(refusal.reason, []).append(node)
        if position % _STEP == 0:
            yield None
    fitting = nodes - len(refusals)
    holders: Holders = {}
    for index in nearest.claims_by_pool(snapshot) if refusals else ():
        holders = index or holders
        yield None
    groups = tuple(_groups(members, demand, snapshot, rules, holders))
    if fitting:
        where = f"{best[0].node} is best: {', '.join(best[0].devices) or 'nothing left to allocate'}"
        sentence = f"pod {name} fits on {fitting} of {nodes} nodes; {where}"
        yield Explanation(name, "fits", sentence, nodes, fitting, best, groups)
        return
    terms: list[TermFinding] = []
    for step in term_findings(demand, snapshot):
        terms = step or terms
        yield None
    misses: list[Miss] = []
    for steps in (nearest.by_count(demand, refusals, snapshot, rules), nearest.by_giving_back(demand, refusals, snapshot, rules, holders)):
        for found in steps:
            misses += found or []
            yield None
    misses += nearest.by_capacity(demand, snapshot) + nearest.by_terms(terms)
    told = tuple(dict.fromkeys(miss.sentence for miss in sorted(misses, key=lambda miss: miss.cost)))
    yield Explanation(
        name, "refused", _why(name, groups, told), nodes, 0, (), groups, told, tuple(term.sentence() for term in terms)
    )


def _why(name: str, groups: tuple[Group, ...], misses: tuple[str, ...]) -> str:
    if not groups:
        return f"pod {name} fits nowhere: Berth knows no node"
    most = groups[0]
    nearest_miss = f"; {misses[0]}" if misses else ""
    return f"pod {name} fits nowhere: {most.reason} on {most.nodes} of {sum(g.nodes for g in groups)} nodes{nearest_miss}"


def _allowed(demand: Demand, snapshot: Snapshot) -> set[str]:
    """Nodes that claims which are allocated already do not rule out."""
    return {n for n, v in snapshot.views.items() if all(pin.matches(n, v.node.labels) for pin in demand.pins)}


def _groups(
    members: dict[Reason, list[str]], demand: Demand, snapshot: Snapshot, rules: Rules, holders: Holders
) -> Iterator[Group]:
    """Refused nodes by reason, the largest group first."""
    for reason, names in sorted(members.items(), key=lambda item: (-len(item[1]), str(item[0]))):
        first = heapq.nsmallest(_EXAMPLES, names)
        view = snapshot.views[first[0]]
        others = nearest.holders_on(view, holders) if reason.code in nearest.CAN_BE_FREED else ()
        causes = _causes(view, demand, rules, others)
        yield Group(reason.code.name, str(reason), len(names), tuple(first), causes)


def _causes(view: NodeView, demand: Demand, rules: Rules, holders: Iterable[Claim]) -> tuple[str, ...]:
    """What stood in the way of each device on one node, and what it had instead."""
    demand = demand.on(view.node)
    if not demand.open:
        return ()
    recorder = Recorder()
    try:
        Search(problem_for(view, demand, rules), budget=demand.policy.search_steps, observer=recorder).run()
    except (InvalidClaim, OutOfBudget) as error:
        return (str(error),) if str(error) else ()
    devices: dict[tuple[str, str], list[str]] = {}
    for (_, bit), (cause, detail) in sorted(recorder.causes.items()):
        devices.setdefault((cause, detail), []).append(view.inventory.places[bit].id.device)
    found = [
        f"{', '.join(sorted(set(names)))}: {CAUSES[cause]}{f' ({detail})' if detail else ''}"
        for (cause, detail), names in devices.items()
    ]
    found += [nearest.held_by(claim) for claim in holders]
    return (*found[:_CAUSES], f"and {len(found) - _CAUSES} more") if len(found) > _CAUSES else tuple(found)


def candidate(view: NodeView, grant: Grant, snapshot: Snapshot) -> Candidate:
    """A node with what it would give."""
    devices = tuple(str(result.device) for result in held_results(view, grant))
    count = sum(grant.solution.mask >> bit & 1 for bit in view.gpu_bits if bit >= 0)
    source = view.fabric.source.value if view.fabric is not None else ""
    best = max(snapshot.fleet.best_ring_gbps.get(count, 0.0), grant.ring_gbps)
    return Candidate(view.node.name, grant.score, devices, grant.ring_gbps, best if grant.ring_gbps else 0.0, source, grant.parts)
