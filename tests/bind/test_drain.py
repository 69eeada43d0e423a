"""The exit of `berth serve`: running binds come to their end, and none waits for pods that may never come."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from extender.api.object_meta import ObjectKey
from extender.cluster import ApiClient, Credentials
from extender.entry.listening import ServerEnded, serve_all, server
from extender.policy import Policy
from extender.sandbox import Cluster, carried_machines
from extender.serve import Service
from extender.web.asgi import HttpLimits
from extender.web.http_server import listen_on
from tests.worlds.dra_worlds import CONDITIONAL, asks, custom
from tests.worlds.eventually import HANG_SECONDS, answers, eventually
from tests.worlds.gang_pods import NODES, two_binds_of_three
from tests.worlds.interceptions import Holding
from tests.worlds.process_worlds import free_port, process, sandbox
from tests.worlds.running_berth import berthing, claim, one_node, patient, pod


async def test_the_exit_of_the_service_waits_for_a_running_bind() -> None:
    cluster = Cluster()
    cluster.add_node("n1", carried_machines()["t4-4"])
    cluster.apply(claim("c"))
    uid = cluster.apply(pod("p", "c"))["metadata"]["uid"]
    cluster.api.intercept = slow = Holding("/binding")
    async with cluster.serving() as api, ApiClient(Credentials(api, None, lambda: None)) as client:
        service = Service(client, patient())
        async with service:
            await eventually(lambda: not service.informers.not_ready)
            bind = asyncio.create_task(service.bind(ObjectKey("default", "p"), uid, "n1"))
            await slow.sent.wait()
            asyncio.get_running_loop().call_soon(slow.go_on.set)
        await bind
    assert cluster.store["pods", ("default", "p")]["spec"]["nodeName"] == "n1"


async def test_at_the_exit_no_bind_waits_for_other_pods_of_its_group() -> None:
    async with berthing(NODES, Policy(binding_wait_seconds=600)) as b:
        _, binds = await two_binds_of_three(b)
        await b.app.service.binder.drain(HANG_SECONDS)
        for answer in await asyncio.gather(*binds):
            assert answer == "no pod of group job is bound: Berth shuts down"


async def test_sigterm_ends_a_bind_that_waits_for_a_driver_with_an_answer(tmp_path: Path) -> None:
    """The HTTP server waits for the answers to running requests, so the wait must end before the server."""
    port, policy = free_port(), tmp_path / "policy.yaml"
    policy.write_text("binding_wait_seconds: 600\n")
    url, options = f"http://127.0.0.1:{port}", ("--listen", f"127.0.0.1:{port}", "--policy", str(policy))
    async with sandbox(tmp_path) as cluster, httpx.AsyncClient(timeout=HANG_SECONDS) as client:
        custom(SimpleNamespace(cluster=cluster), [CONDITIONAL])
        cluster.apply(asks("p"))
        uid = cluster.apply(pod("p", "p"))["metadata"]["uid"]
        args = {"PodName": "p", "PodNamespace": "default", "PodUID": uid, "Node": "n1"}
        async with process(tmp_path, "serve", *options):
            await answers(f"{url}/readyz", 200)
            bind = asyncio.create_task(client.post(f"{url}/bind", json=args))
            claim_key = ("default", "p")
            await eventually(lambda: cluster.store["resourceclaims", claim_key].get("status", {}).get("allocation"))
        assert (await bind).text == '{"Error":"waiting for binding conditions of claim default/p"}'


async def test_a_bind_that_takes_longer_than_the_exit_of_its_server_gets_an_answer() -> None:
    """A call that is cancelled without an answer leaves a trace in the log."""
    async with one_node(claim("c")) as b:
        args = {"PodName": "p", "PodNamespace": "default", "Node": "n1"}
        args["PodUID"] = b.cluster.apply(pod("p", "c"))["metadata"]["uid"]
        await b.settled()
        b.cluster.api.intercept = slow = Holding("/status")
        sockets = listen_on("--listen", "127.0.0.1", 0)
        one = server(b.app, ("127.0.0.1", 0), HttpLimits(end_seconds=0))
        serving = asyncio.create_task(serve_all({one: sockets}))
        url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/bind"
        bind = asyncio.create_task(b.client.post(url, json=args))
        await slow.sent.wait()
        one.should_exit = True
        assert (await bind).json()["Error"] == "Berth shuts down before the bind of pod default/p has ended"
        with pytest.raises(ServerEnded):
            await serving
        slow.go_on.set()
