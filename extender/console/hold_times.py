"""When serve held the devices of each claim, by the records that the console got."""

from __future__ import annotations

from collections.abc import Callable

from cachetools import LRUCache

from extender.model import ReservationState
from extender.records import Released, Reserved

_LIMIT = 8192  # claims, as many as RemoteReservations has


class HoldTimes:
    """The times of at most `limit` holds. `now` returns RFC 3339."""

    def __init__(self, now: Callable[[], str], limit: int = _LIMIT) -> None:
        self._now = now
        self.by_claim: LRUCache[str, str] = LRUCache(limit)  # claim UID to RFC 3339

    def apply(self, record: Reserved | Released) -> None:
        """Apply a record. A bind keeps the time of the hold."""
        if isinstance(record, Released):
            self.by_claim.pop(record.claim_uid, None)
        elif record.state is ReservationState.HELD:
            self.by_claim[record.claim_uid] = self._now()
