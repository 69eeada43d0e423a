"""Near misses: changes that would make an unschedulable pod fit, the cheapest first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from extender.allocation import Interned, NodeInfo, Snapshot, with_devices_released
from extender.diagnosis.selector_stats import TermStats
from extender.fabric import largest_joined
from extender.model import Claim, Code, DeviceRequest, InvalidClaim, PoolKey, Result, counted, name_on_claims, readable
from extender.scheduling import EvaluationContext, Placement, PodRequirements, Unschedulable, evaluate, problem_for

_NODES = 24  # nodes of different states on which a release of claims is tried
_TRIES = 160  # evaluations per explanation
_FOUND = 3  # near misses by release
_NAMED = 4  # devices or claims named in a sentence
FREEABLE_CODES = frozenset(
    {
        Code.IN_USE,
        Code.HELD,
        Code.COUNTERS,
        Code.CAPACITY,
        Code.CONSTRAINT,
        Code.COMBINATION,
        Code.TOPOLOGY,
        Code.BANDWIDTH,
    }
)


@dataclass(frozen=True, slots=True)
class NearMiss:
    """One change that would help. `cost` is the number of devices that must become free or are missing.

    `of_group`: a pod of a group must end. Its group cannot run without it, so such a near miss comes last.
    """

    cost: int
    sentence: str
    of_group: bool = False


class EquivalentNodes(NamedTuple):
    """Nodes of one equivalence class that are unschedulable for one reason."""

    status: Unschedulable
    nodes: int  # number of nodes
    first: list[str]  # names of the first few nodes, sorted
    node_info: NodeInfo  # of the first node


ClaimsByPool = Mapping[PoolKey, list[Claim]]


def claims_on(node_infos: Iterable[NodeInfo], snapshot: Snapshot) -> ClaimsByPool:
    """The claims that have devices of these nodes, by pool."""
    keys = {pool.key for node_info in node_infos for pool in node_info.inventory.pools}
    return {key: list(snapshot.claims_on(key)) for key in keys}


def claims_of_node(node_info: NodeInfo, claims_by_pool: ClaimsByPool) -> list[Claim]:
    """The claims that have devices of a node, those of groups last, and then those with the fewest devices first."""
    found = {claim.key: claim for pool in node_info.inventory.pools for claim in claims_by_pool.get(pool.key, ())}
    return sorted(
        found.values(), key=lambda c: (bool(c.group), len(c.allocation.results) if c.allocation else 0, c.key)
    )


def by_releasing_claims(
    node_infos: Iterable[NodeInfo],
    requirements: PodRequirements,
    context: EvaluationContext,
    claims_by_pool: ClaimsByPool,
    *,
    ignores_identity: bool,
) -> list[NearMiss]:
    """Near misses by release of claims: one claim, or the smallest claims up to it. Raises DeadlineExceeded.

    A node that does not fit without any claim is skipped. If the requirements read no identity (`ignores_identity`),
    all nodes with equal attributes and equal busy devices are skipped with it.
    """
    found: list[NearMiss] = []
    unfit: set[tuple[object, ...]] = set()
    tries = 0
    for node_info in node_infos:
        claims, released = claims_of_node(node_info, claims_by_pool), list[Claim]()
        empty = with_devices_released(node_info, _results(claims))
        key = (requirements.for_node(node_info.node).key, empty.state.attribute_signature, empty.busy, empty.drift)
        if key in unfit:
            continue
        tries += 1
        if isinstance(evaluate(empty, requirements.for_node(node_info.node), context), Unschedulable):
            unfit |= {key} if ignores_identity and empty.state.attribute_signature is not None else set()
            continue
        for claim in claims:
            released.append(claim)
            tries += 1
            near_miss = _try(node_info, claim, released, requirements, context)
            if near_miss is not None:
                found.append(near_miss)
                break
            if tries >= _TRIES:
                break
        if tries >= _TRIES:
            break
    return sorted(found, key=lambda one: (one.of_group, one.cost, one.sentence))[:_FOUND]


def _try(
    node_info: NodeInfo, claim: Claim, released: list[Claim], requirements: PodRequirements, context: EvaluationContext
) -> NearMiss | None:
    """The near miss if the release of `claim`, or of all claims in `released`, makes the node fit; else None."""
    for claims in ([claim], released) if len(released) > 1 else ([claim],):
        results = _results(claims)
        if isinstance(
            evaluate(with_devices_released(node_info, results), requirements.for_node(node_info.node), context),
            Placement,
        ):
            devices = sorted({r.device.device for r in results})
            held = "; ".join(held_by(c) for c in claims[:_NAMED]) + (" and more" if len(claims) > _NAMED else "")
            of_group = any(c.group for c in claims)
            return NearMiss(len(devices), f"fits on {node_info.node.name} if {held}, were free", of_group)
    return None


def _results(claims: Iterable[Claim]) -> list[Result]:
    return [result for claim in claims if claim.allocation is not None for result in claim.allocation.results]


def held_by(claim: Claim) -> str:
    """Devices and claim as text, such as 'gpu-0, gpu-1, held by training/llm-0'."""
    devices = [r.device.device for r in claim.allocation.results] if claim.allocation is not None else []
    shown = ", ".join(devices[:_NAMED]) + (f" and {len(devices) - _NAMED} more" if len(devices) > _NAMED else "")
    group = f" of group {name_on_claims(claim.group)}" if claim.group else ""
    return f"{shown}, held by {claim.key}{group}"


def nodes_to_try(unschedulable: Iterable[EquivalentNodes]) -> list[NodeInfo]:
    """One node per allocation signature that may fit after a release, at most 24. The most free devices come first."""
    by_busy: dict[int, dict[tuple[int, int], NodeInfo]] = {}
    for equivalent in unschedulable:
        if equivalent.status.reason.code in FREEABLE_CODES:
            by_busy.setdefault(equivalent.node_info.busy.bit_count(), {}).setdefault(
                equivalent.node_info.state.allocation_signature, equivalent.node_info
            )
    found: list[NodeInfo] = []
    for busy in sorted(by_busy):
        if len(found) < _NODES:
            found += sorted(by_busy[busy].values(), key=lambda node_info: node_info.node.name)
    return found[:_NODES]


def by_device_count(
    requirements: PodRequirements,
    unschedulable: Iterable[EquivalentNodes],
    context: EvaluationContext,
    *,
    ignores_identity: bool,
) -> list[NearMiss]:
    """Near misses by count: requests for more devices than any node has free. Raises DeadlineExceeded.

    If the requirements read no identity, nodes with equal attributes share the match masks.
    """
    wanted: dict[str, DeviceRequest] = {}  # by name; with extended resources, requests differ by node
    free: defaultdict[str, Counter[int]] = defaultdict(Counter)
    linked: defaultdict[str, Counter[int]] = defaultdict(Counter)
    known: dict[tuple[object, Interned | None], list[tuple[DeviceRequest, int]]] = {}
    for equivalent in unschedulable:
        local = requirements.for_node(equivalent.node_info.node)
        key = (local.key, equivalent.node_info.state.attribute_signature)
        masks = known.get(key) if ignores_identity else None
        if masks is None:
            masks = known[key] = _matching(equivalent.node_info, local, context)
        for option, mask in masks:
            wanted.setdefault(option.name, option)
            left = mask & ~equivalent.node_info.busy
            free[option.name][left.bit_count()] += equivalent.nodes
            if requirements.intent.topology == "required":
                linked[option.name][_largest_joined(equivalent.node_info, left, option.count)] += equivalent.nodes
    missing = (
        _missing_devices(option, free[option.name], linked[option.name], requirements) for option in wanted.values()
    )
    return [near_miss for near_miss in missing if near_miss is not None]


def _matching(
    node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext
) -> list[tuple[DeviceRequest, int]]:
    problem, found = problem_for(node_info, requirements, context), list[tuple[DeviceRequest, int]]()
    for name, spec in zip(problem.names, problem.specs, strict=True):
        for request in spec.requests:
            for option in request.alternatives:
                if option.mode != "ExactCount":
                    continue
                try:
                    found.append((option, problem.select(name, option).match))
                except InvalidClaim:
                    return found
    return found


def _largest_joined(node_info: NodeInfo, free: int, wanted: int) -> int:
    if node_info.fabric is None:
        return 0
    return largest_joined(node_info.fabric.graph, node_info.positions(free), wanted)


def _missing_devices(
    option: DeviceRequest, free: Counter[int], linked: Counter[int], requirements: PodRequirements
) -> NearMiss | None:
    most = max(free, default=0)
    if most and most < option.count:
        wanted = f"{option.count} free devices for request {option.name}"
        return NearMiss(option.count - most, f"no node has {wanted}; {_nodes(free[most])} {most}")
    if requirements.intent.topology == "required" and option.count > 1:
        joined = max(linked, default=0)
        if joined < option.count:
            wanted = f"{option.count} GPUs on one NVLink set free"
            return NearMiss(option.count - joined, f"no node has {wanted}; {_nodes(linked[joined])} {joined}")
    return None


def _nodes(count: int) -> str:
    return counted(count, "node has", "nodes have")


def by_capacity(requirements: PodRequirements, node_infos: Iterable[NodeInfo]) -> list[NearMiss]:
    """Near misses by capacity: requests for more than any device has.

    `node_infos` is one node per attribute signature.
    """
    if not any(option.capacity for spec in requirements.specs for r in spec.requests for option in r.alternatives):
        return []
    most: Counter[str] = Counter()
    for one in {
        id(pool_device.device.capacity): pool_device
        for node_info in node_infos
        for pool_device in node_info.inventory.devices
    }.values():
        for name, capacity in one.device.capacity.items():
            short = name.rpartition("/")[2]
            most[short] = max(most[short], capacity.value.nanos)
    found = []
    for spec in requirements.specs:
        for option in (o for r in spec.requests for o in r.alternatives):
            for name, amount in (option.capacity or {}).items():
                have = most[name.rpartition("/")[2]]
                if have and amount.nanos > have:
                    asked = f"request {option.name} asks for {readable(amount.nanos)} of {name}"
                    found.append(NearMiss(0, f"{asked}; the largest device has {readable(have)}"))
    return found


def by_terms(terms: Iterable[TermStats]) -> list[NearMiss]:
    """Near misses by selector: terms that no device passes."""
    return [NearMiss(0, term.sentence()) for term in terms if term.asked and not term.passed]
