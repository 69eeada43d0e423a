"""Event loops that do not wait for timers, or not long enough."""

from __future__ import annotations

import asyncio
import os
import selectors
import stat
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
EARLY_SECONDS = 0.05
_SETTLE_SECONDS = 0.001  # of real time before each skip; the kernel of a busy machine may deliver late


class SkippingLoop(asyncio.SelectorEventLoop):
    """When nothing else is to be done, the time of the loop moves to its next timer. It begins at 0 seconds.

    It is for tests without sockets.
    """

    def __init__(self) -> None:
        self._now = 0.0
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                found = super().select(None if timeout is None else 0)
                if not found and timeout is not None:
                    loop._now += timeout
                return found

        super().__init__(Selector())

    def time(self) -> float:
        return self._now


class LoopbackLoop(asyncio.SelectorEventLoop):
    """When nothing else is to be done, the time of the loop moves to its next timer, as in a SkippingLoop.

    It is for tests with sockets that have both ends in this process: what one end sends, the other end has at once.
    Time is real while the loop waits for a thread or reads a pipe, which may come from another process.
    """

    def __init__(self) -> None:
        self._skipped = 0.0  # seconds
        self._threads = 0
        self._pipes: set[int] = set()
        loop = self

        class Selector(selectors.DefaultSelector):
            def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
                key = super().register(fileobj, events, data)
                if stat.S_ISFIFO(os.fstat(key.fd).st_mode):
                    loop._pipes.add(key.fd)
                return key

            def unregister(self, fileobj: Any) -> selectors.SelectorKey:
                key = super().unregister(fileobj)
                loop._pipes.discard(key.fd)
                return key

            def select(self, timeout: float | None = None) -> Any:
                if timeout is None or timeout <= _SETTLE_SECONDS or loop._threads or loop._pipes:
                    return super().select(timeout)
                found = super().select(_SETTLE_SECONDS)
                if not found:
                    loop._skipped += timeout - _SETTLE_SECONDS
                return found

        super().__init__(Selector())

    def time(self) -> float:
        return super().time() + self._skipped

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: object) -> None:
        self._threads -= 1


class EarlyLoop(asyncio.SelectorEventLoop):
    """Its timers are early by EARLY_SECONDS, as those of uvloop may be by a millisecond."""

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when - EARLY_SECONDS, callback, *args, context=context)


def clock() -> Callable[[], float]:
    """What a service in the running loop takes as its clock: as in production, or the loop's if it skips time."""
    loop = asyncio.get_running_loop()
    return loop.time if isinstance(loop, SkippingLoop | LoopbackLoop) else time.monotonic


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a new SkippingLoop."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(work)
