"""`berth serve` as a process: its addresses and probes, a policy that changes, a console in its process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
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
from extender.web.asgi import Answer, Receive, Scope, Send
from extender.web.serve_app import Probes, ServeApp
from tests.worlds.applications import serve_application
from tests.worlds.eventually import HANG_SECONDS, answers, eventually
from tests.worlds.http_worlds import connected, hang_up, status
from tests.worlds.process_worlds import served, served_with_console
from tests.worlds.supervised_worlds import Breakable, client_of, composed


@pytest.mark.parametrize(
    ("status", "message"),
    [(403, "resourceclaims is forbidden"), (404, "the server could not find the requested resource")],
)
async def test_not_ready_names_each_missing_kind_with_its_cause(status: int, message: str) -> None:
    """Missing rights and an API version that is not served: named in one sentence, with the next step."""
    cluster = Cluster()

    async def api(scope: Scope, receive: Receive, send: Send) -> None:
        if "resourceclaims" not in scope.get("path", ""):
            await cluster.api(scope, receive, send)
            return
        await Answer(status, json.dumps({"kind": "Status", "message": message, "code": status}).encode()).to(send)

    async with listening(api, "127.0.0.1", 0) as url, serve_application(url) as app:
        informers = app.service.informers
        text = f"not listed yet: resourceclaims ({message}); run berth doctor for a remedy"
        await eventually(lambda: informers.not_ready == text, lambda: informers.not_ready)
        answer = app.service.filter(Pod(ObjectKey("d", "p"), "u", (PodClaim("g", "c"),)), ["n1"])
        assert answer.error.startswith("berth is not ready, not listed yet: resourceclaims")
        assert app.service.filter(Pod(ObjectKey("d", "q"), "v"), ["n1"]).passed is None, "pods without devices pass"
        cluster.store.cut_watches()


BODY = b'{"Pod": {"metadata": {"name": "p", "namespace": "x"}}, "NodeNames": ["n1"]}'


async def test_verbs_and_probes_can_have_addresses_of_their_own(tmp_path: Path) -> None:
    client = httpx.AsyncClient(headers={"Content-Type": "application/json"}, timeout=HANG_SECONDS, verify=False)
    async with served(tmp_path) as (verbs, probes), client:
        assert (await client.post(f"http://127.0.0.1:{verbs}/filter", content=BODY)).json()["NodeNames"] == ["n1"]
        assert (await client.post(f"http://127.0.0.1:{probes}/filter", content=BODY)).status_code == 405
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await client.get(f"http://127.0.0.1:{verbs}{path}")).status_code == 404
            assert (await client.get(f"http://127.0.0.1:{probes}{path}")).status_code == 200
        reply = await client.get(f"http://127.0.0.1:{probes}/metrics")
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert reply.headers["x-content-type-options"] == "nosniff"


async def test_a_process_may_have_as_many_files_open_as_its_addresses_have_connections(tmp_path: Path) -> None:
    """Many systems start a process with a soft limit of 1,024 files, some with 256."""
    async with served(tmp_path, shell="ulimit -Sn 200") as (verbs, _):
        waiting = [await connected(verbs) for _ in range(300)]
        assert await status(verbs, b"GET /filter HTTP/1.1\r\nHost: localhost\r\n\r\n") == 405
        assert not any(reader.at_eof() for reader, _ in waiting), "no connection had to end first"
        await hang_up(*waiting)


async def test_one_address_has_both_and_nothing_for_people(tmp_path: Path) -> None:
    client = httpx.AsyncClient(headers={"Content-Type": "application/json"}, timeout=HANG_SECONDS, verify=False)
    async with served(tmp_path, probes=False) as (port, _), client:
        assert (await client.post(f"http://127.0.0.1:{port}/filter", content=BODY)).json()["NodeNames"] == ["n1"]
        for path, status in (
            ("/livez", 200),
            ("/readyz", 200),
            ("/metrics", 200),
            ("/", 404),
            ("/v1/fleet", 404),
            ("/v1/explain/a/b", 404),
        ):
            assert (await client.get(f"http://127.0.0.1:{port}{path}")).status_code == status, path


async def test_policy_is_read_again_and_a_wrong_one_is_not_used(tmp_path: Path) -> None:
    """kubelet changes a ConfigMap volume in this way: it replaces the link ..data."""
    for name, text in (("one", "candidates: 1"), ("wrong", "candidates: many"), ("two", "candidates: 2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")

    def swap(to: str) -> None:
        (tmp_path / "next").symlink_to(to)
        (tmp_path / "next").rename(tmp_path / "..data")

    async with served(tmp_path, "--policy", str(tmp_path / "policy.yaml")) as (_, probes):
        metrics = f"http://127.0.0.1:{probes}/metrics"
        await answers(metrics, 200, "berth_policy_generation 1.0")
        swap("wrong")
        await answers(metrics, 200, "berth_policy_refused 1.0")
        await answers(metrics, 200, "berth_policy_generation 1.0")
        swap("two")
        await answers(metrics, 200, "berth_policy_generation 2.0")
        await answers(metrics, 200, "berth_policy_refused 0.0")


async def test_explain_asks_for_the_token_and_probes_do_not(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    async with (
        served_with_console(tmp_path, "--page-token-file", str(tmp_path / "token")) as (_, pages),
        httpx.AsyncClient(timeout=HANG_SECONDS, verify=False) as client,
    ):
        url = f"http://127.0.0.1:{pages}/v1/explain/x/p"
        assert (await client.get(url)).status_code == 401
        assert (await client.get(url, headers={"Authorization": "Bearer wrong"})).status_code == 401
        assert (await client.get(url, headers={"Authorization": "Bearer s3cret"})).status_code == 404
        assert (await client.get(f"http://127.0.0.1:{pages}/metrics")).status_code == 200


async def test_pages_that_the_network_reaches_are_closed_without_a_token(tmp_path: Path) -> None:
    serving = served_with_console(tmp_path, "--page-host", "berth.example", host="0.0.0.0")
    async with serving as (_, pages), httpx.AsyncClient(verify=False) as client:
        url = f"http://127.0.0.1:{pages}"
        reply = await client.get(f"{url}/v1/fleet")
        assert reply.status_code == 403
        assert "--page-token-file" in reply.text
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await client.get(url + path)).status_code == 200
        assert (await client.get(f"{url}/metrics", headers={"Host": "berth.example"})).status_code == 200
        assert (await client.get(f"{url}/metrics", headers={"Host": "evil.example"})).status_code == 403


@pytest.mark.loopback
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


@pytest.mark.loopback
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


@pytest.mark.loopback
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
