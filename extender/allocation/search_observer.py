"""Observers of a search. The search reports to them why a request cannot have a device."""

from __future__ import annotations


class Observer:
    """Receives each device that a request cannot have, and ignores it."""

    def rejected(self, request: str, bit: int, cause: str, detail: str) -> None:
        """`bit` is the device; `cause` is a key of CAUSES; `detail` names the attribute, counter or field, or is ''."""


CAUSES = {
    "in-use": "allocated to another claim",
    "taken-here": "already chosen for this pod",
    "capacity": "not enough capacity left",
    "undefined-capacity": "does not offer the requested capacity",
    "counters": "its shared counters are used up",
    "tainted": "has a taint that the request does not tolerate",
    "constraint": "would break a constraint of the claim",
    "compatibility-groups": "has no compatibility group in common with the devices in use of its counter set",
    "node-allocatable": "has a field that Berth does not support yet",
}


class CauseRecorder(Observer):
    """Stores the last (cause, detail) for each (request, bit)."""

    def __init__(self) -> None:
        self.causes: dict[tuple[str, int], tuple[str, str]] = {}

    def rejected(self, request: str, bit: int, cause: str, detail: str) -> None:
        self.causes[request, bit] = (cause, detail)


NULL_OBSERVER = Observer()
