"""The results of filter and prioritize, computed from a ranking, and the scores of nodes for pods without devices.

Five things are no part of the ranking, so they are added to its few best placements: the domain whose freed devices are
kept for a gang; whole racks and cliques, which stay whole; the cliques of other ComputeDomains, which come last; the
CPU beside free GPUs; and the proximity to other members of the pod's group. That is the same node, then the same
clique, then rack, then spine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from extender.allocation import NodeInfo, Snapshot
from extender.api.extender_v1 import has_all
from extender.api.gpu_topology import WHOLE
from extender.api.pod_groups import GroupKey
from extender.api.reasons import Code, Reason
from extender.base.text_limits import counted
from extender.policy import Policy
from extender.scheduling.domain_uses import path_labels
from extender.scheduling.evaluate import Placement
from extender.scheduling.node_ranking import NodeRanking
from extender.scheduling.node_selection import SelectedNodes
from extender.scheduling.requirements.pod_requirements import PodRequirements
from extender.scheduling.running_domain import outside_domain
from extender.topology.score_parts import GRADIENT_STEP, ScorePart, left_over, total
from extender.vendors import CLIQUE_LABEL

MAX_SCORE = 10  # MaxExtenderPriority of the extender API
# A free GPU with less than this part of the node's CPU per GPU counts as lost. On openb, 0.5 to 0.9 are much alike.
_CPU_NEEDED = 0.75
MAX_CLIQUE = 72  # nodes of a clique that are looked at: no NVLink clique has more GPUs

Best = list[tuple[str, Placement]]
"""Nodes with their placements, the best first."""


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
        fitting = ranking.best(None, requirements.policy.candidates, kept)
        kept_whole = keeping_domains(fitting, ranking, snapshot, without=kept)
        ordered = dict(by_cpu(kept_whole, requirements, snapshot))
        if ordered and has_all(names, ordered):
            return Shortlist(ordered)
        if not fitting:
            return Shortlist(reasons=_reasons(ranking, requirements, snapshot, names, {}, collected))
    excluded = _excluded(requirements, snapshot, names, selected)
    wanted = set(names).difference(kept, *excluded.values())
    if best := best_nodes(ranking, requirements, snapshot, wanted, requirements.policy.candidates):
        return Shortlist(dict(best))
    return Shortlist(reasons=_reasons(ranking, requirements, snapshot, names, excluded, collected))


def best_nodes(
    ranking: NodeRanking,
    requirements: PodRequirements,
    snapshot: Snapshot,
    names: AbstractSet[str],
    count: int,
) -> Best:
    """The best of these nodes, at most `count`: filter and explain have one order."""
    proximity = proximity_of(requirements, snapshot)
    crowded = in_cliques(requirements.crowded_cliques(snapshot), snapshot)
    best: Best = []
    for nodes in (names - crowded, names & crowded) if crowded else (names,):
        found = _best_of(nodes, ranking, requirements, snapshot, count)
        if found and proximity is not None:
            found = _by_proximity(proximity, ranking, requirements, snapshot, found, nodes)
        elif found:
            found = keeping_domains(found[:count], ranking, snapshot, nodes)
        best += by_cpu(found[: count - len(best)], requirements, snapshot)
    return best


def in_cliques(cliques: Iterable[str], snapshot: Snapshot) -> frozenset[str]:
    """The names of the nodes in these NVLink cliques."""
    by_clique = snapshot.domains((CLIQUE_LABEL,)).nodes if cliques else {}
    return frozenset[str]().union(*(by_clique.get(one, ()) for one in cliques))


def _excluded(
    requirements: PodRequirements, snapshot: Snapshot, names: Iterable[str], selected: SelectedNodes | None
) -> dict[Code, list[str]]:
    node_infos, membership, found = snapshot.node_infos, requirements.membership, dict[Code, list[str]]()
    if membership is not None:
        nodes = (one.node for name in names if (one := node_infos.get(name)) is not None)
        found[Code.GROUP_DOMAIN] = outside_domain(membership, nodes, snapshot, requirements.policy)
    if requirements.node_selectors:
        nodes = (one.node for name in names if (one := node_infos.get(name)) is not None)
        found |= requirements.mismatches(nodes, snapshot, selected)
    return found


def _best_of(
    wanted: AbstractSet[str], ranking: NodeRanking, requirements: PodRequirements, snapshot: Snapshot, count: int
) -> Best:
    """The best nodes among `wanted`, at most `count`."""
    if len(wanted) > max(count, requirements.policy.candidates):
        return ranking.best(wanted, count)
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
    best: Best,
    wanted: AbstractSet[str],
) -> Best:
    """The best nodes and the best of each level near the pod group, ordered by the score with proximity.

    Of several with the highest score, one in a partly used domain comes first.
    """
    placements = dict(keeping_domains(best, ranking, snapshot, wanted))
    for near in proximity.near_nodes():
        nodes = near & wanted
        found = _best_of(nodes, ranking, requirements, snapshot, len(best))
        placements.update(keeping_domains(found, ranking, snapshot, nodes))
    found = [
        (name, proximity.with_proximity(placement, snapshot.node_infos[name], requirements))
        for name, placement in placements.items()
    ]
    found.sort(key=lambda entry: (-entry[1].score, entry[0]))
    ranking.uses.update(snapshot)
    first = ranking.uses.first_of([name for name, one in found if one.score == found[0][1].score])
    return sorted(found, key=lambda entry: entry[0] != first)[: len(best)]


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


# -- pods that need no devices: a node with fewer free GPUs for other pods gets a higher score ------------------------
# Such a pod takes CPU and memory only. If it takes them on a node with free GPUs, a later pod may find the GPUs there,
# but not the CPU that it asks for beside them. On Alibaba's openb trace, NodeResourcesFit alone spreads these pods so
# that twice as many GPUs can no longer be used.
#
# A point of an extender weighs 200 in scheduler-config/. NodeResourcesFit and NodeResourcesBalancedAllocation add at
# most 100 each, so a point decides before them. What the pod itself prefers decides between nodes with nearly equal
# points: a preferred affinity or a spread constraint weighs 200, too. Between equal points MostAllocated decides, the
# strategy in scheduler-config/: it fills one node before it takes the CPU of the next.


class DevicelessScores:
    """The score of each node. It follows the snapshots of one cache: an update costs as much as the changed nodes."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._scores: dict[str, int] = {}

    def of(self, names: Iterable[str], snapshot: Snapshot) -> list[tuple[str, int]]:
        """The extender score of each node; 0 for a node that is not known."""
        self._update(snapshot)
        known = self._scores
        return [(name, known.get(name, 0)) for name in names]

    def _update(self, snapshot: Snapshot) -> None:
        changed = snapshot.changed_since(self._version) if self._version is not None else None
        if changed is None:
            self._scores = {name: _used_tenths(node_info) for name, node_info in snapshot.node_infos.items()}
        for name in changed or ():
            node_info = snapshot.node_infos.get(name)
            if node_info is None:
                self._scores.pop(name, None)
            else:
                self._scores[name] = _used_tenths(node_info)
        self._version = snapshot.version


def _used_tenths(node_info: NodeInfo) -> int:
    """The share of the GPUs that is in use, in tenths, rounded down; all if the node has none."""
    gpus, shared = node_info.inventory.gpus, node_info.partly_used
    if not gpus:
        return MAX_SCORE
    parts = sum(milli for milli in left_over(node_info, shared) if milli < WHOLE)
    free = WHOLE * (gpus & ~(node_info.busy | shared)).bit_count() + parts
    total = WHOLE * gpus.bit_count()
    return MAX_SCORE * (total - free) // total


# -- whole domains: no score knows them, as nodes with equal hardware and use share their score -----------------------


def keeping_domains(
    best: Best,
    ranking: NodeRanking,
    snapshot: Snapshot,
    allowed: AbstractSet[str] | None = None,
    without: Collection[str] = (),
) -> Best:
    """The best nodes, ordered by score: of nodes as good as the first, one in a partly used domain comes first.

    The levels are `group_levels`, see DomainUses. Nodes that are not among `best` count too, if they are `allowed`
    (None: all). The work does not grow with the fleet.
    """
    highest = best[0][1].score if best else 0.0
    if not best or (len(best) > 1 and best[1][1].score != highest):
        return best
    uses = ranking.uses
    uses.update(snapshot)
    if uses.size == 1:  # all nodes are in the same domains
        return best
    equal = [name for name, placement in best if placement.score == highest]
    first: str | None = None
    if len(equal) == len(best):  # there may be more
        first = uses.first(ranking.states_with(highest), allowed, without)
    first = uses.first_of(equal if first is None else [equal[0], first])
    placement = dict(best).get(first) or ranking.status(snapshot.node_infos[first])
    if first == best[0][0] or not isinstance(placement, Placement):
        return best
    return [(first, placement), *(other for other in best if other[0] != first)][: len(best)]


# -- CPU: a free GPU without CPU beside it is lost, because no pod that needs it fits there. FGD (USENIX ATC'23) counts
# it as fragmentation. LeastAllocated of kube-scheduler cannot see it: it does not know the GPUs.


def by_cpu(best: Best, requirements: PodRequirements, snapshot: Snapshot) -> Best:
    """The same nodes, with CPU in their scores, ordered by score. Nodes with equal scores keep their order."""
    if not snapshot.claimed_cpu:
        return best
    nodes, cpu, known = snapshot.node_infos, requirements.cpu, dict[tuple[int, float], Placement]()
    found: Best = []
    for name, placement in best:
        if lost := _lost_gpus(placement, nodes[name], cpu, snapshot):
            key = id(placement), lost  # nodes in one state share a placement
            if key not in known:
                known[key] = _with_lost(placement, lost, requirements.policy, snapshot)
            found.append((name, known[key]))
        else:
            found.append((name, placement))
    return sorted(found, key=lambda entry: -entry[1].score) if known else best


def with_cpu(placement: Placement, node_info: NodeInfo, requirements: PodRequirements, snapshot: Snapshot) -> Placement:
    """The placement with the GPUs that lose their CPU, or that are used without it, in the part `fragmentation`."""
    lost = _lost_gpus(placement, node_info, requirements.cpu, snapshot)
    return _with_lost(placement, lost, requirements.policy, snapshot) if lost else placement


def _with_lost(placement: Placement, lost: float, policy: Policy, snapshot: Snapshot) -> Placement:
    words = f"{abs(lost):.2f} GPUs {'lose the CPU beside them' if lost > 0 else 'without CPU get used'}"
    share = lost / max(snapshot.baseline.most_gpus, 1)
    parts = tuple(
        ScorePart(part.name, min(max(part.value - share, 0.0), 1.0), f"{part.sentence}, {words}")
        if part.name == "fragmentation"
        else part
        for part in placement.parts
    )
    return placement.with_parts(parts, total(parts, policy))


def _lost_gpus(placement: Placement, node_info: NodeInfo, cpu: int, snapshot: Snapshot) -> float:
    """How many more free GPUs than before would have too little CPU, in steps; below 0 if fewer would."""
    (before, after), node = placement.free_gpus, node_info.node
    if before == after or not node.cpu:
        return 0.0
    left = max(node.cpu - snapshot.claimed_cpu.get(node.name, 0), 0)
    each = _CPU_NEEDED * node.cpu / len(node_info.gpu_bits) / WHOLE  # CPU that a thousandth of a GPU needs
    if left - cpu >= before * each:
        return 0.0  # enough for all, as on most nodes
    more = max(after - max(left - cpu, 0) / each, 0.0) - max(before - left / each, 0.0)
    return round(more / WHOLE / GRADIENT_STEP) * GRADIENT_STEP


# -- gangs and groups ---------------------------------------------------------------------------------------------

_NO_NODES = frozenset[str]()


@dataclass(frozen=True, slots=True)
class CollectedDomain:
    """Nodes of a domain that other pods must not use while the gang collects there."""

    key: GroupKey
    level: str  # 'node' or a label, see Domain
    name: str  # the node or the value of the label
    nodes: frozenset[str]
    since: float  # in seconds of the service's clock

    def kept_from(self, requirements: PodRequirements) -> frozenset[str]:
        """The nodes that the pod must not use.

        There are none for a pod of the gang, for a pod that has devices of a node already, and for one that takes none.
        """
        if requirements.group == self.key or requirements.node_selectors or not _takes_devices(requirements):
            return _NO_NODES
        return self.nodes

    @property
    def reason(self) -> Reason:
        """Why other pods must not use the nodes."""
        return Reason(Code.COLLECTED_FOR_GANG, (self.key.name,))


def _takes_devices(requirements: PodRequirements) -> bool:
    requests = (request for spec in requirements.specs for request in spec.requests)
    return requirements.extended is not None or any(
        not option.admin_access for request in requests for option in request.alternatives
    )


@dataclass(frozen=True, slots=True)
class PodGroupProximity:
    """Nodes of the group's other pods. `levels` are (label, nodes of the domain with most), the nearest first."""

    group: str
    placed: int  # claims of the group that have devices on a known node
    nodes: frozenset[str]
    levels: tuple[tuple[str, frozenset[str]], ...]
    count: int  # number of levels in the policy

    def near_nodes(self) -> Iterator[frozenset[str]]:
        """The names of the nodes that are near the group, by level; the nearest nodes are in several levels."""
        yield self.nodes
        for _, nodes in self.levels:
            yield nodes

    def part(self, node_info: NodeInfo) -> ScorePart:
        """The score part of a node, 0..1: 1 on the same node, less for each farther level, 0 where no level matches."""
        if node_info.node.name in self.nodes:
            return ScorePart("clique", 1.0, f"pods of group {self.group} are on this node")
        for label, nodes in self.levels:
            if node_info.node.name in nodes:
                return ScorePart(
                    "clique",
                    self._value(label),
                    f"same {label} as most of {counted(self.placed, 'placed claim')} of group {self.group}",
                )
        return ScorePart("clique", 0.0, f"far from {counted(self.placed, 'placed claim')} of group {self.group}")

    def _value(self, label: str) -> float:
        position = next(i for i, (known, _) in enumerate(self.levels) if known == label)
        return 1 - position / self.count

    def with_proximity(self, placement: Placement, node_info: NodeInfo, requirements: PodRequirements) -> Placement:
        """The placement with this score part added and the score computed again."""
        parts = (*placement.parts, self.part(node_info))
        return placement.with_parts(parts, total(parts, requirements.policy))


def proximity_of(requirements: PodRequirements, snapshot: Snapshot) -> PodGroupProximity | None:
    """The proximity to the pod's group; None for a pod without a group and for a group without placed pods."""
    if requirements.group is None:
        return None
    by_node = Counter(snapshot.claims_of_group(requirements.group).values())  # a node may have hundreds of claims
    nodes = {name: number for name, number in by_node.items() if name in snapshot.node_infos}
    if not nodes:
        return None
    levels = []
    for label in requirements.policy.group_levels:
        domains = snapshot.domains(path_labels(label, requirements.policy.group_levels))
        if (name := domains.of_most(nodes)) is not None:
            levels.append((label, domains.nodes[name]))
    placed, count = sum(nodes.values()), len(requirements.policy.group_levels)
    return PodGroupProximity(requirements.group.name, placed, frozenset(nodes), tuple(levels), count)
