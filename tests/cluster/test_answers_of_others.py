"""Answers with status 200 that are no list of the kind, lists that end half-way, and watches that show nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from extender.cluster import ApiClient, Delays, Reflector, Unavailable, WatchedResource
from extender.cluster.reflector import Timing
from tests.worlds.eventually import eventually, in_background

QUICK = Timing(delays=Delays(first=0.01, most=0.05))


class Fake:
    """In place of ApiClient. A list has the items of each of the pages; a watch is accepted and ends as the test says.

    A page that is an error is raised.
    """

    def __init__(self, *pages: Any) -> None:
        self.pages = self._pages = pages  # of the next list, and of this one
        self.opened = 0
        self.ends: asyncio.Queue[bytes] = asyncio.Queue()

    async def get(self, path: str, params: Any = None, _most: int = 0) -> dict:
        number = int(params.get("continue", "0"))
        if not number:
            self._pages = self.pages
        page = self._pages[number]
        if isinstance(page, Exception):
            raise page
        if isinstance(page, dict):
            return page
        following = str(number + 1) if number + 1 < len(self._pages) else ""
        metadata = {"resourceVersion": "1", "continue": following}
        return {
            "kind": "NodeList",
            "metadata": metadata,
            "items": [{"kind": "Node", "metadata": {"name": name}} for name in page],
        }

    async def lines(self, path: str, params: Any, silence_seconds: float) -> AsyncIterator[bytes]:
        yield b""
        self.opened += 1
        last = await self.ends.get()
        if last:
            yield last

    def too_old(self) -> None:
        self.ends.put_nowait(b'{"type": "ERROR", "object": {"code": 410, "message": "too old"}}')

    @asynccontextmanager
    async def reflecting(self, seen: dict[str, Any], clock: Any = time.monotonic) -> AsyncIterator[Reflector]:
        kind = WatchedResource("nodes", "NodeList", "/api/v1/nodes", seen.__setitem__)
        found = Reflector(cast("ApiClient", self), kind, lambda: None, clock=clock, timing=QUICK)
        async with in_background(found.run()):
            yield found


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
    page, problem = LISTS_OF_OTHERS[case]
    server, seen = Fake(["a"]), dict[str, Any]()
    async with server.reflecting(seen) as found:
        await eventually(lambda: server.opened)
        server.pages = (page,)
        server.too_old()
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
