"""Reflectors that run during a test, and a fake of the client that they read with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from extender.cluster import ApiClient, Credentials, Delays, Reflector, WatchedResource
from extender.cluster.reflector import Timing
from extender.sandbox import listening
from tests.worlds.eventually import in_background

QUICK = Timing(delays=Delays(first=0.01, most=0.05))


def nodes(apply: Any) -> WatchedResource:
    return WatchedResource("nodes", "NodeList", "/api/v1/nodes", apply)


def page(*items: dict, version: str = "1", token: str = "") -> dict:
    """A page of a list of nodes."""
    return {"kind": "NodeList", "metadata": {"resourceVersion": version, "continue": token}, "items": list(items)}


class FakeClient:
    """In place of ApiClient: there are no nodes, and a watch shows these lines and stays open."""

    def __init__(self, *lines: bytes) -> None:
        self._lines = lines

    async def get(self, path: str, params: Any = None, _most: int = 0) -> dict:
        return page()

    async def lines(self, path: str, params: Any, silence_seconds: float) -> AsyncIterator[bytes]:
        for line in self._lines:
            yield line
        await asyncio.Event().wait()

    def reflector(self, apply: Any = lambda *_: None, **options: Any) -> Reflector:
        return Reflector(cast("ApiClient", self), nodes(apply), lambda: None, **options)


@asynccontextmanager
async def running(reflector: Reflector) -> AsyncIterator[Reflector]:
    async with in_background(reflector.run()):
        yield reflector


@asynccontextmanager
async def reflecting(
    server: Any, kind: WatchedResource | dict[str, Any], timing: Timing = QUICK, **options: Any
) -> AsyncIterator[Reflector]:
    """A reflector of a kind, or of nodes into a dict, that reads from an ASGI server or from the one with this URL."""
    kind = nodes(kind.__setitem__) if isinstance(kind, dict) else kind
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        url = server if isinstance(server, str) else await enter(listening(server, "127.0.0.1", 0))
        client = await enter(ApiClient(Credentials(url, None, lambda: None)))
        yield await enter(running(Reflector(client, kind, lambda: None, timing=timing, **options)))
