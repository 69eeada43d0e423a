"""`berth console`: answers people. One of it is enough, and Berth places pods without it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from extender.cluster import ApiClient, Credentials, load_credentials
from extender.console import Console, TokenReviewer
from extender.entry.listening import Tls, check_certificates, serve_all, server, watch_certificates
from extender.files import name_of, read_mounted
from extender.model import ObjectKey
from extender.policy import Policy
from extender.runtime import CandidateFile, PolicyFile, Supervisor, in_this_loop, read_policy, watch_policies
from extender.sockets import listen_on
from extender.web.access_control import MOST_TOKEN, Access
from extender.web.console.console_app import ConsoleApp
from extender.web.http_limits import PAGES, RECORDS, RefusalLog
from extender.web.http_server import Server
from extender.web.record_routes import Records
from extender.wire import text_of


@dataclass(frozen=True, slots=True)
class Pages:
    """Where people ask, with TLS where given."""

    address: tuple[str, int]
    token: Path | None = None  # a file with the token that explain and the page ask for
    hosts: tuple[str, ...] = ()  # further names by which browsers and programs may ask
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class RecordsFrom:
    """Where serve's processes send records, and as which users the API server must know them. The certificate is that
    of the pages."""

    address: tuple[str, int]
    audience: str
    users: frozenset[str]


@dataclass(frozen=True, slots=True)
class Policies:
    """Where policies come from. `config_map` is what an Event about a wrong one is written on."""

    active: Path | None = None
    candidate: Path | None = None
    config_map: ObjectKey | None = None


def serve_console(kubeconfig: Path | None, pages: Pages, records: RecordsFrom | None, policies: Policies) -> None:
    """Answer until a signal ends the process. Without `records` nothing but the cluster's objects is known."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(load_credentials(kubeconfig), pages, records, policies))


async def run(
    credentials: Credentials,
    pages: Pages,
    records: RecordsFrom | None,
    policies: Policies,
    supervisor: Supervisor | None = None,
) -> None:
    """The same in the running loop. Raises ServerEnded."""
    known, policy = read_policy(policies.active) if policies.active is not None else (None, Policy())
    check_certificates(pages.tls)
    opened, refusals = open_pages(pages, "--listen"), RefusalLog()
    heard = listen_on("--records", *records.address) if records is not None else []
    async with ApiClient(credentials) as client, Console(client, policy, supervisor=supervisor) as console:
        servers = start_pages(console, opened, policies, known, refusals)
        if records is not None:
            reviewer = TokenReviewer(client, records.audience, records.users, console.clock)
            app = Records(reviewer, console.take, refusals=refusals, counts=console.record_requests)
            servers[server(app, records.address, RECORDS, pages.tls, refusals)] = heard
        if pages.tls is not None:
            held = [path.read_bytes() for path in pages.tls.files]
            console.supervisor.start("certificates", partial(watch_certificates, list(servers), pages.tls, held))
        await serve_all(servers)


@dataclass(frozen=True, slots=True)
class OpenPages:
    """Pages whose address is bound and whose token can be read."""

    pages: Pages
    access: Access
    sockets: list[socket.socket]


def open_pages(pages: Pages, option: str) -> OpenPages:
    """Before anything else is begun. Raises WireError, naming the option where its address cannot be had."""
    if pages.token is not None and pages.token.exists():
        text_of(read_mounted(pages.token, MOST_TOKEN), name_of(pages.token))
    access = Access(pages.address[0], pages.hosts, pages.token)
    return OpenPages(pages, access, listen_on(option, *pages.address))


def start_pages(
    console: Console, opened: OpenPages, policies: Policies, known: bytes | None, refusals: RefusalLog
) -> dict[Server, list[socket.socket]]:
    """The server of a console that runs, with its sockets; and the task that reads its policies. `known` is the content
    of the active policy's file that is in force already."""
    active = other = None
    if policies.active is not None:
        use, refuse = in_this_loop(console.policy.use), in_this_loop(console.policy.refuse)
        active = PolicyFile(policies.active, use, refuse, known)
    if policies.candidate is not None:
        use_other, refuse_other = in_this_loop(console.shadow.use_policy), in_this_loop(console.shadow.refuse_policy)
        other = CandidateFile(policies.candidate, use_other, refuse_other)
    if active is not None or other is not None:
        told = policies.config_map
        refused = partial(console.teller.policy_refused, told) if told is not None else None
        console.supervisor.start("console-policies", partial(watch_policies, active, other, refused))
    app = ConsoleApp(console, opened.access, refusals=refusals)
    return {server(app, opened.pages.address, PAGES, opened.pages.tls, refusals): opened.sockets}


@asynccontextmanager
async def application(
    api_url: str, policy: Policy | None = None, supervisor: Supervisor | None = None
) -> AsyncIterator[ConsoleApp]:
    """The ASGI application against an API server without credentials; no records come."""
    credentials = Credentials(api_url, None, lambda: None)
    async with ApiClient(credentials) as client, Console(client, policy or Policy(), supervisor=supervisor) as console:
        yield ConsoleApp(console)
