"""Proxies that cut watches, hold back their events, or answer for the API server; and lists that end half-way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Any

import orjson
import pytest

from extender.cluster import ApiClient, Credentials, Reflector, Unavailable
from extender.cluster.reflector import Timing
from extender.sandbox import Cluster
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.reflectors import QUICK, FakeClient, nodes, page, running
from tests.worlds.skipping_loop import in_virtual_time

NODES = RESOURCES["", "nodes"]


class Cutting(FakeClient):
    """A server behind a proxy that cuts each watch after `seconds`: after one event, or without any. The server has as
    many nodes as watches were opened."""

    def __init__(self, seconds: float, *, events: bool) -> None:
        super().__init__()
        self._seconds, self._events = seconds, events
        self.lists, self.watches = list[float](), list[float]()

    async def get(self, path: str, params: Any = None, _most: int = 0) -> dict:
        self.lists.append(asyncio.get_running_loop().time())
        number = len(self.watches)
        return page(*map(versioned, range(number)), version=str(number))

    async def lines(self, path: str, params: Any, silence_seconds: float) -> AsyncIterator[bytes]:
        self.watches.append(asyncio.get_running_loop().time())
        if len(self.watches) == 50:
            raise RuntimeError("the end of the test")
        yield b""
        await asyncio.sleep(self._seconds)
        if self._events:
            yield orjson.dumps({"type": "ADDED", "object": versioned(len(self.watches))})

    def reflect(self) -> dict[str, Any]:
        """What a reflector has seen after 49 watches."""
        seen: dict[str, Any] = {}

        async def run() -> None:
            await self.reflector(seen.__setitem__, clock=asyncio.get_running_loop().time).run()

        with pytest.raises(RuntimeError, match="the end of the test"):
            in_virtual_time(run())
        return seen


def versioned(number: int) -> dict:
    return {"metadata": {"name": f"n{number}", "resourceVersion": str(number)}}


@pytest.mark.parametrize("seconds", [1.0, 40.0])
def test_watches_that_are_cut_after_events_are_opened_again_soon(seconds: float) -> None:
    """The events show the kind, so it is not listed again."""
    server = Cutting(seconds, events=True)
    assert len(server.reflect()) == 49
    assert len(server.lists) == 1
    assert max(later - sooner for sooner, later in pairwise(server.watches)) <= seconds + Timing().delays.first


@pytest.mark.parametrize("seconds", [0.0, 40.0])
def test_a_proxy_that_holds_back_every_event_hides_no_change_for_long(seconds: float) -> None:
    server = Cutting(seconds, events=False)
    assert len(server.reflect()) > 30
    most = Timing().blind_seconds + max(seconds, Timing().delays.most)
    assert max(later - sooner for sooner, later in pairwise(server.lists)) <= most
    assert len(server.lists) <= server.watches[-1] / Timing().blind_seconds + 1


def test_a_list_that_fails_does_not_keep_a_watch_from_being_opened() -> None:
    """After a time without events the kind is listed again. The server rejects that list, and its watches work."""

    class Listless(Cutting):
        async def get(self, path: str, params: Any = None, _most: int = 0) -> dict:
            if self.lists:
                self.lists.append(asyncio.get_running_loop().time())
                raise Unavailable("503")
            return await super().get(path, params)

        async def lines(self, path: str, params: Any, silence_seconds: float) -> AsyncIterator[bytes]:
            self._events = len(self.lists) > 3
            async for line in super().lines(path, params, silence_seconds):
                yield line

    server = Listless(200.0, events=False)
    assert len(server.reflect()) > 30, "each later watch shows a node"
    assert len(server.lists) > 3


async def test_a_list_applies_no_version_again() -> None:
    """Else each list would compute all nodes anew, and count as a report of every node's agent."""
    cluster, applied = Cluster(), list[tuple[str, bool]]()
    for name in ("same", "changed", "odd"):
        cluster.apply({"kind": "Node", "metadata": {"name": name}})

    def apply(key: str, obj: Any) -> None:
        applied.append((key, obj is not None))
        if key == "odd":
            raise KeyError("a bug")

    async with cluster.serving() as url, ApiClient(Credentials(url, None, lambda: None)) as client:
        found = Reflector(client, nodes(apply), lambda: None)
        async with running(found):
            await eventually(lambda: found.listed)
        cluster.api.registry.patch(NODES, ("", "changed"), {"spec": {"unschedulable": True}}, "", strategic=False)
        applied.clear()
        async with running(found):
            await eventually(lambda: found.lists == 2)
    assert sorted(applied) == [("changed", True), ("odd", True)]


async def test_a_watch_begins_at_the_version_of_the_first_page() -> None:
    """The pages of a proxy may have different versions: the first page lacks the changes until that of the last."""
    pages = [page(versioned(1), version="10", token="more"), page(versioned(2), version="20")]
    watched = asyncio.get_running_loop().create_future()

    class Client(FakeClient):
        async def get(self, path: str, params: Any = None, _most: int = 0) -> dict:
            return pages.pop(0)

        async def lines(self, path: str, params: Any, silence_seconds: float) -> AsyncIterator[bytes]:
            watched.set_result(params["resourceVersion"])
            yield b""
            await asyncio.Event().wait()

    async with running(Client().reflector()):
        assert await watched == "10"


async def test_a_long_text_of_an_error_event_is_cut() -> None:
    """It is logged, and /readyz shows it."""
    text = orjson.dumps({"type": "ERROR", "object": {"message": "x\n" * 1_000_000}}) + b"\n"
    async with running(FakeClient(text).reflector()) as found:
        await eventually(lambda: found.failures)
        assert len(found.problem) < 1000
        assert "\n" not in found.problem


class Fake(FakeClient):
    """A list has the nodes of each of the pages; a watch is accepted and ends as the test says.

    A page that is an error is raised, and one that is a dict is the answer.
    """

    def __init__(self, *pages: Any) -> None:
        super().__init__()
        self.pages = self._pages = pages  # of the next list, and of this one
        self.opened = 0
        self.ends: asyncio.Queue[bytes] = asyncio.Queue()

    async def get(self, path: str, params: Any = None, _most: int = 0) -> dict:
        number = int(params.get("continue", "0"))
        if not number:
            self._pages = self.pages
        found = self._pages[number]
        if isinstance(found, Exception):
            raise found
        token = str(number + 1) if number + 1 < len(self._pages) else ""
        return found if isinstance(found, dict) else page(*({"metadata": {"name": one}} for one in found), token=token)

    async def lines(self, path: str, params: Any, silence_seconds: float) -> AsyncIterator[bytes]:
        yield b""
        self.opened += 1
        last = await self.ends.get()
        if last:
            yield last

    def reflecting(self, seen: dict[str, Any], **options: Any) -> AbstractAsyncContextManager[Reflector]:
        return running(self.reflector(seen.__setitem__, timing=QUICK, **options))


async def test_a_watch_without_events_counts_from_its_start_once_it_lasts() -> None:
    now, server = [1000.0], Fake(["a"])
    async with server.reflecting({}, clock=lambda: now[0]) as found:
        await eventually(lambda: server.opened == 1)
        now[0] += 170
        assert found.silence == 170
        server.ends.put_nowait(b"")
        await eventually(lambda: server.opened == 2)
        assert (found.silence, found.failures) == (170, 0), "it may end at once"
        now[0] += 20
        assert found.silence == 20


LISTS_OF_OTHERS: dict[str, tuple[dict, str]] = {
    "nothing": ({}, "the response is no NodeList; its kind is None"),
    "a Status": ({"kind": "Status", "status": "Failure", "message": "etcd is down"}, "its kind is Status"),
    "another kind": ({"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": []}, "its kind is PodList"),
    "no version": ({"kind": "NodeList", "metadata": {}, "items": []}, "the response has no resourceVersion"),
    "no metadata": ({"kind": "NodeList", "items": []}, "the response has no resourceVersion"),
    "a text": ({"kind": "NodeList", "metadata": {"resourceVersion": "9"}, "items": "x"}, "items are of type str"),
}


@pytest.mark.parametrize("case", LISTS_OF_OTHERS)
async def test_a_response_that_is_no_list_of_the_kind_deletes_nothing(case: str) -> None:
    wrong, problem = LISTS_OF_OTHERS[case]
    server, seen = Fake(["a"]), dict[str, Any]()
    async with server.reflecting(seen) as found:
        await eventually(lambda: server.opened)
        server.pages = (wrong,)
        server.ends.put_nowait(b'{"type": "ERROR", "object": {"code": 410, "message": "too old"}}')
        await eventually(lambda: problem in found.problem)
        assert seen["a"] is not None
        server.pages = (["b"],)
        await eventually(lambda: server.opened == 2)
        assert (seen["a"], found.problem) == (None, "")


async def test_an_object_of_an_incomplete_list_is_deleted_if_the_next_list_lacks_it() -> None:
    server, seen = Fake(["a"], Unavailable("down")), dict[str, Any]()
    async with server.reflecting(seen) as found:
        await eventually(lambda: found.failures)
        assert seen["a"] is not None
        server.pages = (["b"],)
        await eventually(lambda: server.opened)
        assert seen["a"] is None
