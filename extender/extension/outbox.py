"""Sends records to the console. Serve never waits for the console: if it is absent, records are dropped and counted."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from extender.cluster import Backoff, Delays
from extender.model import BerthError, RequestMix
from extender.records import MAX_BODY, MAX_FRAME, Batch, PolicyState, Record, encode_parts, encode_record

_BATCH = 256  # records of one batch
_STRETCH = 16  # records that are encoded before the outbox yields to the event loop, about 0.3 ms
_DELAYS = Delays(first=0.5, most=10.0)

Post = Callable[[bytes], Awaitable[None]]
"""Sends a batch. Raises NotDelivered, EpochEnded or Rejected."""
MakeRecord = Callable[[], Record]
PutRecord = Callable[[MakeRecord], None]
"""Queues a record for the console. It is made for each batch that has it, so that no filter request waits for it."""


class NotDelivered(BerthError):
    """The console did not accept a batch. It may accept the same batch later."""


class EpochEnded(NotDelivered):
    """The console counts the epoch of this batch as ended. It may accept the batch under a new epoch."""


class Rejected(BerthError):
    """The console will never accept this batch."""


class Outbox:
    """A queue of records for the console: at most `limit`, and the batch that the poster sends now.

    `post` sends a batch and raises NotDelivered, EpochEnded or Rejected. `state` returns the policy and the request
    mix in force. `period` (between two batches) and `heartbeat` are in seconds. Records have numbers from 1, in the
    order of `put`. A dropped record leaves a gap in the numbers, which the console detects.
    """

    def __init__(
        self,
        post: Post,
        replica: str,
        state: Callable[[], tuple[PolicyState, RequestMix]],
        *,
        limit: int = 2048,
        period: float = 0.1,
        heartbeat: float = 5.0,
        delays: Delays = _DELAYS,
    ) -> None:
        self._post = post
        self._replica = replica
        self._state = state
        self._limit = limit
        self._period = period
        self._heartbeat = heartbeat
        self._backoff = Backoff(delays)
        self._waiting: deque[MakeRecord] = deque()
        self._put = 0  # the number of the newest record
        self._batches = 0  # the number of the newest batch
        self._arrived = asyncio.Event()
        self._problem = ""  # why the console did not accept the last batch; '' if it did
        self._log = structlog.get_logger("berth.outbox")
        self.epoch = str(uuid.uuid4())
        self.lost = 0  # records dropped before the console accepted them
        self.failures = 0  # batches that the console did not accept
        self.sent = 0  # records that the console accepted

    def __len__(self) -> int:
        """How many records wait."""
        return len(self._waiting)

    def put(self, make: MakeRecord) -> None:
        """See PutRecord. At the limit, the oldest waiting record is dropped."""
        # A repeated filter request of a pod puts Released and Reserved of each claim. Released stays although Reserved
        # alone would do: the console may have it already, if the answer to its batch was lost. Without it the next
        # record would get its number, and would count as a duplicate. It costs 70 bytes.
        self._put += 1
        if not self._waiting:
            self._arrived.set()
        self._waiting.append(make)
        if len(self._waiting) > self._limit:
            self._trim()

    async def run(self) -> None:
        """Send batches until cancelled. The first batch, which may be empty, announces this process to the console."""
        while True:
            await asyncio.sleep(await self._send())
            if not self._waiting:
                self._arrived.clear()
                await self._record_or_heartbeat()

    async def flush(self, seconds: float) -> None:
        """Send what waits, within `seconds` and each batch once. For the end of the process, after `run` has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._waiting:
                    await self._send()
                    if self._problem:
                        return

    async def _record_or_heartbeat(self) -> None:
        """Wait until a record is put, or until a heartbeat is due."""
        try:
            async with asyncio.timeout(self._heartbeat):
                await self._arrived.wait()
        except TimeoutError:
            pass

    async def _send(self) -> float:
        """Send one batch. Returns the seconds to wait before the next."""
        taken = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
        first = self._put - len(self._waiting) - len(taken) + 1
        done = 0  # how many of the taken records need not be sent again
        try:
            parts = await self._encoded(taken)
            if taken and not parts:
                done = 1
                self._drop_unsendable(taken[0]())
                return 0.0
            self._batches += 1
            batch = Batch(self._replica, self.epoch, first, self._batches, self.lost, *self._state())
            done = await self._delivered(encode_parts(batch, parts), len(parts))
        finally:  # the other records return to the front in their order, so their numbers stay without a gap
            self._waiting.extendleft(reversed(taken[done:]))
            self._trim()
        return self._period if not self._problem else self._backoff.next()

    async def _delivered(self, body: bytes, records: int) -> int:
        """Send a batch with `records` records. Returns how many of them need not be sent again."""
        try:
            await self._post(body)
        except Rejected as error:
            self.lost += records
            self._failed(error, dropped=records)
            return records
        except NotDelivered as error:
            if isinstance(error, EpochEnded):  # a live process announces itself again, or the console ignores it
                self.epoch = str(uuid.uuid4())
            self._failed(error)
            return 0
        self.sent += records
        if self._problem:
            self._problem = ""
            self._log.info("the console accepts records again", lost=self.lost, failures=self.failures)
        return records

    async def _encoded(self, taken: list[MakeRecord]) -> list[bytes]:
        """Encode as many records as fit in a batch, up to the first that cannot be encoded."""
        parts: list[bytes] = []
        left = MAX_BODY - MAX_FRAME
        for make in taken:
            try:
                part = encode_record(make())
            except TypeError:
                break
            left -= len(part) + 1
            if left < 0:
                break
            parts.append(part)
            if len(parts) % _STRETCH == 0:
                await asyncio.sleep(0)
        return parts

    def _trim(self) -> None:
        while len(self._waiting) > self._limit:
            self._waiting.popleft()
            self.lost += 1

    def _drop_unsendable(self, record: Record) -> None:
        self.lost += 1
        self._log.error(
            "a record cannot be sent", kind=type(record).__name__, problem="it has no JSON form, or is too long"
        )

    def _failed(self, error: Rejected | NotDelivered, dropped: int = 0) -> None:
        self.failures += 1
        problem = str(error)
        if problem != self._problem:
            self._problem = problem
            self._log.warning("the console does not accept records", problem=problem, dropped=dropped)
