"""The explanation of one pod on a snapshot: its best nodes, or the reasons why no node fits."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from types import MappingProxyType

from extender.allocation import Interned, NodeInfo, Snapshot
from extender.diagnosis import near_misses
from extender.diagnosis.near_misses import EquivalentNodes, NearMiss
from extender.diagnosis.search_trace import SearchTrace, causes, trace, trace_search
from extender.diagnosis.selector_stats import NodeSample, selector_stats
from extender.model import SCHEDULER, Code, DeadlineExceeded, Pod, Reason, WireError, counted, one_line, shown
from extender.policy import Policy
from extender.scheduling import (
    EvaluationContext,
    FilterStatus,
    NodeRanking,
    NodesOfStatus,
    Pending,
    Placement,
    PodRequirements,
    ScoredNode,
    Skip,
    Unschedulable,
    UnschedulableAndUnresolvable,
    evaluate,
    requirements_of,
    scored_node,
)

_EXAMPLES = 3  # node names per reason
_BEST = 5
NodeInfos = Mapping[str, NodeInfo]


@dataclass(frozen=True, slots=True)
class UnschedulableNodes:
    """Nodes that are unschedulable for the same reason. `causes` are the device causes on one of them."""

    code: str
    reason: str
    nodes: int
    examples: tuple[str, ...]
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a pod.

    `outcome` is 'fits', 'refused' (no node fits), 'blocked' (unresolvable), 'waiting' (pending) or 'not-ours' (skip).
    """

    pod: str
    outcome: str
    sentence: str
    nodes: int = 0  # number of nodes in the snapshot
    fitting: int = 0  # number of nodes that fit
    best: tuple[ScoredNode, ...] = ()
    unschedulable: tuple[UnschedulableNodes, ...] = ()  # by reason, the most frequent first
    misses: tuple[str, ...] = ()  # near misses, the cheapest first
    terms: tuple[str, ...] = field(default=())  # selector terms with device counts
    narration: tuple[str, ...] = ()  # the search on one node, if the caller requested it


@dataclass(slots=True)
class NodesByReason:
    """Nodes that are unschedulable for one reason. `shown` are the ones whose first name sorts first."""

    shown: EquivalentNodes
    nodes: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, equivalent: EquivalentNodes) -> None:
        self.nodes += equivalent.nodes
        if equivalent.first[0] < self.shown.first[0]:
            self.shown = equivalent
        for name in equivalent.first[:_EXAMPLES]:
            if len(self.examples) >= _EXAMPLES and name > self.examples[-1]:
                break  # the rest sorts later, too
            insort(self.examples, name)
            del self.examples[_EXAMPLES:]


@dataclass(slots=True)
class AllUnschedulable:
    """All unschedulable nodes: by equivalence class, by reason text, and one sample per attribute signature."""

    classes: list[EquivalentNodes] = field(default_factory=list)
    reasons: dict[str, NodesByReason] = field(default_factory=dict)
    samples: dict[Interned | None, NodeSample] = field(default_factory=dict)
    nodes: int = 0

    def add(self, equivalent: EquivalentNodes) -> None:
        self.classes.append(equivalent)
        self.nodes += equivalent.nodes
        node_info, nodes = self.samples.get(equivalent.node_info.state.attribute_signature, (equivalent.node_info, 0))
        self.samples[equivalent.node_info.state.attribute_signature] = node_info, nodes + equivalent.nodes
        known = self.reasons.get(equivalent.status.text)
        if known is None:
            known = self.reasons[equivalent.status.text] = NodesByReason(equivalent)
        known.add(equivalent)


def explain(
    pod: Pod,
    snapshot: Snapshot,
    policy: Policy,
    context: EvaluationContext,
    ranking: NodeRanking | None = None,
    without_holds: NodeInfos = MappingProxyType({}),
    narrated: str = "",
) -> Explanation:
    """The explanation of a pod.

    `ranking` is a ranking for the pod's requirements that follows the snapshot's cache; None creates a new one.
    `without_holds` are NodeInfos that replace the snapshot's: there, the devices that the pod itself holds are free.
    `narrated` is the name of a node whose search is described line by line. Raises WireError for an unknown node, and
    DeadlineExceeded.
    """
    requirements = requirements_of(pod, snapshot, policy)
    name = str(pod.key)
    match requirements:
        case Skip():
            return Explanation(name, "not-ours", no_devices(pod))
        case Pending():
            return Explanation(name, "waiting", requirements.message)
        case UnschedulableAndUnresolvable():
            sentence = f"pod {name} fits nowhere: {requirements.reason}"
            return Explanation(name, "blocked", sentence, len(snapshot.node_infos))
        case PodRequirements():
            traces = _Traces(requirements, context)
            narration: tuple[str, ...] = ()
            if narrated:
                narration = trace_search(traces.of(without_holds.get(narrated) or _known(narrated, snapshot)), context)
            found = _explain(name, snapshot, ranking or NodeRanking(requirements), without_holds, traces)
            return replace(found, narration=narration)


def no_devices(pod: Pod) -> str:
    """The sentence about a pod that requests no devices."""
    return f"pod {pod.key} requests no devices: Berth accepts all nodes"


def other_scheduler(pod: Pod) -> str:
    """The sentence about a pod that Berth does not place because of its schedulerName; '' if Berth places it."""
    if pod.scheduler == SCHEDULER:
        return ""
    named = f"names scheduler {one_line(pod.scheduler)}" if pod.scheduler else "names no scheduler"
    return f"pod {pod.key} {named}; Berth does not place it: write schedulerName: {SCHEDULER}"


class _Traces:
    """Search traces by node, each computed once."""

    def __init__(self, requirements: PodRequirements, context: EvaluationContext) -> None:
        self.requirements = requirements
        self.context = context
        self._found: dict[str, SearchTrace] = {}

    def of(self, node_info: NodeInfo) -> SearchTrace:
        name = node_info.node.name
        if name not in self._found:
            self._found[name] = trace(node_info, self.requirements, self.context)
        return self._found[name]


def _known(node: str, snapshot: Snapshot) -> NodeInfo:
    if node not in snapshot.node_infos:
        raise WireError("narrate", f"node {shown(node)} is not known")
    return snapshot.node_infos[node]


def _explain(
    name: str, snapshot: Snapshot, ranking: NodeRanking, without_holds: NodeInfos, traces: _Traces
) -> Explanation:
    requirements, context, node_infos = traces.requirements, traces.context, snapshot.node_infos
    if not (ranking.update(snapshot, context) and ranking.refresh(snapshot, context)):
        raise DeadlineExceeded
    limits = bool(requirements.node_selectors)
    every_node = (one.node for one in node_infos.values())
    excluded = requirements.mismatches(every_node, deadline=context.deadline) if limits else {}
    allowed = set(node_infos).difference(*excluded.values()) if limits else None
    statuses = {
        node: evaluate(node_info, requirements.for_node(node_info.node), context)
        for node, node_info in without_holds.items()
        if allowed is None or node in allowed
    }
    unschedulable, nodes = AllUnschedulable(), 0
    for one in _nodes_by_status(ranking, excluded, allowed, statuses):
        nodes += one.nodes
        if isinstance(one.status, Unschedulable):
            first = one.first[0]
            unschedulable.add(
                EquivalentNodes(one.status, one.nodes, one.first, without_holds.get(first) or node_infos[first])
            )
    candidates = near_misses.nodes_to_try(unschedulable.classes)
    claims_by_pool = near_misses.claims_on(
        (*(one.shown.node_info for one in unschedulable.reasons.values()), *candidates), snapshot
    )
    by_reason = _by_reason(unschedulable, claims_by_pool, traces)
    fitting = nodes - unschedulable.nodes
    if fitting:
        best = [
            scored_node(without_holds.get(n) or node_infos[n], placement, requirements, snapshot)
            for n, placement in _best(ranking, allowed, statuses)
        ]
        return Explanation(name, "fits", _where(name, nodes, fitting, best), nodes, fitting, tuple(best), by_reason)
    ignores_identity = ranking.ignores_identity(context)
    terms = selector_stats(
        requirements, snapshot, unschedulable.samples.values() if ignores_identity else None, context
    )
    found_misses: list[NearMiss] = [
        *near_misses.by_device_count(requirements, unschedulable.classes, context, ignores_identity=ignores_identity),
        *near_misses.by_releasing_claims(
            candidates, requirements, context, claims_by_pool, ignores_identity=ignores_identity
        ),
        *near_misses.by_capacity(requirements, (node_info for node_info, _ in unschedulable.samples.values())),
        *near_misses.by_terms(terms),
    ]
    ordered = sorted(found_misses, key=lambda near_miss: (near_miss.of_group, near_miss.cost))
    misses = tuple(dict.fromkeys(near_miss.sentence for near_miss in ordered))
    sentences = tuple(term.sentence() for term in terms)
    return Explanation(name, "refused", _why(name, by_reason, misses), nodes, 0, (), by_reason, misses, sentences)


def _best(
    ranking: NodeRanking, allowed: set[str] | None, newer: Mapping[str, FilterStatus]
) -> list[tuple[str, Placement]]:
    """The best nodes by score. Statuses in `newer` replace those of the ranking."""
    found = [(name, placement) for name, placement in ranking.best(allowed, _BEST + len(newer)) if name not in newer]
    found += [(name, status) for name, status in newer.items() if isinstance(status, Placement)]
    return sorted(found, key=lambda one: (-one[1].score, one[0]))[:_BEST]


def _nodes_by_status(
    ranking: NodeRanking,
    excluded: Mapping[Code, list[str]],
    allowed: set[str] | None,
    newer: Mapping[str, FilterStatus],
) -> Iterator[NodesOfStatus]:
    """All nodes by status. The status of a node outside `allowed` says why the node is excluded."""
    yield from (NodesOfStatus(status, 1, [name]) for name, status in newer.items())
    for code, names in excluded.items():
        if names:
            yield NodesOfStatus(Unschedulable(Reason(code)), len(names), nsmallest(_EXAMPLES, names))
    yield from ranking.nodes_by_status(allowed, newer)


def _where(name: str, nodes: int, fitting: int, best: list[ScoredNode]) -> str:
    sentence = f"pod {name} fits on {fitting} of {counted(nodes, 'node')}"
    if not best:
        return sentence
    return f"{sentence}; {best[0].node} is best: {', '.join(best[0].all_devices) or 'no devices'}"


def _why(name: str, by_reason: tuple[UnschedulableNodes, ...], misses: tuple[str, ...]) -> str:
    if not by_reason:
        return f"pod {name} fits nowhere: the cluster has no node"
    most, nodes = by_reason[0], sum(one.nodes for one in by_reason)
    nearest = f"; {misses[0]}" if misses else ""
    return f"pod {name} fits nowhere: {most.reason} on {most.nodes} of {counted(nodes, 'node')}{nearest}"


def _by_reason(
    unschedulable: AllUnschedulable, claims_by_pool: near_misses.ClaimsByPool, traces: _Traces
) -> tuple[UnschedulableNodes, ...]:
    """Unschedulable nodes by reason, the most frequent reason first."""
    ordered = sorted(unschedulable.reasons.values(), key=lambda one: (-one.nodes, one.shown.status.text))
    return tuple(_with_causes(one, claims_by_pool, traces) for one in ordered)


def _with_causes(one: NodesByReason, claims_by_pool: near_misses.ClaimsByPool, traces: _Traces) -> UnschedulableNodes:
    node_info, status = one.shown.node_info, one.shown.status
    freeable = status.reason.code in near_misses.FREEABLE_CODES
    others = near_misses.claims_of_node(node_info, claims_by_pool) if freeable else ()
    why = causes(traces.of(node_info), map(near_misses.held_by, others))
    return UnschedulableNodes(status.reason.code.name, status.text, one.nodes, tuple(one.examples), why)
