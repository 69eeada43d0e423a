"""The process of `berth console`. One replica is enough, and serve places pods without it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from extender.cluster import ApiClient, Credentials, load_credentials
from extender.console import Console
from extender.entry.listening import (
    EventLoop,
    Tls,
    check_certificates,
    reloaded_certificates,
    serve_all,
    server,
)
from extender.files import is_missing, name_of, read_mounted
from extender.model import ObjectKey
from extender.policy import Policy
from extender.runtime import DaemonThreads, Supervisor, read_policy, reloaded_policy
from extender.sockets import listen_on
from extender.web.access_control import MOST_TOKEN, Access
from extender.web.console.console_app import ConsoleApp
from extender.web.http_limits import PAGES, RejectionLog
from extender.web.http_server import Server
from extender.wire import text_of


@dataclass(frozen=True, slots=True)
class Pages:
    """The address of the pages, as (host, port), and its options."""

    address: tuple[str, int]
    token: Path | None = None  # a file with the token for explain, fleet and page
    hosts: tuple[str, ...] = ()  # more host names that requests may have
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class Policies:
    """The policy file. An Event about an invalid policy is written on `config_map`."""

    active: Path | None = None
    config_map: ObjectKey | None = None


def serve_console(kubeconfig: Path | None, pages: Pages, policies: Policies) -> None:
    """Run the console until SIGINT or SIGTERM.

    Raises BerthError if it cannot start, ServerEnded if a server fails.
    """
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(run(load_credentials(kubeconfig), pages, policies))


async def run(
    credentials: Credentials,
    pages: Pages,
    policies: Policies,
    supervisor: Supervisor | None = None,
) -> None:
    """Run the console in the running event loop until a signal. Raises as `serve_console`."""
    asyncio.get_running_loop().set_default_executor(DaemonThreads())
    known, policy = read_policy(policies.active) if policies.active is not None else (None, Policy())
    check_certificates(pages.tls)
    opened, rejections = open_pages(pages, "--listen"), RejectionLog()
    async with ApiClient(credentials) as client, Console(client, policy, supervisor=supervisor) as console:
        servers = start_pages(console, opened, policies, known, rejections)
        if pages.tls is not None:
            console.supervisor.start("certificates", reloaded_certificates(list(servers), pages.tls).run)
        await serve_all(servers)


@dataclass(frozen=True, slots=True)
class OpenPages:
    """Pages whose address is bound and whose token file was checked."""

    pages: Pages
    access: Access
    sockets: list[socket.socket]


def open_pages(pages: Pages, option: str) -> OpenPages:
    """Check the token file and bind the address, before other objects start.

    Raises WireError, which names the option if the address cannot be bound.
    """
    if pages.token is not None and not is_missing(pages.token):
        text_of(read_mounted(pages.token, MOST_TOKEN), name_of(pages.token))
    access = Access(pages.address[0], pages.hosts, pages.token)
    return OpenPages(pages, access, listen_on(option, *pages.address))


def start_pages(
    console: Console, opened: OpenPages, policies: Policies, known: bytes | None, rejections: RejectionLog
) -> dict[Server, list[socket.socket]]:
    """Make the server of a running console, with its sockets, and start the task that reloads its policies.

    `known` is the content of the active policy file that is already in force.
    """
    if policies.active is not None:
        active = reloaded_policy(policies.active, console.use_policy, console.reject_policy, known)
        config_map = policies.config_map
        rejected = partial(console.event_recorder.policy_rejected, config_map) if config_map is not None else None
        console.supervisor.start("console-policy", partial(active.run, rejected))
    app = ConsoleApp(console, opened.access, rejections=rejections)
    return {server(app, opened.pages.address, PAGES, opened.pages.tls, rejections): opened.sockets}


@asynccontextmanager
async def application(
    api_url: str, policy: Policy | None = None, supervisor: Supervisor | None = None
) -> AsyncIterator[ConsoleApp]:
    """The ASGI application of the console, for an API server without authentication."""
    credentials = Credentials(api_url, None, lambda: None)
    async with ApiClient(credentials) as client, Console(client, policy or Policy(), supervisor=supervisor) as console:
        yield ConsoleApp(console)
