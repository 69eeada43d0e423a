"""Serve and the console as applications of their own over an API server without authentication, and two replicas of
serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx

from extender.cluster import ApiClient, Credentials
from extender.console import Console
from extender.entry.console_process import run as run_console
from extender.entry.listening import Pages
from extender.policy import Policy
from extender.runtime.supervisor import Supervisor
from extender.sandbox import Cluster, listening
from extender.serve import Service
from extender.web.console.console_app import ConsoleApp
from extender.web.serve_app import Probes, ServeApp
from tests.worlds.eventually import answers, eventually, in_background
from tests.worlds.running_berth import Json, Serving, client_at, cluster_of, patient


def anonymous(api_url: str) -> ApiClient:
    """A client without credentials."""
    return ApiClient(Credentials(api_url, None, lambda: None))


@asynccontextmanager
async def serve_application(
    api_url: str, policy: Policy | None = None, supervisor: Supervisor | None = None
) -> AsyncIterator[ServeApp]:
    async with anonymous(api_url) as client, Service(client, policy or Policy(), supervisor=supervisor) as service:
        yield ServeApp(service, Probes(service))


@asynccontextmanager
async def console_application(api_url: str) -> AsyncIterator[ConsoleApp]:
    async with anonymous(api_url) as client, Console(client, Policy()) as console:
        yield ConsoleApp(console)


@asynccontextmanager
async def serve(cluster: Cluster, api: str) -> AsyncIterator[Serving]:
    """A replica of serve over real HTTP."""
    async with (
        serve_application(api, patient()) as app,
        listening(app, "127.0.0.1", 0) as url,
        client_at(url) as client,
    ):
        await eventually(lambda: not app.service.informers.not_ready)
        yield Serving(cluster, app, client, api)


@asynccontextmanager
async def console(api: str, pages: int) -> AsyncIterator[httpx.AsyncClient]:
    """The console as `berth console` runs it, and a client of its pages."""
    credentials, url = Credentials(api, None, lambda: None), f"http://127.0.0.1:{pages}"
    async with in_background(run_console(credentials, Pages(("127.0.0.1", pages)))), client_at(url) as client:
        await answers(f"{url}/readyz", 200)
        yield client


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
async def replicas(nodes: Mapping[str, str], *objects: Json) -> AsyncIterator[tuple[list[Serving], list[Gate]]]:
    """Two replicas (nodes: name to machine), which have seen these objects, each behind a gate."""
    cluster = cluster_of(nodes, 0.2)
    gates = [Gate(cluster), Gate(cluster)]
    found: list[Serving] = []
    async with AsyncExitStack() as stack:
        for gate in gates:
            api = await stack.enter_async_context(listening(gate, "127.0.0.1", 0))
            stack.callback(cluster.store.cut_watches)  # a server ends at once where no watch is open
            found.append(await stack.enter_async_context(serve(cluster, api)))
        await found[0].create(*objects)
        await found[1].settled()
        try:
            yield found, gates
        finally:
            for gate in gates:
                gate.open()
