"""Takes batches of records: each record once, in the order in which its process made them.

A process is known by its epoch. Epochs are independent of each other, and no clock but the console's own is used.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from cachetools import LRUCache

from extender.model import BerthError, RequestMix, WireError, shown
from extender.records import Batch, PolicyState, Record

_SILENT_SECONDS = 30.0  # six heartbeats
_ENDED = 8  # ended epochs that are remembered for each stream that is


class StaleEpoch(BerthError):
    """The process that sent the batch has ended: another one of the same name has been heard."""


@dataclass(slots=True)
class _Stream:
    """The records of one process."""

    replica: str
    newest: Batch  # without its records
    last: int  # number of the last record that was applied or missed
    heard: float  # when a batch came last, by the console's clock
    silent: bool = False  # its reservations were dropped since


class Stream(NamedTuple):
    """A process that sends records, for people."""

    replica: str
    epoch: str
    heard_seconds: float  # since its last batch
    last: int  # number of its last record
    lost: int  # records that it dropped before it sent them
    policy: PolicyState
    mix: RequestMix


class Ingest:
    """The streams of all serve processes, at most `streams`.

    `apply(epoch, record)` takes up a record. `drop_reservations(epoch)` forgets all that the process reserved: it is
    called where records are missing, where the process ended, and where it is silent, since a release may be among
    what was not heard. `counts` counts duplicates (records), gaps, missing (records), stale and evicted.
    """

    def __init__(
        self,
        apply: Callable[[str, Record], None],
        drop_reservations: Callable[[str], None],
        clock: Callable[[], float],
        *,
        streams: int = 64,
    ) -> None:
        self._apply = apply
        self._drop_reservations = drop_reservations
        self._clock = clock
        self._limit = streams
        self._streams: OrderedDict[str, _Stream] = OrderedDict()  # by epoch; the one heard last stands last
        self._current: dict[str, str] = {}  # the epoch of a replica
        self._ended: LRUCache[str, None] = LRUCache(_ENDED * streams)
        self.counts: Counter[str] = Counter()
        self.taken = 0  # records that were applied

    @property
    def heard(self) -> int:
        """Processes that are not silent."""
        return sum(not stream.silent for stream in self._streams.values())

    @property
    def remembered(self) -> int:
        """Epochs that are remembered, ended ones included."""
        return len(self._streams) + len(self._ended)

    def take(self, batch: Batch) -> None:
        """Apply the records of a batch that are new. Raises StaleEpoch, and WireError where the epoch is another
        replica's."""
        stream = self._heard(batch)
        missing = batch.sequence - stream.last - 1
        if missing > 0:
            self.counts["gaps"] += 1
            self.counts["missing"] += missing
            stream.last += missing
            self._drop_reservations(batch.epoch)
        seen = min(max(-missing, 0), len(batch.records))
        self.counts["duplicates"] += seen
        if -missing <= len(batch.records):  # no older than the newest that was heard
            stream.newest = replace(batch, records=())
        for record in batch.records[seen:]:
            stream.last += 1  # first: a record that cannot be applied must not be tried again for ever
            self._apply(batch.epoch, record)
            self.taken += 1

    def drop_silent(self) -> None:
        """Drop the reservations of processes that have been silent for 30 s. To be called every few seconds."""
        now = self._clock()
        for epoch, stream in self._streams.items():
            if not stream.silent and now - stream.heard >= _SILENT_SECONDS:
                stream.silent = True
                self._drop_reservations(epoch)

    def streams(self) -> list[Stream]:
        """The processes, the one heard last first."""
        now = self._clock()
        return [
            Stream(s.replica, epoch, now - s.heard, s.last, s.newest.lost, s.newest.policy, s.newest.mix)
            for epoch, s in reversed(self._streams.items())
        ]

    def _heard(self, batch: Batch) -> _Stream:
        stream = self._streams.get(batch.epoch)
        if stream is None:
            stream = self._begin(batch)
        elif stream.replica != batch.replica:
            raise WireError("replica", f"{shown(batch.replica)} is not that of this epoch")
        stream.heard, stream.silent = self._clock(), False
        self._streams.move_to_end(batch.epoch)
        return stream

    def _begin(self, batch: Batch) -> _Stream:
        """A process that was not known: those records before that the console never heard of are no gap."""
        if batch.epoch in self._ended:
            self.counts["stale"] += 1
            raise StaleEpoch(f"epoch {batch.epoch} of {batch.replica} has ended: a newer process has this name")
        before = self._current.get(batch.replica)
        if before is not None:
            self._end(before)
            self._ended[before] = None
        while len(self._streams) >= self._limit:
            self.counts["evicted"] += 1
            self._end(next(iter(self._streams)))
        self._current[batch.replica] = batch.epoch
        stream = _Stream(batch.replica, replace(batch, records=()), batch.sequence - 1, self._clock())
        self._streams[batch.epoch] = stream
        return stream

    def _end(self, epoch: str) -> None:
        stream = self._streams.pop(epoch)
        del self._current[stream.replica]
        self._drop_reservations(epoch)
