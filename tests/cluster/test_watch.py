"""List and watch against the sandbox: pages, deletions that a gap hid, 410, silence, back-off after each failure.

Events wake the tasks whose condition of the cache holds, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from extender.cluster import ApiClient, Backoff, Credentials, Delays, Reflector, TooMany, WatchedResource
from extender.cluster.reflector import Timing
from extender.runtime.informers import WatchProgress
from extender.runtime.supervisor import Supervisor
from extender.sandbox import ApiError, Cluster, listening
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.reflectors import QUICK, FakeClient, nodes, reflecting, running
from tests.worlds.skipping_loop import in_virtual_time

NODES = RESOURCES["", "nodes"]
NEVER = Timing(delays=Delays(first=10_000.0, most=10_000.0))  # the first delay outlasts every test


def node(name: str) -> dict:
    return {"kind": "Node", "metadata": {"name": name}}


async def test_pages_events_and_deletions() -> None:
    cluster = Cluster()
    seen: dict[str, Any] = {}
    for i in range(450):
        cluster.apply(node(f"n{i}"))
    async with cluster.serving() as url, reflecting(url, seen) as found:
        await eventually(lambda: found.listed)
        assert len(seen) == 450
        assert cluster.api.requests["GET nodes"] >= 3
        cluster.apply(node("late"))
        cluster.api.registry.delete(NODES, ("", "n3"))
        await eventually(lambda: "late" in seen and seen["n3"] is None)


async def test_many_objects_at_once_let_others_in() -> None:
    """Other tasks run after each object at which a time slice ends: in lists, in bursts, and if a list lacks many."""
    cluster = Cluster()
    events: list[str] = []

    async def other() -> None:
        while True:
            if events and events[-1] != "another task":
                events.append("another task")
            await asyncio.sleep(0)

    def apply(_: str, obj: Any) -> None:
        events.append("an object" if obj is not None else "a deletion")

    for i in range(10):
        cluster.apply(node(f"n{i}"))
    task = asyncio.create_task(other())
    async with cluster.serving() as url, ApiClient(Credentials(url, None, lambda: None)) as client:
        found = Reflector(client, nodes(apply), lambda: None, timing=replace(QUICK, time_slice_seconds=0.0))
        reflecting_task = asyncio.create_task(found.run())
        await eventually(lambda: found.listed)
        for i in range(10):
            cluster.apply(node(f"m{i}"))
        await eventually(lambda: events.count("an object") >= 20)
        reflecting_task.cancel()
        await asyncio.gather(reflecting_task, return_exceptions=True)
        for i in range(10):
            cluster.api.registry.delete(NODES, ("", f"n{i}"))
        reflecting_task = asyncio.create_task(found.run())  # begins with a list
        await eventually(lambda: events.count("a deletion") >= 10)
        for one in (reflecting_task, task):
            one.cancel()
        await asyncio.gather(reflecting_task, task, return_exceptions=True)
    assert not {("an object", "an object"), ("a deletion", "a deletion")} & set(pairwise(events))


async def test_a_gap_hides_no_deletion() -> None:
    """After 410 the reflector compares the new list with the known objects and deletes those that are missing."""
    cluster = Cluster()
    seen: dict[str, Any] = {}
    for name in ("stays", "goes"):
        cluster.apply(node(name))
    async with cluster.serving() as url, reflecting(url, seen) as found:
        await eventually(lambda: found.listed)
        down = True

        async def refuse(method: str, path: str) -> ApiError | None:
            return ApiError(503, "ServiceUnavailable", "down") if down else None

        cluster.api.intercept = refuse
        cluster.store.cut_watches()
        await eventually(lambda: found.failures)
        cluster.api.registry.delete(NODES, ("", "goes"))
        cluster.store.forget_history()
        down = False
        await eventually(lambda: seen["goes"] is None)
        assert seen["stays"] is not None
        assert found.lists == 2


async def test_a_silent_watch_is_opened_again_and_that_is_no_failure() -> None:
    """An API server sends no bookmarks of a kind that did not change since the list: silence alone is no failure."""
    cluster = Cluster(bookmark_seconds=60)
    seen: dict[str, Any] = {}
    timing = Timing(silence_seconds=0.2, delays=NEVER.delays)
    async with cluster.serving() as url, reflecting(url, seen, timing=timing) as found:
        await eventually(lambda: cluster.api.requests.get("GET nodes", 0) >= 4)  # a list, and three watches
        assert (found.failures, found.lists, found.problem) == (0, 1, "")
        cluster.apply(node("late"))
        await eventually(lambda: "late" in seen)


async def test_silence_counts_from_the_last_message_of_the_server() -> None:
    """A list, the start of a watch, and an event each reset the time of silence."""
    cluster, now = Cluster(bookmark_seconds=60), [1000.0]
    seen: dict[str, Any] = {}
    async with cluster.serving() as url, reflecting(url, seen, Timing(), clock=lambda: now[0]) as found:
        await eventually(lambda: found.listed)
        cluster.apply(node("early"))
        await eventually(lambda: "early" in seen, "the watch is open")
        now[0] += 200
        assert found.silence == 200
        cluster.apply(node("late"))
        await eventually(lambda: "late" in seen)
        assert found.silence == 0


async def test_a_kind_that_is_not_served_is_not_silent() -> None:
    now = [0.0]
    kind = WatchedResource("nothings", "NothingList", "/apis/nowhere/v1/nothings", lambda *_: None, optional=True)
    async with Cluster().serving() as url, reflecting(url, kind, Timing(), clock=lambda: now[0]) as found:
        await eventually(lambda: found.listed)
        now[0] += 250
        assert found.silence == 0


EMPTY = b'{"kind": "NodeList", "metadata": {"resourceVersion": "5"}, "items": []}'
ADDED = b'{"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "6"}}}\n'


class Scripted:
    """An API server as ASGI: lists are empty, and every watch answers `watch` as status and body, then ends."""

    def __init__(self, status: int, *parts: bytes) -> None:
        self.status, self.parts = status, parts
        self.lists = self.watches = 0

    async def __call__(self, scope: dict, receive: Any, send: Any) -> None:
        is_watch = b"watch=1" in scope["query_string"]
        self.watches += is_watch
        self.lists += not is_watch
        status, parts = (self.status, self.parts) if is_watch else (200, [EMPTY])
        await send({"type": "http.response.start", "status": status, "headers": []})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _error(code: int, message: str) -> bytes:
    return b'{"type": "ERROR", "object": {"code": %d, "message": "%s"}}\n' % (code, message.encode())


def _typed(kind: bytes) -> bytes:
    return ADDED.replace(b'"ADDED"', kind)


FAULTS = {
    "410 as the answer": (Scripted(410, b'{"message": "too old"}'), "too old", True),
    "410 as an event": (Scripted(200, _error(410, "too old")), "too old", True),
    "another ERROR event": (Scripted(200, _error(500, "broken")), "broken", True),
    "a watch that ends at once": (Scripted(200), "the watch ended after", False),
    "an event and the end": (Scripted(200, ADDED), "the watch ended after", False),
    "a line that was cut": (Scripted(200, ADDED[:40]), "cut within an event", False),
    "a line that was cut and is JSON": (Scripted(200, b"5"), "cut within an event", False),
    "a complete line that is no JSON": (Scripted(200, b"<html>\n"), "sent no event", True),
    "a line that is no event": (Scripted(200, b"[1]\n"), "sent no event", True),
    "an event whose object is a number": (Scripted(200, b'{"type": "ADDED", "object": 7}\n'), "sent no event", True),
    "an ERROR without an object": (Scripted(200, b'{"type": "ERROR"}\n'), "sent no event", True),
    "a deletion of null": (Scripted(200, b'{"type": "DELETED", "object": null}\n'), "sent no event", True),
    "an event of a type that does not exist": (Scripted(200, _typed(b'"FOO"')), "of an unknown type: FOO", True),
    "an event without a type": (Scripted(200, _typed(b"null")), "of an unknown type: None", True),
    "another page's answer": (Scripted(302, b"go to the login page"), "unexpected HTTP status 302", False),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_failure_of_a_watch_is_followed_by_a_delay(fault: str) -> None:
    """One list and one watch, then nothing until the delay, which never ends here, is over. A loop without a delay
    would ask again while another reflector lists, watches and fails."""
    server, problem, _ = FAULTS[fault]
    server.lists = server.watches = 0
    async with listening(server, "127.0.0.1", 0) as url, reflecting(url, {}, timing=NEVER) as found:
        await eventually(lambda: problem in found.problem)
        async with reflecting(url, {}, timing=NEVER) as other:
            await eventually(lambda: problem in other.problem)
        assert (server.lists, server.watches) == (2, 2)
        assert found.failures == 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_after_the_delay_it_lists_again_only_where_events_may_be_lost(fault: str) -> None:
    server, _, lists_again = FAULTS[fault]
    server.lists = server.watches = 0
    async with reflecting(server, {}):
        await eventually(lambda: server.watches >= 3)
        assert (server.lists > 1) == lists_again


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "an event and the end"])
async def test_a_watch_that_fails_at_once_again_and_again_is_silent(fault: str) -> None:
    """A server or a proxy that accepts every watch and shows nothing; also if it answers the lists in between."""
    server, _, _ = FAULTS[fault]
    server.watches, now, seen = 0, [1000.0], dict[str, Any]()
    async with reflecting(server, seen, clock=lambda: now[0]) as found:
        await eventually(lambda: server.watches >= 2)
        now[0] += 200
        more = server.watches + 3
        await eventually(lambda: server.watches >= more)
        assert found.silence == 200
        assert not seen


async def test_streams_are_closed_however_a_watch_ends() -> None:
    """A watch that ends early returns or closes its connection: the garbage collector finds none."""
    closed = []

    class Client(FakeClient):
        async def lines(self, path: str, params: Any, silence_seconds: float) -> AsyncIterator[bytes]:
            try:
                yield b'{"type": "ERROR", "object": {"code": 410}}'
                await asyncio.Event().wait()
            finally:
                closed.append(path)

    async with running(Client().reflector(timing=NEVER)):
        await eventually(lambda: bool(closed))


@pytest.mark.parametrize(("says", "delay", "least"), [(4.0, 0.01, 4.0), (1.0, 10.0, 5.0)])
def test_after_429_the_longer_delay_counts_the_own_or_that_of_the_server(
    says: float, delay: float, least: float
) -> None:
    """The own delay is at least half of the 10 s, as it has jitter."""
    asked: list[float] = []

    class Client(FakeClient):
        async def get(self, path: str, params: Any = None, _most: int = 0) -> dict:
            asked.append(asyncio.get_running_loop().time())
            if len(asked) == 3:
                raise RuntimeError("the end of the test")
            raise TooMany("busy", says)

    timing = Timing(delays=Delays(first=delay, most=delay))
    with pytest.raises(RuntimeError, match="the end of the test"):
        in_virtual_time(Client().reflector(timing=timing).run())
    assert all(later - sooner >= least for sooner, later in pairwise(asked))


async def test_a_watch_that_failed_on_a_bug_lists_again() -> None:
    """Each run begins with a list, so that the supervisor's next run sees what the last one missed."""
    cluster = Cluster()
    seen: dict[str, Any] = {}
    bugs: list[Any] = []

    def progress() -> None:
        if "odd" in seen and not bugs:
            bugs.append("odd")
            raise KeyError("a bug")

    async with cluster.serving() as url, ApiClient(Credentials(url, None, lambda: None)) as client:
        found = Reflector(client, nodes(seen.__setitem__), progress)
        supervisor = Supervisor(QUICK.delays)
        supervisor.start("watch-nodes", found.run)
        await eventually(lambda: found.listed)
        cluster.apply(node("odd"))
        cluster.apply(node("next"))
        await eventually(lambda: seen.get("next") is not None and found.lists == 2)
        assert seen["odd"] is not None
        assert supervisor.failures == {"watch-nodes": 1}
        await supervisor.stop()


def test_delays_double_with_jitter_and_start_anew_after_a_quiet_while() -> None:
    now = [0.0]
    backoff = Backoff(Delays(first=1.0, most=10.0, reset=60.0), lambda: now[0])
    for whole in (1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        assert whole / 2 <= backoff.next() <= whole
    assert backoff.failures == 6
    now[0] = 61.0
    assert backoff.failures == 0
    assert backoff.next() <= 1.0
    assert len({backoff.next() for _ in range(20)}) > 1, "jitter"
    assert all(backoff.next() <= 10.0 for _ in range(2000)), "a day of failures"


async def test_bookmarks_move_the_version() -> None:
    cluster = Cluster(bookmark_seconds=0.05)
    seen: dict[str, Any] = {}
    async with cluster.serving() as url, reflecting(url, seen) as found:
        await eventually(lambda: found.listed)
        cluster.apply({"kind": "ConfigMap", "metadata": {"name": "x"}})
        await eventually(lambda: found.version == str(cluster.store.version))


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
