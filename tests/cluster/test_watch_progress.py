"""Waiting for a state of the cache: events wake the tasks whose condition holds, and no others."""

from __future__ import annotations

import asyncio

from extender.runtime.informers import WatchProgress
from tests.worlds.eventually import eventually


async def test_an_event_wakes_the_tasks_whose_condition_holds() -> None:
    progress, seen = WatchProgress(), set[str]()
    first = asyncio.create_task(progress.wait_for(lambda: "first" in seen, 60.0))
    second = asyncio.create_task(progress.wait_for(lambda: "second" in seen, 60.0))
    await asyncio.sleep(0)
    seen.add("first")
    progress.notify()
    assert await first
    assert not second.done()
    seen.add("second")
    progress.notify()
    assert await second


async def test_a_condition_that_ended_before_its_task_ran_is_awaited_again() -> None:
    progress, holds, answers = WatchProgress(), False, list[bool]()

    def condition() -> bool:
        answers.append(holds)
        return holds

    waiting = asyncio.create_task(progress.wait_for(condition, 60.0))
    await eventually(lambda: answers == [False])
    holds = True
    progress.notify()
    holds = False
    await eventually(lambda: answers == [False, True, False])
    holds = True
    progress.notify()
    assert await waiting


async def test_a_cancelled_task_and_a_time_out_leave_nothing_behind() -> None:
    progress, asked = WatchProgress(), 0

    def condition() -> bool:
        nonlocal asked
        asked += 1
        return False

    assert not await progress.wait_for(condition, 0.0)
    waiting = asyncio.create_task(progress.wait_for(condition, 60.0))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    before = asked
    progress.notify()
    assert asked == before


async def test_a_condition_that_holds_at_the_time_out_is_enough() -> None:
    """The event and the time-out may come in one turn of the loop."""
    answers = iter([False, True])
    assert await WatchProgress().wait_for(lambda: next(answers), 0.0)
