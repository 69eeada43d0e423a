"""Readiness names a task that keeps failing and a watch that is silent; liveness notices a blocked event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import PodClaim
from extender.cluster import ApiClient, Credentials
from extender.policy import Policy
from extender.sandbox import Cluster, carried_machines, listening
from extender.serve import Service
from extender.web.asgi import Answer
from extender.web.serve_app import Probes, ServeApp
from tests.worlds.eventually import eventually
from tests.worlds.supervised_worlds import Breakable, client_of, composed

pytestmark = pytest.mark.loopback


async def test_readiness_names_the_task_that_keeps_failing() -> None:
    supervisor = Breakable()
    async with composed(supervisor) as (_, app, client):
        for name in supervisor.names:
            with capture_logs():
                supervisor.break_(name, again=True)
                await eventually(lambda name=name: name in supervisor.failing)
                reply = await client.get("/readyz")
                supervisor.mend()
            assert reply.status_code == 200
            assert f"task {name} keeps failing: RuntimeError: a bug in {name}" in reply.text
        answer = app.service.filter(Pod(ObjectKey("d", "p"), "u", (PodClaim("g", "c"),)), ["n1"])
        assert answer.error == "pod d/p: claim d/c is not known yet", "calls are answered nevertheless"


@asynccontextmanager
async def with_clock(
    now: list[float], around: Callable[[Any], Any] = lambda api: api
) -> AsyncIterator[tuple[Cluster, Service, httpx.AsyncClient]]:
    """A service whose clock the test moves; the API server sends no bookmarks."""
    cluster = Cluster(bookmark_seconds=600)
    async with (
        listening(around(cluster.api), "127.0.0.1", 0) as api,
        ApiClient(Credentials(api, None, lambda: None)) as client,
        Service(client, Policy(), clock=lambda: now[0]) as service,
    ):
        await eventually(lambda: not service.informers.not_ready)
        async with client_of(ServeApp(service, Probes(service))) as probes:
            yield cluster, service, probes
        cluster.store.cut_watches()


async def test_readiness_says_which_watch_is_silent_and_for_how_long() -> None:
    now = [1000.0]
    async with with_clock(now) as (cluster, service, client):
        cluster.add_node("seen", carried_machines()["t4-4"])
        await eventually(lambda: "seen" in service.cache.store.nodes, "the watch of nodes is open")
        now[0] += 90
        assert (await client.get("/readyz")).text == "ok", "a healthy API server may be silent for so long"
        now[0] += 110
        reply = await client.get("/readyz")
        assert reply.status_code == 503
        assert "the watch of nodes has been silent for 200 s" in reply.text
        assert not service.informers.not_ready, "calls are answered nevertheless"


async def test_readiness_names_a_watch_that_is_accepted_and_ends_at_once() -> None:
    now, watches = [1000.0], [0]

    def cutting(api: Any) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"].endswith("/resourceclaims") and b"watch=1" in scope["query_string"]:
                watches[0] += 1
                await Answer(200, b"").to(send)
            else:
                await api(scope, receive, send)

        return app

    async with with_clock(now, cutting) as (_, _, client):
        await eventually(lambda: watches[0])
        now[0] += 200
        more = watches[0] + 2
        await eventually(lambda: watches[0] >= more)
        reply = await client.get("/readyz")
        assert reply.status_code == 503
        assert "the watch of resourceclaims has been silent for 200 s (the watch ended after 0.0 s)" in reply.text
