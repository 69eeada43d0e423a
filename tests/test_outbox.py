"""The outbox never blocks serve: it is bounded, keeps the order, and counts lost records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

from structlog.testing import capture_logs

from extender.cluster import ApiClient, Credentials, Delays, Writer
from extender.console import StaleEpoch
from extender.console.ingest import Ingest
from extender.extension import Rejected, Service
from extender.extension.evaluations import Evaluations
from extender.extension.outbox import EpochEnded, NotDelivered, Outbox
from extender.extension.requeue import Requeuer
from extender.extension.sinks import ReservationSink
from extender.model import DEFAULT_MIX, DeviceId, ObjectKey, Reservation, ReservationState, Result
from extender.policy import Policy
from extender.records import MAX_BODY, Attempted, Batch, PolicyState, Record, Released, Reserved, decode
from extender.runtime import HoldExpirer, Supervisor
from extender.sandbox import Cluster
from extender.scheduling import Attempt
from tests.eventually import HANG_SECONDS, eventually
from tests.running_berth import berthing

POLICY = PolicyState(1, "d")
NOW = Delays(first=0.0, most=0.0)


class Console:
    """A console that accepts batches, or fails if `answer` raises."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.answer: Callable[[Batch], Awaitable[None]] | None = None
        self.posts = 0
        self.largest = 0

    async def __call__(self, body: bytes) -> None:
        self.posts += 1
        self.largest = max(self.largest, len(body))
        batch = decode(body)
        if self.answer is not None:
            await self.answer(batch)
        self.batches.append(batch)

    @property
    def numbers(self) -> list[int]:
        return [batch.sequence + i for batch in self.batches for i in range(len(batch.records))]

    @property
    def uids(self) -> list[str]:
        return [record.claim_uid for batch in self.batches for record in batch.records if isinstance(record, Released)]


async def _down(batch: Batch) -> None:
    raise NotDelivered("connection refused")


async def _refusing(batch: Batch) -> None:
    raise Rejected("the console answers 400")


def outbox(console: Console, **options: Any) -> Outbox:
    given: dict[str, Any] = {"period": 0.0, "heartbeat": 0.01, "delays": NOW, **options}
    return Outbox(console, "berth-0", lambda: (POLICY, DEFAULT_MIX), **given)


@asynccontextmanager
async def running(box: Outbox) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(Delays(0.001, 0.01))
    supervisor.start("outbox", box.run)
    try:
        yield supervisor
    finally:
        await supervisor.stop()


async def test_records_arrive_in_order_with_their_numbers() -> None:
    console = Console()
    box = outbox(console)
    async with running(box):
        for n in range(1, 1001):
            box.put(partial(Released, str(n)))
            if n % 100 == 0:
                await asyncio.sleep(0)
        await eventually(lambda: box.sent == 1000)
    assert console.numbers == list(range(1, 1001))
    assert console.uids == [str(n) for n in range(1, 1001)]
    assert all(len(batch.records) <= 256 for batch in console.batches)
    assert {(b.replica, b.epoch, b.lost, b.policy, b.mix) for b in console.batches} == {
        ("berth-0", box.epoch, 0, POLICY, DEFAULT_MIX)
    }


async def test_the_first_batch_is_empty_and_says_that_a_process_began() -> None:
    console = Console()
    async with running(outbox(console, heartbeat=1000.0)):
        await eventually(lambda: console.batches)
    assert [(b.sequence, b.records) for b in console.batches] == [(1, ())]


async def test_a_silent_process_sends_heartbeats() -> None:
    console = Console()
    async with running(outbox(console)):
        await eventually(lambda: len(console.batches) > 3)
    assert not console.numbers


async def test_a_record_does_not_wait_for_the_heartbeat() -> None:
    console = Console()
    box = outbox(console, heartbeat=1000.0)
    async with running(box):
        await eventually(lambda: console.batches)
        box.put(lambda: Released("c"))
        await eventually(lambda: console.uids == ["c"])


async def test_an_hour_without_a_console_takes_no_memory_and_ends_with_a_gap() -> None:
    console = Console()
    console.answer = _down
    box = outbox(console, limit=100)
    with capture_logs() as logs:
        async with running(box):
            for n in range(1, 36_001):  # ten records a second
                box.put(partial(Released, str(n)))
                if n % 50 == 0:
                    await asyncio.sleep(0)
                    assert len(box) <= 100
            await eventually(lambda: box.failures > 3)
            console.answer = None
            box.put(lambda: Released("last"))
            await eventually(lambda: "last" in console.uids)
    kept = console.numbers
    assert kept == list(range(kept[0], 36_002))
    assert len(kept) <= 2 * 100  # those that waited, and a batch under way
    assert box.lost == console.batches[-1].lost == 36_001 - len(kept)
    assert [log["event"] for log in logs] == [
        "the console does not accept records", "the console accepts records again"
    ]  # fmt: skip


async def test_nothing_is_lost_or_repeated_while_the_console_hesitates() -> None:
    """The outbox overflows while it sends a batch that then fails: records that arrive have gaps only where `lost`
    counts them.
    """
    console = Console()

    async def flaky(batch: Batch) -> None:
        for _ in range(console.posts % 5):
            await asyncio.sleep(0)
        if console.posts % 3:
            raise NotDelivered("later")

    console.answer = flaky
    box = outbox(console, limit=40)
    async with running(box):
        for n in range(1, 3001):
            box.put(partial(Released, str(n)))
            if n % 7 == 0:
                await asyncio.sleep(0)
        await eventually(lambda: len(box) == 0 and box.sent + box.lost == 3000)
    assert console.uids == [str(n) for n in console.numbers]
    assert len(set(console.numbers)) == len(console.numbers) == box.sent
    assert console.numbers == sorted(console.numbers)


async def test_a_refused_batch_is_dropped_and_counted() -> None:
    console = Console()
    console.answer = _refusing
    box = outbox(console)
    async with running(box):
        box.put(lambda: Released("bad"))
        await eventually(lambda: box.lost == 1)
        console.answer = None
        box.put(lambda: Released("good"))
        await eventually(lambda: console.uids == ["good"])
    assert console.numbers == [2]
    assert box.failures >= 1


async def test_a_lost_reply_gives_a_duplicate_that_ingest_skips() -> None:
    console = Console()
    applied: list[Record] = []
    dropped: list[str] = []
    ingest = Ingest(lambda epoch, record: applied.append(record), dropped.append, lambda: 0.0)

    async def taken(batch: Batch) -> None:
        ingest.take(batch)
        if console.posts == 2:
            raise NotDelivered("the connection closed")

    console.answer = taken
    box = outbox(console, heartbeat=1000.0)
    async with running(box):
        await eventually(lambda: console.posts == 1)
        box.put(lambda: Released("c"))
        await eventually(lambda: box.sent == 1)
    assert applied == [Released("c")]
    assert not dropped
    assert ingest.counts["duplicates"] == 1


async def test_a_batch_that_is_sent_again_has_a_new_number() -> None:
    console, numbers = Console(), list[int]()

    async def rejecting_twice(batch: Batch) -> None:
        numbers.append(batch.number)
        if len(numbers) < 3:
            raise NotDelivered("the connection closed")

    console.answer = rejecting_twice
    box = outbox(console, heartbeat=1000.0)
    box.put(lambda: Released("c"))
    async with running(box):
        await eventually(lambda: box.sent == 1)
    assert numbers == [1, 2, 3]
    assert console.numbers == [1]


async def test_a_hold_that_waited_ends_sooner() -> None:
    console, now = Console(), 100.0
    box = outbox(console)
    sink = ReservationSink(
        box.put, lambda: now, Requeuer(cast("Writer", None), str, Evaluations(lambda: now)), HoldExpirer(lambda: now)
    )
    for deadline in (115.0, 102.0, float("inf")):
        sink.reservation_changed("c", Reservation("p", "n", (), ReservationState.HELD, deadline))
    now = 105.0
    async with running(box):
        await eventually(lambda: box.sent == 3)
    assert [
        record.seconds for batch in console.batches for record in batch.records if isinstance(record, Reserved)
    ] == [10.0, 0.0, float("inf")]


async def test_large_records_go_in_several_batches() -> None:
    console = Console()
    result = Result("r" * 60, DeviceId("d" * 60, "p" * 250, "x" * 60))
    box = outbox(console)
    for n in range(40):
        box.put(partial(Reserved, str(n), "p", "n", (result,) * 200, ReservationState.BINDING, 1.0))
    async with running(box):
        await eventually(lambda: box.sent == 40)
    assert console.largest <= MAX_BODY
    assert console.numbers == list(range(1, 41))
    assert box.lost == 0


async def test_a_record_that_has_no_json_costs_only_itself() -> None:
    console = Console()
    box = outbox(console)
    for uid in ("1", "\ud800", "3"):
        box.put(partial(Released, uid))
    async with running(box) as supervisor:
        await eventually(lambda: box.sent == 2)
        assert supervisor.failures["outbox"] == 0
    assert console.uids == ["1", "3"]
    assert console.numbers == [1, 3]
    assert box.lost == 1


async def test_a_bug_in_the_poster_loses_no_record() -> None:
    console = Console()

    async def broken(batch: Batch) -> None:
        if console.posts == 1:
            raise ZeroDivisionError

    console.answer = broken
    box = outbox(console)
    box.put(lambda: Released("c"))
    async with running(box) as supervisor:
        await eventually(lambda: box.sent == 1)
        assert supervisor.failures["outbox"] == 1
    assert console.uids == ["c"]


async def test_the_last_records_are_sent_when_the_process_ends() -> None:
    console = Console()
    async with Cluster().serving() as api, ApiClient(Credentials(api, None, lambda: None)) as client:
        async with Service(client, Policy(), post=console) as service:
            assert service.outbox is not None
            for n in range(600):
                service.outbox.put(partial(Released, str(n)))
        assert console.uids == [str(n) for n in range(600)]
        assert len(service.outbox) == 0


async def test_the_end_does_not_wait_for_a_console_that_does_not_answer() -> None:
    console = Console()
    box = outbox(console)
    box.put(lambda: Released("c"))

    async def hangs(batch: Batch) -> None:
        await asyncio.Event().wait()

    console.answer = hangs
    await asyncio.wait_for(box.flush(0.01), HANG_SECONDS)
    console.answer = _down
    await box.flush(HANG_SECONDS)
    assert console.posts == 2, "and tries each batch once"
    assert len(box) == 1


async def test_a_desk_drops_a_batch_that_its_console_rejects_and_takes_the_next() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        outbox, key = b.app.service.outbox, ObjectKey("default", "p")
        assert outbox is not None
        bad, good = (Attempted(key, "u", Attempt(at, 0, 1, (("text", nodes),))) for at, nodes in (("1", -1), ("2", 1)))
        outbox.put(lambda: bad)
        await eventually(lambda: outbox.lost == 1, "the batch is dropped")
        outbox.put(lambda: good)
        await eventually(lambda: b.console.history.newest(key), "the next batch arrives")
        history = b.console.history.newest(key)
        assert history is not None
        assert [attempt.at for attempt in history.attempts] == ["2"]


async def test_a_replay_of_an_earlier_process_does_not_silence_this_one() -> None:
    """After its restart the console does not know which process of a name is the older: a replay ends the live one."""
    console, applied = Console(), list[Record]()
    ingest = Ingest(lambda _, record: applied.append(record), lambda _: None, lambda: 0.0)

    async def take(batch: Batch) -> None:
        try:
            ingest.take(batch)
        except StaleEpoch as error:
            raise EpochEnded(str(error)) from error

    console.answer = take
    box = outbox(console)
    async with running(box):
        await eventually(lambda: len(ingest.streams()), "the outbox announces its process")
        ingest.take(Batch("berth-0", "earlier", 7, 1, 0, POLICY, DEFAULT_MIX, (Released("old"),)))
        box.put(lambda: Released("new"))
        await eventually(lambda: applied[1:] == [Released("new")], "the record is applied once")
    assert ingest.counts["stale"] >= 1
    assert [stream.epoch for stream in ingest.streams()] == [box.epoch]
    assert box.lost == 0
