"""Constraints that the devices of a pod must have one PCIe root or NUMA node, where no node can meet them.

On some machines the GPUs and the NICs never share a PCIe root, or the driver of the NICs publishes none. There a hard
matchAttribute leaves the pod Pending, whatever ends. Without it, Berth chooses near devices by itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from extender.allocation import NodeInfo, attribute_values
from extender.allocation.nodes.locality import NUMA_NODE, PCIE_ROOT
from extender.allocation.what_if import with_own_pools_released
from extender.api.claim_specs import Constraint
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


def unmet_localities(
    requirements: PodRequirements, node_infos: Iterable[NodeInfo], context: EvaluationContext
) -> list[UnmetLocality]:
    """The constraints on locality without which the pod fits on one of these nodes, and with which it fits on none.

    All devices count as free. Raises DeadlineExceeded.
    """
    wanted = {
        id(one): (claim, one)
        for claim, spec in enumerate(requirements.specs)
        for one in spec.constraints
        if one.kind == "match" and one.attribute in _WORDS
    }
    free = [with_own_pools_released(one, ()) for one in node_infos] if wanted else []
    able = [one for one in free if _fits(one, requirements, context, wanted)]
    return [
        UnmetLocality(claim, constraint, _why(requirements, claim, constraint, free, context))
        for key, (claim, constraint) in wanted.items()
        if able and not any(_fits(one, requirements, context, wanted.keys() - {key}) for one in able)
    ]


def _fits(
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
) -> str:
    """What no node has. Raises DeadlineExceeded."""
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
        return f"no {' and no '.join(lacking)} that matches the requests publishes {constraint.attribute}"
    *first, last = [counted(count, f"matching {kind}") for kind, count in needed.items()]
    together = f"{', '.join(first)} and {last}" if first else last
    return f"no node has {together} on one {_WORDS[constraint.attribute]}"


def locality_misses(
    requirements: PodRequirements, samples: Iterable[NodeInfo], nodes: Iterable[NodeInfo], context: EvaluationContext
) -> Iterator[str]:
    """What would help a pod with such constraints, as sentences. `samples` is a node for each kind of machine, `nodes`
    are those to try without the constraint. Raises DeadlineExceeded.
    """
    found = unmet_localities(requirements, samples, context)
    if not found:
        return
    left_out = {id(one.constraint) for one in found}
    able = (one.node.name for one in nodes if _fits(one, requirements, context, left_out))
    node = next(able, "")
    for unmet in found:
        attribute = unmet.constraint.attribute
        without = f"without the constraint on {'it' if attribute in unmet.why else attribute}"
        without = f"without such constraints ({len(found)} of them)" if len(found) > 1 else without
        fits = f" the pod fits on {node}, and" if node else ""
        yield f"{unmet.why}; {without}{fits} Berth chooses near devices by itself"
