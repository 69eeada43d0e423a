"""What filter promised and bind is writing: the life of a reservation, as a table.

            filter          bind            watch shows it      failure
  (none) ──────────▶ HELD ─────────▶ BINDING ──────────▶ (none)
                      │ deadline, pod gone,  │ undone
                      │ filtered again       ▼
                      └──────────────────▶ (none)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf

from extender.mirror.usage import HOLD, UsageBook
from extender.model.claim import Result
from extender.model.device import PoolKey


class State(Enum):
    """Where a reservation stands."""

    NONE = "none"
    HELD = "held"
    BINDING = "binding"


class Event(Enum):
    """What can happen to a reservation."""

    HOLD = "filter chose devices"
    EXPIRE = "the hold's deadline passed"
    RELEASE = "the pod was filtered again, bound or deleted"
    ASSUME = "bind started"
    CONFIRM = "the watch showed our own allocation"
    UNDO = "bind failed and was undone"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.NONE, Event.HOLD): State.HELD,
    (State.HELD, Event.HOLD): State.HELD,
    (State.HELD, Event.EXPIRE): State.NONE,
    (State.HELD, Event.RELEASE): State.NONE,
    (State.NONE, Event.ASSUME): State.BINDING,
    (State.HELD, Event.ASSUME): State.BINDING,
    (State.BINDING, Event.CONFIRM): State.NONE,
    (State.BINDING, Event.UNDO): State.NONE,
    (State.BINDING, Event.HOLD): State.BINDING,  # a filter during our own bind changes nothing
    (State.BINDING, Event.RELEASE): State.BINDING,
}


@dataclass(frozen=True, slots=True)
class Hold:
    """The first choice of a filter, kept for the pod until the deadline."""

    pod_uid: str
    node: str
    deadline: float  # in the time of `now`, seconds


class Ledger:
    """Holds by pod, binds by claim. Every change of what is in use goes through the usage book."""

    def __init__(self, usage: UsageBook) -> None:
        self._usage = usage
        self._holds: dict[str, Hold] = {}
        self._binding: dict[str, str] = {}  # claim UID to pod UID
        self._soonest = inf  # no hold ends before

    @property
    def in_flight(self) -> dict[str, str]:
        """Claims being written, each with the pod it is written for."""
        return self._binding

    @property
    def holds(self) -> int:
        return len(self._holds)

    def state(self, pod_uid: str) -> State:
        if pod_uid in self._binding.values():
            return State.BINDING
        return State.HELD if pod_uid in self._holds else State.NONE

    def hold(self, hold: Hold, results: tuple[Result, ...]) -> set[PoolKey]:
        """Keep devices for a pod; a newer hold of the same pod replaces the older."""
        if TRANSITIONS[self.state(hold.pod_uid), Event.HOLD] is State.BINDING:
            return set()
        self._holds[hold.pod_uid] = hold
        self._soonest = min(self._soonest, hold.deadline)
        return self._usage.put((HOLD, hold.pod_uid), results)

    def release(self, pod_uid: str) -> set[PoolKey]:
        """End the hold of a pod, if it has one."""
        if self._holds.pop(pod_uid, None) is None:
            return set()
        return self._usage.drop((HOLD, pod_uid))

    def release_node(self, node: str) -> set[PoolKey]:
        """End all holds on a node: a bind that has arrived is worth more than a promise that may never be used."""
        touched: set[PoolKey] = set()
        for pod_uid in [uid for uid, hold in self._holds.items() if hold.node == node]:
            touched |= self.release(pod_uid)
        return touched

    def expire(self, now: float) -> set[PoolKey]:
        """End holds whose deadline passed."""
        touched: set[PoolKey] = set()
        if now < self._soonest:
            return touched
        for pod_uid in [uid for uid, hold in self._holds.items() if hold.deadline <= now]:
            touched |= self.release(pod_uid)
        self._soonest = min((hold.deadline for hold in self._holds.values()), default=inf)
        return touched

    def assume(self, pod_uid: str, claim_uid: str, results: tuple[Result, ...]) -> set[PoolKey]:
        """A bind starts to write this allocation into a claim."""
        self._binding[claim_uid] = pod_uid
        return self._usage.put(("bind", claim_uid), results)

    def settle(self, claim_uid: str) -> set[PoolKey]:
        """The write is confirmed or undone: from now on the claim speaks for itself."""
        if self._binding.pop(claim_uid, None) is None:
            return set()
        return self._usage.drop(("bind", claim_uid))
