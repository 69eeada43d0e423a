"""Who goes first: slices of long work between kube-scheduler's calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from extender.service import turns as turns_module
from extender.service.turns import Turns

_WORK_SECONDS = 2 * turns_module._SLICE_SECONDS


def work(count: int, told: list[str]) -> Iterator[str | None]:
    """Steps each of which uses up a slice."""
    for _ in range(count):
        until = time.perf_counter() + _WORK_SECONDS
        while time.perf_counter() < until:
            pass
        told.append("work")
        yield None
    yield "done"


async def test_while_calls_come_each_is_followed_by_one_slice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_LULL_SECONDS", 0.02)  # asyncio cannot sleep for less than a millisecond
    turns, told = Turns(), []
    with turns.call():
        pass
    tasks = [asyncio.create_task(turns.run(work(10, told))) for _ in range(3)]
    for _ in range(60):
        await asyncio.sleep(0.001)
        with turns.call():
            told.append("call")
            await asyncio.sleep(0)  # the body of a request may come in pieces
            told.append("answer")
    assert await asyncio.gather(*tasks) == ["done"] * 3
    text = " ".join(told).replace("call answer", "call")
    assert "answer" not in text, "nothing is begun while a call is in hand"
    # The first slices are begun before a call was ever waited for, and a machine may be late once in a while.
    assert text.count("call work work") <= 3, text


async def test_without_calls_work_goes_on() -> None:
    told: list[str] = []
    assert await Turns().run(work(20, told)) == "done"
    assert len(told) == 20


async def test_a_call_that_takes_long_does_not_stop_work_for_good() -> None:
    turns, told = Turns(), []
    with turns.call():
        assert await turns.run(work(3, told)) == "done"
    assert await turns.run(work(3, told)) == "done"


async def test_who_gives_up_is_not_waited_for() -> None:
    turns, told = Turns(), []
    with turns.call():
        task = asyncio.create_task(turns.run(work(3, told)))
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        other = asyncio.create_task(turns.run(work(1, told)))
        await asyncio.sleep(0.001)
    assert await asyncio.wait_for(other, 1) == "done"


async def test_calls_that_come_now_and_then_do_not_hold_up_work() -> None:
    """Between calls some milliseconds apart there is time for more than one slice."""
    turns, told, calls = Turns(), [], 0
    task = asyncio.create_task(turns.run(work(100, told)))
    while not task.done():
        await asyncio.sleep(0.003)
        with turns.call():
            calls += 1
    assert calls < 50


async def test_chores_come_after_what_somebody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_LULL_SECONDS", 0.02)
    turns, told, chores = Turns(), [], []
    with turns.call():
        pass
    tasks = [asyncio.create_task(turns.run(work(12, chores), chore=True)), asyncio.create_task(turns.run(work(12, told)))]
    while len(told) < 12:
        await asyncio.sleep(0.001)
        with turns.call():
            pass
    assert len(chores) < 6
    assert await asyncio.gather(*tasks) == ["done"] * 2
