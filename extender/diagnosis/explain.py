"""The explanation of one pod on a snapshot: its best nodes, or the reasons why no node fits."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from types import MappingProxyType

from extender.allocation import NodeInfo, Snapshot
from extender.allocation.nodes import Interned
from extender.diagnosis import near_misses
from extender.diagnosis.near_misses import EquivalentNodes, NearMiss, SharedClaims
from extender.diagnosis.scenario import Scenario, apply_scenario
from extender.diagnosis.search_trace import SearchTrace, causes, trace, trace_search
from extender.diagnosis.selector_stats import NodeSample, selector_stats
from extender.model import (
    FREEABLE_CODES,
    SCHEDULER,
    Claim,
    Code,
    DeadlineExceeded,
    Pod,
    Reason,
    WireError,
    counted,
    one_line,
    shown,
)
from extender.policy import Policy
from extender.scheduling import (
    EvaluationContext,
    FilterStatus,
    NodeRanking,
    NodesOfStatus,
    Placement,
    PodRequirements,
    ScoredNode,
    Unschedulable,
    UsableNodes,
    evaluate,
    requirements_of,
)
from extender.scheduling.requirements import (
    Pending,
    Skip,
    UnschedulableAndUnresolvable,
    needs_reservation,
    unprovided_resource,
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
        self.nodes += equivalent.nodes
        if equivalent.status.reason.code is not Code.NODE_CONSTRAINTS:  # of no use, whatever happens to their devices
            self.classes.append(equivalent)
            signature = equivalent.node_info.state.attribute_signature
            node_info, nodes = self.samples.get(signature, (equivalent.node_info, 0))
            self.samples[signature] = node_info, nodes + equivalent.nodes
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
    if resource := unprovided_resource(pod, snapshot):
        requirements = UnschedulableAndUnresolvable(Reason(Code.NO_RESOURCE, (resource,)))
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
            excluded = _excluded(pod, requirements, snapshot, context)
            shared = _shared_claims(pod, requirements, snapshot, policy, excluded.get(Code.ELSEWHERE, ()))
            ranking = ranking or NodeRanking(requirements)
            found = _explain(name, snapshot, ranking, without_holds, traces, excluded, shared)
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


def _shared_claims(
    pod: Pod, requirements: PodRequirements, snapshot: Snapshot, policy: Policy, elsewhere: Iterable[str]
) -> SharedClaims:
    known: dict[tuple[Claim, ...], PodRequirements | None] = {(): requirements}

    def without(claims: tuple[Claim, ...]) -> PodRequirements | None:
        if claims not in known:
            changed = apply_scenario(snapshot, (), Scenario(deallocated=claims))
            found = requirements_of(pod, changed, policy)
            known[claims] = found if isinstance(found, PodRequirements) else None
        return known[claims]

    claims = tuple(claim for claim in requirements.allocated_claims if needs_reservation(claim, pod))
    return SharedClaims(claims, without, [snapshot.node_infos[node] for node in elsewhere if claims])


def _excluded(
    pod: Pod, requirements: PodRequirements, snapshot: Snapshot, context: EvaluationContext
) -> Mapping[Code, list[str]]:
    """The nodes that the pod may not use, whatever devices they have, by the reason. Raises DeadlineExceeded."""
    nodes = {name: one.node for name, one in snapshot.node_infos.items()}
    usable = UsableNodes(1).of([pod], nodes, snapshot.version, context.deadline) if pod.constraints_are_known else {}
    left = {name: node for name, node in nodes.items() if name in usable[pod.uid]} if usable else nodes
    found = {Code.NODE_CONSTRAINTS: [name for name in nodes if name not in left]} if usable else {}
    if requirements.node_selectors:
        found |= requirements.mismatches(left.values(), deadline=context.deadline)
    return found


def _explain(
    name: str,
    snapshot: Snapshot,
    ranking: NodeRanking,
    without_holds: NodeInfos,
    traces: _Traces,
    excluded: Mapping[Code, list[str]],
    shared: SharedClaims,
) -> Explanation:
    requirements, context, node_infos = traces.requirements, traces.context, snapshot.node_infos
    if not (ranking.update(snapshot, context) and ranking.refresh(snapshot, context)):
        raise DeadlineExceeded
    allowed = set(node_infos).difference(*excluded.values()) if excluded else None
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
    by_reason = _by_reason(unschedulable, snapshot, traces)
    fitting = nodes - unschedulable.nodes
    if fitting:
        best = [
            ScoredNode.of(without_holds.get(n) or node_infos[n], placement, requirements, snapshot)
            for n, placement in _best(ranking, allowed, statuses)
        ]
        sentence = _where(name, nodes, fitting, best) + _leaves(excluded, nodes)
        return Explanation(name, "fits", sentence, nodes, fitting, tuple(best), by_reason)
    if not unschedulable.classes:
        return Explanation(name, "refused", _why(name, by_reason, ()), nodes, 0, (), by_reason)
    misses, terms = _misses(snapshot, ranking, traces, shared, unschedulable)
    return Explanation(name, "refused", _why(name, by_reason, misses), nodes, 0, (), by_reason, misses, terms)


def _misses(
    snapshot: Snapshot, ranking: NodeRanking, traces: _Traces, shared: SharedClaims, unschedulable: AllUnschedulable
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The near misses, the cheapest first, and the terms of selectors. Raises DeadlineExceeded."""
    requirements, context = traces.requirements, traces.context
    candidates, may_fit = near_misses.nodes_to_try(unschedulable.classes, shared.elsewhere)
    ignores_identity = ranking.ignores_identity(context)
    terms = selector_stats(
        requirements, snapshot, unschedulable.samples.values() if ignores_identity else None, context
    )
    released = near_misses.by_releasing_claims(
        candidates,
        requirements,
        context,
        near_misses.claims_on(candidates, snapshot),
        shared,
        covers_all=may_fit == len(candidates) or (ignores_identity and len(candidates) < near_misses.MOST_NODES),
        ignores_identity=ignores_identity,
    )
    helps = any(one.cost for one in released)  # then what no device has, such as for another alternative, comes last
    found_misses: list[NearMiss] = [
        *near_misses.by_device_count(requirements, unschedulable.classes, context, ignores_identity=ignores_identity),
        *released,
        *near_misses.by_devices(requirements, unschedulable.samples.values(), context),
        *near_misses.by_terms(terms),
    ]
    ordered = sorted(
        found_misses, key=lambda near_miss: (helps and not near_miss.cost, near_miss.of_group, near_miss.cost)
    )
    misses = tuple(dict.fromkeys(near_miss.sentence for near_miss in ordered))
    return misses, tuple(term.sentence() for term in terms)


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


def _leaves(excluded: Mapping[Code, list[str]], nodes: int) -> str:
    away = len(excluded.get(Code.NODE_CONSTRAINTS, ()))
    left = f"{nodes - away} of {counted(nodes, 'node')}"
    return f"; node selector, node affinity, taints and cordons leave {left}" if away else ""


def _why(name: str, by_reason: tuple[UnschedulableNodes, ...], misses: tuple[str, ...]) -> str:
    if not by_reason:
        return f"pod {name} fits nowhere: the cluster has no node"
    most, nodes = by_reason[0], sum(one.nodes for one in by_reason)
    nearest = f"; {misses[0]}" if misses else ""
    return f"pod {name} fits nowhere: {most.reason} on {most.nodes} of {counted(nodes, 'node')}{nearest}"


def _by_reason(unschedulable: AllUnschedulable, snapshot: Snapshot, traces: _Traces) -> tuple[UnschedulableNodes, ...]:
    """Unschedulable nodes by reason, the most frequent reason first."""
    claims_by_pool = near_misses.claims_on((one.shown.node_info for one in unschedulable.reasons.values()), snapshot)
    ordered = sorted(unschedulable.reasons.values(), key=lambda one: (-one.nodes, one.shown.status.text))
    return tuple(_with_causes(one, claims_by_pool, traces) for one in ordered)


def _with_causes(one: NodesByReason, claims_by_pool: near_misses.ClaimsByPool, traces: _Traces) -> UnschedulableNodes:
    node_info, status = one.shown.node_info, one.shown.status
    held: tuple[str, ...] = ()
    if status.reason.code in FREEABLE_CODES:
        claims = near_misses.others_on_node(node_info, claims_by_pool, traces.requirements)
        held = near_misses.usable_held(
            claims, near_misses.usable_devices(node_info, traces.requirements, traces.context)
        )
    why = causes(traces.of(node_info), held)
    return UnschedulableNodes(status.reason.code.name, status.text, one.nodes, tuple(one.examples), why)
