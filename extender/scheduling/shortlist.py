"""filter and prioritize as functions of a ranking; what a bind would write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from extender.allocation import NodeInfo, Snapshot, allocations
from extender.model import Allocation, Claim, Code, Node, Reason, Result
from extender.scheduling.evaluate import EvaluationContext, problem_for
from extender.scheduling.node_ranking import NodeRanking
from extender.scheduling.placements import Placement
from extender.scheduling.pod_group_proximity import PodGroupProximity, proximity_of
from extender.scheduling.pod_requirements import PodRequirements
from extender.wire import has_all

MAX_SCORE = 10  # MaxExtenderPriority of the extender API


@dataclass(frozen=True, slots=True)
class Shortlist:
    """Filter's answer: the best nodes first, or the reason of every node."""

    nodes: tuple[tuple[str, Placement], ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)


def shortlist(
    ranking: NodeRanking, requirements: PodRequirements, snapshot: Snapshot, names: Sequence[str]
) -> Shortlist:
    """The best few of the named nodes that can serve the demand. The ranking is that of all demands with its key."""
    proximity = proximity_of(requirements, snapshot)
    if proximity is None and not requirements.node_selectors:
        # Mostly all nodes are named: then to read all their names, which takes longer than the rest, is not needed.
        best = ranking.best(None, requirements.policy.candidates)
        if not best:
            return Shortlist(reasons=_reasons(ranking, requirements, snapshot, names))
        if has_all(names, (name for name, _ in best)):
            return Shortlist(tuple(best))
    wanted = (
        {n for n in names if _pinned(requirements, snapshot.node_infos.get(n))}
        if requirements.node_selectors
        else set(names)
    )
    best = ranking.best(wanted, requirements.policy.candidates)
    if best:
        return Shortlist(
            tuple(best if proximity is None else _by_nearness(proximity, ranking, requirements, snapshot, best, wanted))
        )
    return Shortlist(reasons=_reasons(ranking, requirements, snapshot, names))


def _by_nearness(
    proximity: PodGroupProximity,
    ranking: NodeRanking,
    requirements: PodRequirements,
    snapshot: Snapshot,
    best: list[tuple[str, Placement]],
    wanted: set[str],
) -> list[tuple[str, Placement]]:
    """The best nodes and all that are near, ranked with nearness counted."""
    placements = dict(best)
    for name in proximity.near_nodes(snapshot) & wanted:
        status = ranking.status(snapshot.node_infos[name])
        if isinstance(status, Placement):
            placements[name] = status
    found = [
        (name, proximity.with_proximity(placement, snapshot.node_infos[name], requirements))
        for name, placement in placements.items()
    ]
    return sorted(found, key=lambda entry: (-entry[1].score, entry[0]))[: len(best)]


def _reasons(
    ranking: NodeRanking, requirements: PodRequirements, snapshot: Snapshot, names: Sequence[str]
) -> dict[str, str]:
    known, unknown = ranking.reasons(), str(Reason(Code.NODE_UNKNOWN))
    found = {name: known.get(name, unknown) for name in names}
    if requirements.node_selectors:
        elsewhere = str(Reason(Code.ELSEWHERE))
        node_infos = snapshot.node_infos
        found |= {n: elsewhere for n in names if n in node_infos and not _allows(requirements, node_infos[n].node)}
    return found


def _pinned(requirements: PodRequirements, node_info: NodeInfo | None) -> bool:
    return node_info is not None and _allows(requirements, node_info.node)


def _allows(requirements: PodRequirements, node: Node) -> bool:
    return all(pin.matches(node.name, node.labels) for pin in requirements.node_selectors)


def scores(grants: Mapping[str, float], names: Sequence[str]) -> list[tuple[str, int]]:
    """0..10 per node. `placements` come best first, and only the first of those named gets 10: kube-scheduler draws lots among
    equals, and a pod that loses its hold on the way may meet another on the same devices."""
    found = {name: grants[name] for name in names if name in grants}
    first = next((name for name in grants if name in found), "")
    return [
        (name, MAX_SCORE if name == first else _scaled(found.get(name), found[first] if first else 0.0))
        for name in names
    ]


def _scaled(score: float | None, best: float) -> int:
    if score is None:
        return 0
    return min(MAX_SCORE - 1, int(MAX_SCORE * score / best)) if best else MAX_SCORE - 1


def held_results(node_info: NodeInfo, placement: Placement) -> tuple[Result, ...]:
    """What a hold keeps in use: the devices of a placement, without the text that only the API needs."""
    return tuple(result for claim in held_by_claim(node_info, placement) for result in claim)


def held_by_claim(node_info: NodeInfo, placement: Placement) -> list[tuple[Result, ...]]:
    """The same for each open claim of the demand, in its order."""
    return [
        tuple(
            Result(
                pick.request.name,
                node_info.inventory.places[pick.bit].id,
                pick.request.admin_access,
                share_id="hold" if pick.consumed is not None else "",
                consumed=pick.consumed,
            )
            for pick in claim
        )
        for claim in placement.solution.picks
    ]


def plan(
    node_info: NodeInfo,
    requirements: PodRequirements,
    placement: Placement,
    context: EvaluationContext,
    new_share: Callable[[], str],
) -> list[tuple[Claim, Allocation]]:
    """The allocation of each open claim on this node."""
    classes = {class_.name: class_ for class_ in requirements.classes}
    problem = problem_for(node_info, requirements, context)
    found = allocations(problem, placement.solution, node_info.node.name, classes.get, new_share)
    return list(zip(requirements.pending_claims, found, strict=True))
