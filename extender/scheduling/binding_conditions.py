"""Binding conditions (KEP-5007): whether the drivers have made the allocated devices usable."""

from __future__ import annotations

from enum import Enum

from extender.model import Claim, Result


class Readiness(Enum):
    """What the conditions of a claim's devices say."""

    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"


def readiness(claim: Claim) -> Readiness:
    """READY when every result that has binding conditions has all of them true, FAILED at the first failure condition."""
    if claim.allocation is None:
        return Readiness.READY
    waiting = False
    for result in claim.allocation.results:
        if not result.binding_conditions:
            continue
        true = _true_conditions(claim, result)
        if true & set(result.binding_failure_conditions):
            return Readiness.FAILED
        waiting = waiting or not set(result.binding_conditions) <= true
    return Readiness.WAITING if waiting else Readiness.READY


def _true_conditions(claim: Claim, result: Result) -> set[str]:
    for status in claim.devices:
        if status.device == result.device and status.share_id == result.share_id:
            return {name for name, value in status.conditions if value == "True"}
    return set()
