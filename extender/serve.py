"""Composition: the one place that knows everybody. Starts Berth against a cluster and serves it."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
import uvicorn
import uvloop

from extender.cluster.client import ApiClient
from extender.cluster.credentials import Credentials, load_credentials
from extender.model.claim import ObjectKey
from extender.model.errors import BerthError
from extender.policy import Policy, load_policy
from extender.service.policies import CandidateFile, PolicyFile
from extender.service.service import Service
from extender.service.supervisor import Supervisor
from extender.service.tracing import Traces, no_span
from extender.web.app import App, Pages
from extender.web.exporting import Exporting, Published
from extender.web.protocol import protocol

# kube-scheduler closes idle connections after 90 s; ours must live longer, or a request meets a closing socket.
_KEEP_ALIVE_SECONDS = 120
_LOOK_SECONDS = 1.0  # between two looks at files that may change: kubelet swaps a link when a ConfigMap changes


@dataclass(frozen=True, slots=True)
class Listen:
    """Where and how Berth listens. Without `pages` the verbs' address serves everything; at `metrics` a process of its own answers."""

    host: str
    port: int
    pages: tuple[str, int] | None = None
    metrics: tuple[str, int] | None = None
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    client_name: str | None = None
    page_token: Path | None = None


@dataclass(frozen=True, slots=True)
class Policies:
    """Where policies come from. `config_map` is what an Event about a wrong one is written on."""

    active: Path | None = None
    candidate: Path | None = None
    config_map: ObjectKey | None = None


class ServerEnded(BerthError):
    """A server ended while nothing had told it to. The process ends too: kubelet starts it again."""


def serve(kubeconfig: Path | None, listen: Listen, policies: Policies, traces: Traces | None = None) -> None:
    """Serve until a signal ends the process."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(load_credentials(kubeconfig), listen, policies, traces))
    if traces is not None:
        traces.close()


async def run(
    credentials: Credentials, listen: Listen, policies: Policies, traces: Traces | None = None,
    supervisor: Supervisor | None = None,
) -> None:
    """Serve in the running loop until a signal; binds in flight come to their ends first. Raises ServerEnded."""
    known = policies.active.read_text() if policies.active is not None else None
    policy = load_policy(known) if known is not None else Policy()
    token = listen.page_token.read_text().strip() if listen.page_token is not None else ""
    span = traces.span if traces else no_span
    async with (
        AsyncExitStack() as stack, ApiClient(credentials) as client,
        Service(client, policy, span=span, supervisor=supervisor) as service,
    ):
        published = Published(service)
        pages = Pages(service, published, token)
        main = server(App(service, pages if listen.pages is None else None, traces), listen.host, listen.port, listen)
        servers = [main, *([server(pages, *listen.pages)] if listen.pages is not None else [])]
        service.supervisor.start("metrics", published.run)
        if listen.metrics is not None:
            exporting = stack.enter_context(closing(Exporting(published, *listen.metrics)))
            service.supervisor.start("exporter", exporting.run)
        if listen.certificate is not None:
            held = [path.read_bytes() for path in _certificate_files(listen)]
            service.supervisor.start("certificates", partial(_watch_certificates, main, listen, held))
        if policies.active is not None or policies.candidate is not None:
            service.supervisor.start("policies", partial(_watch_policies, service, policies, known))
        await serve_all(servers)


async def serve_all(servers: list[uvicorn.Server]) -> None:
    """Until a signal, or until one server ends by itself: then ServerEnded is raised. uvicorn's own serve() would raise
    the signal again afterwards, which kills the process before binds in flight are finished."""
    told = asyncio.Event()

    def stop() -> None:
        told.set()
        for one in servers:
            one.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    running = {asyncio.create_task(one._serve()): one for one in servers}  # noqa: SLF001 - see above
    try:
        ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        unasked = [running[task] for task in ended] if not told.is_set() else []
    finally:
        stop()
        await asyncio.wait(running)
    await asyncio.gather(*running)
    if unasked:
        addresses = ", ".join(f"{one.config.host}:{one.config.port}" for one in unasked)
        raise ServerEnded(f"the server at {addresses} ended, and nothing had told it to")


async def _watch_policies(service: Service, policies: Policies, known: str | None) -> None:
    """Look at the policies again and again; what cannot be read leaves the last good one in force. `known` is what the
    active one held at the start."""
    judge, shadow = service.judge, service.shadow
    active = PolicyFile(policies.active, judge.use_policy, judge.refuse_policy) if policies.active is not None else None
    candidate = CandidateFile(policies.candidate, shadow.use, shadow.refuse) if policies.candidate is not None else None
    if active is not None and known is not None:
        active.seen(known)
    while True:
        problem = active.look() if active is not None else ""
        if candidate is not None:
            candidate.look()
        if problem and policies.config_map is not None:
            await service.teller.policy_refused(policies.config_map, problem)
        await asyncio.sleep(_LOOK_SECONDS)


def _certificate_files(listen: Listen) -> list[Path]:
    return [path for path in (listen.certificate, listen.key, listen.client_ca) if path is not None]


async def _watch_certificates(main: uvicorn.Server, listen: Listen, known: list[bytes]) -> None:
    """Load certificate and client authority again when a file changes; what cannot be read leaves the last in use. An
    authority is added: the one before is trusted until the next start, so that both sides can change one after the
    other. `known` is what the files held at the start."""
    log = structlog.get_logger("berth.files")
    files = _certificate_files(listen)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            fresh = [path.read_bytes() for path in files]
            if fresh != known and main.config.ssl is not None and listen.certificate is not None:
                main.config.ssl.load_cert_chain(listen.certificate, listen.key)
                if listen.client_ca is not None:
                    main.config.ssl.load_verify_locations(listen.client_ca)
                known = fresh
                log.info("certificates read again", files=[str(path) for path in files])
        except (OSError, ssl.SSLError) as error:
            log.warning("certificates cannot be read; the last ones stay", files=[str(path) for path in files], problem=str(error))


@asynccontextmanager
async def application(
    api_url: str, policy: Policy | None = None, supervisor: Supervisor | None = None
) -> AsyncIterator[tuple[App, Callable[[], str]]]:
    """The ASGI application against an API server without credentials, and what it still lacks to be ready."""
    credentials = Credentials(api_url, None, lambda: None)
    async with ApiClient(credentials) as client, Service(client, policy or Policy(), supervisor=supervisor) as service:
        published = Published(service)
        service.supervisor.start("metrics", published.run)
        yield App(service, Pages(service, published)), lambda: service.not_ready


def server(app: App | Pages, host: str, port: int, listen: Listen | None = None) -> uvicorn.Server:
    """A uvicorn server for an application, without access log: the hot path writes no lines."""
    client_name = listen.client_name if listen else None
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", access_log=False, lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS, http=protocol(app.turns, app.supervisor, client_name), loop="uvloop",
        proxy_headers=False,
        ssl_certfile=listen.certificate if listen else None, ssl_keyfile=listen.key if listen else None,
        ssl_ca_certs=str(listen.client_ca) if listen and listen.client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if listen and listen.client_ca else ssl.CERT_NONE,
    )
    return uvicorn.Server(config)
