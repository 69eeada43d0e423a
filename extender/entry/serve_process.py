"""The process of `berth serve`, which may include the console (`--console`)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from extender.cluster import ApiClient, Credentials, WallClock, load_credentials, utc_now
from extender.entry.listening import (
    EventLoop,
    Pages,
    Tls,
    check_certificates,
    reloaded_certificates,
    serve_all,
    server,
)
from extender.policy import Policy
from extender.runtime.file_reload import read_policy, reloaded_policy
from extender.runtime.supervisor import DaemonThreads, Supervisor
from extender.serve import Service, Traces, no_span
from extender.web.asgi import PROBES, VERBS, RejectionLog
from extender.web.http_server import listen_on
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


def serve(
    kubeconfig: Path | None,
    listen: Listen,
    policy: Path | None = None,
    console: Pages | None = None,
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
    console: Pages | None = None,
    traces: Traces | None = None,
    supervisor: Supervisor | None = None,
    wall_clock: WallClock = utc_now,
) -> None:
    """Run serve in the running event loop until a signal; then wait for the running binds. Raises as `serve`.

    For `supervisor` and `wall_clock` see Service: tests restart tasks at once, and let the clock jump.
    """
    asyncio.get_running_loop().set_default_executor(DaemonThreads())
    known, policy = read_policy(policy_file) if policy_file is not None else (None, Policy())
    check_certificates(listen.tls)
    span, rejections = traces.span if traces else no_span, RejectionLog()
    sockets = [listen_on("--listen", *listen.verbs)]
    sockets += [listen_on("--probes", *listen.probes)] if listen.probes is not None else []
    if console is not None:
        # Imported here, as below, so that serve alone loads no code of the console.
        from extender.entry.console_process import open_pages

        pages_sockets = open_pages(console, "--console")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(credentials))
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
        if console is not None:
            from extender.entry.all_in_one import console_over
            from extender.entry.console_process import follow_policy, pages_server

            over = await stack.enter_async_context(console_over(service, policy))
            if policy_file is not None:
                follow_policy(over, policy_file, known)
            running[pages_server(over, console, rejections)] = pages_sockets
        await serve_all(running, service.binder.end_waits)
