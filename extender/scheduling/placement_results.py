"""The devices of a placement as results of claims: those that a hold reserves, and the allocations that bind writes."""

from __future__ import annotations

from collections.abc import Callable

from extender.allocation import NodeInfo, allocations
from extender.model import Allocation, Claim, Result
from extender.scheduling.evaluate import EvaluationContext, problem_for
from extender.scheduling.placements import Placement
from extender.scheduling.pod_requirements import PodRequirements


def held_results(node_info: NodeInfo, placement: Placement) -> tuple[Result, ...]:
    """The devices that a hold reserves. The results omit the fields that only an API write needs."""
    return tuple(result for claim in held_by_claim(node_info, placement) for result in claim)


def held_by_claim(node_info: NodeInfo, placement: Placement) -> list[tuple[Result, ...]]:
    """The devices that a hold reserves, per pending claim, in the order of `pending_claims`."""
    return [
        tuple(
            Result(
                pick.request.name,
                node_info.inventory.devices[pick.bit].id,
                pick.request.admin_access,
                share_id="hold" if pick.consumed is not None else "",
                consumed=pick.consumed,
            )
            for pick in claim
        )
        for claim in placement.solution.picks
    ]


def new_allocations(
    node_info: NodeInfo,
    requirements: PodRequirements,
    placement: Placement,
    context: EvaluationContext,
    new_share: Callable[[], str],
) -> list[tuple[Claim, Allocation]]:
    """The allocation of each pending claim on this node, as bind writes it.

    `new_share` returns a new share ID. Raises InvalidClaim and DeadlineExceeded.
    """
    classes = {class_.name: class_ for class_ in requirements.classes}
    problem = problem_for(node_info, requirements, context)
    found = allocations(problem, placement.solution, node_info.node.name, classes.get, new_share)
    return list(zip(requirements.pending_claims, found, strict=True))
