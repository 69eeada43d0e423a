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

from extender.cache.allocated_devices import BIND, HOLD, AllocatedDevices, Holder
from extender.model import PoolKey, Reservation, ReservationState, Result

_FEW = 64  # deadlines of holds that ended are kept below this number and below that of holds


class Event(Enum):
    """What can happen to a reservation."""

    HOLD = "filter chose devices"
    EXPIRE = "the hold's deadline passed"
    RELEASE = "the pod was filtered again, bound or deleted"
    ASSUME = "bind started"
    CONFIRM = "the watch showed the claim allocated"
    CLAIM_DELETED = "the claim was deleted"
    FORGET = "bind failed and was undone"


TRANSITIONS: dict[tuple[ReservationState, Event], ReservationState] = {
    (ReservationState.NONE, Event.HOLD): ReservationState.HELD,
    # What the cluster does to claims without a reservation is no news, and an undo may come after the watch confirmed.
    (ReservationState.NONE, Event.RELEASE): ReservationState.NONE,
    (ReservationState.NONE, Event.CONFIRM): ReservationState.NONE,
    (ReservationState.NONE, Event.CLAIM_DELETED): ReservationState.NONE,
    (ReservationState.NONE, Event.FORGET): ReservationState.NONE,
    (ReservationState.HELD, Event.FORGET): ReservationState.HELD,  # another bind's failure ends no hold
    (ReservationState.HELD, Event.EXPIRE): ReservationState.NONE,
    (ReservationState.HELD, Event.RELEASE): ReservationState.NONE,
    (ReservationState.HELD, Event.CLAIM_DELETED): ReservationState.NONE,
    (ReservationState.HELD, Event.CONFIRM): ReservationState.NONE,  # another process allocated it
    (ReservationState.NONE, Event.ASSUME): ReservationState.BINDING,
    (ReservationState.HELD, Event.ASSUME): ReservationState.BINDING,
    (ReservationState.BINDING, Event.HOLD): ReservationState.BINDING,  # a filter during our own bind changes nothing
    (ReservationState.BINDING, Event.RELEASE): ReservationState.BINDING,
    (ReservationState.BINDING, Event.CONFIRM): ReservationState.NONE,
    (ReservationState.BINDING, Event.CLAIM_DELETED): ReservationState.NONE,
    (ReservationState.BINDING, Event.FORGET): ReservationState.NONE,
}


class InvalidTransition(RuntimeError):
    """An event that the table does not list for the state: a bug of Berth."""


class Reservations:
    """Reservations by claim UID. Every change of state follows TRANSITIONS, and every change of what is in use goes
    through the allocated devices. Methods answer with the pools whose use changed. `changed` is told the claim's new
    reservation, None where it ended."""

    def __init__(
        self,
        allocated_devices: AllocatedDevices,
        changed: Callable[[str, Reservation | None], None] = lambda _, __: None,
    ) -> None:
        self._allocated_devices = allocated_devices
        self._changed = changed
        self.by_claim: dict[str, Reservation] = {}
        self.in_flight: dict[str, str] = {}  # claims that binds write, each with the UID of the pod it is written for
        self._held_for: dict[str, dict[str, None]] = {}  # pod UID to the claims held for it
        # A heap; a hold that ended before its deadline leaves its entry for a while.
        self._deadlines: list[tuple[float, str]] = []

    @property
    def kept_deadlines(self) -> int:
        """Entries of the heap of deadlines, with those of holds that ended early."""
        return len(self._deadlines)

    @property
    def next_deadline(self) -> float:
        """No hold ends before; infinite without holds."""
        return self._deadlines[0][0] if self._deadlines else inf

    @property
    def holds(self) -> int:
        """Pods for which devices are held."""
        return len(self._held_for)

    def state(self, claim_uid: str) -> ReservationState:
        reservation = self.by_claim.get(claim_uid)
        return ReservationState.NONE if reservation is None else reservation.state

    def held_for(self, pod_uid: str) -> tuple[Result, ...]:
        """The devices held for a pod."""
        return tuple(r for claim_uid in self._held_for.get(pod_uid, ()) for r in self.by_claim[claim_uid].results)

    def hold(
        self, claim_uid: str, pod_uid: str, node: str, results: tuple[Result, ...], deadline: float
    ) -> set[PoolKey]:
        """Keep devices for a claim of a pod. Raises InvalidTransition where the claim is reserved already."""
        touched = self._transition(
            claim_uid, Event.HOLD, Reservation(pod_uid, node, results, ReservationState.HELD, deadline)
        )
        if self.state(claim_uid) is ReservationState.HELD:
            heappush(self._deadlines, (deadline, claim_uid))
            if len(self._deadlines) > 2 * len(self.by_claim) + _FEW:
                self._deadlines = [entry for entry in set(self._deadlines) if self._is_held(*entry)]
                heapify(self._deadlines)
        return touched

    def assume(self, claim_uid: str, pod_uid: str, node: str, results: tuple[Result, ...]) -> set[PoolKey]:
        """A bind starts to write this allocation into a claim. Raises InvalidTransition where another bind does."""
        return self._transition(
            claim_uid, Event.ASSUME, Reservation(pod_uid, node, results, ReservationState.BINDING, inf)
        )

    def release(self, pod_uid: str) -> set[PoolKey]:
        """End the holds of a pod."""
        return self._transition_all(list(self._held_for.get(pod_uid, ())), Event.RELEASE)

    def release_claim(self, claim_uid: str) -> set[PoolKey]:
        """End the hold of a claim: a pod that shares it is bound, and chooses its devices on the newest picture."""
        return self._transition(claim_uid, Event.RELEASE)

    def release_node(self, node: str) -> set[PoolKey]:
        """End all holds on a node: a bind that has arrived is worth more than a promise that may never be used."""
        return self._transition_all([uid for uid, r in self._held() if r.node == node], Event.RELEASE)

    def expire(self, now: float) -> set[PoolKey]:
        """End holds whose deadline passed."""
        touched: set[PoolKey] = set()
        while self._deadlines and (self._deadlines[0][0] <= now or not self._is_held(*self._deadlines[0])):
            entry = heappop(self._deadlines)
            if self._is_held(*entry):
                touched |= self._transition(entry[1], Event.EXPIRE)
        return touched

    def confirm(self, claim_uid: str) -> set[PoolKey]:
        """The watch showed the claim with an allocation: from now on the claim speaks for itself."""
        return self._transition(claim_uid, Event.CONFIRM)

    def claim_deleted(self, claim_uid: str) -> set[PoolKey]:
        """The claim does not exist any more."""
        return self._transition(claim_uid, Event.CLAIM_DELETED)

    def forget(self, claim_uid: str) -> set[PoolKey]:
        """The bind that wrote the claim failed. The watch may have confirmed the write before."""
        return self._transition(claim_uid, Event.FORGET)

    def _is_held(self, deadline: float, claim_uid: str) -> bool:
        reservation = self.by_claim.get(claim_uid)
        return (
            reservation is not None and reservation.state is ReservationState.HELD and reservation.deadline == deadline
        )

    def _held(self) -> Iterable[tuple[str, Reservation]]:
        return ((uid, self.by_claim[uid]) for claims in self._held_for.values() for uid in claims)

    def _transition_all(self, claim_uids: list[str], event: Event) -> set[PoolKey]:
        touched: set[PoolKey] = set()
        for claim_uid in claim_uids:
            touched |= self._transition(claim_uid, event)
        return touched

    def _transition(self, claim_uid: str, event: Event, new: Reservation | None = None) -> set[PoolKey]:
        """The only place where a reservation changes."""
        before = self.state(claim_uid)
        after = TRANSITIONS.get((before, event))
        if after is None:
            raise InvalidTransition(f"claim {claim_uid}: in state {before.value!r} it cannot happen that {event.value}")
        if after is before:
            return set()
        touched = self._remove(claim_uid)
        if new is not None:
            self.by_claim[claim_uid] = new
            touched |= self._allocated_devices.put(_holder(claim_uid, new), new.results)
            if after is ReservationState.HELD:
                self._held_for.setdefault(new.pod_uid, {})[claim_uid] = None
            else:
                self.in_flight[claim_uid] = new.pod_uid
        self._changed(claim_uid, new)
        return touched

    def _remove(self, claim_uid: str) -> set[PoolKey]:
        old = self.by_claim.pop(claim_uid, None)
        if old is None:
            return set()
        self.in_flight.pop(claim_uid, None)
        claims = self._held_for.get(old.pod_uid, {})
        claims.pop(claim_uid, None)
        if not claims:
            self._held_for.pop(old.pod_uid, None)
        return self._allocated_devices.drop(_holder(claim_uid, old))


def _holder(claim_uid: str, reservation: Reservation) -> Holder:
    return (HOLD if reservation.state is ReservationState.HELD else BIND, claim_uid)
