"""Why a pod goes where it goes, or nowhere: one explanation of a pod on a snapshot."""

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
from extender.model import CallBudgetSpent, Code, Pod, Reason, WireError
from extender.policy import Policy
from extender.scheduling import (
    EvaluationContext,
    FilterStatus,
    NodeRanking,
    Pending,
    Placement,
    PodRequirements,
    ScoredNode,
    Skip,
    StatusGroup,
    Unschedulable,
    UnschedulableAndUnresolvable,
    evaluate,
    requirements_of,
    scored_node,
)

_EXAMPLES = 3  # nodes named per group
_BEST = 5
_ELSEWHERE = Unschedulable(Reason(Code.ELSEWHERE))
Views = Mapping[str, NodeInfo]


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
    best: tuple[ScoredNode, ...] = ()
    groups: tuple[Group, ...] = ()
    misses: tuple[str, ...] = ()
    terms: tuple[str, ...] = field(default=())
    narration: tuple[str, ...] = ()  # the search on one node, where somebody asked for it


@dataclass(slots=True)
class NodesByReason:
    """Nodes refused for one reason, and the first of them that looks as `shown` does."""

    shown: EquivalentNodes
    nodes: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, equivalent: EquivalentNodes) -> None:
        self.nodes += equivalent.nodes
        if equivalent.first[0] < self.shown.first[0]:
            self.shown = equivalent
        for name in equivalent.first[:_EXAMPLES]:
            if len(self.examples) >= _EXAMPLES and name > self.examples[-1]:
                break  # they are in order
            insort(self.examples, name)
            del self.examples[_EXAMPLES:]


@dataclass(slots=True)
class UnschedulableNodes:
    """Refused nodes: in one state, by the text of their reason, and by how their devices look."""

    groups: list[EquivalentNodes] = field(default_factory=list)
    reasons: dict[str, NodesByReason] = field(default_factory=dict)
    samples: dict[Interned | None, NodeSample] = field(default_factory=dict)
    nodes: int = 0

    def add(self, equivalent: EquivalentNodes) -> None:
        self.groups.append(equivalent)
        self.nodes += equivalent.nodes
        node_info, nodes = self.samples.get(equivalent.node_info.state.attribute_class, (equivalent.node_info, 0))
        self.samples[equivalent.node_info.state.attribute_class] = node_info, nodes + equivalent.nodes
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
    own: Views = MappingProxyType({}),
    narrated: str = "",
) -> Explanation:
    """The explanation of a pod. `ranking` is one of the snapshot's mirror for the pod's demand, if the caller has one;
    `own` are the few nodes that look different to this pod; `narrated` is a node whose search is told in full. Raises
    WireError where that node is not known, and BudgetSpent."""
    requirements = requirements_of(pod, snapshot, policy)
    name = str(pod.key)
    match requirements:
        case Skip():
            return Explanation(name, "not-ours", f"pod {name} asks for no devices: Berth lets it pass")
        case Pending():
            return Explanation(name, "waiting", requirements.message)
        case UnschedulableAndUnresolvable():
            sentence = f"pod {name} fits nowhere: {requirements.reason}"
            return Explanation(name, "blocked", sentence, len(snapshot.node_infos))
        case PodRequirements():
            traces = _Traces(requirements, context)
            told: tuple[str, ...] = ()
            if narrated:
                told = trace_search(traces.of(own.get(narrated) or _known(narrated, snapshot)), context)
            found = _explain(name, snapshot, ranking or NodeRanking(requirements), own, traces)
            return replace(found, narration=told)


class _Traces:
    """Searches on the nodes that are shown, each made once."""

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
        raise WireError("narrate", f"node {node!r} is not known")
    return snapshot.node_infos[node]


def _explain(name: str, snapshot: Snapshot, ranking: NodeRanking, own: Views, traces: _Traces) -> Explanation:
    requirements, context, node_infos = traces.requirements, traces.context, snapshot.node_infos
    if not (ranking.update(snapshot, context) and ranking.refresh(snapshot, context)):
        raise CallBudgetSpent
    allowed = _allowed(requirements, snapshot) if requirements.node_selectors else None
    statuses = {
        node: evaluate(node_info, requirements.for_node(node_info.node), context)
        for node, node_info in own.items()
        if allowed is None or node in allowed
    }
    unschedulable, nodes = UnschedulableNodes(), 0
    for state in _states(ranking, snapshot, allowed, statuses):
        nodes += state.nodes
        if isinstance(state.status, Unschedulable):
            first = state.first[0]
            unschedulable.add(
                EquivalentNodes(state.status, state.nodes, state.first, own.get(first) or node_infos[first])
            )
    tried = near_misses.nodes_to_try(unschedulable.groups)
    claims_by_pool = near_misses.claims_on(
        (*(one.shown.node_info for one in unschedulable.reasons.values()), *tried), snapshot
    )
    groups = _groups(unschedulable, claims_by_pool, traces)
    fitting = nodes - unschedulable.nodes
    if fitting:
        best = [
            scored_node(own.get(n) or node_infos[n], placement, snapshot)
            for n, placement in _best(ranking, allowed, statuses)
        ]
        return Explanation(name, "fits", _where(name, nodes, fitting, best), nodes, fitting, tuple(best), groups)
    ignores_identity = ranking.ignores_identity(context)
    terms = selector_stats(
        requirements, snapshot, unschedulable.samples.values() if ignores_identity else None, context.budget
    )
    misses: list[NearMiss] = [
        *near_misses.by_device_count(requirements, unschedulable.groups, context, ignores_identity=ignores_identity),
        *near_misses.by_releasing_claims(
            tried, requirements, context, claims_by_pool, ignores_identity=ignores_identity
        ),
        *near_misses.by_capacity(requirements, (node_info for node_info, _ in unschedulable.samples.values())),
        *near_misses.by_terms(terms),
    ]
    told = tuple(
        dict.fromkeys(near_miss.sentence for near_miss in sorted(misses, key=lambda near_miss: near_miss.cost))
    )
    sentences = tuple(term.sentence() for term in terms)
    return Explanation(name, "refused", _why(name, groups, told), nodes, 0, (), groups, told, sentences)


def _best(
    ranking: NodeRanking, allowed: set[str] | None, own: Mapping[str, FilterStatus]
) -> list[tuple[str, Placement]]:
    """The best nodes, where those of `own` have other statuses than the ranking's."""
    found = [(name, placement) for name, placement in ranking.best(allowed, _BEST + len(own)) if name not in own]
    found += [(name, status) for name, status in own.items() if isinstance(status, Placement)]
    return sorted(found, key=lambda one: (-one[1].score, one[0]))[:_BEST]


def _states(
    ranking: NodeRanking, snapshot: Snapshot, allowed: set[str] | None, own: Mapping[str, FilterStatus]
) -> Iterator[StatusGroup]:
    """States of all nodes; those that are not allowed are in one, because a claim lies elsewhere."""
    yield from (StatusGroup(status, 1, [name]) for name, status in own.items())
    if allowed is not None:
        elsewhere = nsmallest(_EXAMPLES, snapshot.node_infos.keys() - allowed)
        if elsewhere:
            yield StatusGroup(_ELSEWHERE, len(snapshot.node_infos) - len(allowed), elsewhere)
    yield from ranking.status_groups(allowed, own)


def _where(name: str, nodes: int, fitting: int, best: list[ScoredNode]) -> str:
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


def _allowed(requirements: PodRequirements, snapshot: Snapshot) -> set[str]:
    """Nodes that claims which are allocated already do not rule out."""
    return {
        n
        for n, v in snapshot.node_infos.items()
        if all(pin.matches(n, v.node.labels) for pin in requirements.node_selectors)
    }


def _groups(
    unschedulable: UnschedulableNodes, claims_by_pool: near_misses.ClaimsByPool, traces: _Traces
) -> tuple[Group, ...]:
    """Refused nodes by reason, the most frequent reason first."""
    ordered = sorted(unschedulable.reasons.values(), key=lambda one: (-one.nodes, one.shown.status.text))
    return tuple(_group(one, claims_by_pool, traces) for one in ordered)


def _group(one: NodesByReason, claims_by_pool: near_misses.ClaimsByPool, traces: _Traces) -> Group:
    node_info, status = one.shown.node_info, one.shown.status
    freeable = status.reason.code in near_misses.FREEABLE_CODES
    others = near_misses.claims_of_node(node_info, claims_by_pool) if freeable else ()
    why = causes(traces.of(node_info), map(near_misses.held_by, others))
    return Group(status.reason.code.name, status.text, one.nodes, tuple(one.examples), why)
