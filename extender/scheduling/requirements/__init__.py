"""What a pod needs: its claims by state, the special claim of its extended resources, and why no node can serve it.

PodRequirements and requirements_of are exported by `extender.scheduling`.
"""

from extender.scheduling.requirements.pod_requirements import (
    ADMIN_LABEL,
    SPECIAL_NAME,
    ErrorStatus,
    Readiness,
    Skip,
    UnschedulableAndUnresolvable,
    class_of_resource,
    leftover_claims,
    needs_reservation,
    readiness,
    special_claim,
    too_many_claims,
    unprovided_resource,
)

__all__ = [
    "ADMIN_LABEL",
    "SPECIAL_NAME",
    "ErrorStatus",
    "Readiness",
    "Skip",
    "UnschedulableAndUnresolvable",
    "class_of_resource",
    "leftover_claims",
    "needs_reservation",
    "readiness",
    "special_claim",
    "too_many_claims",
    "unprovided_resource",
]
