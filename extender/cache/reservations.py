"""Reservations of devices for claims: by a hold of filter, or by a bind that writes the claim.

TRANSITIONS is the state machine of one reservation:

          filter          bind            allocation in watch, claim deleted, bind failed
(none) ──────────▶ HELD ─────────▶ BINDING ──────────▶ (none)
                    │ deadline, pod or claim deleted, pod filtered again
                    └──────────────────▶ (none)
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from enum import StrEnum

from extender.api.resource_claims import Reservation, ReservationState, Result
from extender.api.resource_slices import PoolKey
from extender.cache.allocated_devices import BIND, HOLD, AllocatedDevices, Holder
from extender.cache.timers import TimerKind, Timers


class ReservationEvent(StrEnum):
    """The events of a reservation."""

    HOLD = "filter chose devices"
    EXPIRE = "the hold's deadline passed"
    RELEASE = "the pod was filtered again, bound or deleted"
    ASSUME = "bind started"
    CONFIRM = "the watch showed the claim allocated"
    CLAIM_DELETED = "the claim was deleted"
    FORGET = "bind failed and was undone"


_NONE, _HELD, _BINDING = ReservationState.NONE, ReservationState.HELD, ReservationState.BINDING
TRANSITIONS: dict[tuple[ReservationState, ReservationEvent], ReservationState] = {
    (_NONE, ReservationEvent.HOLD): _HELD,
    (_NONE, ReservationEvent.ASSUME): _BINDING,
    # Events of claims without a reservation change nothing. A rollback can end after the watch confirmed the claim.
    (_NONE, ReservationEvent.RELEASE): _NONE,
    (_NONE, ReservationEvent.CONFIRM): _NONE,
    (_NONE, ReservationEvent.CLAIM_DELETED): _NONE,
    (_NONE, ReservationEvent.FORGET): _NONE,
    (_HELD, ReservationEvent.ASSUME): _BINDING,
    (_HELD, ReservationEvent.FORGET): _HELD,  # the failed bind was an earlier one; the hold is newer
    (_HELD, ReservationEvent.EXPIRE): _NONE,
    (_HELD, ReservationEvent.RELEASE): _NONE,
    (_HELD, ReservationEvent.CLAIM_DELETED): _NONE,
    (_HELD, ReservationEvent.CONFIRM): _NONE,  # another process allocated it
    (_BINDING, ReservationEvent.HOLD): _BINDING,  # a filter request during the bind changes nothing
    (_BINDING, ReservationEvent.RELEASE): _BINDING,
    (_BINDING, ReservationEvent.CONFIRM): _NONE,
    (_BINDING, ReservationEvent.CLAIM_DELETED): _NONE,
    (_BINDING, ReservationEvent.FORGET): _NONE,
}


class InvalidTransition(RuntimeError):
    """TRANSITIONS has no entry for this state and event: a bug in Berth."""


class Reservations:
    """Reservations by claim UID.

    Every change of state follows TRANSITIONS, and every reservation is also an entry of the allocated devices. `apply`
    returns the pools whose use changed. Times are in seconds of the service's clock.
    """

    def __init__(self, allocated_devices: AllocatedDevices, timers: Timers) -> None:
        self._allocated_devices = allocated_devices
        self._timers = timers
        self.by_claim: dict[str, Reservation] = {}
        self.in_flight: dict[str, str] = {}  # UID of a claim in state BINDING to the UID of its pod
        self._held_for: dict[str, dict[str, None]] = {}  # pod UID to its held claims, in order
        self._held_on: dict[str, dict[str, None]] = {}  # node to its held claims, in order

    @property
    def holds(self) -> int:
        """The number of pods with holds."""
        return len(self._held_for)

    def state(self, claim_uid: str) -> ReservationState:
        reservation = self.by_claim.get(claim_uid)
        return ReservationState.NONE if reservation is None else reservation.state

    def held_for(self, pod_uid: str) -> tuple[Result, ...]:
        """The devices held for a pod."""
        return tuple(r for claim_uid in self._held_for.get(pod_uid, ()) for r in self.by_claim[claim_uid].results)

    def held_by(self, pod_uid: str) -> list[str]:
        """The claims that are held for a pod, by UID."""
        return list(self._held_for.get(pod_uid, ()))

    def held_on(self, node: str, kept: Container[str] = ()) -> list[str]:
        """The claims that are held on a node, by UID, except those of the pods `kept`."""
        return [uid for uid in self._held_on.get(node, ()) if self.by_claim[uid].pod_uid not in kept]

    def apply(self, event: ReservationEvent, claim_uid: str, new: Reservation | None = None) -> set[PoolKey]:
        """The only place where a reservation changes. HOLD and ASSUME have the `new` one.

        Raises InvalidTransition if TRANSITIONS has no entry: the claim is held already, or another bind writes it.
        """
        before = self.state(claim_uid)
        after = TRANSITIONS.get((before, event))
        if after is None:
            raise InvalidTransition(
                f"claim {claim_uid}: state {before.value!r} does not allow the event {event.value!r}"
            )
        if after is before:
            return set()
        touched = self._remove(claim_uid) if before is not _NONE else set[PoolKey]()
        if new is not None:
            self.by_claim[claim_uid] = new
            touched |= self._allocated_devices.put(_holder(claim_uid, new), new.results)
            if after is ReservationState.HELD:
                self._held_for.setdefault(new.pod_uid, {})[claim_uid] = None
                self._held_on.setdefault(new.node, {})[claim_uid] = None
                self._timers.at((TimerKind.HOLD, claim_uid), new.deadline)
            else:
                self.in_flight[claim_uid] = new.pod_uid
        return touched

    @contextmanager
    def without_holds(self, node: str, kept: Container[str] = ()) -> Iterator[set[PoolKey]]:
        """While the context lasts, the devices held on a node count as free. No reservation changes. See `held_on`."""
        held = {_holder(uid, self.by_claim[uid]): self.by_claim[uid].results for uid in self.held_on(node, kept)}
        touched = set[PoolKey]().union(*map(self._allocated_devices.drop, held))
        try:
            yield touched
        finally:
            for holder, results in held.items():
                self._allocated_devices.put(holder, results)

    def _remove(self, claim_uid: str) -> set[PoolKey]:
        old = self.by_claim.pop(claim_uid)
        self.in_flight.pop(claim_uid, None)
        self._timers.cancel((TimerKind.HOLD, claim_uid))
        for held, key in ((self._held_for, old.pod_uid), (self._held_on, old.node)):
            claims = held.get(key, {})
            claims.pop(claim_uid, None)
            if not claims:
                held.pop(key, None)
        return self._allocated_devices.drop(_holder(claim_uid, old))


def _holder(claim_uid: str, reservation: Reservation) -> Holder:
    return (HOLD if reservation.state is ReservationState.HELD else BIND, claim_uid)
