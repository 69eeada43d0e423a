"""Several replays side by side, each in a process of its own, at most one for each core."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

import structlog

from extender.base.berth_errors import BerthError
from extender.replay.fleets import Fleet
from extender.replay.jobs import Job
from extender.replay.outcome import LargeShape, Outcome
from extender.replay.placers import Placer
from extender.replay.replay import run_replay

_PROGRESS_STEPS = 200  # how often a replay tells its progress
T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """One replay."""

    fleet: Fleet
    jobs: Sequence[Job]
    placer: Placer
    seed: int
    large: LargeShape | None = None


@dataclass(frozen=True)
class _Result(Generic[T]):
    """What a process ends with."""

    value: T


def run_side_by_side(tasks: Sequence[Task], progress: Callable[[int], None] = lambda _: None) -> list[Outcome]:
    """The outcomes in the order of the tasks. `progress` is told how many more jobs have arrived.

    Raises the first BerthError of a replay, also if its process was killed.
    """
    return measured_side_by_side(tasks, _whole, progress)


def measured_side_by_side(
    tasks: Sequence[Task], measure: Callable[[Task, Outcome], T], progress: Callable[[int], None]
) -> list[T]:
    """What `measure` makes of each outcome, within the process of its replay. See run_side_by_side."""
    results: dict[int, T] = {}
    waiting = list(enumerate(tasks))[::-1]
    running: dict[Connection, int] = {}
    with _processes() as start:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                number, task = waiting.pop()
                running[start(task, measure)] = number
            for ready in wait(list(running)):
                assert isinstance(ready, Connection), "only pipes are waited for"
                try:
                    found = ready.recv()
                except EOFError:
                    name = tasks[running[ready]].placer.name
                    raise BerthError(f"the process of the replay of {name} ended: was the memory enough?") from None
                if isinstance(found, BaseException):
                    raise found
                if isinstance(found, _Result):
                    results[running.pop(ready)] = found.value
                    ready.close()
                else:
                    progress(found)
    return [results[number] for number in range(len(tasks))]


def _whole(_: Task, outcome: Outcome) -> Outcome:
    return outcome


@contextmanager
def _processes() -> Iterator[Callable[[Task, Callable[[Task, Outcome], object]], Connection]]:
    """Starts processes, and ends those that still run."""
    started = list[BaseProcess]()
    # A fork has the jobs and the fleet at once. Elsewhere it is not safe, and they are sent.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)

    def start(task: Task, measure: Callable[[Task, Outcome], object]) -> Connection:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(task, measure, theirs), daemon=True)
        process.start()
        started.append(process)
        theirs.close()
        return ours

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.join()


def _run(task: Task, measure: Callable[[Task, Outcome], object], pipe: Connection) -> None:
    """The work of a process: numbers of arrived jobs, and then the result or an error."""
    if not structlog.is_configured():  # a process that is no fork: each bind would write a line
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    every, told, parent = max(len(task.jobs) // _PROGRESS_STEPS, 1), 0, os.getppid()

    def progress(arrived: int) -> None:
        nonlocal told
        if arrived - told >= every or arrived == len(task.jobs):
            if os.getppid() != parent:  # it was killed
                raise SystemExit(1)
            pipe.send(arrived - told)
            told = arrived

    try:
        outcome = run_replay(task.fleet, task.jobs, task.placer, task.seed, progress, task.large)
        pipe.send(_Result(measure(task, outcome)))
    except KeyboardInterrupt:
        return
    except BerthError as error:
        pipe.send(BerthError(str(error)))
    except Exception as error:  # noqa: BLE001 - the parent raises it; not all errors can be sent as they are
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
