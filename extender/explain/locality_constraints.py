"""Constraints that devices of several drivers must have one PCIe root or NUMA node, where no node can meet them.

On some machines the GPUs and the NICs never share a PCIe root, or the driver of the NICs publishes none. There a hard
matchAttribute leaves the pod Pending, whatever ends. Without it, Berth chooses near devices by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from extender.allocation import NodeInfo, Problem, attribute_values
from extender.allocation.nodes.locality import NUMA_NODE, PCIE_ROOT
from extender.api.claim_specs import Constraint, DeviceRequest, Request
from extender.base.berth_errors import InvalidClaim
from extender.base.bits import members, union
from extender.base.text_limits import counted
from extender.scheduling import EvaluationContext, Placement, PodRequirements, evaluate
from extender.topology.device_pairs import noun

_WORDS = {PCIE_ROOT: "PCIe root", NUMA_NODE: "NUMA node"}


class UnmetLocality(NamedTuple):
    """A constraint of a claim, by its position, that no node with the devices meets; `why` is a sentence."""

    claim: int
    constraint: Constraint
    why: str


class _Asked(NamedTuple):
    """What a constraint asks of one node: for each request the matching devices and the number, and drivers by bit."""

    requests: list[tuple[int, int]]
    drivers: dict[int, str]

    @property
    def is_between_drivers(self) -> bool:
        """Whether the node has enough devices for each request, of several drivers."""
        enough = all(match.bit_count() >= count for match, count in self.requests)
        return enough and len({*self.drivers.values()}) > 1


def unmet_localities(
    requirements: PodRequirements, node_infos: Iterable[NodeInfo], context: EvaluationContext
) -> list[UnmetLocality]:
    """The constraints on locality between drivers that none of these nodes can meet, with all devices free.

    Raises DeadlineExceeded.
    """
    wanted = [
        (claim, constraint)
        for claim, spec in enumerate(requirements.specs)
        for constraint in spec.constraints
        if constraint.kind == "match" and constraint.attribute in _WORDS
    ]
    nodes = list(node_infos) if wanted else []
    found = (_unmet(requirements, claim, constraint, nodes, context) for claim, constraint in wanted)
    return [one for one in found if one is not None]


def fits_without(
    unmet: Sequence[UnmetLocality],
    requirements: PodRequirements,
    node_infos: Iterable[NodeInfo],
    context: EvaluationContext,
) -> str:
    """The first node on which the pod fits without these constraints; '' if there is none. Raises DeadlineExceeded."""
    left_out = {id(one.constraint) for one in unmet}
    for node_info in node_infos:
        local = requirements.for_node(node_info.node)
        specs = tuple(
            replace(spec, constraints=tuple(one for one in spec.constraints if id(one) not in left_out))
            for spec in local.specs
        )
        if isinstance(evaluate(node_info, replace(local, specs=specs), context), Placement):
            return node_info.node.name
    return ""


def _unmet(
    requirements: PodRequirements,
    claim: int,
    constraint: Constraint,
    nodes: list[NodeInfo],
    context: EvaluationContext,
) -> UnmetLocality | None:
    """None if a node can meet the constraint, if no node has the devices, or if they are of one driver."""
    asked: _Asked | None = None
    is_shared, publishing = False, set[int]()  # the requests that match some device with the attribute, by position
    for node_info in nodes:
        problem = context.problem(node_info, requirements.for_node(node_info.node))
        here = _asked(problem, claim, constraint)
        if here is None:
            continue
        asked = asked or (here if here.is_between_drivers else None)
        for devices in _by_value(problem, constraint.attribute, here).values():
            if _suffices(devices, here):
                return None
            publishing |= {i for i, (match, _) in enumerate(here.requests) if match & devices}
            is_shared |= len({here.drivers[bit] for bit in members(devices)}) > 1
    if asked is None:
        return None
    return UnmetLocality(claim, constraint, _why(asked, constraint.attribute, publishing, is_shared=is_shared))


def _asked(problem: Problem, claim: int, constraint: Constraint) -> _Asked | None:
    """None if the node cannot read the claim. Raises DeadlineExceeded."""
    name, spec, found = problem.names[claim], problem.specs[claim], list[tuple[int, int]]()
    try:
        for request in spec.requests:
            if all(constraint.covers(option.name) for option in request.alternatives):
                found.append(_matching(problem, name, request))
    except InvalidClaim:
        return None
    devices = problem.inventory.devices
    drivers = {bit: devices[bit].id.driver for bit in members(union([match for match, _ in found]))}
    return _Asked(found, drivers)


def _matching(problem: Problem, claim: str, request: Request) -> tuple[int, int]:
    """The devices that match some alternative of a request, and the least number that one of them needs."""
    match = union([problem.select(claim, option).match for option in request.alternatives])
    return match, min(map(_count, request.alternatives))


def _count(option: DeviceRequest) -> int:
    return option.count if option.mode == "ExactCount" else 1


def _by_value(problem: Problem, attribute: str, asked: _Asked) -> dict[tuple[str, object], int]:
    """The devices that have each value of the attribute, as masks."""
    found: dict[tuple[str, object], int] = {}
    for bit, driver in asked.drivers.items():
        known = attribute_values(
            problem.inventory.devices[bit].device, attribute, driver, lists=problem.features.list_attributes
        )
        kind, values = known or ("", frozenset())
        for value in values:
            found[kind, value] = found.get((kind, value), 0) | 1 << bit
    return found


def _suffices(devices: int, asked: _Asked) -> bool:
    """Whether these devices may be enough: requests that match the same devices need them all together."""
    needed = Counter[int]()
    for match, count in asked.requests:
        needed[match] += count
    return all((match & devices).bit_count() >= count for match, count in needed.items())


def _why(asked: _Asked, attribute: str, publishing: set[int], *, is_shared: bool) -> str:
    """`publishing` are the requests that match a device with the attribute; `is_shared`: two drivers have one value.

    Only what is true of the matching devices of every node, also of nodes that have too few of them.
    """
    kinds, silent = dict[str, int](), dict[str, bool]()
    for position, (match, count) in enumerate(asked.requests):
        nouns = {noun(asked.drivers[bit]) for bit in members(match)}
        kind = nouns.pop() if len(nouns) == 1 else "device"
        kinds[kind] = kinds.get(kind, 0) + count
        silent[kind] = silent.get(kind, True) and position not in publishing
    if lacking := [kind for kind, is_silent in silent.items() if is_silent]:
        return f"no {' and no '.join(lacking)} that matches the requests publishes {attribute}"
    if is_shared or len(kinds) == 1:
        needed = [counted(count, f"matching {kind}") for kind, count in kinds.items()]
    else:
        needed = [f"a matching {kind}" for kind in kinds]
    return f"no node has {_joined(needed)} on one {_WORDS[attribute]}"


def _joined(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def locality_misses(
    requirements: PodRequirements, samples: Iterable[NodeInfo], nodes: Iterable[NodeInfo], context: EvaluationContext
) -> Iterator[str]:
    """What would help a pod with such constraints, as sentences. `samples` is a node for each kind of machine, `nodes`
    are those to try without the constraint. Raises DeadlineExceeded.
    """
    found = unmet_localities(requirements, samples, context)
    if not found:
        return
    node = fits_without(found, requirements, nodes, context)
    for unmet in found:
        attribute = unmet.constraint.attribute
        without = f"without the constraint on {'it' if attribute in unmet.why else attribute}"
        without = f"without such constraints ({len(found)} of them)" if len(found) > 1 else without
        fits = f" the pod fits on {node}, and" if node else ""
        yield f"{unmet.why}; {without}{fits} Berth chooses near devices by itself"
