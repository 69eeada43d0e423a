"""Event loops that do not wait for timers, or not long enough."""

from __future__ import annotations

import asyncio
import os
import selectors
import stat
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
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


PROCESS: ContextVar[str] = ContextVar("process")  # of a task that a StoppingLoop can stop


@dataclass(slots=True)
class _Held:
    """A callback of a process, and the handle that its owner may cancel."""

    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    handle: asyncio.Handle | None = None


class StoppingLoop(SkippingLoop):
    """Stops the tasks of a process, as SIGSTOP does: what is due for them meanwhile runs after `go_on`, and late.

    A process is the value of PROCESS in the context of its tasks. Time goes on for all.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stopped: dict[str, list[_Held]] = {}

    def stop_process(self, name: str) -> None:
        self._stopped.setdefault(name, [])

    def go_on(self, name: str) -> None:
        for one in self._stopped.pop(name, ()):
            super().call_soon(self._run_if_not_stopped, one, context=one.context)

    def is_stopped(self, name: str) -> bool:
        return name in self._stopped

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context  # an empty one is false
        if PROCESS not in context:
            return super().call_soon(callback, *args, context=context)
        one = _Held(callback, args, context)
        one.handle = super().call_soon(self._run_if_not_stopped, one, context=context)
        return one.handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        if PROCESS not in context:
            return super().call_at(when, callback, *args, context=context)
        one = _Held(callback, args, context)
        one.handle = handle = super().call_at(when, self._run_if_not_stopped, one, context=context)
        return handle

    def _run_if_not_stopped(self, one: _Held) -> None:
        held = self._stopped.get(one.context[PROCESS])
        if held is not None:
            held.append(one)
        elif one.handle is not None and not one.handle.cancelled():  # also while the process was stopped
            one.callback(*one.args)


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
    """Run to the end in a new StoppingLoop."""
    with asyncio.Runner(loop_factory=StoppingLoop) as runner:
        return runner.run(work)
