"""Every background task has a keeper: what it raises is logged, counted and shown, and it starts again."""

from __future__ import annotations

import ast
import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from extender.cluster import ApiClient, Credentials, Delays
from extender.entry import console_process as console_entry
from extender.entry.console_process import Pages, Policies, RecordsFrom
from extender.entry.desk import both
from extender.entry.listening import ServerEnded, Tls, serve_all, server
from extender.entry.serve_process import Desk, Listen, RecordsTo, application, run
from extender.extension import Service
from extender.model import BerthError, ObjectKey, Pod, PodClaim
from extender.policy import Policy
from extender.runtime import Supervisor
from extender.runtime.heartbeat import Heartbeat
from extender.sandbox import Cluster, carried_machines
from extender.sockets import listen_on
from extender.web.http_limits import VERBS
from extender.web.serve_app import Probes, ServeApp
from tests.eventually import HANG_SECONDS, eventually
from tests.running_berth import claim, pod
from tests.test_layers import FILES, ROOT
from tests.test_serve import certificate, free_port

QUICK = Delays(first=0.001, most=0.01)


class Breakable(Supervisor):
    """A supervisor whose tasks raise on demand, from inside, as a bug would. `runs` counts the starts of each."""

    def __init__(self, delays: Delays = QUICK) -> None:
        super().__init__(delays)
        self.runs: dict[str, int] = {}
        self._breaks: dict[str, asyncio.Event] = {}
        self._again: set[str] = set()

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._breaks[name] = asyncio.Event()

        async def breakable() -> None:
            self.runs[name] = self.runs.get(name, 0) + 1
            if name in self._again:
                raise RuntimeError(f"a bug in {name}")
            self._breaks[name].clear()
            task = asyncio.ensure_future(run())
            broken = asyncio.ensure_future(self._breaks[name].wait())
            try:
                await asyncio.wait([task, broken], return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return await task
                raise RuntimeError(f"a bug in {name}")
            finally:
                task.cancel()
                broken.cancel()
                await asyncio.gather(task, broken, return_exceptions=True)

        super().start(name, breakable)

    def break_(self, name: str, *, again: bool = False) -> None:
        """Let the task raise; `again`, then each further run, too."""
        if again:
            self._again.add(name)
        self._breaks[name].set()

    def mend(self) -> None:
        self._again.clear()


# -- the supervisor by itself --------------------------------------------------------------------------------


async def test_what_a_task_raises_is_logged_with_its_trace_and_it_starts_again() -> None:
    runs: list[None] = []
    supervisor, forever = Supervisor(QUICK), asyncio.Event()

    async def task() -> None:
        runs.append(None)
        if len(runs) < 3:
            raise KeyError("a bug")
        await forever.wait()

    with capture_logs() as lines:
        supervisor.start("it", task)
        await eventually(lambda: len(runs) == 3)
    assert supervisor.failures == {"it": 2}
    assert supervisor.failing == {}
    assert [(line["event"], line["task"], line["problem"], line["log_level"]) for line in lines] == [
        ("task failed", "it", "KeyError: 'a bug'", "error")
    ] * 2
    assert lines[0]["exc_info"].__traceback__ is not None
    await supervisor.stop()


async def _return() -> None:
    pass


async def _cancelled_from_inside() -> None:
    other = asyncio.ensure_future(asyncio.Event().wait())
    other.cancel()
    await other


@pytest.mark.parametrize(
    ("task", "words"),
    [(_return, "EndedEarly: it returned"), (_cancelled_from_inside, "EndedEarly: it was cancelled from inside")],
)
async def test_a_task_that_ends_without_being_told_to_has_failed(
    task: Callable[[], Awaitable[None]], words: str
) -> None:
    supervisor = Supervisor(QUICK)
    supervisor.start("it", task)
    await eventually(lambda: "it" in supervisor.failing)
    assert supervisor.failing == {"it": words}
    assert supervisor.failures["it"] >= 3
    await supervisor.stop()


async def test_a_task_that_runs_well_for_a_while_no_longer_keeps_failing() -> None:
    now, left, forever = [0.0], [4], asyncio.Event()
    supervisor = Supervisor(Delays(first=0.001, most=0.01, reset=60.0), lambda: now[0])

    async def task() -> None:
        if left[0]:
            left[0] -= 1
            raise ValueError("a bug")
        await forever.wait()

    supervisor.start("it", task)
    await eventually(lambda: not left[0] and supervisor.failures["it"] == 4)
    assert supervisor.failing == {"it": "ValueError: a bug"}
    now[0] = 61.0
    assert supervisor.failing == {}
    await supervisor.stop()


async def test_work_that_ends_is_counted_only_where_it_fails_unexpectedly() -> None:
    supervisor = Supervisor()

    async def work(error: Exception | None) -> str:
        if error is not None:
            raise error
        return "done"

    with capture_logs() as lines:
        assert await supervisor.spawn("bind", work(None), expected=BerthError) == "done"
        for error in (BerthError("refused"), KeyError("a bug")):
            with pytest.raises(type(error)):
                await supervisor.spawn("bind", work(error), expected=BerthError)
        await eventually(lambda: bool(lines))
    assert supervisor.failures == {"bind": 1}
    assert supervisor.names == []
    assert supervisor.failing == {}
    assert [(line["task"], line["problem"]) for line in lines] == [("bind", "KeyError: 'a bug'")]


async def test_stop_ends_all_of_them_and_counts_nothing() -> None:
    supervisor, began, ended = Supervisor(QUICK), [], []

    async def task(name: str) -> None:
        began.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
            if name == "returns":
                return  # noqa: B012 - swallows the cancellation, which is what this test is about
            await asyncio.sleep(0)

    supervisor.start("a", lambda: task("a"))
    supervisor.start("returns", lambda: task("returns"))
    once = supervisor.spawn("once", task("once"))
    await eventually(lambda: len(began) == 3)
    await supervisor.stop()
    assert sorted(ended) == ["a", "once", "returns"]
    assert once.cancelled()
    assert not any(supervisor.failures.values())


# -- every task of the running service, by name ----------------------------------------------------------------

WATCHES = {
    f"watch-{kind}"
    for kind in (
        *("resourceslices", "devicetaintrules", "deviceclasses", "resourceclaims", "nodes", "namespaces", "pods"),
        *("podgroups", "podgroups.scheduling.x-k8s.io", "leaderworkersets"),
    )
}
INFORMERS = WATCHES | {"heartbeat", "garbage-collection", "hold-expiry"}
SERVICE = INFORMERS | {"requeue", "gangs", "gang-collecting", "orphans", "background-evaluation"}
PEOPLE = {"event-recorder", "auditor", "shadow", "fleet-sampler", "silent-processes"}
SERVE = SERVICE | {"records", "records-authority", "certificates", "policies"}
CONSOLE = INFORMERS | PEOPLE | {"certificates", "console-policies"}
DESK = SERVICE | PEOPLE | {"records", "policies", "console-policies"}


async def each_fails_and_starts_again(supervisor: Breakable, client: httpx.AsyncClient, probes: str) -> None:
    """Raise in every task that runs, one after the other. `probes` is the URL with /readyz and /metrics."""
    for name in supervisor.names:
        before = supervisor.runs[name]
        with capture_logs() as lines:
            supervisor.break_(name)
            await eventually(lambda name=name, before=before: supervisor.runs[name] > before)
        told = [line for line in lines if line.get("task") == name]
        assert told
        assert told[0]["event"] == "task failed"
        assert told[0]["problem"] == f"RuntimeError: a bug in {name}"
        assert told[0]["exc_info"].__traceback__ is not None
        assert supervisor.failures[name] == 1
    wanted = {f'berth_task_failures_total{{task="{name}"}} 1.0' for name in supervisor.names}

    async def shown() -> bool:
        return wanted <= set((await client.get(f"{probes}/metrics")).text.splitlines())

    await eventually(shown, "the metrics tell of every failure")
    assert (await client.get(f"{probes}/readyz")).text == "ok", "one failure is no reason to be taken out of service"


@asynccontextmanager
async def composed(supervisor: Supervisor) -> AsyncIterator[tuple[Cluster, ServeApp, httpx.AsyncClient]]:
    """The service without a console, and a client of it."""
    cluster = Cluster(bookmark_seconds=0.5)
    cluster.add_node("n1", carried_machines()["t4-4"])
    async with cluster.serving() as api, application(api, supervisor=supervisor) as app:
        await eventually(lambda: not app.service.informers.not_ready)
        async with client_of(app) as client:
            yield cluster, app, client


def client_of(app: object) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]  # httpx types ASGI more narrowly
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=HANG_SECONDS)


async def test_every_task_of_the_service_fails_and_starts_again() -> None:
    supervisor = Breakable()
    async with composed(supervisor) as (cluster, app, client):
        assert set(supervisor.names) == SERVICE, "a new task belongs into this list, one that is gone out of it"
        await each_fails_and_starts_again(supervisor, client, "")
        reflectors = app.service.informers.reflectors
        await eventually(lambda: all(r.relists == 2 for r in reflectors.values() if r.version))
        cluster.add_node("late", carried_machines()["t4-4"])
        await eventually(lambda: "late" in app.service.cache.store.nodes)


async def test_every_task_of_both_in_one_process_fails_and_starts_again() -> None:
    supervisor = Breakable()
    cluster = Cluster(bookmark_seconds=0.5)
    async with (
        cluster.serving() as api,
        both(api, supervisor=supervisor) as (app, console),
        client_of(console) as client,
    ):
        await eventually(lambda: not app.service.informers.not_ready)
        assert set(supervisor.names) == SERVICE | PEOPLE | {"records"}
        await each_fails_and_starts_again(supervisor, client, "")


@asynccontextmanager
async def ends_on_sigterm(serving: asyncio.Task[None]) -> AsyncIterator[None]:
    """The servers that run in a task end when the process is told to."""
    try:
        yield
    finally:
        if not serving.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await serving


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_every_task_of_berth_serve_fails_and_starts_again(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    policy = tmp_path / "policy.yaml"
    policy.write_text("candidates: 1")
    supervisor, cluster, probes = Breakable(), Cluster(), free_port()
    cluster.add_node("n1", carried_machines()["t4-4"])
    tls = Tls(tmp_path / "server.crt", tmp_path / "server.key")
    listen = Listen(("127.0.0.1", free_port()), ("127.0.0.1", probes), tls)
    async with cluster.serving() as api, httpx.AsyncClient(timeout=HANG_SECONDS) as client:
        credentials = Credentials(api, None, lambda: None)
        nobody = RecordsTo("https://127.0.0.1:9", ca=tmp_path / "ca.crt")
        serving = asyncio.create_task(run(credentials, listen, policy, nobody, supervisor=supervisor))
        url = f"http://127.0.0.1:{probes}"
        async with ends_on_sigterm(serving):
            await answers(client, f"{url}/readyz", "ok", serving)
            assert set(supervisor.names) == SERVE, "a new task belongs into this list, one that is gone out of it"
            await each_fails_and_starts_again(supervisor, client, url)
            await answers(client, f"{url}/metrics", "berth_policy_generation 1.0", serving)
            policy.write_text("candidates: 2")
            await answers(client, f"{url}/metrics", "berth_policy_generation 2.0", serving)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_every_task_of_berth_console_fails_and_starts_again(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    policy, candidate = tmp_path / "policy.yaml", tmp_path / "candidate.yaml"
    policy.write_text("candidates: 1")
    supervisor, cluster, port = Breakable(), Cluster(), free_port()
    tls = Tls(tmp_path / "server.crt", tmp_path / "server.key")
    async with cluster.serving() as api, httpx.AsyncClient(timeout=HANG_SECONDS, verify=False) as client:
        serving = asyncio.create_task(console_entry.run(
            Credentials(api, None, lambda: None), Pages(("127.0.0.1", port), tls=tls),
            RecordsFrom(("127.0.0.1", free_port()), "a", frozenset({"u"})), Policies(policy, candidate), supervisor,
        ))  # fmt: skip
        url = f"https://127.0.0.1:{port}"
        async with ends_on_sigterm(serving):
            await answers(client, f"{url}/readyz", "ok", serving)
            assert set(supervisor.names) == CONSOLE, "a new task belongs into this list, one that is gone out of it"
            await each_fails_and_starts_again(supervisor, client, url)
            await answers(client, f"{url}/v1/policy", '"generation":1', serving)
            policy.write_text("candidates: 2")
            await answers(client, f"{url}/v1/policy", '"generation":2', serving)
            candidate.write_text("candidates: 3")
            await answers(client, f"{url}/v1/policy/diff", '"candidate":true', serving)


async def test_a_desk_has_the_tasks_of_both(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("candidates: 1")
    supervisor, cluster, verbs, pages = Breakable(), Cluster(), free_port(), free_port()
    async with cluster.serving() as api, httpx.AsyncClient(timeout=HANG_SECONDS) as client:
        listen, desk = Listen(("127.0.0.1", verbs)), Desk(("127.0.0.1", pages))
        credentials = Credentials(api, None, lambda: None)
        serving = asyncio.create_task(run(credentials, listen, policy, desk, supervisor=supervisor))
        async with ends_on_sigterm(serving):
            await answers(client, f"http://127.0.0.1:{pages}/readyz", "ok", serving)
            assert set(supervisor.names) == DESK
            await answers(client, f"http://127.0.0.1:{pages}/v1/policy", '"generation":1', serving)


async def test_a_process_ends_though_a_page_is_open() -> None:
    """kubelet would kill it after 30 s, and with it the binds in flight of a desk."""
    cluster, pages = Cluster(), free_port()
    async with cluster.serving() as api, httpx.AsyncClient(timeout=HANG_SECONDS) as client:
        listen, desk = Listen(("127.0.0.1", free_port())), Desk(("127.0.0.1", pages))
        serving = asyncio.create_task(run(Credentials(api, None, lambda: None), listen, console=desk))
        async with ends_on_sigterm(serving):
            await answers(client, f"http://127.0.0.1:{pages}/readyz", "ok", serving)
            request = client.build_request("GET", f"http://127.0.0.1:{pages}/v1/updates")
            reply = await client.send(request, stream=True)
            assert reply.status_code == 200
        assert serving.done()
        await reply.aclose()


async def answers(client: httpx.AsyncClient, url: str, words: str, serving: asyncio.Task[None]) -> None:
    """Wait until the address says so, or berth serve ended."""

    async def said() -> bool:
        if serving.done():
            await serving
            raise AssertionError("berth serve ended")
        try:
            return words in (await client.get(url)).text
        except httpx.HTTPError:
            return False

    await eventually(said, f"{url} says {words!r}")


async def test_binds_and_what_is_taken_back_are_supervised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of its own for each pod and claim: a bug in it is counted, though the caller may have hung up."""
    supervisor = Supervisor()
    async with composed(supervisor) as (cluster, app, client):
        cluster.apply(claim("c"))
        cluster.apply(pod("p", "c"))
        await eventually(lambda: bool(app.service.cache.store.pods) and bool(app.service.cache.store.claims))
        known = next(iter(app.service.cache.store.pods.values()))

        def bug(*_: object) -> None:
            raise KeyError("a bug")

        # A bug has no door of its own: nothing but a replaced method can raise what no input makes Berth raise.
        monkeypatch.setattr(app.service.cache, "release", bug)
        body = {"PodName": "p", "PodNamespace": "default", "PodUID": known.uid, "Node": "n1"}
        assert "berth failed: KeyError" in (await client.post("/bind", json=body)).json()["Error"]
        await eventually(lambda: supervisor.failures["bind"] == 1)
        monkeypatch.setattr(ApiClient, "patch", bug)
        app.service.orphans.deallocate_unsuitable(next(iter(app.service.cache.store.claims.values())))
        await eventually(lambda: supervisor.failures["take-back"] == 1)


# Where else tasks are made, and why the supervisor need not know them.
ELSEWHERE = {
    "extender/runtime/supervisor.py": "it is the supervisor",
    "extender/entry/listening.py": "serve_all awaits its servers",
    "extender/agent/slice_publisher.py": "the agent's next round awaits the reading",
    "extender/cli/agent_command.py": "awaited in the next lines",
    "extender/cli/run_command.py": "the sandbox's scheduler",
    "extender/sandbox/sandbox_cluster.py": "the sandbox's server, awaited at its end",
    "extender/sandbox/scheduler.py": "the sandbox's scheduler",
}


def test_no_task_is_made_beside_the_supervisor() -> None:
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future", "TaskGroup"):
                found.add(str(path.relative_to(ROOT.parent)))
    assert found == set(ELSEWHERE)


# -- probes ----------------------------------------------------------------------------------------------------


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
async def with_clock(now: list[float]) -> AsyncIterator[tuple[Cluster, Service, httpx.AsyncClient]]:
    """A service whose clock the test moves; the API server sends no bookmarks."""
    cluster = Cluster(bookmark_seconds=600)
    async with (
        cluster.serving() as api,
        ApiClient(Credentials(api, None, lambda: None)) as client,
        Service(client, Policy(), clock=lambda: now[0]) as service,
    ):
        await eventually(lambda: not service.informers.not_ready)
        async with client_of(ServeApp(service, Probes(service))) as probes:
            yield cluster, service, probes


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


async def test_liveness_notices_a_loop_that_does_not_turn() -> None:
    now = [1000.0]
    async with with_clock(now) as (_, _, client):
        assert (await client.get("/livez")).status_code == 200
        now[0] += 20  # the heartbeat had no turn for so long
        reply = await client.get("/livez")
        assert (reply.status_code, reply.text) == (503, "the event loop has not turned for 20 s")

        async def turned() -> bool:
            return (await client.get("/livez")).status_code == 200

        await eventually(turned, "the heartbeat has its next turn")


async def test_a_heartbeat_that_ended_is_noticed() -> None:
    now = [0.0]
    heartbeat = Heartbeat(lambda: now[0])
    now[0] = 15.0
    assert heartbeat.stalled == ""
    now[0] = 16.0
    assert heartbeat.stalled == "the event loop has not turned for 16 s"


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


async def test_servers_that_are_told_to_end_are_no_error() -> None:
    async with composed(Supervisor()) as (_, app, _):
        servers = [server(app, ("127.0.0.1", free_port()), VERBS) for _ in range(2)]
        bound = {one: listen_on("--listen", one.config.host, one.config.port) for one in servers}
        serving = asyncio.create_task(serve_all(bound))
        await eventually(lambda: all(one.started for one in servers))
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
