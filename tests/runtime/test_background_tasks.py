"""Every background task of every program fails and starts again; a program ends on SIGTERM."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from extender.api.pod_groups import GROUP_OBJECTS
from extender.cluster import Credentials
from extender.entry import console_process as console_entry
from extender.entry.listening import Pages, ServerEnded, Tls, serve_all, server
from extender.entry.serve_process import Listen, run
from extender.runtime.supervisor import Supervisor
from extender.sandbox import Cluster, carried_machines
from extender.web.asgi import VERBS
from extender.web.http_server import listen_on
from tests.worlds.certificates import NEEDS_OPENSSL, certificate
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.process_worlds import free_port
from tests.worlds.supervised_worlds import Breakable, composed

pytestmark = pytest.mark.loopback

# -- every task of the running service, by name ----------------------------------------------------------------

WATCHES = {
    f"watch-{kind}"
    for kind in (
        *("resourceslices", "devicetaintrules", "deviceclasses", "resourceclaims", "nodes", "namespaces", "pods"),
        *(of.resource for of in GROUP_OBJECTS),
    )
}
INFORMERS = WATCHES | {"garbage-collection", "hold-expiry"}
SERVICE = INFORMERS | {"requeue", "gangs", "orphans", "evaluations"}
PEOPLE = {"event-recorder", "auditor", "set-comparer", "fleet-sampler", "decisions"}
OF_WORK = {"bind", "bound-members", "release"}  # spawned for one piece of work, and documented as the others
SERVE = SERVICE | {"certificates", "policies"}
CONSOLE = INFORMERS | PEOPLE | {"certificates", "console-policy"}
ALL_IN_ONE = SERVICE | PEOPLE | {"policies", "console-policy"}


async def each_fails_and_starts_again(supervisor: Breakable, client: httpx.AsyncClient, probes: str) -> None:
    """Raise in every task that runs, one after the other. `probes` is the URL with /readyz and /metrics."""
    for name in supervisor.names:
        before = supervisor.runs[name]
        with capture_logs() as lines:
            supervisor.break_(name)
            await eventually(lambda name=name, before=before: supervisor.runs[name] > before)
        failed_runs = [line for line in lines if line.get("task") == name]
        assert failed_runs
        assert failed_runs[0]["event"] == "task failed"
        assert failed_runs[0]["problem"] == f"RuntimeError: a bug in {name}"
        assert failed_runs[0]["exc_info"].__traceback__ is not None
        assert supervisor.failures[name] == 1
    wanted = {f'berth_task_failures_total{{task="{name}"}} 1.0' for name in supervisor.names}

    async def shown() -> bool:
        return wanted <= set((await client.get(f"{probes}/metrics")).text.splitlines())

    await eventually(shown, "the metrics tell of every failure")
    assert (await client.get(f"{probes}/readyz")).text == "ok", "one failure is no reason to be taken out of service"


async def test_every_task_of_the_service_fails_and_starts_again() -> None:
    supervisor = Breakable()
    async with composed(supervisor) as (cluster, app, client):
        assert set(supervisor.names) == SERVICE, "a new task belongs into this list, one that is gone out of it"
        await each_fails_and_starts_again(supervisor, client, "")
        reflectors = app.service.informers.reflectors
        await eventually(lambda: all(r.lists == 2 for r in reflectors.values() if r.version))
        cluster.add_node("late", carried_machines()["t4-4"])
        await eventually(lambda: "late" in app.service.cache.store.nodes)


@asynccontextmanager
async def ends_on_sigterm(serving: asyncio.Task[None]) -> AsyncIterator[None]:
    """The servers that run in a task end when the process gets SIGTERM."""
    try:
        yield
    finally:
        if not serving.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await serving


Program = Coroutine[Any, Any, None]


def of_serve(credentials: Credentials, policy: Path, tls: Tls, supervisor: Supervisor) -> tuple[str, Program]:
    """The URL of the probes, and the program."""
    probes = free_port()
    listen = Listen(("127.0.0.1", free_port()), ("127.0.0.1", probes), tls)
    return f"http://127.0.0.1:{probes}", run(credentials, listen, policy, supervisor=supervisor)


def of_console(credentials: Credentials, policy: Path, tls: Tls, supervisor: Supervisor) -> tuple[str, Program]:
    pages = Pages(("127.0.0.1", free_port()), tls=tls)
    return f"https://127.0.0.1:{pages.address[1]}", console_entry.run(credentials, pages, policy, supervisor=supervisor)


def of_both(credentials: Credentials, policy: Path, _: Tls, supervisor: Supervisor) -> tuple[str, Program]:
    listen, pages = Listen(("127.0.0.1", free_port())), Pages(("127.0.0.1", free_port()))
    return f"http://127.0.0.1:{pages.address[1]}", run(credentials, listen, policy, pages, supervisor=supervisor)


@NEEDS_OPENSSL
@pytest.mark.parametrize(
    ("program", "tasks", "path", "words"),
    [
        (of_serve, SERVE, "/metrics", "berth_policy_generation {}.0"),
        (of_console, CONSOLE, "/v1/policy", '"generation":{}'),
        (of_both, ALL_IN_ONE, "/v1/policy", '"generation":{}'),
    ],
)
async def test_every_task_of_a_program_fails_and_starts_again(
    program: Callable[..., tuple[str, Program]], tasks: set[str], path: str, words: str, tmp_path: Path
) -> None:
    certificate(tmp_path, "server")
    policy, supervisor, cluster = tmp_path / "policy.yaml", Breakable(), Cluster()
    policy.write_text("candidates: 1")
    cluster.add_node("n1", carried_machines()["t4-4"])
    tls = Tls(tmp_path / "server.crt", tmp_path / "server.key")
    async with cluster.serving() as api, httpx.AsyncClient(timeout=HANG_SECONDS, verify=False) as client:
        url, running = program(Credentials(api, None, lambda: None), policy, tls, supervisor)
        serving = asyncio.create_task(running)
        async with ends_on_sigterm(serving):
            await answers(client, f"{url}/readyz", "ok", serving)
            assert set(supervisor.names) == tasks, "a new task belongs into this list, one that is gone out of it"
            await each_fails_and_starts_again(supervisor, client, url)
            await answers(client, url + path, words.format(1), serving)
            policy.write_text("candidates: 2")
            await answers(client, url + path, words.format(2), serving)


async def test_a_process_ends_though_a_page_is_open() -> None:
    """kubelet would kill it after 30 s, and with it the binds in flight of an all-in-one process."""
    cluster, pages = Cluster(), free_port()
    async with cluster.serving() as api, httpx.AsyncClient(timeout=HANG_SECONDS, verify=False) as client:
        listen, console = Listen(("127.0.0.1", free_port())), Pages(("127.0.0.1", pages))
        serving = asyncio.create_task(run(Credentials(api, None, lambda: None), listen, console=console))
        async with ends_on_sigterm(serving):
            await answers(client, f"http://127.0.0.1:{pages}/readyz", "ok", serving)
            assert (await client.get(f"http://127.0.0.1:{pages}/v1/fleet")).json()["whole"]  # the connection stays open
        assert serving.done()


async def answers(client: httpx.AsyncClient, url: str, words: str, serving: asyncio.Task[None]) -> None:
    """Wait until a GET of the URL returns these words; fail if berth serve ended."""

    async def said() -> bool:
        if serving.done():
            await serving
            raise AssertionError("berth serve ended")
        try:
            return words in (await client.get(url)).text
        except httpx.HTTPError:
            return False

    await eventually(said, f"{url} says {words!r}")


# -- servers ---------------------------------------------------------------------------------------------------


async def test_a_server_that_ends_by_itself_ends_the_process_with_an_error() -> None:
    async with composed(Supervisor()) as (_, app, _):
        ports = free_port(), free_port()
        servers = [server(app, ("127.0.0.1", port), VERBS) for port in ports]
        bound = {one: listen_on("--listen", one.config.host, one.config.port) for one in servers}
        serving = asyncio.create_task(serve_all(bound))
        await eventually(lambda: all(one.started for one in servers))
        servers[1].should_exit = True
        with pytest.raises(ServerEnded, match=f"the server at 127.0.0.1:{ports[1]} ended"):
            await serving


def test_every_task_is_documented_at_its_process() -> None:
    text = (
        (Path(__file__).parents[2] / "docs" / "metrics.md").read_text().split("The tasks are:\n\n")[1].split("\n\n")[0]
    )
    places = [set(re.findall(r"`([a-z][a-z-]*)`", place)) for place in text.split("\n* ")]
    common, serve, console, one, agent = places
    assert agent == {"publisher"}
    files = {"certificates", "policies", "console-policy"}
    assert serve | common | WATCHES == SERVE | OF_WORK
    assert console | common | WATCHES == CONSOLE
    assert (serve | console | common | WATCHES) - files == SERVICE | PEOPLE | OF_WORK, "as in `berth run`"
    assert one == {"sandbox-scheduler"}
