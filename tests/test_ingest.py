"""Ingest applies each record of each process once, in order, and forgets what ended or silent processes reserved."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.console import StaleEpoch
from extender.console.ingest import Ingest
from extender.model import ReservationState, WireError
from extender.records import Batch, PolicyState, Record, Reserved
from tests.test_records import POLICY, batch


class Fleet:
    """An Ingest whose clock a test sets, and the records that it applied."""

    def __init__(self, streams: int = 64) -> None:
        self.now = 0.0
        self.applied: dict[str, list[int]] = {}
        self.reserved: dict[str, set[int]] = {}
        self.ingest = Ingest(self._apply, self._drop, lambda: self.now, streams=streams)

    def _apply(self, epoch: str, record: Record) -> None:
        assert isinstance(record, Reserved)
        self.applied.setdefault(epoch, []).append(int(record.claim_uid))
        self.reserved.setdefault(epoch, set()).add(int(record.claim_uid))

    def _drop(self, epoch: str) -> None:
        self.reserved[epoch] = set()


def numbered(first: int, count: int, **of: Any) -> Batch:
    return batch(
        first, *(Reserved(str(n), "p", "n", (), ReservationState.HELD, 1.0) for n in range(first, first + count)), **of
    )


sent = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 30), st.integers(0, 6))


@given(st.lists(sent, max_size=40))
def test_records_are_applied_once_and_in_order(arrivals: list[tuple[str, int, int]]) -> None:
    """Batches of three processes, duplicated, lost and out of order at will."""
    fleet = Fleet()
    for epoch, first, count in arrivals:
        gaps, newest = fleet.ingest.counts["gaps"], fleet.applied.get(epoch, [0])[-1]
        fleet.ingest.take(numbered(first, count, replica=epoch, epoch=epoch))
        applied = fleet.applied.get(epoch, [])
        assert all(a < b for a, b in itertools.pairwise(applied))
        if fleet.ingest.counts["gaps"] > gaps:
            assert all(number >= first > newest for number in fleet.reserved[epoch])
        stream = next(s for s in fleet.ingest.streams() if s.epoch == epoch)
        assert stream.last >= max([first + count - 1, *applied])


@given(st.lists(sent.map(lambda s: (s[0], s[1], s[2] + 1)), max_size=40))
def test_every_record_is_applied_or_missing_or_a_duplicate(arrivals: list[tuple[str, int, int]]) -> None:
    fleet = Fleet()
    for epoch, first, count in arrivals:
        fleet.ingest.take(numbered(first, count, replica=epoch, epoch=epoch))
    applied = sum(map(len, fleet.applied.values()))
    assert applied + fleet.ingest.counts["duplicates"] == sum(count for _, _, count in arrivals)


def test_a_replayed_batch_changes_nothing() -> None:
    fleet = Fleet()
    old = numbered(1, 3, policy=PolicyState(1, "old"))
    fleet.ingest.take(old)
    fleet.ingest.take(numbered(4, 2))
    fleet.ingest.take(old)
    assert fleet.applied["e1"] == [1, 2, 3, 4, 5]
    assert fleet.ingest.counts["duplicates"] == 3
    assert fleet.ingest.streams()[0].policy == POLICY


def test_an_empty_batch_shows_a_gap() -> None:
    fleet = Fleet()
    fleet.ingest.take(numbered(1, 3))
    fleet.ingest.take(numbered(4, 0))
    assert fleet.reserved["e1"] == {1, 2, 3}
    fleet.ingest.take(numbered(6, 0))
    assert not fleet.reserved["e1"]
    assert (fleet.ingest.counts["gaps"], fleet.ingest.counts["missing"]) == (1, 2)


def test_a_restarted_process_ends_the_one_before() -> None:
    fleet = Fleet()
    fleet.ingest.take(numbered(1, 3, epoch="old"))
    fleet.ingest.take(numbered(1, 1, epoch="new"))
    assert not fleet.reserved["old"]
    assert fleet.reserved["new"] == {1}
    for _ in range(3):
        with pytest.raises(StaleEpoch, match="epoch old of berth-0 has ended"):
            fleet.ingest.take(numbered(4, 1, epoch="old"))
    assert fleet.reserved["new"] == {1}
    assert fleet.ingest.counts["stale"] == 3
    assert [s.epoch for s in fleet.ingest.streams()] == ["new"]


def test_two_replicas_talk_at_once() -> None:
    fleet = Fleet()
    for first in (1, 3):
        fleet.ingest.take(numbered(first, 2, replica="berth-0", epoch="a"))
        fleet.ingest.take(numbered(first, 2, replica="berth-1", epoch="b"))
    assert fleet.applied == {"a": [1, 2, 3, 4], "b": [1, 2, 3, 4]}
    assert fleet.ingest.counts["gaps"] == 0


def test_an_epoch_belongs_to_one_replica() -> None:
    fleet = Fleet()
    fleet.ingest.take(numbered(1, 1))
    with pytest.raises(WireError, match="replica: 'berth-9' is not that of this epoch"):
        fleet.ingest.take(numbered(2, 1, replica="berth-9"))
    assert fleet.applied["e1"] == [1]


def test_a_jump_of_the_sequence_does_not_make_later_records_count_as_duplicates() -> None:
    fleet = Fleet()
    fleet.ingest.take(numbered(1, 3))
    for sequence in (2**63 - 1, 4 + 1_000_001):
        with pytest.raises(WireError, match=f"sequence: {sequence} skips more than 1000000 records"):
            fleet.ingest.take(numbered(sequence, 0))
    fleet.ingest.take(numbered(4, 1))
    assert fleet.reserved["e1"] == {1, 2, 3, 4}
    fleet.ingest.take(numbered(5 + 1_000_000, 1))
    assert fleet.ingest.counts["missing"] == 1_000_000


def test_a_process_that_was_silent_may_skip_any_number_of_records() -> None:
    """The process's outbox dropped the records while the network was down."""
    fleet = Fleet()
    fleet.ingest.take(numbered(1, 1))
    fleet.now = 30.0
    fleet.ingest.drop_silent()
    fleet.ingest.take(numbered(5_000_000, 1))
    assert fleet.reserved["e1"] == {5_000_000}


def test_streams_are_limited_and_the_one_heard_of_longest_ago_goes() -> None:
    fleet = Fleet(streams=3)
    for name, first in (("a", 1), ("b", 1), ("c", 1), ("a", 2), ("d", 1)):
        fleet.ingest.take(numbered(first, 1, replica=name, epoch=name))
    assert [s.epoch for s in fleet.ingest.streams()] == ["d", "a", "c"]
    assert not fleet.reserved["b"]
    assert fleet.reserved["a"] == {1, 2}
    assert fleet.ingest.counts["evicted"] == 1


def test_restarts_without_end_take_no_memory() -> None:
    fleet = Fleet(streams=2)
    for n in range(1000):
        fleet.ingest.take(numbered(1, 1, epoch=f"e{n}"))
    assert len(fleet.ingest.streams()) == 1
    assert fleet.ingest.remembered <= 2 + 16


def test_a_silent_process_loses_its_reservations_and_its_clock_does_not_matter() -> None:
    fleet = Fleet()
    fleet.ingest.take(numbered(1, 1, replica="a", epoch="a"))
    fleet.now = 20.0
    fleet.ingest.take(numbered(1, 1, replica="b", epoch="b"))
    fleet.now = 31.0
    fleet.ingest.drop_silent()
    assert not fleet.reserved["a"]
    assert fleet.reserved["b"] == {1}
    assert [(s.epoch, s.heard_seconds, s.last) for s in fleet.ingest.streams()] == [("b", 11.0, 1), ("a", 31.0, 1)]
    fleet.ingest.take(numbered(2, 1, replica="a", epoch="a"))
    assert fleet.reserved["a"] == {2}


def test_a_process_that_was_silent_for_an_hour_is_not_shown_until_it_is_heard_again() -> None:
    fleet = Fleet()
    first = numbered(1, 2, replica="deleted", epoch="a")
    fleet.ingest.take(first)
    fleet.now = 3599.0
    fleet.ingest.drop_silent()
    fleet.ingest.take(numbered(1, 0, replica="new", epoch="b"))
    assert [s.epoch for s in fleet.ingest.streams()] == ["b", "a"]
    fleet.now = 3600.0
    assert [s.epoch for s in fleet.ingest.streams()] == ["b"]
    fleet.ingest.take(first)
    assert [s.epoch for s in fleet.ingest.streams()] == ["b"], "a replay is no sign of life"
    fleet.ingest.take(numbered(3, 1, replica="deleted", epoch="a"))
    assert [s.epoch for s in fleet.ingest.streams()] == ["a", "b"]
    assert fleet.ingest.counts["missing"] == 0


def test_replayed_batches_do_not_keep_a_dead_process_alive() -> None:
    fleet = Fleet()
    old = (numbered(1, 0), numbered(1, 2), numbered(1, 1))
    for one in old:
        fleet.ingest.take(one)
    fleet.now = 30.0
    for one in old:
        fleet.ingest.take(one)
    fleet.ingest.drop_silent()
    assert (fleet.reserved["e1"], fleet.ingest.heard) == (set(), 0)
    fleet.ingest.take(old[1])
    assert fleet.ingest.heard == 0
    fleet.ingest.take(numbered(3, 0))
    assert fleet.ingest.heard == 1


def test_a_replay_of_the_newest_heartbeat_does_not_keep_a_dead_process_alive() -> None:
    fleet = Fleet()
    fleet.ingest.take(numbered(1, 2))
    heartbeat = numbered(3, 0)
    fleet.ingest.take(heartbeat)
    fleet.now = 29.0
    fleet.ingest.take(heartbeat)
    fleet.now = 30.0
    fleet.ingest.drop_silent()
    assert (fleet.reserved["e1"], fleet.ingest.heard) == (set(), 0)


def test_a_batch_that_is_sent_again_shows_that_its_process_is_alive() -> None:
    fleet = Fleet()
    fleet.ingest.take(numbered(1, 2))
    fleet.now = 29.0
    fleet.ingest.take(numbered(1, 2))
    fleet.now = 30.0
    fleet.ingest.drop_silent()
    assert (fleet.reserved["e1"], fleet.ingest.heard) == ({1, 2}, 1)


def test_a_record_that_cannot_be_applied_is_not_tried_for_ever() -> None:
    applied: list[Record] = []

    def apply(epoch: str, record: Record) -> None:
        applied.append(record)
        if len(applied) == 2:
            raise ZeroDivisionError

    ingest = Ingest(apply, lambda epoch: None, lambda: 0.0)
    with pytest.raises(ZeroDivisionError):
        ingest.take(numbered(1, 3))
    ingest.take(numbered(1, 3))
    assert [record.claim_uid for record in applied if isinstance(record, Reserved)] == ["1", "2", "3"]
