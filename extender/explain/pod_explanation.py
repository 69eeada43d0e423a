"""The explanation of one pod on a snapshot: its best nodes, or the reasons why no node fits and what would help.

`explain` tells it in four steps:

1. The question. The requirements of the pod are read. A pod that asks for no devices, waits for a claim or cannot fit
   on any node has its answer at once.
2. The statuses. A ranking has the status of every node, and evaluates equal nodes once. Nodes that kube-scheduler
   excludes whatever devices they have (node selector, affinity, taints, the node of an allocated claim) get a status of
   their own.
3. The reasons. Unschedulable nodes are counted by the text of their reason. For one node of each reason, a recorded
   search (`trace`) says why each device was rejected.
4. What would help. If no node fits, near_misses.py looks for changes with which one does, the cheapest first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import chain, islice
from typing import NamedTuple

from extender.allocation import CAUSES, CauseRecorder, NodeInfo, Snapshot
from extender.api.object_meta import ObjectKey
from extender.api.pods import SCHEDULER, Pod
from extender.api.quantity import parse_quantity
from extender.api.reasons import FREEABLE_CODES, Code, Reason
from extender.base.berth_errors import InvalidClaim, WireError
from extender.base.bits import members
from extender.base.deadline import DeadlineExceeded
from extender.base.text_limits import counted, first_few, one_line, shown
from extender.explain.excluded_nodes import Obstacles, counted_obstacles, excluded_nodes, kept_from, remedies
from extender.explain.fleet_rows import product
from extender.explain.near_misses import (
    EquivalentNodes,
    Found,
    PodQuestion,
    Refusal,
    holders_of_usable,
    near_misses,
    options_of,
)
from extender.policy import Policy
from extender.scheduling import (
    EvaluationContext,
    FilterStatus,
    NodeRanking,
    NodesOfStatus,
    Placement,
    PodRequirements,
    RankingCache,
    Unschedulable,
    beside_own,
    evaluate,
    requirements_of,
)
from extender.scheduling.decision import ScoredNode, crowded_text
from extender.scheduling.requirements import ErrorStatus, Skip, UnschedulableAndUnresolvable, unprovided_resource
from extender.scheduling.running_domain import outside_domain
from extender.scheduling.shortlist import MAX_CLIQUE, Best, best_nodes, in_cliques
from extender.topology.link_knowledge import NOT_KNOWN, assumed_for, may_be_joined, unknown_links
from extender.vendors import CLIQUE_LABEL, compute_domain

_MAX_EXAMPLES = 3  # node names per reason
_MAX_BEST = 5
_MAX_REJECTIONS = 200  # lines about rejected devices
_MAX_CAUSES = 4  # causes in one list
_MAX_CAUSE_BYTES = 1024  # of one cause, which can name 100 devices


@dataclass(frozen=True, slots=True)
class UnschedulableNodes:
    """Nodes that are unschedulable for the same reason. `causes` are those of the devices of the first example."""

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
    unschedulable: tuple[UnschedulableNodes, ...] = ()  # by reason, see _by_reason
    misses: tuple[str, ...] = ()  # near misses, the cheapest first
    facts: tuple[str, ...] = ()  # those of the misses that only say what is lacking
    terms: tuple[str, ...] = ()  # selector terms with device counts
    failing: tuple[str, ...] = ()  # those of the terms that no device passes, or that have no value on some
    narration: tuple[str, ...] = ()  # the search on one node, if the caller requested it


def explain(
    pod: Pod,
    snapshot: Snapshot,
    policy: Policy,
    context: EvaluationContext,
    rankings: RankingCache | None = None,
    narrated: str = "",
) -> Explanation:
    """The explanation of a pod.

    `rankings` follow the snapshot's cache; None if the snapshot or the policy is hypothetical. `narrated` is the name
    of a node whose search is described line by line. Raises WireError for an unknown node, and DeadlineExceeded.
    """
    requirements = requirements_of(pod, snapshot, policy)
    name = str(pod.key)
    if resource := unprovided_resource(pod, snapshot):
        requirements = UnschedulableAndUnresolvable(Reason(Code.NO_RESOURCE, (resource,)))
    match requirements:
        case Skip():
            return Explanation(name, "not-ours", no_devices(pod))
        case ErrorStatus():
            return Explanation(name, "waiting", requirements.message)
        case UnschedulableAndUnresolvable():
            sentence = f"pod {name} fits nowhere: {requirements.reason}"
            return Explanation(name, "blocked", sentence, len(snapshot.node_infos))
        case PodRequirements():
            ranking = rankings.get_or_create(requirements) if rankings is not None else NodeRanking(requirements)
            question = PodQuestion(pod, requirements, snapshot, policy, context, ranking)
            narration = _narration(narrated, question) if narrated else ()
            return replace(_explanation(question), narration=narration)


def no_devices(pod: Pod) -> str:
    """The sentence about a pod that requests no devices."""
    return f"pod {pod.key} requests no devices: Berth accepts all nodes"


def other_scheduler(pod: Pod) -> str:
    """The sentence about a pod that Berth does not place because of its schedulerName; '' if Berth places it."""
    if pod.scheduler == SCHEDULER:
        return ""
    named = f"names scheduler {one_line(pod.scheduler)}" if pod.scheduler else "names no scheduler"
    return f"pod {pod.key} {named}; Berth does not place it: write schedulerName: {SCHEDULER}"


def _narration(node: str, question: PodQuestion) -> tuple[str, ...]:
    if node not in question.snapshot.node_infos:
        raise WireError("narrate", f"node {shown(node)} is not known")
    found = trace(question.snapshot.node_infos[node], question.requirements, question.context)
    return trace_search(found, question.context)


def _explanation(question: PodQuestion) -> Explanation:
    """Raises DeadlineExceeded."""
    snapshot, context, ranking, name = question.snapshot, question.context, question.ranking, str(question.pod.key)
    is_known = question.pod.constraints_are_known
    outside = excluded_nodes(question.pod, snapshot.node_infos, context.deadline) if is_known else {}
    excluded = _excluded(question, outside)
    if not (ranking.update(snapshot, context) and ranking.refresh(snapshot, context)):
        raise DeadlineExceeded
    allowed = set(snapshot.node_infos).difference(*excluded.values()) if excluded else None
    found = list(_nodes_by_status(ranking, excluded, allowed))
    refusing = [
        EquivalentNodes(one.status, one.nodes, one.first, snapshot.node_infos[one.first[0]])
        for one in found
        if isinstance(one.status, Unschedulable)
    ]
    groups, nodes = _by_reason(refusing), sum(one.nodes for one in found)
    reasons = tuple(_with_causes(one, question, outside) for one in groups)
    if fitting := nodes - sum(one.nodes for one in refusing):
        ranked = ranking, question.requirements, snapshot, snapshot.node_infos.keys() if allowed is None else allowed
        count = max(_MAX_BEST, question.requirements.policy.candidates)  # filter's order of equal ones
        best = [_scored(question, node, placement) for node, placement in best_nodes(*ranked, count)[:_MAX_BEST]]
        sentence = _fits(name, nodes, fitting, best) + _leaves(excluded, nodes)
        sentence += assumed_for([question.requirements.intent], [snapshot.node_infos[one.node] for one in best[:1]])
        sentence += why_last(best, *ranked)
        return Explanation(name, "fits", sentence, nodes, fitting, tuple(best), reasons)
    # The others are of no use, whatever happens to their devices.
    classes = [one for one in refusing if one.status.reason.code is not Code.NODE_CONSTRAINTS]
    elsewhere = [snapshot.node_infos[node] for node in excluded.get(Code.ELSEWHERE, ())]
    misses, facts, stats = near_misses(Refusal(question, classes, elsewhere)) if classes else Found((), (), [])
    terms, failing = (tuple(one.sentence() for one in some) for some in (stats, [one for one in stats if one.fails]))
    # Nodes that only another ComputeDomain keeps from the pod say most, even if others are more.
    kept = excluded.get(Code.CLIQUE, ())
    kept = [node for node in kept if isinstance(ranking.status(snapshot.node_infos[node]), Placement)]
    if kept:
        reasons = tuple(sorted(reasons, key=lambda one: one.code != Code.CLIQUE.name))
        misses = (*clique_misses(kept, question.requirements, snapshot), *misses)
    kept_out, cause = _usable(outside, question), ""
    if kept_out:
        is_near = any(_rank(one.code) < _FAR for one in reasons)
        is_selected = all(one.selector for one in kept_out.values())  # the nodes that it selects say more
        cause = kept_from(kept_out) if not (is_near and is_selected) else ""
        misses = (*remedies(kept_out), *misses) if cause else (*misses, *remedies(kept_out))
    # They have enough free devices, but no agent reports their links.
    may_fit = [node for one in classes if may_be_joined(one.node_info, one.status.reason.code) for node in one.first]
    beginning = f"pod {name} {NOT_KNOWN}" if may_fit else f"pod {name} fits nowhere"
    nearest = misses[0] if misses and not cause else ""
    beginning += f": {cause};" if cause else ":"
    where = _where(reasons[0].reason, groups, nodes) if reasons else ""
    sentence = _refused(beginning, reasons, nearest, where, counted_obstacles(outside.values()))
    if may_fit:
        sentence += f"; {unknown_links(may_fit)}: it may fit there"
    if misses and any(one.renamed is not None and one.sentence() == misses[0] for one in stats):
        sentence = f"pod {name} fits nowhere: {misses[0]}"  # the reasons of nodes only follow from it
    return Explanation(name, "refused", sentence, nodes, 0, (), reasons, misses, facts, terms, failing)


def _scored(question: PodQuestion, node: str, placement: Placement) -> ScoredNode:
    """The node with the devices that the pod would get there. Raises DeadlineExceeded."""
    node_info, requirements, context = question.snapshot.node_infos[node], question.requirements, question.context
    chosen = beside_own(placement, node_info, requirements, context)
    return ScoredNode.of(node_info, chosen, requirements, context, question.snapshot)


# -- statuses ------------------------------------------------------------------------------------------------------


def _excluded(question: PodQuestion, outside: Mapping[str, Obstacles]) -> Mapping[Code, list[str]]:
    """The nodes that the pod may not use, whatever devices they have, by the reason. Raises DeadlineExceeded."""
    node_infos, deadline = question.snapshot.node_infos, question.context.deadline
    found = {Code.NODE_CONSTRAINTS: list(outside)} if outside else {}
    hidden = set(outside)
    if question.requirements.membership is not None:
        nodes = (one.node for name, one in node_infos.items() if name not in hidden)
        away = outside_domain(question.requirements.membership, nodes, question.snapshot, question.policy)
        found |= {Code.GROUP_DOMAIN: away} if away else {}
        hidden.update(away)
    if question.requirements.node_selectors:
        left = [one.node for name, one in node_infos.items() if name not in hidden]
        found |= question.requirements.mismatches(left, question.snapshot, deadline=deadline)
    return found


def _usable(outside: Mapping[str, Obstacles], question: PodQuestion) -> dict[str, Obstacles]:
    """The nodes on which the pod may not run and would else fit. Raises DeadlineExceeded."""
    infos, requirements = question.snapshot.node_infos, question.requirements
    found = dict[str, Obstacles]()
    for name, obstacles in outside.items():
        status = question.ranking.status(infos[name])
        # Without a device for the pod, it is a device plugin that offers some there.
        if isinstance(status, Placement) and (status.solution.mask or requirements.allocated_claims):
            found[name] = obstacles
    nodes = [infos[name].node for name in found]
    away = {*outside_domain(requirements.membership, nodes, question.snapshot, question.policy)}
    away.update(*requirements.mismatches(nodes, question.snapshot, deadline=question.context.deadline).values())
    return {name: one for name, one in found.items() if name not in away}


def _nodes_by_status(
    ranking: NodeRanking,
    excluded: Mapping[Code, list[str]],
    allowed: set[str] | None,
) -> Iterator[NodesOfStatus]:
    """All nodes by status. The status of a node outside `allowed` says why the node is excluded."""
    for code, names in excluded.items():
        if names:
            yield NodesOfStatus(Unschedulable(Reason(code)), len(names), nsmallest(_MAX_EXAMPLES, names))
    yield from ranking.nodes_by_status(allowed)


# -- reasons -------------------------------------------------------------------------------------------------------


class _NodesByReason(NamedTuple):
    """Nodes that are unschedulable for one reason."""

    shown: EquivalentNodes  # those whose first name sorts first
    nodes: int
    examples: tuple[str, ...]
    products: Counter[str]  # nodes by the product of their GPUs

    @property
    def reason(self) -> Reason:
        """The reason of all these nodes."""
        return self.shown.status.reason


def _by_reason(refusing: Iterable[EquivalentNodes]) -> list[_NodesByReason]:
    """The nodes by the text of their reason: those first that could serve the pod, see _distance."""
    groups = defaultdict[str, list[EquivalentNodes]](list)
    for equivalent in refusing:
        groups[equivalent.status.text].append(equivalent)
    found = []
    for group in groups.values():
        products = Counter[str]()
        for one in group:
            products[product(one.node_info)] += one.nodes
        examples = tuple(nsmallest(_MAX_EXAMPLES, chain.from_iterable(one.first for one in group)))
        found.append(_NodesByReason(min(group, key=lambda one: one.first[0]), products.total(), examples, products))
    return sorted(found, key=_distance)


def _where(text: str, groups: Sequence[_NodesByReason], nodes: int) -> str:
    """The nodes of a reason in words, with their product if it is one, such as 'both Tesla T4 nodes'."""
    found = next(one for one in groups if one.shown.status.text == text)
    name = next(iter(found.products))
    all_of = sum(one.products[name] for one in groups)
    excluded = any(one.reason.code in _EXCLUDED for one in groups)
    if len(groups) == 1 or len(found.products) > 1 or excluded or not all_of:
        return f"{found.nodes} of {counted(nodes, 'node')}"
    if found.nodes < all_of:
        return f"{found.nodes} of {all_of} {name} nodes"
    return {1: f"the only {name} node", 2: f"both {name} nodes"}.get(found.nodes, f"all {found.nodes} {name} nodes")


# Of nodes that are not evaluated. One stands for them all, whatever GPUs the others have.
_EXCLUDED = (Code.NODE_CONSTRAINTS, Code.GROUP_DOMAIN, Code.ELSEWHERE, Code.COMPUTE_DOMAIN, Code.CLIQUE)
_MISMATCH = (*_EXCLUDED, Code.NO_DEVICES, Code.NO_MATCH, Code.TOO_SMALL)


_NEAR = frozenset(code.name for code in (*FREEABLE_CODES, Code.INVALID, Code.OUT_OF_BUDGET, Code.DRIFT))
_FAR = 2  # the rank of nodes that do not match


def _rank(code: str) -> int:
    """The first part of `_distance`, of the name of a code."""
    return 0 if code in _NEAR else _FAR if Code[code] in _MISMATCH else 1


def _distance(one: _NodesByReason) -> tuple[int, int, int, str]:
    """Sorts reasons: what the end of pods can change, what else is true of matching devices, then other nodes.

    Of the last, those with the largest devices come first. A mistake in the claims counts as the first.
    """
    largest = parse_quantity(one.reason.params[1]).nanos if one.reason.code is Code.TOO_SMALL else 0
    return _rank(one.reason.code.name), -largest, -one.nodes, one.shown.status.text


def _with_causes(one: _NodesByReason, question: PodQuestion, outside: Mapping[str, Obstacles]) -> UnschedulableNodes:
    node_info, status = one.shown.node_info, one.shown.status
    held: tuple[str, ...] = ()
    if status.reason.code is Code.NODE_CONSTRAINTS:
        found = tuple(outside[one.examples[0]].names)
        return UnschedulableNodes(status.reason.code.name, status.text, one.nodes, one.examples, found)
    if status.reason.code in FREEABLE_CODES:
        held = holders_of_usable(node_info, question.snapshot, question.requirements, question.context)
    why = causes(trace(node_info, question.requirements, question.context), held)
    return UnschedulableNodes(status.reason.code.name, status.text, one.nodes, one.examples, why)


# -- what would help, and the sentences ----------------------------------------------------------------------------


def _fits(name: str, nodes: int, fitting: int, best: list[ScoredNode]) -> str:
    sentence = f"pod {name} fits on {fitting} of {counted(nodes, 'node')}"
    if not best:
        return sentence
    return f"{sentence}; {best[0].node} is best: {', '.join(best[0].all_devices) or 'no devices'}"


def _leaves(excluded: Mapping[Code, list[str]], nodes: int) -> str:
    away = len(excluded.get(Code.NODE_CONSTRAINTS, ()))
    left = f"{nodes - away} of {counted(nodes, 'node')}"
    return f"; node selector, node affinity, taints and cordons leave {left}" if away else ""


def _refused(
    beginning: str,
    reasons: tuple[UnschedulableNodes, ...],
    nearest: str,
    where: str,
    obstacles: str,
) -> str:
    """What is true of the nodes that come nearest, the nearest miss, and the other nodes in short.

    `where` are the first ones in words. `obstacles` says what excludes nodes, whatever devices they have.
    """
    if not reasons:
        return f"{beginning} the cluster has no node"
    first, *others = reasons
    notes = {Code.NODE_CONSTRAINTS.name: f" ({obstacles})"}
    sentence = f"{beginning} {first.reason} on {where}{notes.get(first.code, '')}"
    sentence += f"; {nearest}" if nearest else ""
    if not others:
        return sentence
    most, left = max(others, key=lambda one: one.nodes), sum(one.nodes for one in others)
    elsewhere = f"{counted(left, 'other')}" if most.nodes == left else f"{most.nodes} of {left} others"
    return f"{sentence}; {most.reason} on {elsewhere}{notes.get(most.code, '')}"


# -- the recorded search on one node -------------------------------------------------------------------------------


class SearchTrace(NamedTuple):
    """The result of a search, with its records."""

    node_info: NodeInfo
    requirements: PodRequirements  # on this node
    status: FilterStatus
    rejected: Mapping[tuple[str, int], tuple[str, str]]  # request and device to the last cause with its detail


def trace(node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext) -> SearchTrace:
    """Evaluate the requirements on a node and record the search. Raises DeadlineExceeded."""
    recorder, local = CauseRecorder(), requirements.for_node(node_info.node)
    return SearchTrace(node_info, local, evaluate(node_info, local, context, recorder), recorder.causes)


def causes(found: SearchTrace, more: Iterable[str] = ()) -> tuple[str, ...]:
    """Sentences with device names by cause, then the sentences in `more`; at most 4, then 'and n more'."""
    reason = found.status.reason if isinstance(found.status, Unschedulable) else None
    if reason is not None and reason.code in (Code.INVALID, Code.OUT_OF_BUDGET):
        return reason.params  # an interrupted search has no complete causes
    devices: dict[tuple[str, str], set[str]] = {}
    for (_, bit), why in sorted(found.rejected.items()):
        devices.setdefault(why, set()).add(_device(found.node_info, bit))
    sentences = [f"{', '.join(sorted(names))}: {_why(cause, detail)}" for (cause, detail), names in devices.items()]
    sentences = [one_line(sentence, _MAX_CAUSE_BYTES) for sentence in (*sentences, *more)]
    left = len(sentences) - _MAX_CAUSES
    return (*sentences[:_MAX_CAUSES], f"and {left} more") if left > 0 else tuple(sentences)


def trace_search(found: SearchTrace, context: EvaluationContext) -> tuple[str, ...]:
    """The search as lines: the matches of selectors, the rejected devices with causes, and the chosen devices."""
    node_info, status = found.node_info, found.status
    rejected = [
        f"request {name}: {_device(node_info, bit)} {_why(*why)}" for (name, bit), why in found.rejected.items()
    ]
    left = len(rejected) - _MAX_REJECTIONS
    lines = [
        f"node {node_info.node.name}: {counted(len(node_info.inventory.devices), 'device')}",
        *_matched(node_info, found.requirements, context),
        *rejected[:_MAX_REJECTIONS],
        *([f"and {left} more of these"] if left > 0 else []),
    ]
    if isinstance(status, Unschedulable):
        return (*lines, f"unschedulable: {status.text}")
    devices = ", ".join(status.devices(node_info)) or "nothing left to allocate"
    parts = (f"{part.name} {part.value:.2f}: {part.sentence}" for part in status.parts)
    return (*lines, f"chosen: {devices}", *parts, f"score {status.score:.3f}")


def _device(node_info: NodeInfo, bit: int) -> str:
    return node_info.inventory.devices[bit].id.device


def _why(cause: str, detail: str) -> str:
    return f"{CAUSES[cause]} ({detail})" if detail else CAUSES[cause]


def _matched(node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext) -> list[str]:
    problem = context.problem(node_info, requirements)
    lines: list[str] = []
    for name, option in options_of(problem):
        try:
            selection = problem.select(name, option)
        except InvalidClaim as error:
            return [*lines, str(error)]
        for label, mask in (
            ("selectors match", selection.match | selection.unsupported),
            ("left out", selection.unsupported),
            ("held by a pod being scheduled", selection.match & node_info.held),
            ("in use", selection.match & node_info.busy & ~node_info.held),
            ("left", selection.match & ~node_info.busy),
        ):
            names = ", ".join(_device(node_info, bit) for bit in members(mask))
            if names or label in ("selectors match", "left"):
                lines.append(f"request {option.name}: {label} {names or 'nothing'}")
        lines += [selection.explain(bit) for bit in members(selection.error)[:3]]
    return lines


# -- NVLink cliques in which other ComputeDomains have channels ------------------------------------------------
# By the policy `compute_domains`, their nodes come after all others (`prefer`), or the pod may not use them
# (`require`).


_MAX_CLIQUES = 3  # named in one explanation
_MAX_SEARCHED = 64  # cliques whose claims are read
_MAX_CLAIMS = 4  # named for one clique


def why_last(
    best: Sequence[ScoredNode],
    ranking: NodeRanking,
    requirements: PodRequirements,
    snapshot: Snapshot,
    allowed: AbstractSet[str],
) -> str:
    """The words about a node with a better score than the best one, which comes last; '' without one."""
    crowded = in_cliques(requirements.crowded_cliques(snapshot), snapshot)
    if not best or not crowded or best[0].node in crowded:
        return ""
    last: Best = best_nodes(ranking, requirements, snapshot, allowed & crowded, 1)
    if not last or last[0][1].score <= best[0].score:
        return ""
    clique = one_line(snapshot.node_infos[last[0][0]].node.labels[CLIQUE_LABEL])
    return f"; {last[0][0]} has a better score, but {crowded_text(clique)}: its nodes come last"


def clique_misses(nodes: Iterable[str], requirements: PodRequirements, snapshot: Snapshot) -> tuple[str, ...]:
    """What must end in each clique, so that the pod may use the nodes; they would fit. The fewest claims come first.

    The claims of other namespaces are not named.
    """
    by_clique = defaultdict[str, list[str]](list)
    for name in sorted(nodes):
        by_clique[snapshot.node_infos[name].node.labels[CLIQUE_LABEL]].append(name)
    found = []
    for clique, names in islice(sorted(by_clique.items()), _MAX_SEARCHED):
        claims = _claims_of_others(clique, requirements, snapshot)
        own = sorted(str(key) for key in claims if key.namespace == requirements.namespace)
        others = len(claims) - len(own)
        whose = [f"{'claim' if len(own) == 1 else 'claims'} {first_few(own, _MAX_CLAIMS)}"] if own else []
        whose += [f"{counted(others, 'claim')} of other namespaces"] if others else []
        held = f", which has channels for {' and '.join(whose)}," if whose else ""
        more = f" and {counted(len(names) - 1, 'more node')}" if len(names) > 1 else ""
        where = f"{names[0]}{more} of NVLink clique {one_line(clique)}"
        text = f"fits on {where} once the other ComputeDomain{held} ends"
        found.append((bool(others), len(claims), text))
    return tuple(text for _, _, text in sorted(found)[:_MAX_CLIQUES])


def _claims_of_others(clique: str, requirements: PodRequirements, snapshot: Snapshot) -> set[ObjectKey]:
    """The claims of other ComputeDomains in a clique."""
    return {
        claim.key
        for name in islice(sorted(in_cliques([clique], snapshot)), MAX_CLIQUE)
        if name in snapshot.node_infos
        for pool in snapshot.node_infos[name].inventory.pools
        for claim in snapshot.claims_on(pool.key)
        if compute_domain(claim.spec) not in ("", requirements.compute_domain)
    }
