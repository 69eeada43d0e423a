"""The process of `berth console`. One replica is enough, and serve places pods without it."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path

from extender.api.documents import text_of
from extender.api.object_meta import ObjectKey
from extender.cluster import ApiClient, Credentials, load_credentials
from extender.console import Console
from extender.entry.listening import (
    EventLoop,
    Pages,
    check_certificates,
    reloaded_certificates,
    serve_all,
    server,
)
from extender.files import is_missing, name_of, read_mounted
from extender.policy import Policy
from extender.runtime.file_reload import read_policy, reloaded_policy
from extender.runtime.supervisor import DaemonThreads, Supervisor
from extender.web.asgi import PAGES, RejectionLog
from extender.web.console.console_app import MAX_TOKEN_BYTES, Access, ConsoleApp
from extender.web.http_server import Server, listen_on


def serve_console(
    kubeconfig: Path | None, pages: Pages, policy: Path | None = None, config_map: ObjectKey | None = None
) -> None:
    """Run the console until SIGINT or SIGTERM. An Event about an invalid policy file is written on `config_map`.

    Raises BerthError if it cannot start, ServerEnded if a server fails.
    """
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(run(load_credentials(kubeconfig), pages, policy, config_map))


async def run(
    credentials: Credentials,
    pages: Pages,
    policy_file: Path | None = None,
    config_map: ObjectKey | None = None,
    supervisor: Supervisor | None = None,
) -> None:
    """Run the console in the running event loop until a signal. Raises as `serve_console`.

    `supervisor` runs its tasks: tests restart them at once.
    """
    asyncio.get_running_loop().set_default_executor(DaemonThreads())
    known, policy = read_policy(policy_file) if policy_file is not None else (None, Policy())
    check_certificates(pages.tls)
    sockets, rejections = open_pages(pages, "--listen"), RejectionLog()
    async with ApiClient(credentials) as client, Console(client, policy, supervisor=supervisor) as console:
        if policy_file is not None:
            follow_policy(console, policy_file, known, config_map)
        served = pages_server(console, pages, rejections)
        if pages.tls is not None:
            console.supervisor.start("certificates", reloaded_certificates([served], pages.tls).run)
        await serve_all({served: sockets})


def open_pages(pages: Pages, option: str) -> list[socket.socket]:
    """Check the token file and bind the address, before other objects start.

    Raises WireError, which names the option if the address cannot be bound.
    """
    if pages.token is not None and not is_missing(pages.token):
        text_of(read_mounted(pages.token, MAX_TOKEN_BYTES), name_of(pages.token))
    return listen_on(option, *pages.address)


def pages_server(console: Console, pages: Pages, rejections: RejectionLog) -> Server:
    """The server of a running console."""
    console.overview.cluster, console.overview.docs = pages.cluster, pages.docs
    console.restarts.advisor = pages.advisor
    app = ConsoleApp(console, Access(pages.address[0], pages.hosts, pages.token), rejections=rejections)
    return server(app, pages.address, PAGES, pages.tls, rejections)


def follow_policy(console: Console, path: Path, known: bytes | None, config_map: ObjectKey | None = None) -> None:
    """Start the task that reads the policy file again. `known` is the content that is already in force."""
    file = reloaded_policy(path, console.use_policy, console.reject_policy, known)
    rejected = partial(console.event_recorder.policy_rejected, config_map) if config_map is not None else None
    console.supervisor.start("console-policy", partial(file.run, rejected))
