"""Two Berth replicas on one sandbox API server, each behind a gate that can hold back or cut its watch of claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx

from extender.sandbox import Cluster, carried_machines, listening
from tests.worlds.applications import serve_application
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.running_berth import Serving, patient

Json = dict[str, Any]


class Gate:
    """The API server as one replica sees it. While the gate is closed, the replica's list and watch of claims show
    nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._opened = asyncio.Event()
        self._opened.set()

    def close(self) -> None:
        self._opened.clear()

    def open(self) -> None:
        self._opened.set()

    async def __call__(self, scope: Json, receive: Any, send: Any) -> None:
        reads = scope["type"] == "http" and scope["method"] == "GET"
        reads_claims = reads and scope["path"].endswith("/resourceclaims")
        if reads_claims:
            await self._opened.wait()

        async def held(message: Json) -> None:
            await self._opened.wait()
            await send(message)

        await self._cluster.api(scope, receive, held if reads_claims else send)


@asynccontextmanager
async def replicas(nodes: dict[str, str], *objects: Json) -> AsyncIterator[tuple[list[Serving], list[Gate]]]:
    """Two replicas (nodes: name to machine), which have seen these objects, and the gate of each."""
    cluster = Cluster(bookmark_seconds=0.2)
    for name, machine in nodes.items():
        cluster.add_node(name, carried_machines()[machine])
    gates = [Gate(cluster), Gate(cluster)]
    found: list[Serving] = []
    async with AsyncExitStack() as stack:
        for gate in gates:
            api = await stack.enter_async_context(listening(gate, "127.0.0.1", 0))
            stack.callback(cluster.store.cut_watches)  # a server ends at once where no watch is open
            app = await stack.enter_async_context(serve_application(api, patient()))
            url = await stack.enter_async_context(listening(app, "127.0.0.1", 0))
            await eventually(lambda app=app: not app.service.informers.not_ready)
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=False)
            )
            found.append(Serving(cluster, app, client, api))
        await found[0].create(*objects)
        await found[1].settled()
        try:
            yield found, gates
        finally:
            for gate in gates:
                gate.open()
