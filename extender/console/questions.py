"""The queue of questions: one is answered at a time, in the event loop if it takes little work, else by a child."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from extender.console.forked_call import forked
from extender.model import BerthError

T = TypeVar("T")
_LOOP_SECONDS = 0.05  # of one question in the event loop
_MORE_SECONDS = 1.0  # that a child may take beyond its work


class TooManyQuestions(BerthError):
    """The queue of questions is full."""


class Questions:
    """At most `waiting` questions of users wait. `clock` returns seconds. See CacheRefresh.wait for `refreshed`."""

    def __init__(self, clock: Callable[[], float], waiting: int, refreshed: Callable[[], Awaitable[None]]) -> None:
        self._clock = clock
        self._most_waiting = waiting
        self._refreshed = refreshed
        self._waiting = self._reads = 0
        self._turn, self._reading = asyncio.Lock(), asyncio.Lock()
        self._in_loop = 0.0  # seconds for which the running question blocked the event loop

    async def read(self, parse: Callable[[], T]) -> T:
        """The result of `parse`, which reads a question. It runs in a thread, one question at a time.

        A body of 1 MiB may take 40 MB and a second. Raises TooManyQuestions if too many questions wait to be read.
        """
        self._check(self._reads - 1)
        self._reads += 1
        try:
            async with self._reading:
                return await asyncio.to_thread(parse)
        finally:
            self._reads -= 1

    @asynccontextmanager
    async def in_turn(self, *, of_user: bool = True) -> AsyncIterator[None]:
        """Wait until no other question is answered.

        The next question starts after a pause: as long as this question blocked the event loop, other work has it.
        Raises TooManyQuestions if a user asks and too many users wait already.
        """
        if of_user:
            self._check(self._waiting)
        self._waiting += of_user
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= of_user
        try:
            await self._refreshed()
            yield
        finally:  # the pause begins after the answer
            asyncio.get_running_loop().call_later(self._in_loop, self._turn.release)
            self._in_loop = 0.0

    def _check(self, waiting: int) -> None:
        if waiting >= self._most_waiting:
            raise TooManyQuestions(f"{waiting} questions wait for their explanation already: try again")

    async def answer(self, explain: Callable[[float], T], work_seconds: float) -> T:
        """The result of `explain`, a function without side effects that takes its time limit in seconds.

        Call this within `in_turn`. First `explain` runs in the event loop with a small limit; its results stay for
        later questions. If it reaches this limit, it runs again in a child process, on a copy of the cache. Raises as
        `forked`.
        """
        await self._refreshed()
        began, seconds = self._clock(), min(_LOOP_SECONDS, work_seconds)
        try:
            found = explain(seconds)
        finally:
            self._in_loop = self._clock() - began
        if self._in_loop < seconds or seconds == work_seconds:
            return found
        return await forked(partial(explain, work_seconds), work_seconds + _MORE_SECONDS)
