"""Composition: the one place that knows everybody. Starts Berth against a cluster and serves it."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
import uvicorn
import uvloop

from extender.cluster.client import ApiClient
from extender.cluster.credentials import Credentials, load_credentials
from extender.files import name_of, read_mounted
from extender.model.claim import ObjectKey
from extender.model.errors import BerthError, WireError
from extender.policy import Policy
from extender.service.policies import CandidateFile, PolicyFile, read_policy
from extender.service.service import Service
from extender.service.supervisor import Supervisor
from extender.service.tracing import Traces, no_span
from extender.sockets import listen_on
from extender.web.app import App, Pages
from extender.web.exporting import Exporting, Published
from extender.web.guard import MOST_TOKEN, Access
from extender.web.limits import PAGES, VERBS, Limits, RefusalLog
from extender.web.protocol import Listener, Protocol
from extender.web.server import Server
from extender.wire.documents import text_of

_LOOK_SECONDS = 1.0  # between two looks at files that may change: kubelet swaps a link when a ConfigMap changes
_MOST_CERTIFICATES = 1024 * 1024  # bytes of a file of certificates

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listen:
    """Where and how Berth listens. Without `pages` the verbs' address serves everything; at `metrics` a process of its
    own answers. The pages have the verbs' certificate, and ask for none of their clients'."""

    host: str
    port: int
    pages: tuple[str, int] | None = None
    metrics: tuple[str, int] | None = None
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    client_name: str | None = None
    page_token: Path | None = None
    page_hosts: tuple[str, ...] = ()  # further names by which browsers and programs may ask for pages


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
    known, policy = read_policy(policies.active) if policies.active is not None else (None, Policy())
    if listen.page_token is not None and listen.page_token.exists():
        text_of(read_mounted(listen.page_token, MOST_TOKEN), name_of(listen.page_token))
    access = Access(listen.pages[0] if listen.pages is not None else listen.host, listen.page_hosts, listen.page_token)
    refusals = RefusalLog()
    _check_certificates(listen)
    sockets = [listen_on("--listen", listen.host, listen.port)]
    if listen.pages is not None:
        sockets.append(listen_on("--pages", *listen.pages))
    span = traces.span if traces else no_span
    async with (
        AsyncExitStack() as stack, ApiClient(credentials) as client,
        Service(client, policy, span=span, supervisor=supervisor) as service,
    ):
        published = Published(service)
        pages = Pages(service, published, access, refusals=refusals)
        app = App(service, pages if listen.pages is None else None, traces, refusals=refusals)
        servers = [server(app, listen.host, listen.port, listen, refusals=refusals)]
        if listen.pages is not None:
            to_all = replace(listen, client_ca=None, client_name=None)
            servers.append(server(pages, *listen.pages, to_all, PAGES, refusals))
        service.supervisor.start("metrics", published.run)
        if listen.metrics is not None:
            exporting = stack.enter_context(closing(Exporting(published, *listen.metrics)))
            service.supervisor.start("exporter", exporting.run)
        if listen.certificate is not None:
            held = [path.read_bytes() for path in _certificate_files(listen)]
            service.supervisor.start("certificates", partial(_watch_certificates, servers, listen, held))
        if policies.active is not None or policies.candidate is not None:
            files = _policy_files(service, policies, known)
            service.supervisor.start("policies", partial(_watch_policies, service, policies.config_map, *files))
        await serve_all(dict(zip(servers, sockets, strict=True)))


async def serve_all(servers: Mapping[Server, list[socket.socket]]) -> None:
    """Serve each on its sockets, until a signal, or until one server ends by itself: then ServerEnded is raised.
    uvicorn's own serve() would raise the signal again afterwards, which kills the process before binds in flight are
    finished."""
    told = asyncio.Event()

    def stop() -> None:
        told.set()
        for one in servers:
            one.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    running = {
        asyncio.create_task(one._serve(bound)): one  # noqa: SLF001 - see above
        for one, bound in servers.items()
    }
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


def _policy_files(
    service: Service, policies: Policies, known: bytes | None
) -> tuple[PolicyFile | None, CandidateFile | None]:
    """The files to look at in a thread; what they say is used in this loop. `known` is what the active one held."""
    judge, shadow, loop = service.judge, service.shadow, asyncio.get_running_loop()

    def here(call: Callable[[T], None]) -> Callable[[T], None]:
        def later(value: T) -> None:
            loop.call_soon_threadsafe(call, value)

        return later

    active = candidate = None
    if policies.active is not None:
        active = PolicyFile(policies.active, here(judge.use_policy), here(judge.refuse_policy), known)
    if policies.candidate is not None:
        candidate = CandidateFile(policies.candidate, here(shadow.use), here(shadow.refuse))
    return active, candidate


async def _watch_policies(
    service: Service, config_map: ObjectKey | None, active: PolicyFile | None, candidate: CandidateFile | None
) -> None:
    """Look at the policies again and again; what cannot be read leaves the last good one in force."""
    while True:
        problem = await asyncio.to_thread(active.look) if active is not None else ""
        if candidate is not None:
            await asyncio.to_thread(candidate.look)
        if problem and config_map is not None:
            await service.teller.policy_refused(config_map, problem)
        await asyncio.sleep(_LOOK_SECONDS)


def _check_certificates(listen: Listen) -> None:
    """Raises WireError where the files hold no certificate with its key, or no authority."""
    if listen.certificate is None or listen.key is None:
        return
    for path in (listen.certificate, listen.key, listen.client_ca):
        if path is not None:
            read_mounted(path, _MOST_CERTIFICATES)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(listen.certificate, listen.key, password=lambda: b"")  # never asks a terminal for one
    except (OSError, ValueError) as error:
        files = f"{name_of(listen.certificate)} and {name_of(listen.key)}"
        raise WireError("--tls-cert", f"{files} are no certificate and its key without a password: {error}") from error
    if listen.client_ca is None:
        return
    try:
        context.load_verify_locations(listen.client_ca)
    except (OSError, ValueError) as error:
        raise WireError("--client-ca", f"{name_of(listen.client_ca)} holds no certificates: {error}") from error


def _certificate_files(listen: Listen) -> list[Path]:
    return [path for path in (listen.certificate, listen.key, listen.client_ca) if path is not None]


async def _watch_certificates(servers: list[Server], listen: Listen, known: list[bytes]) -> None:
    """Load certificate and client authority again when a file changes; what cannot be read leaves the last in use. An
    authority is added: the one before is trusted until the next start, so that both sides can change one after the
    other. `known` is what the files held at the start."""
    log = structlog.get_logger("berth.files")
    files = _certificate_files(listen)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            fresh = [path.read_bytes() for path in files]
            if fresh != known and listen.certificate is not None:
                for context in [one.config.ssl for one in servers if one.config.ssl is not None]:
                    context.load_cert_chain(listen.certificate, listen.key)
                    if context.verify_mode is ssl.CERT_REQUIRED and listen.client_ca is not None:
                        context.load_verify_locations(listen.client_ca)
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


def server(
    app: App | Pages, host: str, port: int, listen: Listen | None = None, limits: Limits = VERBS,
    refusals: RefusalLog | None = None,
) -> Server:
    """A server for an application, without access log: the hot path writes no lines."""
    client_name = listen.client_name if listen else None
    listener = Listener(app.turns, app.supervisor, client_name, limits, refusals or RefusalLog())
    protocol: Any = partial(Protocol, listener)  # uvicorn calls it as it would the class
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", access_log=False, lifespan="off", http=protocol, ws="none",
        loop="uvloop", proxy_headers=False, server_header=False, headers=[("X-Content-Type-Options", "nosniff")],
        ssl_certfile=listen.certificate if listen else None, ssl_keyfile=listen.key if listen else None,
        ssl_ca_certs=str(listen.client_ca) if listen and listen.client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if listen and listen.client_ca else ssl.CERT_NONE,
    )
    return Server(config, limits.head_seconds)
