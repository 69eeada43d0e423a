"""Reservations: devices that Berth keeps for a claim until the API shows the allocation."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from extender.model.claim import Result


class ReservationState(StrEnum):
    """The state of a claim's reservation."""

    NONE = "none"
    HELD = "held"
    BINDING = "binding"


class Reservation(NamedTuple):
    """The devices that a filter call holds for a claim, or that a bind writes into the claim."""

    pod_uid: str  # UID of the pod of the filter call or bind
    node: str
    results: tuple[Result, ...]
    state: ReservationState
    deadline: float  # end of the hold, in seconds of the service's clock; infinite during a bind
