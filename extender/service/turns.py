"""Who goes first: calls of kube-scheduler before everything that people look at."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")
_SLICE_SECONDS = 0.00004  # work between two looks at who else is waiting
_LATE_SLICE_SECONDS = 0.0008  # the same once most of the time for it is over
_MOST = 0.5
_PATIENCE_SECONDS = 0.02  # the longest that one slice waits: under constant load work goes on, slowly
_SHORT_PATIENCE_SECONDS = 0.001  # for the watch, on which holds and binds depend: a call whose body never comes must not stop it
_CHORE_PATIENCE_SECONDS = 0.2  # for what nobody waits for
_GIVEN_UP = 2  # turns lost to calls that had come already, after which one is taken: several callers at once leave none
_SHARE = 0.75  # of the usual gap between two calls that work may fill
_FORGET = 1.05  # by how much the usual gap may grow with a call: a caller who has become slower is believed after a few
_SHORTEST_LULL_SECONDS = 0.001  # after the last call, until which another is expected
_LONGEST_GAP_SECONDS = 0.005  # who calls less often cannot be waited for


class Call:
    """Around a call of kube-scheduler. One object serves all: to make a generator for each takes longer than what it does."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def __enter__(self) -> None:
        self._turns.begin()

    def __exit__(self, *_: object) -> None:
        self._turns.end()


class Turns:
    """Long work is an iterator of small steps, run by `run`; calls are wrapped in `call`. While calls come, work is done right
    after each was answered, for most of the time that callers lately always took until the next, one slice at least. Chores,
    which nobody waits for, come when nothing else does. Whoever waits for the next call keeps the processor awake for it."""

    def __init__(self) -> None:
        self._call = Call(self)
        self._calls = 0  # in hand
        self._polling = False
        self._coming = -_SHORTEST_LULL_SECONDS  # when the first bytes of the last were seen
        self._new = 0  # calls that came since the last was answered
        self._answered = -2 * _LONGEST_GAP_SECONDS  # when the last was
        self._gap = _LONGEST_GAP_SECONDS  # the shortest of late between an answer and the next call, in seconds
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._chores: deque[asyncio.Future[bool]] = deque()

    def coming(self) -> None:
        """The first bytes of a call are here."""
        self._coming = time.perf_counter()
        self._new += 1

    def call(self) -> Call:
        """Around a call of kube-scheduler."""
        return self._call

    def begin(self) -> None:
        """A call is here."""
        if not self._calls:
            self._gap = min(self.silence, self._gap * _FORGET, _LONGEST_GAP_SECONDS)
        self._calls += 1
        self._new += 1

    def end(self) -> None:
        """It was answered."""
        self._calls -= 1
        self._new = 0
        self._answered = time.perf_counter()
        if not _next(self._waiting):
            _next(self._chores)

    @property
    def silence(self) -> float:
        """Seconds since the last call was answered; 0 while one is in hand."""
        return 0.0 if self._calls else time.perf_counter() - self._answered

    async def run(self, steps: Iterator[T | None], *, chore: bool = False, within: float = math.inf) -> T:
        """The first step that is not None, with calls let in between: as well as that can be done `within` so many seconds."""
        started = began = time.perf_counter()
        for step in steps:
            if step is not None:
                return step
            if time.perf_counter() - started > (_SLICE_SECONDS if started - began < _MOST * within else _LATE_SLICE_SECONDS):
                await self.pause(chore=chore)
                started = time.perf_counter()
        raise AssertionError("the last step is the answer")

    async def pause(self, *, chore: bool = False) -> None:
        """Let calls in; go on when it is one's turn, or when nobody calls."""
        await _let_in()
        await self._wait(_CHORE_PATIENCE_SECONDS if chore else _PATIENCE_SECONDS, chore=chore)

    async def give_way(self) -> None:
        """Let in a call that has come, at once and not for long: for what calls depend on themselves."""
        await asyncio.sleep(0)
        if self._calls or self._is_coming():
            await self._wait(_SHORT_PATIENCE_SECONDS, chore=False)

    async def _wait(self, patience: float, *, chore: bool) -> None:
        turns, until = 0, time.perf_counter() + patience
        while (now := time.perf_counter()) < until:
            expected = self._expected(now, chore=chore)
            if expected <= 0:
                break
            if not chore:
                self._stay_awake()
            turns += await _turn(self._chores if chore else self._waiting, min(expected, until - now))
            await _let_in()
            if turns and (not self._new or turns >= _GIVEN_UP):
                break

    def _stay_awake(self) -> None:
        """Until the next call is here: a processor that slept wakes late, and on top of what work leaves in its caches the call
        would notice."""
        if not self._polling:
            self._polling = True
            asyncio.get_running_loop().call_soon(self._poll)

    def _poll(self) -> None:
        self._polling = False
        if not self._calls and not all(turn.done() for turn in self._waiting):
            os.sched_yield()
            self._stay_awake()

    def _is_coming(self) -> bool:
        """Whether a call is on its way from the protocol to its handler."""
        return self._answered < self._coming > time.perf_counter() - _SHORTEST_LULL_SECONDS

    def _expected(self, now: float, *, chore: bool) -> float:
        """Seconds until no call is expected any more; 0 where there is time for a slice before the next."""
        if self._calls:
            return _PATIENCE_SECONDS
        if self._is_coming():
            return _SHORTEST_LULL_SECONDS
        since = now - self._answered
        if since < self._gap * _SHARE - _SLICE_SECONDS and not (chore and self._waiting):
            return 0.0
        return max(2 * self._gap, _SHORTEST_LULL_SECONDS) - since


async def _let_in() -> None:
    """Whoever needs this processor, then what has come meanwhile. The kernel likes to wake who was answered on the core that
    answered; there it would wait for all that follows here."""
    os.sched_yield()
    await asyncio.sleep(0)


async def _turn(waiting: deque[asyncio.Future[bool]], seconds: float) -> bool:
    """Whether it is one's turn within so long."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[bool] = loop.create_future()
    waiting.append(turn)
    timer = loop.call_later(seconds, _not_yet, turn)
    mine = await turn
    timer.cancel()
    return mine


def _next(waiting: deque[asyncio.Future[bool]]) -> bool:
    """Give the turn to the first who still waits; False where nobody does."""
    while waiting:
        first = waiting.popleft()
        if not first.done():
            first.set_result(True)
            return True
    return False


def _not_yet(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)
