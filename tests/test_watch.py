"""List and watch against the sandbox: pages, deletions that a gap hid, 410, silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from extender.cluster import reflector as module
from extender.cluster.client import ApiClient
from extender.cluster.credentials import Credentials
from extender.cluster.reflector import Kind, Reflector
from extender.sandbox.apiserver.errors import ApiError
from extender.sandbox.apiserver.resources import RESOURCES
from extender.sandbox.cluster import Cluster
from tests.berthing import until

NODES = RESOURCES["", "nodes"]


async def _at_once() -> None:
    """Nobody else wants the time."""


@asynccontextmanager
async def reflecting(cluster: Cluster, url: str, seen: dict[str, Any], give_way: Callable[[], Awaitable[None]] = _at_once) -> AsyncIterator[Reflector]:
    kind = Kind("nodes", "/api/v1/nodes", lambda key, obj: seen.__setitem__(key, obj))
    async with ApiClient(Credentials(url, None, lambda: None)) as client:
        found = Reflector(client, kind, lambda: None, give_way)
        task = asyncio.create_task(found.run())
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def node(name: str) -> dict:
    return {"kind": "Node", "metadata": {"name": name}}


async def test_pages_events_and_deletions(monkeypatch) -> None:
    monkeypatch.setattr(module, "_PAGE", 7)
    cluster, seen = Cluster(), {}
    for i in range(20):
        cluster.apply(node(f"n{i}"))
    async with cluster.serving() as url, reflecting(cluster, url, seen) as found:
        await until(lambda: found.listed)
        assert len(seen) == 20 and cluster.api.requests["GET nodes"] >= 3
        cluster.apply(node("late"))
        cluster.api.registry.delete(NODES, ("", "n3"))
        await until(lambda: "late" in seen and seen["n3"] is None)


async def test_many_objects_at_once_let_others_in(monkeypatch) -> None:
    """A list as well as a burst of events: whoever waits is not kept for longer than a slice."""
    monkeypatch.setattr(module, "_SLICE_SECONDS", 0.0)
    cluster, seen, told = Cluster(), {}, []

    async def give_way() -> None:
        told.append(len(seen))

    for i in range(10):
        cluster.apply(node(f"n{i}"))
    async with cluster.serving() as url, reflecting(cluster, url, seen, give_way) as found:
        await until(lambda: found.listed)
        assert told == list(range(1, 11))
        for i in range(10):
            cluster.apply(node(f"m{i}"))
        await until(lambda: len(seen) == 20)
        assert told[10:] == list(range(11, 21))


async def test_a_gap_hides_no_deletion(monkeypatch) -> None:
    """After 410 the fresh list is compared with what was known: what is missing is deleted."""
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", (0.01, 0.05))
    cluster, seen = Cluster(), {}
    for name in ("stays", "goes"):
        cluster.apply(node(name))
    async with cluster.serving() as url, reflecting(cluster, url, seen) as found:
        await until(lambda: found.listed)
        down = True

        async def refuse(method: str, path: str) -> ApiError | None:
            return ApiError(503, "ServiceUnavailable", "down") if down else None

        cluster.api.intercept = refuse
        cluster.store.cut_watches()
        await asyncio.sleep(0.05)
        cluster.api.registry.delete(NODES, ("", "goes"))
        cluster.store.forget_history()
        down = False
        await until(lambda: seen["goes"] is None)
        assert seen["stays"] is not None and found.relists == 2


async def test_silence_is_noticed(monkeypatch) -> None:
    """A connection that says nothing, not even bookmarks, is given up and opened again."""
    monkeypatch.setattr(module, "_SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", (0.01, 0.02))
    cluster, seen = Cluster(bookmark_seconds=60), {}
    async with cluster.serving() as url, reflecting(cluster, url, seen) as found:
        await until(lambda: found.failures > 0)


async def test_bookmarks_move_the_version() -> None:
    cluster, seen = Cluster(bookmark_seconds=0.05), {}
    async with cluster.serving() as url, reflecting(cluster, url, seen) as found:
        await until(lambda: found.listed)
        cluster.apply({"kind": "ConfigMap", "metadata": {"name": "x"}})
        await until(lambda: found.version == str(cluster.store.version))
