"""The process of `berth serve`, which may include the console (`--console`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from extender.cluster import ApiClient, Credentials, WallClock, load_credentials, utc_now
from extender.entry.listening import (
    EventLoop,
    Tls,
    check_certificates,
    reloaded_certificates,
    serve_all,
    server,
)
from extender.extension import Service, Traces, no_span
from extender.policy import Policy
from extender.runtime import DaemonThreads, Supervisor, read_policy, reloaded_policy
from extender.sockets import listen_on
from extender.web.http_limits import PROBES, VERBS, RejectionLog
from extender.web.serve_app import Probes, ServeApp


@dataclass(frozen=True, slots=True)
class Listen:
    """The addresses of serve, as (host, port).

    `verbs` is for kube-scheduler, and uses TLS if `tls` is set. `probes` is for kubelet and Prometheus, without TLS.
    If `probes` is None, the address of the verbs serves probes and metrics too.
    """

    verbs: tuple[str, int]
    probes: tuple[str, int] | None = None
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class Desk:
    """Options of a console in the same process. An explanation then delays filter requests that arrive during it."""

    address: tuple[str, int]
    token: Path | None = None  # a file with the token for the pages
    hosts: tuple[str, ...] = ()  # more host names that requests for the pages may have


def serve(
    kubeconfig: Path | None,
    listen: Listen,
    policy: Path | None = None,
    console: Desk | None = None,
    traces: Traces | None = None,
) -> None:
    """Run serve until SIGINT or SIGTERM. Raises BerthError if it cannot start, ServerEnded if a server fails."""
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(run(load_credentials(kubeconfig), listen, policy, console, traces))
    if traces is not None:
        traces.close()


async def run(
    credentials: Credentials,
    listen: Listen,
    policy_file: Path | None = None,
    console: Desk | None = None,
    traces: Traces | None = None,
    supervisor: Supervisor | None = None,
    wall_clock: WallClock = utc_now,
) -> None:
    """Run serve in the running event loop until a signal; then wait for the running binds. Raises as `serve`."""
    asyncio.get_running_loop().set_default_executor(DaemonThreads())
    known, policy = read_policy(policy_file) if policy_file is not None else (None, Policy())
    check_certificates(listen.tls)
    span, rejections = traces.span if traces else no_span, RejectionLog()
    sockets = [listen_on("--listen", *listen.verbs)]
    sockets += [listen_on("--probes", *listen.probes)] if listen.probes is not None else []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(credentials))
        desk = None
        if console is not None:
            # Imported here so that serve alone loads no code of the console.
            from extender.entry.desk import DeskConsole

            desk = DeskConsole(console.address, console.token, console.hosts)
        service = await stack.enter_async_context(
            Service(client, policy, span=span, supervisor=supervisor, wall_clock=wall_clock)
        )
        probes = Probes(service)
        app = ServeApp(service, probes if listen.probes is None else None, traces, rejections=rejections)
        servers = [server(app, listen.verbs, VERBS, listen.tls, rejections)]
        servers += [server(probes, listen.probes, PROBES, rejections=rejections)] if listen.probes is not None else []
        if listen.tls is not None:
            service.supervisor.start("certificates", reloaded_certificates(servers, listen.tls).run)
        if policy_file is not None:
            file = reloaded_policy(policy_file, service.use_policy, service.filter_service.reject_policy, known)
            service.supervisor.start("policies", file.run)
        running = dict(zip(servers, sockets, strict=True))
        if desk is not None:
            running |= await desk.start(stack, service, policy, policy_file, known, rejections)
        await serve_all(running, service.binder.end_waits)


@asynccontextmanager
async def application(
    api_url: str, policy: Policy | None = None, supervisor: Supervisor | None = None
) -> AsyncIterator[ServeApp]:
    """The ASGI application of serve without a console, for an API server without authentication."""
    credentials = Credentials(api_url, None, lambda: None)
    async with ApiClient(credentials) as client, Service(client, policy or Policy(), supervisor=supervisor) as service:
        yield ServeApp(service, Probes(service))
