"""Explanations of placements: statuses, near misses, what-if scenarios and fleet statistics.

All functions depend only on a snapshot and a policy, and return plain values. They may take 100 ms, so `berth serve`
without a console does not import this package. This package has no I/O, clock or asyncio.
Three modules are faces of their own: `fleet_rows` (the rows and figures of the fleet), `scenario` (what-if changes) and
`excluded_nodes` (what keeps pods from nodes).
"""

from extender.explain.gang_explanation import explain_gang, explain_jobs, groups_named, namespaces_with_group
from extender.explain.gang_question import (
    GangExplanation,
    GangQuestion,
    PlannerCaches,
    free_devices,
    widest_domains,
)
from extender.explain.locality_constraints import unmet_localities
from extender.explain.near_misses import NO_RELEASE_HELPS, devices_for, holders_of_usable
from extender.explain.pod_explanation import Explanation, UnschedulableNodes, explain, no_devices, other_scheduler
from extender.explain.selector_stats import failing_terms

__all__ = [
    "NO_RELEASE_HELPS",
    "Explanation",
    "GangExplanation",
    "GangQuestion",
    "PlannerCaches",
    "UnschedulableNodes",
    "devices_for",
    "explain",
    "explain_gang",
    "explain_jobs",
    "failing_terms",
    "free_devices",
    "groups_named",
    "holders_of_usable",
    "namespaces_with_group",
    "no_devices",
    "other_scheduler",
    "unmet_localities",
    "widest_domains",
]
