"""`berth serve` without its console is ready, places pods, and shows the failure in its metrics."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx

from extender.cluster import Credentials
from extender.entry.serve_process import Listen, RecordsTo, run
from extender.sandbox import Cluster, carried_machines
from tests.eventually import HANG_SECONDS, eventually
from tests.running_berth import claim, pod


def free_address() -> tuple[str, int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1", int(probe.getsockname()[1])


@asynccontextmanager
async def serving(api: str, records: str) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Clients of the verbs and of the probes, which have addresses of their own."""
    verbs, probes = free_address(), free_address()
    task = asyncio.create_task(
        run(Credentials(api, None, lambda: None), Listen(verbs, probes), None, RecordsTo(records))
    )
    urls = [f"http://{host}:{port}" for host, port in (verbs, probes)]
    try:
        async with (
            httpx.AsyncClient(base_url=urls[0], timeout=HANG_SECONDS, verify=False) as first,
            httpx.AsyncClient(base_url=urls[1], timeout=HANG_SECONDS, verify=False) as second,
        ):
            yield first, second
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def answers(client: httpx.AsyncClient, path: str) -> str:
    """The text of a good answer, or ''."""
    try:
        reply = await client.get(path)
    except httpx.ConnectError:
        return ""
    return reply.text if reply.status_code == httpx.codes.OK else ""


async def test_a_console_that_is_not_there_keeps_nothing_from_being_placed() -> None:
    cluster = Cluster()
    cluster.add_node("n1", carried_machines()["t4-4"])
    cluster.apply(claim("c"))
    cluster.apply(pod("p", "c"))
    host, port = free_address()
    async with cluster.serving() as api, serving(api, f"http://{host}:{port}") as (verbs, probes):
        await eventually(lambda: answers(probes, "/readyz"), "/readyz answers 200")

        async def failures() -> bool:
            lines = (await answers(probes, "/metrics")).splitlines()
            return any(line.startswith("berth_records_failures_total") and not line.endswith(" 0.0") for line in lines)

        await eventually(failures, "the console that is not there is counted")
        found = cluster.store["pods", ("default", "p")]
        asked = {
            "Pod": {k: v for k, v in found.items() if k not in ("kind", "apiVersion")},
            "Nodes": None,
            "NodeNames": ["n1"],
        }
        assert (await verbs.post("/filter", json=asked)).json()["NodeNames"] == ["n1"]
        body = {"PodName": "p", "PodNamespace": "default", "PodUID": found["metadata"]["uid"], "Node": "n1"}
        assert (await verbs.post("/bind", json=body)).json()["Error"] == ""
        assert await answers(probes, "/readyz") == "ok"
        assert (await verbs.get("/metrics")).status_code == httpx.codes.NOT_FOUND, "probes have an address of their own"
