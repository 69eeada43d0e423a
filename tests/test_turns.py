"""Who goes first: slices of long work between kube-scheduler's calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from extender.serve import server
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
    monkeypatch.setattr(turns_module, "_SHORTEST_LULL_SECONDS", 0.02)  # asyncio cannot sleep for less than a millisecond
    turns, told = Turns(), []
    for _ in range(2):  # a caller that asks again at once
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


async def test_what_calls_depend_on_lets_a_call_in_and_waits_for_none_that_never_ends() -> None:
    """The watch: with a call in hand it waits for a moment, and with none not at all, however likely the next is."""
    turns, told = Turns(), []

    async def events(count: int) -> None:
        for _ in range(count):
            await turns.give_way()
            told.append("event")

    with turns.call():
        pass
    task = asyncio.create_task(events(3))
    await asyncio.sleep(0)
    with turns.call():
        await asyncio.sleep(0)
        told.append("answer")
    await task
    assert told == ["answer", "event", "event", "event"]
    with turns.call():
        await asyncio.wait_for(events(20), 5)


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
    monkeypatch.setattr(turns_module, "_SHORTEST_LULL_SECONDS", 0.02)
    turns, told, chores = Turns(), [], []
    for _ in range(2):
        with turns.call():
            pass
    tasks = [asyncio.create_task(turns.run(work(12, chores), chore=True)), asyncio.create_task(turns.run(work(12, told)))]
    while len(told) < 12:
        await asyncio.sleep(0.001)
        with turns.call():
            pass
    assert len(chores) < 6
    assert await asyncio.gather(*tasks) == ["done"] * 2


async def test_who_waits_for_the_next_call_keeps_the_processor_awake_but_chores_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_SHORTEST_LULL_SECONDS", 0.02)
    looked: list[float] = []
    monkeypatch.setattr(turns_module.os, "sched_yield", lambda: looked.append(time.perf_counter()))

    async def waits(*, chore: bool) -> int:
        turns, told = Turns(), []
        for _ in range(2):
            with turns.call():
                pass
        task = asyncio.create_task(turns.run(work(3, told), chore=chore))
        await asyncio.sleep(0.01)
        with turns.call():
            looked_before = len(looked)
            await asyncio.sleep(0.002)
            assert len(looked) <= looked_before + 1, "a call is in hand: nobody need wait for it"
        await task
        await asyncio.sleep(0.001)
        looked_before = len(looked)
        await asyncio.sleep(0.002)
        assert len(looked) == looked_before, "nobody waits any more"
        seen = len(looked)
        looked.clear()
        return seen

    assert await waits(chore=True) < 10
    assert await waits(chore=False) > 50


async def test_work_leaves_some_of_the_time_between_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls ten milliseconds apart: work follows each for some time, and none is begun shortly before the next."""
    monkeypatch.setattr(turns_module, "_LONGEST_GAP_SECONDS", 0.05)
    turns, told, begun = Turns(), [], []

    def steps() -> Iterator[str | None]:
        yield None
        for step in work(4000, told):
            yield step
            begun.append(time.perf_counter())

    async def pause() -> None:
        await asyncio.sleep(0.01)

    for _ in range(3):
        await pause()
        with turns.call():
            pass
    task = asyncio.create_task(turns.run(steps()))
    late = []
    for _ in range(8):
        told.clear()
        await pause()
        late.append(time.perf_counter() - begun[-1])
        with turns.call():
            assert told, "some work was done"
    assert sorted(late)[len(late) // 2] > 0.002, late
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Asked:
    """An application that remembers who asked."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.asked: list[str] = []

    async def __call__(self, scope: dict, receive: object, send: Callable[[dict], Awaitable[None]]) -> None:
        self.asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


async def test_a_page_is_not_even_parsed_while_a_call_is_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_PATIENCE_SECONDS", 5)
    app = Asked()
    web = server(app, "127.0.0.1", 0)
    task = asyncio.create_task(web._serve())
    while not web.started:
        await asyncio.sleep(0.001)
    port = web.servers[0].sockets[0].getsockname()[1]
    (pages, to_pages), (_, to_gone), (verbs, to_verbs) = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    with app.turns.call():
        to_pages.write(b"GET /pa")
        to_gone.write(b"GET /gone HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.01)
        to_pages.write(b"ge HTTP/1.1\r\nHost: x\r\n\r\n")
        to_verbs.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert b"200" in await verbs.readline()
        to_gone.transport.abort()
        await asyncio.sleep(0.01)
        assert app.asked == ["/filter"]
    assert b"200" in await asyncio.wait_for(pages.readline(), 5)
    assert app.asked == ["/filter", "/page"], "and who has gone meanwhile is not answered"
    for one in (to_pages, to_verbs):
        one.close()
    web.should_exit = True
    await task


async def test_work_that_is_late_takes_longer_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_LATE_SLICE_SECONDS", 20 * _WORK_SECONDS)

    async def pauses(within: float) -> int:
        turns, counted = Turns(), []
        pause = turns.pause
        turns.pause = lambda **how: counted.append(1) or pause(**how)  # type: ignore[method-assign,func-returns-value,assignment]
        assert await turns.run(work(100, []), within=within) == "done"
        return len(counted)

    assert await pauses(1000.0) == 100
    assert await pauses(0.0) < 20
