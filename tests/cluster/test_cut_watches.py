"""Proxies that cut watches or hold back their events, and the lists that show what the watches did not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import orjson
import pytest

from extender.cluster import ApiClient, Credentials, Reflector, Unavailable
from extender.cluster.reflector import Timing
from extender.sandbox import Cluster
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.reflectors import FakeClient, nodes, page, running
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
