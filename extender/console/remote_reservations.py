"""Applies the reservations in serve's records to the console's own cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from extender.cache import ClusterCache
from extender.model import ReservationState
from extender.records import Released, Reserved

_LIMIT = 8192  # reservations; the least recently recorded one is dropped first
_MOST_SECONDS = 300.0  # of a hold; the maximum that a policy can set


class RemoteReservations:
    """At most `limit` reservations of all serve processes. `clock` returns seconds.

    A reservation of a claim that the cache does not have is ignored, because no watch event would end it. The record
    of a new claim can come before the watch shows the claim; then the console shows this reservation from the next
    record on. `unknown_claims` counts the ignored records.
    """

    def __init__(self, cache: ClusterCache, clock: Callable[[], float], limit: int = _LIMIT) -> None:
        self._cache = cache
        self._clock = clock
        self._limit = limit
        self._epoch_of: OrderedDict[str, str] = OrderedDict()  # by claim UID
        self.unknown_claims = 0

    def __len__(self) -> int:
        """How many reservations no record has ended."""
        return len(self._epoch_of)

    def apply(self, epoch: str, record: Reserved | Released) -> None:
        """Apply a record of the process `epoch`: a claim is reserved, or its reservation ended.

        A release ends only a reservation of the same process: two processes may have answered a filter request for
        the pod.
        """
        if isinstance(record, Released):
            if self._epoch_of.get(record.claim_uid) == epoch:
                self._end(record.claim_uid)
            return
        self._end(record.claim_uid)
        claim = self._cache.store.claim_by_uid(record.claim_uid)
        if claim is None:
            self.unknown_claims += 1
            return
        if claim.allocation is not None:
            return  # the watch was faster than the record: the claim itself has the devices
        if record.state is ReservationState.HELD:
            deadline = self._clock() + min(record.seconds, _MOST_SECONDS)
            self._cache.hold(record.claim_uid, record.pod_uid, record.node, record.results, deadline)
        else:
            self._cache.assume(record.claim_uid, record.pod_uid, record.node, record.results)
        self._epoch_of[record.claim_uid] = epoch
        if len(self._epoch_of) > self._limit:
            self._end(next(iter(self._epoch_of)))

    def drop(self, epoch: str) -> None:
        """End all reservations of the process `epoch`."""
        for claim_uid in [uid for uid, known in self._epoch_of.items() if known == epoch]:
            self._end(claim_uid)

    def _end(self, claim_uid: str) -> None:
        self._epoch_of.pop(claim_uid, None)
        match self._cache.reservations.state(claim_uid):
            case ReservationState.HELD:
                self._cache.release_claim(claim_uid)
            case ReservationState.BINDING:
                self._cache.forget(claim_uid)
            case ReservationState.NONE:
                pass
