"""Applies the reservations in serve's records to the console's own cache."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from extender.cache import ClusterCache
from extender.model import ReservationState
from extender.records import Released, Reserved

_LIMIT = 8192  # reservations; the least recently recorded one is dropped first
_BYTES = 32 << 20  # estimated size of them all, as of 4,700 with eight devices each
_RESERVATION_BYTES, _RESULT_BYTES, _CAPACITY_BYTES = 1024, 448, 128  # without texts and numbers
_MOST_SECONDS = 300.0  # of a hold; the maximum that a policy can set


class _Kept(NamedTuple):
    """A reservation that no record has ended."""

    epoch: str
    size: int  # estimated bytes


class RemoteReservations:
    """At most `limit` reservations of all serve processes, of about `limit_bytes`. `clock` returns seconds.

    A reservation of a claim that the cache does not have is ignored, because no watch event would end it. The record
    of a new claim can come before the watch shows the claim; then the console shows this reservation from the next
    record on. `unknown_claims` counts the ignored records.
    """

    def __init__(
        self, cache: ClusterCache, clock: Callable[[], float], limit: int = _LIMIT, limit_bytes: int = _BYTES
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # by claim UID
        self.unknown_claims = 0

    def __len__(self) -> int:
        """How many reservations no record has ended."""
        return len(self._kept)

    def apply(self, epoch: str, record: Reserved | Released) -> None:
        """Apply a record of the process `epoch`: a claim is reserved, or its reservation ended.

        A release ends only a reservation of the same process: two processes may have answered a filter request for
        the pod.
        """
        if isinstance(record, Released):
            kept = self._kept.get(record.claim_uid)
            if kept is not None and kept.epoch == epoch:
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
        kept = self._kept[record.claim_uid] = _Kept(epoch, _bytes(record))
        self._bytes += kept.size
        while len(self._kept) > self._limit or self._bytes > self._limit_bytes:
            self._end(next(iter(self._kept)))

    def drop(self, epoch: str) -> None:
        """End all reservations of the process `epoch`."""
        for claim_uid in [uid for uid, kept in self._kept.items() if kept.epoch == epoch]:
            self._end(claim_uid)

    def _end(self, claim_uid: str) -> None:
        kept = self._kept.pop(claim_uid, None)
        self._bytes -= kept.size if kept is not None else 0
        match self._cache.reservations.state(claim_uid):
            case ReservationState.HELD:
                self._cache.release_claim(claim_uid)
            case ReservationState.BINDING:
                self._cache.forget(claim_uid)
            case ReservationState.NONE:
                pass


def _bytes(record: Reserved) -> int:
    """The estimated memory of a reservation."""
    texts = [record.claim_uid, record.pod_uid, record.node]
    numbers = 0
    for result in record.results:
        texts += (result.request, *result.device, result.share_id)
        for name, amount in (result.consumed or {}).items():
            texts.append(name)
            numbers += _CAPACITY_BYTES + sys.getsizeof(amount.nanos)
    return _RESERVATION_BYTES + len(record.results) * _RESULT_BYTES + numbers + sum(map(sys.getsizeof, texts))
