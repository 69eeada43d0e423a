"""Answers with status 200 that are no list of the kind, lists that end half-way, and watches that show nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from extender.cluster import Reflector, Unavailable
from tests.worlds.eventually import eventually
from tests.worlds.reflectors import QUICK, FakeClient, page, running


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
