"""Serve and console over real HTTP, each with its own watches: helpers of tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx

from extender.api.fields import Json
from extender.cluster import ApiClient, Credentials
from extender.entry.console_process import run as run_console
from extender.entry.listening import Pages
from extender.policy import Policy
from extender.sandbox import Cluster, carried_machines, listening
from extender.serve import Service
from extender.web.serve_app import Probes, ServeApp
from tests.worlds.eventually import HANG_SECONDS, answers, eventually


def sandbox() -> Cluster:
    cluster = Cluster(bookmark_seconds=0.5)
    for name in ("n1", "n2"):
        cluster.add_node(name, carried_machines()["t4-4"])
    return cluster


@dataclass
class Serve:
    """One replica of serve."""

    service: Service
    client: httpx.AsyncClient
    cluster: Cluster

    def _pod(self, name: str) -> Json:
        found = self.cluster.store.get("pods", ("default", name))
        assert found is not None
        return {k: v for k, v in found.items() if k not in ("kind", "apiVersion")}

    async def filter(self, name: str) -> list[str]:
        async def filter_reply() -> Json | None:
            body = {"Pod": self._pod(name), "Nodes": None, "NodeNames": ["n1", "n2"]}
            found = (await self.client.post("/filter", json=body)).json()
            return None if found["Error"] else found

        return (await eventually(filter_reply, f"filter of {name}"))["NodeNames"]

    async def bind(self, name: str, node: str) -> str:
        body = {"PodName": name, "PodNamespace": "default", "PodUID": self._pod(name)["metadata"]["uid"], "Node": node}
        return str((await self.client.post("/bind", json=body)).json()["Error"])


@asynccontextmanager
async def serve(cluster: Cluster, api: str) -> AsyncIterator[Serve]:
    """A replica of serve."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(Credentials(api, None, lambda: None)))
        service = await stack.enter_async_context(Service(client, Policy()))
        url = await stack.enter_async_context(listening(ServeApp(service, Probes(service)), "127.0.0.1", 0))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=False))
        await eventually(lambda: not service.informers.not_ready)
        yield Serve(service, http, cluster)


@asynccontextmanager
async def console(api: str, pages: int) -> AsyncIterator[httpx.AsyncClient]:
    """The console as `berth console` runs it, and a client of its pages."""
    credentials = Credentials(api, None, lambda: None)
    task = asyncio.create_task(run_console(credentials, Pages(("127.0.0.1", pages))))
    try:
        await answers(f"http://127.0.0.1:{pages}/readyz", 200)
        url = f"http://127.0.0.1:{pages}"
        async with httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=False) as client:
            yield client
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
