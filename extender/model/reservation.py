"""Devices that are promised to a claim before the API shows them there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from extender.model.claim import Result


class ReservationState(Enum):
    """Where the reservation of a claim stands."""

    NONE = "none"
    HELD = "held"
    BINDING = "binding"


@dataclass(frozen=True, slots=True)
class Reservation:
    """What filter holds for a claim, or what a bind writes into it."""

    pod_uid: str  # of the pod that was filtered or is bound
    node: str
    results: tuple[Result, ...]
    state: ReservationState
    deadline: float  # when a hold ends, in seconds of the service's clock; infinite while a bind writes
