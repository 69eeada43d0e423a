"""Applies batches of records: each record once, in the order in which its process created it.

An epoch identifies a process of serve. Epochs are independent of each other. All times are of the console's clock.
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
_SHOWN_SECONDS = 3600.0  # how long a silent process is shown; its numbers stay, so that a replay of it has no effect
_MOST_MISSING = 1_000_000  # records of a live process between two batches
_ENDED = 8  # ended epochs that are remembered, per stream of the limit


class StaleEpoch(BerthError):
    """A newer process with the same replica name has sent a batch, so the sender of this batch counts as ended."""


@dataclass(slots=True)
class _Stream:
    """The records of one process."""

    replica: str
    newest: Batch  # the one with the highest number, without its records; an older one is a replay
    last: int  # sequence number of the last record that was applied or is missing
    heard: float  # time of the newest batch, in seconds of the console's clock
    silent: bool = False  # no newer batch came for 30 s, and the reservations were dropped


class Stream(NamedTuple):
    """A process that sends records, as `GET /v1/processes` shows it."""

    replica: str
    epoch: str
    heard_seconds: float  # since its newest batch
    last: int  # sequence number of its last record
    lost: int  # records that it dropped before it sent them
    policy: PolicyState
    mix: RequestMix


class Ingest:
    """The streams of records of all serve processes, at most `streams`.

    `apply(epoch, record)` applies a record. `drop_reservations(epoch)` drops all reservations of a process. Ingest
    calls it if records are missing, if the process ended, or if it is silent: a release may be among the records that
    did not arrive. `counts` counts duplicates (records), gaps, missing (records), stale and evicted.
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
        # By epoch, the one with the newest batch last. Not an LRUCache: only a batch counts as a use.
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._current: dict[str, str] = {}  # replica to its running epoch
        self._ended: LRUCache[str, None] = LRUCache(_ENDED * streams)
        self.counts: Counter[str] = Counter()
        self.taken = 0  # records that were applied

    @property
    def heard(self) -> int:
        """How many processes are not silent."""
        return sum(not stream.silent for stream in self._streams.values())

    @property
    def remembered(self) -> int:
        """How many epochs are remembered, ended epochs included."""
        return len(self._streams) + len(self._ended)

    def take(self, batch: Batch) -> None:
        """Apply the new records of a batch.

        Raises StaleEpoch. Raises WireError if the epoch is that of another replica, or if the sequence number of a
        process that is not silent jumps by more than 1,000,000: all its later records would count as duplicates.
        """
        stream = self._stream(batch)
        missing = batch.sequence - stream.last - 1
        if missing > _MOST_MISSING and not stream.silent:  # a process may drop as many in an outage of the network
            raise WireError("sequence", f"{batch.sequence} skips more than {_MOST_MISSING} records")
        if batch.number > stream.newest.number:
            stream.newest = replace(batch, records=())
            stream.heard, stream.silent = self._clock(), False
            self._streams.move_to_end(batch.epoch)
        if missing > 0:
            self.counts["gaps"] += 1
            self.counts["missing"] += missing
            stream.last += missing
            self._drop_reservations(batch.epoch)
        seen = min(max(-missing, 0), len(batch.records))
        self.counts["duplicates"] += seen
        for record in batch.records[seen:]:
            stream.last += 1  # first: if `_apply` raises, serve must not send the same record again and again
            self._apply(batch.epoch, record)
            self.taken += 1

    def drop_silent(self) -> None:
        """Drop the reservations of processes that were silent for 30 s. The caller repeats this every few seconds."""
        now = self._clock()
        for epoch, stream in self._streams.items():
            if not stream.silent and now - stream.heard >= _SILENT_SECONDS:
                stream.silent = True
                self._drop_reservations(epoch)

    def streams(self) -> list[Stream]:
        """The processes that were heard within an hour, the one with the newest batch first."""
        now = self._clock()
        return [
            Stream(s.replica, epoch, now - s.heard, s.last, s.newest.lost, s.newest.policy, s.newest.mix)
            for epoch, s in reversed(self._streams.items())
            if now - s.heard < _SHOWN_SECONDS
        ]

    def _stream(self, batch: Batch) -> _Stream:
        stream = self._streams.get(batch.epoch)
        if stream is None:
            stream = self._begin(batch)
        elif stream.replica != batch.replica:
            raise WireError("replica", f"{shown(batch.replica)} is not that of this epoch")
        return stream

    def _begin(self, batch: Batch) -> _Stream:
        """Begin the stream of an unknown process. Its earlier records, which the console did not get, are no gap."""
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
