"""Binding conditions (KEP-5007): they tell whether the drivers have prepared the allocated devices for use."""

from __future__ import annotations

from enum import Enum

from extender.model import Claim, Result


class Readiness(Enum):
    """The state of a claim's allocated devices, by their binding conditions."""

    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"


def readiness(claim: Claim) -> Readiness:
    """The state of all allocated devices of the claim.

    FAILED: a failure condition of a device with binding conditions is true. READY: every binding condition of every
    device is true, or the claim has no allocation. WAITING: all other cases.
    """
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
