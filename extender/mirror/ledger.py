"""What filter promised and bind is writing, claim by claim: the life of a reservation, as a table that runs.

            filter          bind            watch shows it, claim gone, undone
  (none) ──────────▶ HELD ─────────▶ BINDING ──────────▶ (none)
                      │ deadline, pod or claim gone, filtered again
                      └──────────────────▶ (none)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from heapq import heapify, heappop, heappush
from math import inf

from extender.mirror.usage import BIND, HOLD, Holder, UsageBook
from extender.model.claim import Result
from extender.model.device import PoolKey
from extender.model.reservation import Reservation, State

_FEW = 64  # deadlines of holds that ended are kept below this number and below that of holds


class Event(Enum):
    """What can happen to a reservation."""

    HOLD = "filter chose devices"
    EXPIRE = "the hold's deadline passed"
    RELEASE = "the pod was filtered again, bound or deleted"
    ASSUME = "bind started"
    CONFIRM = "the watch showed the claim allocated"
    GONE = "the claim was deleted"
    UNDO = "bind failed and was undone"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.NONE, Event.HOLD): State.HELD,
    # What the cluster does to claims without a reservation is no news, and an undo may come after the watch confirmed.
    (State.NONE, Event.RELEASE): State.NONE,
    (State.NONE, Event.CONFIRM): State.NONE,
    (State.NONE, Event.GONE): State.NONE,
    (State.NONE, Event.UNDO): State.NONE,
    (State.HELD, Event.UNDO): State.HELD,  # another bind's failure ends no hold
    (State.HELD, Event.EXPIRE): State.NONE,
    (State.HELD, Event.RELEASE): State.NONE,
    (State.HELD, Event.GONE): State.NONE,
    (State.HELD, Event.CONFIRM): State.NONE,  # another process allocated it
    (State.NONE, Event.ASSUME): State.BINDING,
    (State.HELD, Event.ASSUME): State.BINDING,
    (State.BINDING, Event.HOLD): State.BINDING,  # a filter during our own bind changes nothing
    (State.BINDING, Event.RELEASE): State.BINDING,
    (State.BINDING, Event.CONFIRM): State.NONE,
    (State.BINDING, Event.GONE): State.NONE,
    (State.BINDING, Event.UNDO): State.NONE,
}


class InvalidTransition(RuntimeError):
    """An event that the table does not list for the state: a bug of Berth."""


class Ledger:
    """Reservations by claim UID. Every change of state follows TRANSITIONS, and every change of what is in use goes
    through the usage book. Methods answer with the pools whose use changed. `changed` is told the claim's new
    reservation, None where it ended."""

    def __init__(
        self, usage: UsageBook, changed: Callable[[str, Reservation | None], None] = lambda _, __: None
    ) -> None:
        self._usage = usage
        self._changed = changed
        self.reservations: dict[str, Reservation] = {}
        self.in_flight: dict[str, str] = {}  # claims that binds write, each with the UID of the pod it is written for
        self._held_for: dict[str, dict[str, None]] = {}  # pod UID to the claims held for it
        # A heap; a hold that ended before its deadline leaves its entry for a while.
        self._deadlines: list[tuple[float, str]] = []

    @property
    def soonest(self) -> float:
        """No hold ends before; infinite without holds."""
        return self._deadlines[0][0] if self._deadlines else inf

    @property
    def holds(self) -> int:
        """Pods for which devices are held."""
        return len(self._held_for)

    def state(self, claim_uid: str) -> State:
        reservation = self.reservations.get(claim_uid)
        return State.NONE if reservation is None else reservation.state

    def held_for(self, pod_uid: str) -> tuple[Result, ...]:
        """The devices held for a pod."""
        return tuple(r for claim_uid in self._held_for.get(pod_uid, ()) for r in self.reservations[claim_uid].results)

    def hold(
        self, claim_uid: str, pod_uid: str, node: str, results: tuple[Result, ...], deadline: float
    ) -> set[PoolKey]:
        """Keep devices for a claim of a pod. Raises InvalidTransition where the claim is reserved already."""
        touched = self._happened(claim_uid, Event.HOLD, Reservation(pod_uid, node, results, State.HELD, deadline))
        if self.state(claim_uid) is State.HELD:
            heappush(self._deadlines, (deadline, claim_uid))
            if len(self._deadlines) > 2 * len(self.reservations) + _FEW:
                self._deadlines = [entry for entry in set(self._deadlines) if self._is_held(*entry)]
                heapify(self._deadlines)
        return touched

    def assume(self, claim_uid: str, pod_uid: str, node: str, results: tuple[Result, ...]) -> set[PoolKey]:
        """A bind starts to write this allocation into a claim. Raises InvalidTransition where another bind does."""
        return self._happened(claim_uid, Event.ASSUME, Reservation(pod_uid, node, results, State.BINDING, inf))

    def release(self, pod_uid: str) -> set[PoolKey]:
        """End the holds of a pod."""
        return self._all_happened(list(self._held_for.get(pod_uid, ())), Event.RELEASE)

    def release_claim(self, claim_uid: str) -> set[PoolKey]:
        """End the hold of a claim: a pod that shares it is bound, and chooses its devices on the newest picture."""
        return self._happened(claim_uid, Event.RELEASE)

    def release_node(self, node: str) -> set[PoolKey]:
        """End all holds on a node: a bind that has arrived is worth more than a promise that may never be used."""
        return self._all_happened([uid for uid, r in self._held() if r.node == node], Event.RELEASE)

    def expire(self, now: float) -> set[PoolKey]:
        """End holds whose deadline passed."""
        touched: set[PoolKey] = set()
        while self._deadlines and (self._deadlines[0][0] <= now or not self._is_held(*self._deadlines[0])):
            entry = heappop(self._deadlines)
            if self._is_held(*entry):
                touched |= self._happened(entry[1], Event.EXPIRE)
        return touched

    def confirm(self, claim_uid: str) -> set[PoolKey]:
        """The watch showed the claim with an allocation: from now on the claim speaks for itself."""
        return self._happened(claim_uid, Event.CONFIRM)

    def gone(self, claim_uid: str) -> set[PoolKey]:
        """The claim does not exist any more."""
        return self._happened(claim_uid, Event.GONE)

    def undo(self, claim_uid: str) -> set[PoolKey]:
        """The bind that wrote the claim failed. The watch may have confirmed the write before."""
        return self._happened(claim_uid, Event.UNDO)

    def _is_held(self, deadline: float, claim_uid: str) -> bool:
        reservation = self.reservations.get(claim_uid)
        return reservation is not None and reservation.state is State.HELD and reservation.deadline == deadline

    def _held(self) -> Iterable[tuple[str, Reservation]]:
        return ((uid, self.reservations[uid]) for claims in self._held_for.values() for uid in claims)

    def _all_happened(self, claim_uids: list[str], event: Event) -> set[PoolKey]:
        touched: set[PoolKey] = set()
        for claim_uid in claim_uids:
            touched |= self._happened(claim_uid, event)
        return touched

    def _happened(self, claim_uid: str, event: Event, new: Reservation | None = None) -> set[PoolKey]:
        """The only place where a reservation changes."""
        before = self.state(claim_uid)
        after = TRANSITIONS.get((before, event))
        if after is None:
            raise InvalidTransition(f"claim {claim_uid}: in state {before.value!r} it cannot happen that {event.value}")
        if after is before:
            return set()
        touched = self._forget(claim_uid)
        if new is not None:
            self.reservations[claim_uid] = new
            touched |= self._usage.put(_holder(claim_uid, new), new.results)
            if after is State.HELD:
                self._held_for.setdefault(new.pod_uid, {})[claim_uid] = None
            else:
                self.in_flight[claim_uid] = new.pod_uid
        self._changed(claim_uid, new)
        return touched

    def _forget(self, claim_uid: str) -> set[PoolKey]:
        old = self.reservations.pop(claim_uid, None)
        if old is None:
            return set()
        self.in_flight.pop(claim_uid, None)
        claims = self._held_for.get(old.pod_uid, {})
        claims.pop(claim_uid, None)
        if not claims:
            self._held_for.pop(old.pod_uid, None)
        return self._usage.drop(_holder(claim_uid, old))


def _holder(claim_uid: str, reservation: Reservation) -> Holder:
    return (HOLD if reservation.state is State.HELD else BIND, claim_uid)
