"""Near misses: changes that would make an unschedulable pod fit, the cheapest first."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from extender.allocation import NodeInfo, Snapshot, attribute_values
from extender.allocation.nodes import Interned, Inventory, PoolDevice
from extender.allocation.what_if import with_devices_released
from extender.diagnosis.selector_stats import NodeSample, TermStats
from extender.model import (
    FREEABLE_CODES,
    Claim,
    Code,
    DeviceRequest,
    InvalidClaim,
    ObjectKey,
    PoolKey,
    Result,
    counted,
    members,
    name_on_claims,
    own_name,
    readable,
    union,
)
from extender.scheduling import (
    EvaluationContext,
    FilterStatus,
    Placement,
    PodRequirements,
    Unschedulable,
    attributes_like,
    evaluate,
)
from extender.topology.sets import largest_joined

MOST_NODES = 24  # nodes of different states on which a release of claims is tried
_TRIES = 160  # evaluations per explanation
_FOUND = 3  # near misses by release
_NAMED = 4  # devices of a claim named in a sentence
_CLAIMS = 8  # named in a sentence


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


class SharedClaims(NamedTuple):
    """The allocated claims of a pod that only others use: once these end, the claim can get other devices.

    `without` gives the pod's requirements without the allocation of some of them; None if it has none then.
    `elsewhere` are the nodes that cannot use their devices.
    """

    claims: tuple[Claim, ...]
    without: Callable[[tuple[Claim, ...]], PodRequirements | None]
    elsewhere: Sequence[NodeInfo]


def claims_on(node_infos: Iterable[NodeInfo], snapshot: Snapshot) -> ClaimsByPool:
    """The claims that have devices of these nodes, by pool."""
    keys = {pool.key for node_info in node_infos for pool in node_info.inventory.pools}
    return {key: list(snapshot.claims_on(key)) for key in keys}


def others_on_node(node_info: NodeInfo, claims_by_pool: ClaimsByPool, requirements: PodRequirements) -> list[Claim]:
    """The claims that have devices of a node, without those of the pod itself."""
    own = {claim.key for claim in requirements.allocated_claims}
    return [claim for claim in claims_of_node(node_info, claims_by_pool) if claim.key not in own]


def claims_of_node(node_info: NodeInfo, claims_by_pool: ClaimsByPool) -> list[Claim]:
    """The claims that have devices of a node, those of groups last, and then those with the fewest devices first."""
    found = {claim.key: claim for pool in node_info.inventory.pools for claim in claims_by_pool.get(pool.key, ())}
    return sorted(found.values(), key=lambda claim: (bool(claim.group), len(_results([claim])), claim.key))


def usable_devices(node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext) -> frozenset[str]:
    """The devices that the pod could use, and those that draw on the same counters, as driver/pool/device.

    Raises DeadlineExceeded.
    """
    inventory = node_info.inventory
    wanted = union([mask for _, _, mask in _matching(node_info, requirements.for_node(node_info.node), context)])
    drawn = {draw for bit in members(wanted) for draw in _counter_sets(inventory, bit)}
    return frozenset(
        str(one.id)
        for bit, one in enumerate(inventory.devices)
        if wanted >> bit & 1 or (drawn and not drawn.isdisjoint(_counter_sets(inventory, bit)))
    )


def _counter_sets(inventory: Inventory, bit: int) -> set[tuple[int, str]]:
    """The counter sets that a device draws on, each with the number of its pool."""
    one = inventory.devices[bit]
    return {(one.pool, use.counter_set) for use in one.device.consumes}


def by_releasing_claims(
    node_infos: Sequence[NodeInfo],
    requirements: PodRequirements,
    context: EvaluationContext,
    claims_by_pool: ClaimsByPool,
    shared: SharedClaims,
    *,
    covers_all: bool,
    ignores_identity: bool,
) -> list[NearMiss]:
    """Near misses by release of claims, each with no claim that need not end. Raises DeadlineExceeded.

    A node that does not fit without any claim is skipped. If the requirements read no identity (`ignores_identity`),
    all nodes with equal attributes and equal busy devices are skipped with it. If all nodes that may fit after a
    release are like one of these (`covers_all`) and none does, the near miss says so.
    """
    found: list[tuple[frozenset[ObjectKey], NearMiss]] = []
    unfit: set[tuple[object, ...]] = set()
    tries = 0
    covers_all = covers_all and bool(node_infos)
    for node_info in node_infos:

        def status(released: list[Claim], node_info: NodeInfo = node_info) -> FilterStatus | None:
            nonlocal tries
            tries += 1
            changed = shared.without(tuple(claim for claim in released if claim in shared.claims))
            if changed is None or changed.mismatch(node_info.node) is not None:
                return None
            hypothetical = with_devices_released(node_info, _results(released))
            return evaluate(hypothetical, changed.for_node(node_info.node), context)

        def fits(released: list[Claim], status: Callable[[list[Claim]], FilterStatus | None] = status) -> bool:
            return isinstance(status(released), Placement)

        claims = [*shared.claims, *others_on_node(node_info, claims_by_pool, requirements)]
        local, empty = requirements.for_node(node_info.node), with_devices_released(node_info, _results(claims))
        key = (local.key, empty.state.attribute_signature, empty.busy, empty.drift)
        if key in unfit:
            continue
        found_status = status(claims)
        if shared.claims and not isinstance(found_status, Placement):  # its new devices may lack what the old ones have
            claims = claims[len(shared.claims) :]
            found_status = status(claims)
        if isinstance(found_status, Placement):
            needed = _needed(claims, fits)
            changed = shared.without(tuple(claim for claim in needed if claim in shared.claims)) or requirements
            near_miss = _near_miss(node_info, needed, usable_devices(node_info, changed, context))
            found.append((frozenset(claim.key for claim in needed), near_miss))
        elif ignores_identity and not shared.claims and empty.state.attribute_signature is not None:
            unfit.add(key)
        # A hold that is no claim's ends by itself, and a search that gave up proves nothing.
        gave_up = isinstance(found_status, Unschedulable) and found_status.reason.code is Code.OUT_OF_BUDGET
        covers_all = covers_all and not gave_up and not node_info.held and tries < _TRIES
        if tries >= _TRIES:
            break
    if covers_all and not found:
        return [NearMiss(0, "freeing devices does not help: it would not fit with all of them free either")]
    # A shared claim may be in the way on several nodes: the end of some claims may suffice on another node.
    least = [near_miss for keys, near_miss in found if not any(others < keys for others, _ in found)]
    return sorted(least, key=lambda one: (one.of_group, one.cost, one.sentence))[:_FOUND]


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


def _near_miss(node_info: NodeInfo, claims: list[Claim], usable: frozenset[str]) -> NearMiss:
    held = "; ".join(held_by(c, usable) for c in claims[:_CLAIMS]) + (" and more" if len(claims) > _CLAIMS else "")
    devices = len({result.device for result in _results(claims)})
    of_group = any(claim.group for claim in claims)
    return NearMiss(devices, f"fits on {node_info.node.name} if {held}, were free", of_group)


def _results(claims: Iterable[Claim]) -> list[Result]:
    """The devices that claims hold; admin access holds none."""
    allocations = (claim.allocation for claim in claims if claim.allocation is not None)
    return [result for allocation in allocations for result in allocation.results if not result.admin_access]


def held_by(claim: Claim, usable: frozenset[str]) -> str:
    """Those of the usable devices that a claim holds (if none, all), as 'gpu-0, gpu-1, held by training/llm-0'."""
    results = _results([claim])
    devices = [r.device.device for r in [r for r in results if str(r.device) in usable] or results]
    shown = ", ".join(devices[:_NAMED]) + (f" and {len(devices) - _NAMED} more" if len(devices) > _NAMED else "")
    group = f" of group {name_on_claims(claim.group)}" if claim.group else ""
    return f"{shown}, held by {claim.key}{group}"


def usable_held(claims: Iterable[Claim], usable: frozenset[str]) -> tuple[str, ...]:
    """The claims that hold usable devices, as text."""
    return tuple(held_by(claim, usable) for claim in claims if any(str(r.device) in usable for r in _results([claim])))


def nodes_to_try(unschedulable: Iterable[EquivalentNodes], elsewhere: Sequence[NodeInfo]) -> tuple[list[NodeInfo], int]:
    """One node per allocation signature that may fit after a release, at most 24; and the number of all such nodes.

    `elsewhere` are nodes that a shared claim of the pod excludes. The nodes with the most free devices come first.
    """
    by_busy: dict[int, dict[tuple[tuple[int, int], bool], NodeInfo]] = {}
    nodes = len(elsewhere)
    for node_info in elsewhere:
        by_busy.setdefault(node_info.busy.bit_count(), {}).setdefault(
            (node_info.state.allocation_signature, True), node_info
        )
    for equivalent in unschedulable:
        if equivalent.status.reason.code in FREEABLE_CODES:
            nodes += equivalent.nodes
            by_busy.setdefault(equivalent.node_info.busy.bit_count(), {}).setdefault(
                (equivalent.node_info.state.allocation_signature, False), equivalent.node_info
            )
    found: list[NodeInfo] = []
    for busy in sorted(by_busy):
        if len(found) < MOST_NODES:
            found += sorted(by_busy[busy].values(), key=lambda node_info: node_info.node.name)
    return found[:MOST_NODES], nodes


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
    known: dict[tuple[object, Interned | None], list[tuple[int, DeviceRequest, int]]] = {}
    for equivalent in unschedulable:
        local = requirements.for_node(equivalent.node_info.node)
        key = (local.key, equivalent.node_info.state.attribute_signature)
        masks = known.get(key) if ignores_identity else None
        if masks is None:
            masks = known[key] = _matching(equivalent.node_info, local, context)
        for _, option, mask in masks:
            if option.mode != "ExactCount":
                continue
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
) -> list[tuple[int, DeviceRequest, int]]:
    """Position of the claim, request and mask of matching devices, up to the first selector that fails."""
    problem, found = context.problem(node_info, requirements), list[tuple[int, DeviceRequest, int]]()
    for claim, (name, spec) in enumerate(zip(problem.names, problem.specs, strict=True)):
        for request in spec.requests:
            for option in request.alternatives:
                try:
                    found.append((claim, option, problem.select(name, option).match))
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


Sampled = Mapping[PoolDevice, int]
"""Devices with the number of nodes that have an equal one."""


def _sampled(
    requirements: PodRequirements, samples: Iterable[NodeSample], context: EvaluationContext
) -> dict[tuple[int, str], tuple[DeviceRequest, Sampled]]:
    """The devices that match each request, by claim and request name. Raises DeadlineExceeded."""
    found: dict[tuple[int, str], tuple[DeviceRequest, dict[PoolDevice, int]]] = {}
    for node_info, nodes in samples:
        for claim, option, mask in _matching(node_info, requirements.for_node(node_info.node), context):
            _, devices = found.setdefault((claim, option.name), (option, {}))
            for one in (node_info.inventory.devices[bit] for bit in members(mask)):
                devices[one] = nodes if one.slice.selection.node_name else 1
    return dict(found)


def by_devices(
    requirements: PodRequirements, samples: Iterable[NodeSample], context: EvaluationContext
) -> list[NearMiss]:
    """Near misses by what no matching device has: so much capacity, or an attribute that a constraint compares.

    `samples` is one node per attribute signature. Raises DeadlineExceeded.
    """
    specs = requirements.specs
    if not any(spec.constraints or any(o.capacity for r in spec.requests for o in r.alternatives) for spec in specs):
        return []
    matching, misses = _sampled(requirements, samples, context), list[NearMiss]()
    for option, devices in matching.values():
        for name, amount in (option.capacity or {}).items():
            offered = ((one.device.capacity, own_name(name, one.id.driver)) for one in devices)
            most = max((have[own].value for have, own in offered if own in have), default=None)
            if most is not None and amount > most:
                wanted = f"request {option.name} asks for {readable(amount.nanos)} of {name}"
                misses.append(NearMiss(0, f"{wanted}; the largest device has {readable(most.nanos)}"))
    for claim, spec in enumerate(specs):
        asked = {name: found for (of, name), found in matching.items() if of == claim}
        for constraint in (one for one in spec.constraints if one.attribute):
            covered = {
                name: devices
                for name, (option, devices) in asked.items()
                if constraint.covers(name) and constraint.attribute not in dict(option.derived)
            }
            misses += _without_attribute(constraint.attribute, covered, lists=context.features.list_attributes)
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
            yield NearMiss(0, f"0 of {counted(sum(devices.values()), 'device')}{of} have {attribute}{hint}")


def by_terms(terms: Iterable[TermStats]) -> list[NearMiss]:
    """Near misses by selector: terms that no device passes, and terms that fail on devices without an attribute."""
    return [NearMiss(0, term.sentence()) for term in terms if term.asked and (term.failed or not term.passed)]
