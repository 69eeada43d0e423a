"""Observers of a search: the search tells them why it leaves devices aside. By default nobody listens."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Called for every device that a request could not take."""

    def rejected(self, request: str, bit: int, cause: str, detail: str) -> None:
        """`cause` is one of the CAUSES; `detail` names the value that stood in the way."""


CAUSES = {
    "in-use": "allocated to another claim",
    "taken-here": "already chosen for this pod",
    "capacity": "not enough capacity left",
    "undefined-capacity": "does not offer the requested capacity",
    "counters": "its shared counters are used up",
    "tainted": "has a taint that the request does not tolerate",
    "constraint": "would break a constraint of the claim",
    "compatibility-groups": "draws on counters with a field that Berth does not support yet",
    "node-allocatable": "has a field that Berth does not support yet",
}


class NullObserver:
    """Listens to nothing."""

    def rejected(self, request: str, bit: int, cause: str, detail: str) -> None:
        pass


class CauseRecorder:
    """Remembers the last cause per request and device."""

    def __init__(self) -> None:
        self.causes: dict[tuple[str, int], tuple[str, str]] = {}

    def rejected(self, request: str, bit: int, cause: str, detail: str) -> None:
        self.causes[request, bit] = (cause, detail)


NULL_OBSERVER = NullObserver()
