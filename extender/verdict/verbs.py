"""filter and prioritize as functions of a ranking; what a bind would write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from extender.allocation.result import allocations
from extender.allocation.view import NodeView, Snapshot
from extender.model.claim import Allocation, Claim, Node, Result
from extender.model.reasons import Code, Reason
from extender.verdict.demand import Demand
from extender.verdict.evaluate import Rules, problem_for
from extender.verdict.grants import Grant
from extender.verdict.grouping import Nearness, nearness
from extender.verdict.ranking import Ranking
from extender.wire.names import has_all

MAX_SCORE = 10  # MaxExtenderPriority of the extender API


@dataclass(frozen=True, slots=True)
class Shortlist:
    """Filter's answer: the best nodes first, or the reason of every node."""

    nodes: tuple[tuple[str, Grant], ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)


def shortlist(ranking: Ranking, demand: Demand, snapshot: Snapshot, names: Sequence[str]) -> Shortlist:
    """The best few of the named nodes that can serve the demand. The ranking is that of all demands with its key."""
    near = nearness(demand, snapshot)
    if near is None and not demand.pins:
        # Mostly all nodes are named: then to read all their names, which takes longer than the rest, is not needed.
        best = ranking.best(None, demand.policy.candidates)
        if not best:
            return Shortlist(reasons=_reasons(ranking, demand, snapshot, names))
        if has_all(names, (name for name, _ in best)):
            return Shortlist(tuple(best))
    wanted = {n for n in names if _pinned(demand, snapshot.views.get(n))} if demand.pins else set(names)
    best = ranking.best(wanted, demand.policy.candidates)
    if best:
        return Shortlist(tuple(best if near is None else _by_nearness(near, ranking, demand, snapshot, best, wanted)))
    return Shortlist(reasons=_reasons(ranking, demand, snapshot, names))


def _by_nearness(
    near: Nearness, ranking: Ranking, demand: Demand, snapshot: Snapshot, best: list[tuple[str, Grant]], wanted: set[str]
) -> list[tuple[str, Grant]]:
    """The best nodes and all that are near, ranked with nearness counted."""
    grants = dict(best)
    for name in near.near_nodes(snapshot) & wanted:
        verdict = ranking.verdict(snapshot.views[name])
        if isinstance(verdict, Grant):
            grants[name] = verdict
    found = [(name, near.added(grant, snapshot.views[name], demand)) for name, grant in grants.items()]
    return sorted(found, key=lambda entry: (-entry[1].score, entry[0]))[: len(best)]


def _reasons(ranking: Ranking, demand: Demand, snapshot: Snapshot, names: Sequence[str]) -> dict[str, str]:
    known, unknown = ranking.reasons(), str(Reason(Code.NODE_UNKNOWN))
    found = {name: known.get(name, unknown) for name in names}
    if demand.pins:
        elsewhere = str(Reason(Code.ELSEWHERE))
        views = snapshot.views
        found |= {n: elsewhere for n in names if n in views and not _allows(demand, views[n].node)}
    return found


def _pinned(demand: Demand, view: NodeView | None) -> bool:
    return view is not None and _allows(demand, view.node)


def _allows(demand: Demand, node: Node) -> bool:
    return all(pin.matches(node.name, node.labels) for pin in demand.pins)


def scores(grants: Mapping[str, float], names: Sequence[str]) -> list[tuple[str, int]]:
    """0..10 per node. `grants` come best first, and only the first of those named gets 10: kube-scheduler draws lots among
    equals, and a pod that loses its hold on the way may meet another on the same devices."""
    found = {name: grants[name] for name in names if name in grants}
    first = next((name for name in grants if name in found), "")
    return [(name, MAX_SCORE if name == first else _scaled(found.get(name), found[first] if first else 0.0)) for name in names]


def _scaled(score: float | None, best: float) -> int:
    if score is None:
        return 0
    return min(MAX_SCORE - 1, int(MAX_SCORE * score / best)) if best else MAX_SCORE - 1


def held_results(view: NodeView, grant: Grant) -> tuple[Result, ...]:
    """What a hold keeps in use: the devices of a grant, without the text that only the API needs."""
    return tuple(result for claim in held_by_claim(view, grant) for result in claim)


def held_by_claim(view: NodeView, grant: Grant) -> list[tuple[Result, ...]]:
    """The same for each open claim of the demand, in its order."""
    return [
        tuple(
            Result(
                pick.request.name, view.inventory.places[pick.bit].id, pick.request.admin_access,
                share_id="hold" if pick.consumed is not None else "", consumed=pick.consumed,
            )
            for pick in claim
        )
        for claim in grant.solution.picks
    ]


def plan(
    view: NodeView, demand: Demand, grant: Grant, rules: Rules, new_share: Callable[[], str]
) -> list[tuple[Claim, Allocation]]:
    """The allocation of each open claim on this node."""
    classes = {class_.name: class_ for class_ in demand.classes}
    problem = problem_for(view, demand, rules)
    found = allocations(problem, grant.solution, view.node.name, classes.get, new_share)
    return list(zip(demand.open, found, strict=True))
