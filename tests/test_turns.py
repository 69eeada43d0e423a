"""The order of long work and kube-scheduler's calls. How long either takes is measured by `make bench`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from extender.serve import server
from extender.service import turns as turns_module
from extender.service.supervisor import Supervisor
from extender.service.turns import Turns
from extender.sockets import listen_on
from tests.waiting import HANG_SECONDS, eventually


def work(count: int, told: list[str]) -> Iterator[str | None]:
    """Steps that can be counted."""
    for _ in range(count):
        told.append("work")
        yield None
    yield "done"


async def test_without_calls_work_goes_on() -> None:
    told: list[str] = []
    assert await Turns().run(work(20, told)) == "done"
    assert len(told) == 20


async def test_a_call_that_takes_long_does_not_stop_work_for_good() -> None:
    turns, told = Turns(), []
    with turns.call():
        assert await turns.run(work(3, told)) == "done"
    assert await turns.run(work(3, told)) == "done"


async def test_what_calls_depend_on_lets_a_call_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch: with a call in hand it waits, and with none not at all, however likely the next is."""
    monkeypatch.setattr(turns_module, "_SHORT_PATIENCE_SECONDS", HANG_SECONDS)
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


async def test_what_calls_depend_on_waits_for_no_call_that_never_ends() -> None:
    turns = Turns()
    with turns.call():
        for _ in range(20):
            await turns.give_way()


async def test_who_gives_up_is_not_waited_for() -> None:
    turns, told = Turns(), []
    with turns.call():
        task = asyncio.create_task(turns.run(work(3, told)))
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        other = asyncio.create_task(turns.run(work(1, told)))
        await asyncio.sleep(0.001)
    assert await other == "done"


class Asked:
    """An application that remembers who asked."""

    def __init__(self) -> None:
        self.turns, self.supervisor = Turns(), Supervisor()
        self.asked: list[str] = []

    async def __call__(self, scope: dict, receive: object, send: Callable[[dict], Awaitable[None]]) -> None:
        self.asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


async def test_a_page_is_not_even_parsed_while_a_call_is_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_PATIENCE_SECONDS", HANG_SECONDS)
    app = Asked()
    web = server(app, "127.0.0.1", 0)
    task = asyncio.create_task(web._serve(listen_on("--listen", "127.0.0.1", 0)))
    await eventually(lambda: web.started)
    port = web.servers[0].sockets[0].getsockname()[1]
    (pages, to_pages), (verbs, to_verbs) = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    with app.turns.call():
        to_pages.write(b"GET /pa")
        to_pages.write(b"ge HTTP/1.1\r\nHost: x\r\n\r\n")
        to_verbs.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert b"200" in await verbs.readline()
        assert app.asked == ["/filter"]
    assert b"200" in await pages.readline()
    assert app.asked == ["/filter", "/page"]
    for one in (to_pages, to_verbs):
        one.close()
    web.should_exit = True
    await task


async def test_work_that_is_late_takes_longer_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_SLICE_SECONDS", -1.0)  # every step uses it up
    monkeypatch.setattr(turns_module, "_LATE_SLICE_SECONDS", float("inf"))

    async def pauses(within: float) -> int:
        turns, counted = Turns(), []
        pause = turns.pause
        turns.pause = lambda **how: counted.append(1) or pause(**how)  # type: ignore[method-assign,func-returns-value,assignment]
        assert await turns.run(work(100, []), within=within) == "done"
        return len(counted)

    assert await pauses(float("inf")) == 100
    assert await pauses(0.0) == 0
