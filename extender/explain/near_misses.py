"""Near misses: changes that would make an unschedulable pod fit, the cheapest first.

`near_misses` asks four questions about a pod that no node fits: are there so many free devices on any node; which
claims must end (`_Releases` evaluates up to 24 nodes without some of their claims); does a constraint on locality keep
it from all nodes; and which term of a selector does no device pass (selector_stats.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest
from typing import NamedTuple

from extender.allocation import NodeInfo, Problem, Snapshot, attribute_values, blocking_taint
from extender.allocation.nodes import Interned, Inventory, PoolDevice
from extender.allocation.nodes.locality import NUMA_NODE, PCIE_ROOT
from extender.allocation.what_if import with_devices_released, with_own_pools_released
from extender.api.claim_specs import Constraint, DeviceRequest
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import name_on_claims
from extender.api.pods import Pod
from extender.api.quantity import readable
from extender.api.reasons import FREEABLE_CODES, Code
from extender.api.resource_claims import Claim, Result
from extender.api.resource_slices import DeviceId, own_name
from extender.base.berth_errors import InvalidClaim
from extender.base.bits import members, union
from extender.base.text_limits import counted, first_few
from extender.explain.scenario import Scenario, apply_scenario
from extender.explain.selector_stats import NodeSample, TermStats, selector_stats
from extender.policy import Policy
from extender.scheduling import (
    EvaluationContext,
    FilterStatus,
    NodeRanking,
    Placement,
    PodRequirements,
    Unschedulable,
    attributes_like,
    evaluate,
    requirements_of,
)
from extender.scheduling.requirements import needs_reservation
from extender.topology.device_pairs import noun
from extender.topology.link_knowledge import Links, assumed_for, links_of, may_be_joined, unknown_links
from extender.topology.sets import largest_joined

NO_RELEASE_HELPS = "freeing devices does not help: it would not fit with all of them free either"
_MAX_NODES = 24  # nodes of different states on which a release of claims is tried
_MAX_TRIES = 160  # evaluations per explanation
_MAX_FOUND = 3  # near misses by release
_MAX_NAMED = 4  # devices of a claim named in a sentence
_MAX_CLAIMS = 8  # named in a sentence
_LOCALITIES = {PCIE_ROOT: "PCIe root", NUMA_NODE: "NUMA node"}
_EXCLUDED = {Code.ELSEWHERE, Code.COMPUTE_DOMAIN, Code.CLIQUE, Code.GROUP_DOMAIN}  # whatever devices the nodes have


@dataclass(frozen=True, slots=True)
class NearMiss:
    """One change that would help. `cost` is the number of devices that must become free or are missing.

    `of_group`: a pod of a group must end. Its group cannot run without it, so such a near miss comes last.
    `is_tried`: the pod fits with this change; the others say what is lacking. So such a near miss comes first.
    `is_fact`: it says only what is lacking, and names no change.
    """

    cost: int
    sentence: str
    of_group: bool = False
    is_tried: bool = False
    is_fact: bool = False

    @property
    def rank(self) -> int:
        """Sorts kinds of near misses."""
        return 2 if self.of_group else 0 if self.is_tried else 1


class EquivalentNodes(NamedTuple):
    """Nodes of one equivalence class that are unschedulable for one reason."""

    status: Unschedulable
    nodes: int  # number of nodes
    first: list[str]  # names of the first few nodes, sorted
    node_info: NodeInfo  # of the first node


@dataclass(frozen=True, slots=True)
class PodQuestion:
    """A pod that needs devices, on a snapshot."""

    pod: Pod
    requirements: PodRequirements
    snapshot: Snapshot
    policy: Policy
    context: EvaluationContext
    ranking: NodeRanking


class Refusal(NamedTuple):
    """A pod that no node fits: neither those of `classes`, nor others, of which pods have no use.

    `elsewhere` are the nodes that cannot use the devices of an allocated claim of the pod.
    """

    question: PodQuestion
    classes: Sequence[EquivalentNodes]
    elsewhere: Sequence[NodeInfo]

    @property
    def ignores_identity(self) -> bool:
        """Whether the requirements read no name, UUID or other value that differs between equal devices."""
        return self.question.ranking.ignores_identity(self.question.context)

    @property
    def samples(self) -> list[NodeSample]:
        """One node per attribute signature among the nodes of `classes`."""
        found: dict[Interned | None, NodeSample] = {}
        for _, nodes, _, node_info in self.classes:
            signature = node_info.state.attribute_signature
            first, others = found.get(signature, (node_info, 0))
            found[signature] = first, others + nodes
        return list(found.values())


class Found(NamedTuple):
    """Near misses as sentences, the cheapest first; those of them that are facts; and the terms of selectors."""

    misses: tuple[str, ...]
    facts: tuple[str, ...]
    terms: list[TermStats]


def near_misses(refusal: Refusal) -> Found:
    """The near misses of a pod. Raises DeadlineExceeded."""
    samples = refusal.samples if refusal.ignores_identity else None
    terms = selector_stats(refusal.question.requirements, refusal.question.snapshot, samples, refusal.question.context)
    released = _Releases(refusal).near_misses()
    helps = any(one.cost for one in released)  # then what no device has, such as for another alternative, comes last
    found = [
        *_by_device_count(refusal),
        *_by_locality(refusal),
        *released,
        *_by_devices(refusal),
        # Terms that no device passes, and terms that fail on devices without an attribute.
        *(NearMiss(0, one.sentence(), is_fact=not one.has_advice) for one in terms if one.fails and one.asked),
    ]
    found.sort(key=lambda one: (helps and not one.cost, one.rank, one.cost))
    sentences, facts = dict.fromkeys(one.sentence for one in found), [one.sentence for one in found if one.is_fact]
    return Found(tuple(sentences), tuple(dict.fromkeys(facts)), terms)


# -- claims and the devices that they hold -------------------------------------------------------------------------


def claims_of_node(node_info: NodeInfo, snapshot: Snapshot) -> list[Claim]:
    """The claims that have devices of a node, those of groups last, and then those with the fewest devices first."""
    found = {claim.key: claim for pool in node_info.inventory.pools for claim in snapshot.claims_on(pool.key)}
    return sorted(found.values(), key=lambda claim: (bool(claim.group), len(_results([claim])), claim.key))


def _others_on_node(node_info: NodeInfo, snapshot: Snapshot, requirements: PodRequirements) -> list[Claim]:
    """The claims that have devices of a node, without those of the pod itself."""
    own = {claim.key for claim in requirements.allocated_claims}
    return [claim for claim in claims_of_node(node_info, snapshot) if claim.key not in own]


def holders_of_usable(
    node_info: NodeInfo, snapshot: Snapshot, requirements: PodRequirements, context: EvaluationContext
) -> tuple[str, ...]:
    """The claims that hold devices of a node which the pod could use, as text. Raises DeadlineExceeded."""
    usable = _usable_devices(node_info, requirements, context)
    claims = _others_on_node(node_info, snapshot, requirements)
    return tuple(_held_by(claim, usable) for claim in claims if any(r.device in usable for r in _results([claim])))


def devices_for(node_info: NodeInfo, kinds: Iterable[PodRequirements], context: EvaluationContext) -> int:
    """Mask of the devices whose use can keep pods with these requirements from the node.

    Those that could serve a request, and those that consume counters which such a device consumes. Raises
    DeadlineExceeded.
    """
    found, inventory = 0, node_info.inventory
    for requirements in kinds:
        for option, match in _matching(node_info, requirements, context):
            if option.admin_access:
                continue
            found |= match & inventory.simple
            for bit in members(match & ~inventory.simple):
                if blocking_taint(inventory.devices[bit].device, option.tolerations) is None:
                    found |= 1 << bit
    return found | _with_same_counters(inventory, found)


def _usable_devices(
    node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext
) -> frozenset[DeviceId]:
    """The devices of `devices_for` for one pod. Raises DeadlineExceeded."""
    known = node_info.inventory.devices
    return frozenset(known[bit].id for bit in members(devices_for(node_info, [requirements], context)))


def _with_same_counters(inventory: Inventory, devices: int) -> int:
    """Mask of the devices that consume a counter set of one of these devices."""
    sets = {
        (inventory.devices[bit].pool, use.counter_set)
        for bit in members(devices & ~inventory.simple)
        for use in inventory.devices[bit].device.consumes
    }
    if not sets:
        return 0
    others = enumerate(inventory.devices)
    return sum(
        1 << bit for bit, one in others if any((one.pool, use.counter_set) in sets for use in one.device.consumes)
    )


def _results(claims: Iterable[Claim]) -> list[Result]:
    """The devices that claims hold; admin access holds none."""
    allocations = (claim.allocation for claim in claims if claim.allocation is not None)
    return [result for allocation in allocations for result in allocation.results if not result.admin_access]


def _held_by(claim: Claim, usable: frozenset[DeviceId]) -> str:
    """Those of the usable devices that a claim holds (if none, all), as 'gpu-0, gpu-1, held by pod training/llm-0'.

    A claim that is reserved for several pods, for none or for a PodGroup is named itself.
    """
    results = _results([claim])
    devices = [r.device.device for r in [r for r in results if r.device in usable] or results]
    group = f" of group {name_on_claims(claim.group)}" if claim.group else ""
    return f"{first_few(devices, _MAX_NAMED)}, held by {_holder(claim)}{group}"


def _holder(claim: Claim) -> str:
    if len(claim.reserved_for) == 1 and claim.reserved_for[0].resource == "pods":
        return f"pod {claim.key.namespace}/{claim.reserved_for[0].name}"
    return f"claim {claim.key}"


# -- by the end of claims ------------------------------------------------------------------------------------------


class _Releases:
    """Near misses by release of claims, each with no claim that need not end.

    If all nodes that may fit after a release are like one of those tried and none does, one near miss says so.
    """

    def __init__(self, refusal: Refusal) -> None:
        self._refusal, self._question = refusal, refusal.question
        # The allocated claims that only other pods use: once these end, the claims can get other devices.
        allocated = refusal.question.requirements.allocated_claims
        self._shared = tuple(claim for claim in allocated if needs_reservation(claim, refusal.question.pod))
        self._loose: dict[tuple[ObjectKey, ...], PodRequirements | None] = {(): refusal.question.requirements}
        self._tries = 0
        self._found: list[tuple[frozenset[ObjectKey], NearMiss]] = []
        # Nodes that refuse even then, only because no agent reports their links: now, and if devices are freed.
        self._now = {one.first[0] for one in refusal.classes if may_be_joined(one.node_info, one.status.reason.code)}
        self._unread: list[str] = []

    def near_misses(self) -> list[NearMiss]:
        """At most 3. Raises DeadlineExceeded."""
        nodes, may_fit = self._nodes_to_try()
        is_like_all = may_fit == len(nodes) or (self._refusal.ignores_identity and len(nodes) < _MAX_NODES)
        proves = bool(nodes) and is_like_all
        for node_info in nodes:
            proves &= self._try(node_info)
            if self._tries >= _MAX_TRIES:
                proves = False
                break
        if proves and not self._found:
            return [NearMiss(0, NO_RELEASE_HELPS, is_fact=True)]
        if self._unread and not self._found:
            return [NearMiss(0, f"freeing devices may help: {unknown_links(self._unread)}", is_fact=True)]
        # A shared claim may be in the way on several nodes: the end of some claims may suffice on another node.
        least = [one for keys, one in self._found if not any(others < keys for others, _ in self._found)]
        return sorted(least, key=lambda one: (one.of_group, one.cost, one.sentence))[:_MAX_FOUND]

    def _nodes_to_try(self) -> tuple[list[NodeInfo], int]:
        """One node per allocation signature that may fit after a release, at most 24; and the number of all such nodes.

        The nodes with the most free devices come first.
        """
        elsewhere = self._refusal.elsewhere if self._shared else ()
        freeable = [one for one in self._refusal.classes if one.status.reason.code in FREEABLE_CODES]
        found: dict[tuple[tuple[int, int], bool], NodeInfo] = {}
        for is_elsewhere, node_info in [
            *((True, node_info) for node_info in elsewhere),
            *((False, one.node_info) for one in freeable),
        ]:
            found.setdefault((node_info.state.allocation_signature, is_elsewhere), node_info)
        first = nsmallest(_MAX_NODES, found.values(), key=lambda one: (one.busy.bit_count(), one.node.name))
        return first, len(elsewhere) + sum(one.nodes for one in freeable)

    def _try(self, node_info: NodeInfo) -> bool:
        """Look for claims of a node whose end helps. Returns whether it is certain that there are none, if none is
        found.
        """
        question, shared = self._question, self._shared
        claims = [*shared, *_others_on_node(node_info, question.snapshot, question.requirements)]
        status = self._status(node_info, claims)
        if shared and not isinstance(status, Placement):  # its new devices may lack what the old ones have
            claims = claims[len(shared) :]
            status = self._status(node_info, claims)
        if isinstance(status, Placement):
            needed = _needed(claims, partial(self._fits, node_info))
            usable = _usable_devices(node_info, self._without(needed) or question.requirements, question.context)
            note = assumed_for([question.requirements.intent], [node_info])
            self._found.append((frozenset(claim.key for claim in needed), _by_release(node_info, needed, usable, note)))
        elif isinstance(status, Unschedulable) and may_be_joined(node_info, status.reason.code):
            self._unread += [node_info.node.name] if node_info.node.name not in self._now else []
            return False
        # A hold that is no claim's ends by itself, and a search that gave up proves nothing.
        gave_up = isinstance(status, Unschedulable) and status.reason.code is Code.OUT_OF_BUDGET
        return not gave_up and not node_info.held

    def _status(self, node_info: NodeInfo, released: Sequence[Claim]) -> FilterStatus | None:
        """The status of a node without these claims; None if the pod cannot use the node then."""
        self._tries += 1
        changed = self._without(released)
        if changed is None or changed.mismatch(node_info.node, self._question.snapshot) is not None:
            return None
        hypothetical = with_devices_released(node_info, _results(released))
        return evaluate(hypothetical, changed.for_node(node_info.node), self._question.context)

    def _without(self, ended: Iterable[Claim]) -> PodRequirements | None:
        """The pod's requirements once these of the claims that it shares have no devices; None if it has none then."""
        claims = tuple(claim for claim in ended if claim in self._shared)
        keys = tuple(claim.key for claim in claims)  # claims with consumed capacity are not hashable
        if keys not in self._loose:
            changed = apply_scenario(self._question.snapshot, (), Scenario(deallocated=claims))
            found = requirements_of(self._question.pod, changed, self._question.policy)
            self._loose[keys] = found if isinstance(found, PodRequirements) else None
        return self._loose[keys]

    def _fits(self, node_info: NodeInfo, released: Sequence[Claim]) -> bool:
        return isinstance(self._status(node_info, released), Placement)


def _needed(claims: list[Claim], fits: Callable[[list[Claim]], bool]) -> list[Claim]:
    """Claims whose release makes a node fit, such that no smaller part of them does; the first are preferred.

    The release of all `claims` does. The last claim of the shortest list that suffices is needed, and so on.
    The result has the order of `claims`.
    """
    needed: list[Claim] = []
    while not fits(needed):
        shortest = bisect_left(range(len(claims)), True, key=lambda count: fits([*needed, *claims[:count]]))
        needed.append(claims[shortest - 1])
        claims = claims[: shortest - 1]
    needed.reverse()
    # The end of a share can cost counters that are overdrawn, so that less may fit where more does not.
    for claim in reversed(needed.copy()):
        others = [one for one in needed if one is not claim]
        if others and fits(others):
            needed = others
    return needed


def _by_release(node_info: NodeInfo, claims: list[Claim], usable: frozenset[DeviceId], note: str) -> NearMiss:
    more = " and more" if len(claims) > _MAX_CLAIMS else ""
    held = "; ".join(_held_by(claim, usable) for claim in claims[:_MAX_CLAIMS]) + more
    devices = len({result.device for result in _results(claims)})
    of_group = any(claim.group for claim in claims)
    return NearMiss(devices, f"fits on {node_info.node.name} if {held}, were free{note}", of_group, is_tried=True)


# -- by what no node, or no device, has ----------------------------------------------------------------------------


def _by_device_count(refusal: Refusal) -> list[NearMiss]:
    """Near misses by count: requests for more devices than any node has free. Raises DeadlineExceeded."""
    requirements = refusal.question.requirements
    wanted: dict[str, DeviceRequest] = {}  # by name; with extended resources, requests differ by node
    free: defaultdict[str, Counter[int]] = defaultdict(Counter)
    linked: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for _, nodes, _, node_info in refusal.classes:
        for option, mask in _matching(node_info, requirements, refusal.question.context):
            if option.mode == "ExactCount":
                wanted.setdefault(option.name, option)
                left = mask & ~node_info.busy
                free[option.name][left.bit_count()] += nodes
                if requirements.intent.topology == "required":
                    linked[option.name][_largest_joined(node_info, left, option.count)] += nodes
    missing = (
        _missing_devices(option, free[option.name], linked[option.name], requirements) for option in wanted.values()
    )
    return [near_miss for near_miss in missing if near_miss is not None]


def _matching(
    node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext
) -> Iterator[tuple[DeviceRequest, int]]:
    """The requests whose selectors do not fail, each with the mask of matching devices. Raises DeadlineExceeded."""
    problem = context.problem(node_info, requirements.for_node(node_info.node))
    for name, option in options_of(problem):
        with suppress(InvalidClaim):
            yield option, problem.select(name, option).match


def options_of(problem: Problem) -> Iterator[tuple[str, DeviceRequest]]:
    """Each alternative of each request, with the name of its claim."""
    for name, spec in zip(problem.names, problem.specs, strict=True):
        yield from ((name, option) for request in spec.requests for option in request.alternatives)


def _largest_joined(node_info: NodeInfo, free: int, wanted: int) -> int:
    """The size of the largest joined free set, at most `wanted`; all free GPUs count if no agent reports the links."""
    if node_info.fabric is None:
        return 0
    if links_of(node_info) is Links.UNKNOWN:
        return node_info.positions(free).bit_count()
    return largest_joined(node_info.fabric.graph, node_info.positions(free), wanted)


def _missing_devices(
    option: DeviceRequest, free: Counter[int], linked: Counter[int], requirements: PodRequirements
) -> NearMiss | None:
    most = max(free, default=0)
    if most and most < option.count:
        wanted = f"{option.count} free devices for request {option.name}"
        return NearMiss(option.count - most, f"no node has {wanted}; {_nodes(free[most])} {most}", is_fact=True)
    if requirements.intent.topology == "required" and option.count > 1:
        joined = max(linked, default=0)
        if joined < option.count:
            lacking = f"no node has {option.count} free matching GPUs that links join"
            return NearMiss(option.count - joined, f"{lacking}; {_nodes(linked[joined])} {joined}", is_fact=True)
    return None


def _nodes(count: int) -> str:
    return counted(count, "node has", "nodes have")


# -- by constraints on a PCIe root or a NUMA node -------------------------------------------------------------------
# On some machines the GPUs and the NICs never share a PCIe root, or the driver of the NICs publishes none. There a hard
# matchAttribute leaves the pod Pending, whatever ends. Without it, Berth chooses near devices by itself.


class UnmetLocality(NamedTuple):
    """A constraint of a claim, by its position, that no node with the devices meets; `why` is a sentence."""

    claim: int
    constraint: Constraint
    why: str


def unmet_localities(
    requirements: PodRequirements, node_infos: Iterable[NodeInfo], context: EvaluationContext
) -> list[UnmetLocality]:
    """The constraints on locality without which the pod fits on one of these nodes, and with which it fits on none.

    Only nodes that the pod's allocated claims allow count. All devices but those of these claims count as free. Raises
    DeadlineExceeded.
    """
    wanted = {
        id(one): (claim, one)
        for claim, spec in enumerate(requirements.specs)
        for one in spec.constraints
        if one.kind == "match" and one.attribute in _LOCALITIES
    }
    if not wanted:
        return []
    kinds, scope = dict[tuple[Hashable, int], NodeInfo](), ""
    for one in node_infos:
        if all(selector.matches(one.node.name, one.node.labels) for selector in requirements.claim_selectors):
            alike = one.state.attribute_signature or one.node.name
            kinds.setdefault((alike, requirements.devices_on(one)), one)
        else:
            scope = " that the pod's allocated claims allow"
    own = _results((*requirements.allocated_claims, *requirements.promised_claims))
    free = [with_own_pools_released(one, own) for one in kinds.values()]
    able = [one for one in free if _fits_without(one, requirements, context, wanted)]
    return [
        UnmetLocality(claim, constraint, _why(requirements, claim, constraint, free, context, scope))
        for key, (claim, constraint) in wanted.items()
        if able and not any(_fits_without(one, requirements, context, wanted.keys() - {key}) for one in able)
    ]


def _fits_without(
    node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext, without: Collection[int]
) -> bool:
    """Whether the pod fits without these constraints, by their id. Raises DeadlineExceeded."""
    local = requirements.for_node(node_info.node)
    specs = tuple(
        replace(spec, constraints=tuple(one for one in spec.constraints if id(one) not in without))
        for spec in local.specs
    )
    return isinstance(evaluate(node_info, replace(local, specs=specs), context), Placement)


def _why(
    requirements: PodRequirements,
    claim: int,
    constraint: Constraint,
    nodes: Iterable[NodeInfo],
    context: EvaluationContext,
    scope: str,
) -> str:
    """What no node has; `scope` says of which nodes. Raises DeadlineExceeded."""
    nouns, publishing = defaultdict[int, set[str]](set), set[int]()  # of each request, by position
    for node_info in nodes:
        problem = context.problem(node_info, requirements.for_node(node_info.node))
        name, requests = problem.names[claim], problem.specs[claim].requests
        for position, request in enumerate(requests):
            with suppress(InvalidClaim):
                match = union([problem.select(name, option).match for option in request.alternatives])
                for one in (node_info.inventory.devices[bit] for bit in members(match)):
                    nouns[position].add(noun(one.id.driver))
                    lists = context.features.list_attributes
                    if attribute_values(one.device, constraint.attribute, one.id.driver, lists=lists) is not None:
                        publishing.add(position)
    needed, silent = Counter[str](), dict[str, bool]()
    for position, request in enumerate(requirements.specs[claim].requests):
        options = request.alternatives
        if all(constraint.covers(option.name) for option in options):
            kind = nouns[position].pop() if len(nouns[position]) == 1 else "device"
            needed[kind] += min(option.count if option.mode == "ExactCount" else 1 for option in options)
            publishes = position in publishing or any(constraint.attribute in dict(one.derived) for one in options)
            silent[kind] = silent.get(kind, True) and not publishes
    if lacking := [kind for kind, is_silent in silent.items() if is_silent]:
        where = f" on a node{scope}" if scope else ""
        return f"no {' and no '.join(lacking)} that matches the requests publishes {constraint.attribute}{where}"
    *first, last = [counted(count, f"matching {kind}") for kind, count in needed.items()]
    together = f"{', '.join(first)} and {last}" if first else last
    return f"no node{scope} has {together} on one {_LOCALITIES[constraint.attribute]}"


def _by_locality(refusal: Refusal) -> Iterator[NearMiss]:
    """Raises DeadlineExceeded."""
    requirements, context = refusal.question.requirements, refusal.question.context
    found = unmet_localities(requirements, (one.node_info for one in refusal.classes), context)
    if not found:
        return
    usable = (one for one in refusal.classes if one.status.reason.code not in _EXCLUDED)
    nodes = (one.node_info for one in nsmallest(_MAX_NODES, usable, key=lambda one: one.first[0]))
    left_out = {id(one.constraint) for one in found}
    able = next((one.node.name for one in nodes if _fits_without(one, requirements, context, left_out)), "")
    for unmet in found:
        attribute = unmet.constraint.attribute
        without = f"without the constraint on {'it' if unmet.why.endswith(attribute) else attribute}"
        without = f"without such constraints ({len(found)} of them)" if len(found) > 1 else without
        fits = f" the pod fits on {able}, and" if able else ""
        yield NearMiss(0, f"{unmet.why}; {without}{fits} Berth chooses near devices by itself")


# -- by what no matching device has -----------------------------------------------------------------------------------

Sampled = Mapping[PoolDevice, int]
"""Devices with the number of nodes that have an equal one."""


def _sampled(refusal: Refusal) -> dict[tuple[int, str], tuple[DeviceRequest, Sampled]]:
    """The devices that match each request, by claim and request name. Raises DeadlineExceeded."""
    found: dict[tuple[int, str], tuple[DeviceRequest, dict[PoolDevice, int]]] = {}
    requirements, context = refusal.question.requirements, refusal.question.context
    for node_info, nodes in refusal.samples:
        problem = context.problem(node_info, requirements.for_node(node_info.node))
        for claim, (claim_name, spec) in enumerate(zip(problem.names, problem.specs, strict=True)):
            for option in (option for request in spec.requests for option in request.alternatives):
                with suppress(InvalidClaim):
                    mask = problem.select(claim_name, option).match
                    _, devices = found.setdefault((claim, option.name), (option, {}))
                    for one in (node_info.inventory.devices[bit] for bit in members(mask)):
                        devices[one] = nodes if one.slice.selection.node_name else 1
    return dict(found)


def _by_devices(refusal: Refusal) -> list[NearMiss]:
    """Near misses by what no matching device has: so much capacity, or an attribute that a constraint compares.

    Raises DeadlineExceeded.
    """
    specs, lists = refusal.question.requirements.specs, refusal.question.context.features.list_attributes
    if not any(spec.constraints or any(o.capacity for r in spec.requests for o in r.alternatives) for spec in specs):
        return []
    matching, misses = _sampled(refusal), list[NearMiss]()
    for option, devices in matching.values():
        for name, amount in (option.capacity or {}).items():
            offered = ((one.device.capacity, own_name(name, one.id.driver)) for one in devices)
            most = max((have[own].value for have, own in offered if own in have), default=None)
            if most is not None and amount > most:
                wanted = f"request {option.name} asks for {readable(amount.nanos)} of {name}"
                misses.append(NearMiss(0, f"{wanted}; the largest device has {readable(most.nanos)}", is_fact=True))
    for claim, spec in enumerate(specs):
        asked = {name: found for (of, name), found in matching.items() if of == claim}
        for constraint in (one for one in spec.constraints if one.attribute):
            covered = {
                name: devices
                for name, (option, devices) in asked.items()
                if constraint.covers(name) and constraint.attribute not in dict(option.derived)
            }
            misses += _without_attribute(constraint.attribute, covered, lists=lists)
    return misses


def _without_attribute(attribute: str, covered: Mapping[str, Sampled], *, lists: bool) -> Iterator[NearMiss]:
    """Yield the requests of which no matching device has the attribute; if none has one, one near miss for all."""

    def has(one: PoolDevice) -> bool:
        return attribute_values(one.device, attribute, one.id.driver, lists=lists) is not None

    lacking = {name: devices for name, devices in covered.items() if devices and not any(map(has, devices))}
    if lacking.keys() == covered.keys():
        lacking = {"": {one: nodes for devices in lacking.values() for one, nodes in devices.items()}}
    for name, devices in lacking.items():
        if devices:
            of = f" for request {name}" if name else ""
            hint = attributes_like(attribute, (one.device for one in devices))
            yield NearMiss(
                0, f"0 of {counted(sum(devices.values()), 'device')}{of} have {attribute}{hint}", is_fact=not hint
            )
