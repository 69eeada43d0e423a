"""The supervisor of background tasks: it logs and counts their failures, and restarts them after a delay."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import structlog

from extender.cluster import Backoff, Delays
from extender.model import BerthError

T = TypeVar("T")
_DELAYS = Delays(first=1.0, most=30.0)
_KEEPS_FAILING = 3  # failures in a row from which on `failing` reports a task


class EndedEarly(BerthError):
    """A task returned, or cancelled itself, although the supervisor did not stop it."""


class Supervisor:
    """Runs every background task of a process. `failures` maps a task name to its number of failures, 0 included."""

    def __init__(self, delays: Delays = _DELAYS, clock: Callable[[], float] = time.monotonic) -> None:
        self._delays = delays
        self._clock = clock
        self._backoffs: dict[str, Backoff] = {}
        self._problems: dict[str, str] = {}
        self._ended_for_good: set[str] = set()
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
        """The tasks that failed three times in a row or more, or ended for good, each with its last error."""
        return {
            name: problem
            for name, problem in self._problems.items()
            if name in self._ended_for_good or self._backoffs[name].failures >= _KEEPS_FAILING
        }

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run `run` under this name, and restart it until `stop`. A `run` that returns counts as failed, too."""
        assert name not in self._backoffs, f"a task named {name} runs already"
        self._backoffs[name] = Backoff(self._delays, self._clock)
        task = self._add(name, self._keep_running(name, run))
        task.add_done_callback(lambda done: self._keeper_ended(name, done))

    def spawn(
        self, name: str, work: Coroutine[Any, Any, T], expected: type[Exception] | tuple[type[Exception], ...] = ()
    ) -> asyncio.Task[T]:
        """Run work that ends by itself. An error that is not `expected` is logged and counted.

        The work is not restarted. Several pieces of work may run under one name. Work that is cancelled from inside
        has failed, and the task raises EndedEarly.
        """
        task = self._add(name, _to_its_end(work))
        task.add_done_callback(lambda done: self._ended(name, expected, done))
        task.add_done_callback(lambda _: work.close())  # a task that is cancelled before its start never begins it
        return task

    async def stop(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        self._stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        self.failures[name] += 0
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _keep_running(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        problem = await self._run(run)
        while problem is not None:
            seconds = self._backoffs[name].next()
            self._problems[name] = _text(problem)
            self._count(name, problem, restart_seconds=round(seconds, 3))
            await asyncio.sleep(seconds)
            problem = await self._run(run)

    async def _run(self, run: Callable[[], Awaitable[None]]) -> BaseException | None:
        """Run once. Returns why the run ended; None if it returned because the supervisor cancelled it."""
        try:
            await run()
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            return _cancelled_from_inside(error)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - GeneratorExit ends a task as errors do
            return error
        return None if _is_cancelled() else EndedEarly("it returned")

    def _keeper_ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._stopping:
            return
        error = None if task.cancelled() else task.exception()
        problem = error or EndedEarly("it ended, and only a new process starts it again")
        self._problems[name] = _text(problem)
        self._ended_for_good.add(name)
        self._count(name, problem)

    def _ended(
        self, name: str, expected: type[Exception] | tuple[type[Exception], ...], task: asyncio.Task[Any]
    ) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and (isinstance(error, EndedEarly) or not isinstance(error, expected)):
            self._count(name, error)

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


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        raise _cancelled_from_inside(error) from error


def _cancelled_from_inside(error: asyncio.CancelledError) -> EndedEarly:
    problem = EndedEarly("it was cancelled from inside")
    problem.__cause__ = error
    return problem


def _is_cancelled() -> bool:
    """Whether the running task itself was cancelled, and not only a task that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
