"""For what-if questions: nodes with other devices in use than in the cluster, and problems of claims without a pod."""

from extender.allocation.what_if.hypothetical import (
    claims_problem,
    hypothetical_snapshot,
    problem_of,
    usage_of,
    with_devices_allocated,
    with_devices_released,
    with_own_pools_released,
)

__all__ = [
    "claims_problem",
    "hypothetical_snapshot",
    "problem_of",
    "usage_of",
    "with_devices_allocated",
    "with_devices_released",
    "with_own_pools_released",
]
