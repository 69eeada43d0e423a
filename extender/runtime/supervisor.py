"""The supervisor of background tasks: it logs and counts their failures, and restarts them after a delay.

`DaemonThreads` runs blocking calls. A call that hangs does not keep the process from ending. `TimerWait` is where a
task waits for its timers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from math import inf
from threading import Thread
from typing import Any, ParamSpec, TypeVar

import structlog

from extender.base.berth_errors import BerthError
from extender.base.timers import Timers
from extender.cluster import Backoff, Delays

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(ThreadPoolExecutor):
    """A default executor for an event loop; the loop accepts only a ThreadPoolExecutor. Each call has its own thread.

    The process waits for the threads of other executors when it ends. A credential plugin, a disk, a name server or
    NVML may hang, and then the process would run until kubelet kills it.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = Future[T]()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        Thread(target=call, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - inherited
        """Nothing: no thread is waited for."""


class TimerWait:
    """Where a background task waits until one of its timers is due. `clock` returns seconds.

    A timer that ends early does not change when the task wakes. So a filter request, which ends the hold of an earlier
    one and sets a later time, leaves the task asleep.
    """

    def __init__(self, timers: Timers[Any], clock: Callable[[], float]) -> None:
        self._timers = timers
        self._clock = clock
        self._earlier = asyncio.Event()
        timers.on_earlier = self._earlier.set

    async def until_due(self) -> None:
        """Wait for the next time, or until an earlier one is set."""
        self._earlier.clear()
        self._timers.wakes_at = self._timers.next
        seconds = self._timers.wakes_at - self._clock()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0) if seconds < inf else None):
                await self._earlier.wait()


_DELAYS = Delays(first=1.0, most=30.0)
_KEEPS_FAILING = 3  # failures in a row from which on `failing` reports a task


class EndedEarly(BerthError):
    """A task returned, or was cancelled, although the supervisor did not stop it."""


class Supervisor:
    """Runs every background task of a process. `failures` maps a task name to its number of failures, 0 included.

    `delays` are those before the restarts of a task. `clock` returns seconds.
    """

    def __init__(self, delays: Delays = _DELAYS, clock: Callable[[], float] = time.monotonic) -> None:
        self._delays = delays
        self._clock = clock
        self._backoffs: dict[str, Backoff] = {}
        self._problems: dict[str, str] = {}
        self._stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._log = structlog.get_logger("berth.tasks")
        self.failures: Counter[str] = Counter()

    @property
    def names(self) -> list[str]:
        """The names of the tasks that the supervisor restarts."""
        return list(self._backoffs)

    @property
    def failing(self) -> dict[str, str]:
        """The tasks that failed three times in a row or more, each with its last error."""
        return {name: text for name, text in self._problems.items() if self._backoffs[name].failures >= _KEEPS_FAILING}

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run `run` under this name, and restart it until `stop`. A `run` that returns counts as failed, too."""
        assert name not in self._backoffs, f"a task named {name} runs already"
        self._backoffs[name] = Backoff(self._delays, self._clock)
        self._begin(name, run)

    def spawn(
        self, name: str, work: Coroutine[Any, Any, T], expected: type[Exception] | tuple[type[Exception], ...] = ()
    ) -> asyncio.Task[T]:
        """Run work that ends by itself. An error that is not `expected` is logged and counted.

        The work is not restarted. Several pieces of work may run under one name. Work that something other than `stop`
        cancels has failed, and the task raises EndedEarly.
        """
        task = self._add(name, self._to_its_end(work))
        task.add_done_callback(lambda done: self._ended(name, expected, done))
        task.add_done_callback(lambda _: work.close())  # a task that is cancelled before its start never begins it
        return task

    def report(self, name: str, bug: Exception) -> None:
        """Log and count a bug with one object. It did not end the task of this name, but may make it `failing`."""
        self._backoffs[name].next()
        self._problems[name] = _text(bug)
        self._count(name, bug)

    async def stop(self) -> None:
        """Cancel all tasks, also those that a task spawns as it ends, and wait until they have ended."""
        self._stopping = True
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _add(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        self.failures[name] += 0
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _begin(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        async def once() -> None:
            await self._to_its_end(run())

        # Each run is a task of its own: a cancellation that is still to come cannot hit the next run.
        if not self._stopping:
            self._add(name, once()).add_done_callback(lambda done: self._begin_later(name, run, done))

    def _begin_later(self, name: str, run: Callable[[], Awaitable[None]], task: asyncio.Task[None]) -> None:
        if self._stopping:
            return
        problem = _error_of(task) or EndedEarly("it returned")
        seconds = self._backoffs[name].next()
        self._problems[name] = _text(problem)
        self._count(name, problem, restart_seconds=round(seconds, 3))
        asyncio.get_running_loop().call_later(seconds, self._begin, name, run)

    def _ended(
        self, name: str, expected: type[Exception] | tuple[type[Exception], ...], task: asyncio.Task[Any]
    ) -> None:
        error = None if task.cancelled() and self._stopping else _error_of(task)
        if error is not None and (isinstance(error, EndedEarly) or not isinstance(error, expected)):
            self._count(name, error)

    async def _to_its_end(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except asyncio.CancelledError as error:
            if self._stopping:
                raise
            raise _cancelled() from error

    def _count(self, name: str, problem: BaseException, **more: float) -> None:
        self.failures[name] += 1
        with suppress(Exception):  # a fault of the log must end no task
            self._log.error("task failed", task=name, problem=_text(problem), exc_info=problem, **more)


def _text(problem: BaseException) -> str:
    """The type and the text of an error; the type alone if the error's own code for its text raises."""
    kind = type(problem).__name__
    try:
        return f"{kind}: {problem}"
    except Exception:  # noqa: BLE001 - any code may be in it
        return kind


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return _cancelled() if task.cancelled() else task.exception()


def _cancelled() -> EndedEarly:
    return EndedEarly("it was cancelled, but the supervisor did not stop it")
