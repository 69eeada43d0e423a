"""Bounds of the room for equal units on one node, from the devices that match each request: without a search."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from extender.allocation import FastPath, NodeInfo, Problem
from extender.model import DeviceRequest, InvalidClaim, members, union
from extender.scheduling.evaluate import EvaluationContext, may_reject_sets
from extender.scheduling.requirements.pod_requirements import PodRequirements

UNLIMITED_ROOM = 1 << 30  # units that take no device


class WholeDevices(NamedTuple):
    """The only request of a unit: any `each` of the devices in `match`, as a whole."""

    match: int  # mask of the devices
    each: int  # devices of one unit


def whole_devices(
    node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext
) -> WholeDevices | None:
    """The devices, also those in use, that can serve a unit. None if their number does not give the exact room."""
    if may_reject_sets(node_info, requirements):
        return None
    try:
        found = FastPath.of(replace(context.problem(node_info, requirements), taken=0))
    except InvalidClaim:
        return None
    return WholeDevices(found.free, found.request.count) if found is not None else None


def most_units(node_info: NodeInfo, requirements: PodRequirements, context: EvaluationContext) -> int:
    """An upper bound of the pods with these requirements that fit on a node, from the devices that match each request.

    `requirements` are those on this node. Raises DeadlineExceeded.
    """
    problem = context.problem(node_info, requirements)
    found, everything, least = UNLIMITED_ROOM, 0, 0
    try:
        for name, spec in zip(problem.names, problem.specs, strict=True):
            for request in spec.requests:
                options = [_exclusive(problem, name, option) for option in request.alternatives]
                if any(option is None for option in options):
                    continue  # a shared device, or admin access, which takes nothing
                known = [option for option in options if option is not None]
                # Units may take different alternatives, so all devices of the request count for the smallest of them.
                free, count = union([free for free, _ in known]), min(count for _, count in known)
                found = min(found, free.bit_count() // max(count, 1))
                everything, least = everything | free, least + count
    except InvalidClaim:
        return 0
    return min(found, everything.bit_count() // least) if least else found


def _exclusive(problem: Problem, claim: str, request: DeviceRequest) -> tuple[int, int] | None:
    """(mask of the free devices for a request, how many it takes); None if devices can be shared."""
    match = problem.select(claim, request).match
    devices, others = problem.inventory.devices, match & ~problem.inventory.simple  # simple ones cannot be shared
    if request.admin_access or any(devices[bit].device.allow_multiple for bit in members(others)):
        return None
    count = request.count if request.mode == "ExactCount" else match.bit_count()
    return match & ~problem.taken, count
