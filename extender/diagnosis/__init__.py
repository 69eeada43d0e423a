"""Diagnosis: explanations of placements, near misses, what-if scenarios, consistency checks and fleet statistics.

All functions depend only on a snapshot and a policy, and return plain values. They may take 100 ms, so `berth serve`
without a console does not import this package. This package has no I/O, clock or asyncio.
"""

from extender.diagnosis.consistency import KINDS, Finding, check_consistency
from extender.diagnosis.explain import Explanation, explain, no_devices
from extender.diagnosis.explain_gang import PlannerCaches, explain_gang, groups_named
from extender.diagnosis.fleet_stats import FleetStats, fleet_stats
from extender.diagnosis.gang_explanation import GangExplanation, GangHistory, MemberHistory
from extender.diagnosis.near_misses import claims_on
from extender.diagnosis.node_rows import claim_rows, node_detail, row, totals
from extender.diagnosis.scenario import Scenario, apply_scenario, devices_of, without_own_holds

__all__ = [
    "KINDS",
    "Explanation",
    "Finding",
    "FleetStats",
    "GangExplanation",
    "GangHistory",
    "MemberHistory",
    "PlannerCaches",
    "Scenario",
    "apply_scenario",
    "check_consistency",
    "claim_rows",
    "claims_on",
    "devices_of",
    "explain",
    "explain_gang",
    "fleet_stats",
    "groups_named",
    "no_devices",
    "node_detail",
    "row",
    "totals",
    "without_own_holds",
]
