"""What if: nodes with other devices in use than the cluster shows, and problems from plain objects without a cache."""

from extender.allocation.what_if.hypothetical import (
    hypothetical_snapshot,
    problem_of,
    usage_of,
    with_devices_allocated,
    with_devices_released,
    with_own_pools_released,
)

__all__ = [
    "hypothetical_snapshot",
    "problem_of",
    "usage_of",
    "with_devices_allocated",
    "with_devices_released",
    "with_own_pools_released",
]
