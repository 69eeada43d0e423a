"""The results of filter and prioritize, computed from a ranking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from extender.allocation import Snapshot
from extender.model import Code, Reason
from extender.scheduling.collected_domain import CollectedDomain
from extender.scheduling.node_ranking import NodeRanking
from extender.scheduling.placements import Placement
from extender.scheduling.pod_group_proximity import PodGroupProximity, proximity_of
from extender.scheduling.pod_requirements import PodRequirements
from extender.scheduling.selected_nodes import SelectedNodes
from extender.wire import has_all

MAX_SCORE = 10  # MaxExtenderPriority of the extender API


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The result of filter: nodes with placements, the best first; or the reason of each node if no node fits."""

    nodes: dict[str, Placement] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def shortlist(
    ranking: NodeRanking,
    requirements: PodRequirements,
    snapshot: Snapshot,
    names: Sequence[str],
    collected: CollectedDomain | None = None,
    selected: SelectedNodes | None = None,
) -> Shortlist:
    """The best nodes among `names`, at most `candidates` of the policy, without those kept for a gang.

    The caller has updated the ranking to the snapshot. Pods with equal requirement keys share the ranking; node
    selectors and the pod group are not in the key, so they are applied here. For `selected` see
    PodRequirements.mismatches.
    """
    kept = collected.kept_from(requirements) if collected is not None else frozenset[str]()
    proximity = proximity_of(requirements, snapshot)
    if proximity is None and not requirements.node_selectors:
        # Usually a request names all nodes. This path avoids decoding every name, which is the slowest step.
        fitting = dict(ranking.best(None, requirements.policy.candidates, kept))
        if fitting and has_all(names, fitting):
            return Shortlist(fitting)
        if not fitting:
            return Shortlist(reasons=_reasons(ranking, requirements, snapshot, names, {}, collected))
    excluded = _excluded(requirements, snapshot, names, selected)
    wanted = set(names).difference(kept, *excluded.values())
    best = _best_of(wanted, ranking, requirements, snapshot)
    if best:
        if proximity is not None:
            best = _by_proximity(proximity, ranking, requirements, snapshot, best, wanted)
        return Shortlist(dict(best))
    return Shortlist(reasons=_reasons(ranking, requirements, snapshot, names, excluded, collected))


def _excluded(
    requirements: PodRequirements, snapshot: Snapshot, names: Iterable[str], selected: SelectedNodes | None
) -> dict[Code, list[str]]:
    if not requirements.node_selectors:
        return {}
    node_infos = snapshot.node_infos
    nodes = (found.node for name in names if (found := node_infos.get(name)) is not None)
    return requirements.mismatches(nodes, selected)


def _best_of(
    wanted: AbstractSet[str], ranking: NodeRanking, requirements: PodRequirements, snapshot: Snapshot
) -> list[tuple[str, Placement]]:
    """The best nodes among `wanted`, at most `candidates` of the policy."""
    if len(wanted) > requirements.policy.candidates:
        return ranking.best(wanted, requirements.policy.candidates)
    node_infos = [info for name in wanted if (info := snapshot.node_infos.get(name)) is not None]
    found = ((info.node.name, ranking.status(info)) for info in node_infos)
    return sorted(
        ((name, status) for name, status in found if isinstance(status, Placement)),
        key=lambda entry: (-entry[1].score, entry[0]),
    )


def _by_proximity(
    proximity: PodGroupProximity,
    ranking: NodeRanking,
    requirements: PodRequirements,
    snapshot: Snapshot,
    best: list[tuple[str, Placement]],
    wanted: set[str],
) -> list[tuple[str, Placement]]:
    """The best nodes and the best of each level near the pod group, ordered by the score with proximity."""
    placements = dict(best)
    for near in proximity.near_nodes(snapshot):
        placements.update(_best_of(near & wanted, ranking, requirements, snapshot))
    found = [
        (name, proximity.with_proximity(placement, snapshot.node_infos[name], requirements))
        for name, placement in placements.items()
    ]
    return sorted(found, key=lambda entry: (-entry[1].score, entry[0]))[: len(best)]


def _reasons(
    ranking: NodeRanking,
    requirements: PodRequirements,
    snapshot: Snapshot,
    names: Sequence[str],
    excluded: Mapping[Code, list[str]],
    collected: CollectedDomain | None,
) -> dict[str, str]:
    known, unknown = ranking.reasons(), str(Reason(Code.NODE_UNKNOWN))
    if collected is not None:
        kept = collected.kept_from(requirements) & snapshot.node_infos.keys()
        known = dict.fromkeys(kept, str(collected.reason)) | known
    found = {name: known.get(name, unknown) for name in names}
    for code, nodes in excluded.items():
        found.update(dict.fromkeys(nodes, str(Reason(code))))
    return found


def scores(placements: Mapping[str, float], names: Sequence[str]) -> list[tuple[str, int]]:
    """The extender score of each node, 0..10. `placements` maps node name to Berth's score, the best node first.

    Exactly one node gets 10: the best one in `names`. kube-scheduler chooses at random among equal scores, and then two
    pods could choose the same devices.
    """
    found = {name: placements[name] for name in names if name in placements}
    first = next((name for name in placements if name in found), "")
    return [
        (name, MAX_SCORE if name == first else _scaled(found.get(name), found[first] if first else 0.0))
        for name in names
    ]


def _scaled(score: float | None, best: float) -> int:
    if score is None:
        return 0
    return min(MAX_SCORE - 1, int(MAX_SCORE * score / best)) if best else MAX_SCORE - 1
