"""Conversion of a solution to the allocations for status.allocation of the claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from extender.allocation.device_rules import Features, published
from extender.allocation.nodes import PoolDevice
from extender.allocation.problem import Pick, Problem, Solution
from extender.allocation.selection import Classes
from extender.api.claim_specs import ClaimSpec, Config, DeviceRequest
from extender.api.nodes import NodeSelection, NodeSelector, Requirement, Term
from extender.api.resource_claims import Allocation, Result


def allocations(
    problem: Problem, solution: Solution, node_name: str, classes: Classes, new_share: Callable[[], str]
) -> list[Allocation]:
    """One allocation per claim. `new_share` returns a new share ID (a lower-case UUID)."""
    return [
        _allocation(problem, spec, picks, chosen, node_name, classes, new_share)
        for spec, picks, chosen in zip(problem.specs, solution.picks, solution.alternatives, strict=True)
    ]


def _allocation(
    problem: Problem,
    spec: ClaimSpec,
    picks: tuple[Pick, ...],
    chosen: tuple[int, ...],
    node_name: str,
    classes: Classes,
    new_share: Callable[[], str],
) -> Allocation:
    devices = [problem.inventory.devices[pick.bit] for pick in picks]
    requests = [request.alternatives[i] for request, i in zip(spec.requests, chosen, strict=True)]
    return Allocation(
        results=tuple(_result(pick, pool_device, new_share) for pick, pool_device in zip(picks, devices, strict=True)),
        config=tuple(config_entries(spec, requests, classes, problem.features)),
        node_selector=node_selector(devices, node_name),
    )


def _result(pick: Pick, pool_device: PoolDevice, new_share: Callable[[], str]) -> Result:
    request, device = pick.request, pool_device.device
    consumed = published(device, pool_device.id.driver, pick.consumed) if pick.consumed else None
    return Result(
        request.name,
        pool_device.id,
        admin_access=request.admin_access,
        tolerations=request.tolerations,
        share_id=new_share() if pick.consumed is not None else "",
        consumed=consumed,
        binding_conditions=device.binding_conditions,
        binding_failure_conditions=device.binding_failure_conditions,
        skip_node_operations=pool_device.slice.skip_node_operations,
    )


def config_entries(
    spec: ClaimSpec, requests: Sequence[DeviceRequest], classes: Classes, features: Features
) -> Iterator[Config]:
    """The config entries of the allocation for the chosen form of each request: of each class once, then the claim's.

    As in 1.37, an entry that covers all requests names none. In 1.36 it names them, and an entry of the claim is
    repeated for each request.
    """
    users: dict[str, list[str]] = {}
    for request in requests:
        users.setdefault(request.class_name, []).append(request.name)
    for class_name, names in users.items():
        class_ = classes(class_name)
        covers_all = features.config_once and len(names) == len(requests)
        for config in class_.config if class_ is not None else ():
            yield replace(config, requests=() if covers_all else tuple(names), source="FromClass")
    for config in spec.config:
        entry = replace(config, source="FromClaim")
        covered = sum(config.covers(request.name) for request in requests)
        if not config.requests or (features.config_once and covered == len(requests)):
            yield replace(entry, requests=())
        else:
            yield from [entry] * (min(covered, 1) if features.config_once else covered)


def node_selector(devices: list[PoolDevice], node_name: str) -> NodeSelector | None:
    """The nodes that can use the allocation: this node, the nodes that all slices select, or all nodes (None)."""
    expressions: dict[Requirement, None] = {}  # each once, in order
    fields: dict[Requirement, None] = {}
    for pool_device in devices:
        selection = _selection(pool_device)
        if selection.node_name or pool_device.device.binds_to_node:
            only = Requirement("metadata.name", "In", (node_name,))
            return NodeSelector((Term(fields=(only,)),))
        if selection.selector is not None and selection.selector.terms:
            first = selection.selector.terms[0]
            expressions |= dict.fromkeys(first.expressions)
            fields |= dict.fromkeys(first.fields)
    if not expressions and not fields:
        return None
    return NodeSelector((Term(tuple(expressions), tuple(fields)),))


def _selection(pool_device: PoolDevice) -> NodeSelection:
    return pool_device.device.selection if pool_device.slice.per_device else pool_device.slice.selection
