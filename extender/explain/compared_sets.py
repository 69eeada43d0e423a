"""The GPUs that a bound pod got, beside those that first fit would have taken on the same node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from extender.allocation import NodeInfo, Search
from extender.allocation.what_if import claims_problem, with_devices_released
from extender.api.device_classes import DeviceClass
from extender.api.resource_claims import Claim
from extender.base.berth_errors import InvalidClaim, OutOfSteps
from extender.base.bits import members
from extender.base.deadline import DeadlineExceeded
from extender.explain.fleet_rows import link_digits
from extender.scheduling import EvaluationContext
from extender.topology.sets import bandwidth, is_joined


@dataclass(frozen=True, slots=True)
class GpuSet:
    """GPUs of one node. `gbps` is the predicted bandwidth of their ring in GB/s, 0 for fewer than two GPUs."""

    gpus: tuple[int, ...]  # indexes in ComparedSets.names
    gbps: float
    is_joined: bool  # by their links alone


@dataclass(frozen=True, slots=True)
class ComparedSets:
    """The set that Berth chose and the set of first fit, both on the node as it was without the pod.

    First fit takes the first devices that fit, in the order of the in-tree allocator. `links`, `switch` and `link` are
    those of the node's row in the fleet overview.
    """

    names: tuple[str, ...]  # of the node's GPUs
    busy: tuple[int, ...]  # GPUs that other pods had
    chosen: GpuSet
    first_fit: GpuSet
    links: str = ""
    switch: str = ""
    link: str = ""
    in_group: bool = False  # whether the pod names a group


def compare_sets(
    node_info: NodeInfo, claims: Sequence[Claim], classes: Mapping[str, DeviceClass], context: EvaluationContext
) -> ComparedSets | None:
    """Compare for a pod to which these claims, allocated on this node, belong. None if its devices are no whole GPUs,
    or if first fit finds no devices within its steps or the deadline of the context.
    """
    results = [result for claim in claims if claim.allocation is not None for result in claim.allocation.results]
    bits = {node_info.inventory.index.get(result.device) for result in results if not result.admin_access}
    before = with_devices_released(node_info, results, idle=False)
    first_fit = first_fit_devices(before, claims, classes, context)
    chosen = node_info.positions(sum(1 << bit for bit in bits if bit is not None))
    if first_fit is None or not chosen or node_info.fabric is None:
        return None
    bits_of_gpus = [bit for bit in node_info.gpu_bits if bit >= 0]
    devices = node_info.inventory.devices
    return ComparedSets(
        tuple(devices[bit].id.device for bit in bits_of_gpus),
        tuple(index for index, bit in enumerate(bits_of_gpus) if before.busy >> bit & 1),
        _set(node_info, chosen),
        _set(node_info, before.positions(first_fit)),
        **link_digits(node_info),
        in_group=any(claim.group for claim in claims),
    )


def first_fit_devices(
    node_info: NodeInfo, claims: Sequence[Claim], classes: Mapping[str, DeviceClass], context: EvaluationContext
) -> int | None:
    """The first devices that fit, as a mask; None if none do, or none are found within the steps and the deadline."""
    named = [(str(claim.key), claim.spec) for claim in claims]
    problem = claims_problem(node_info, named, classes.get, context.masks, context.features, context.deadline)
    try:
        solution = Search(problem, deadline=context.deadline).run()
    except (InvalidClaim, OutOfSteps, DeadlineExceeded):
        return None
    return solution.mask if solution is not None else None


def _set(node_info: NodeInfo, positions: int) -> GpuSet:
    assert node_info.fabric is not None
    shown = [position for position, bit in enumerate(node_info.gpu_bits) if bit >= 0]
    graph, gpus = node_info.fabric.graph, members(positions)
    gbps = bandwidth(graph, positions) if len(gpus) > 1 else 0.0
    return GpuSet(tuple(map(shown.index, gpus)), round(gbps, 1), is_joined(graph, positions))
