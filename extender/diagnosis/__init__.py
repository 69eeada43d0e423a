"""Diagnosis: explanations of placements, near misses, what-if scenarios, consistency checks and fleet statistics.

All functions depend only on a snapshot and a policy, and return plain values. They may take 100 ms, so `berth serve`
without a console does not import this package. This package has no I/O, clock or asyncio.
"""

from extender.diagnosis.compared_sets import ComparedSets, compare_sets
from extender.diagnosis.consistency import CHECKS, Finding, check_consistency
from extender.diagnosis.explain import Explanation, explain, no_devices, other_scheduler
from extender.diagnosis.explain_gang import PlannerCaches, explain_gang
from extender.diagnosis.fleet_stats import FleetStats, fleet_stats
from extender.diagnosis.gang_explanation import GangExplanation
from extender.diagnosis.group_members import explain_job, groups_named, jobs_named
from extender.diagnosis.group_rows import group_rows
from extender.diagnosis.near_misses import claims_on
from extender.diagnosis.node_rows import claim_rows, node_detail, row, totals
from extender.diagnosis.scenario import Scenario, apply_scenario, claims_of, with_new_group, without_own_holds
from extender.diagnosis.selector_stats import failing_terms

__all__ = [
    "CHECKS",
    "ComparedSets",
    "Explanation",
    "Finding",
    "FleetStats",
    "GangExplanation",
    "PlannerCaches",
    "Scenario",
    "apply_scenario",
    "check_consistency",
    "claim_rows",
    "claims_of",
    "claims_on",
    "compare_sets",
    "explain",
    "explain_gang",
    "explain_job",
    "failing_terms",
    "fleet_stats",
    "group_rows",
    "groups_named",
    "jobs_named",
    "no_devices",
    "node_detail",
    "other_scheduler",
    "row",
    "totals",
    "with_new_group",
    "without_own_holds",
]
