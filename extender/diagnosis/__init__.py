"""Diagnosis: why pods go where they go or nowhere, what would happen if, what must not be, and figures of the fleet.

What belongs here: functions of a snapshot and a policy that people ask for, as plain values. They may take a hundred
milliseconds, so the process that answers kube-scheduler imports nothing of this package. No I/O, clocks, asyncio.
"""

from extender.diagnosis.consistency import KINDS, Finding, check_consistency
from extender.diagnosis.explain import Explanation, explain
from extender.diagnosis.fleet_stats import FleetStats, fleet_stats
from extender.diagnosis.near_misses import claims_on
from extender.diagnosis.node_rows import claim_rows, node_detail, row, totals
from extender.diagnosis.scenario import Scenario, apply_scenario, devices_of, without_own_holds

__all__ = [
    "KINDS",
    "Explanation",
    "Finding",
    "FleetStats",
    "Scenario",
    "apply_scenario",
    "check_consistency",
    "claim_rows",
    "claims_on",
    "devices_of",
    "explain",
    "fleet_stats",
    "node_detail",
    "row",
    "totals",
    "without_own_holds",
]
