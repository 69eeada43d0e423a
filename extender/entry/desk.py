"""Runs the console in the process of `berth serve`, over the same cache: for one command on a developer's machine."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from extender.cluster import ApiClient, Credentials
from extender.console import Console, ConsoleCluster
from extender.entry.console_process import Pages, Policies, open_pages, start_pages
from extender.extension import Service
from extender.policy import Policy
from extender.runtime import Supervisor
from extender.web.console.console_app import ConsoleApp
from extender.web.http_limits import RejectionLog
from extender.web.http_server import Server
from extender.web.serve_app import Probes, ServeApp


class DeskConsole:
    """A console over serve's cache. `start` follows the start of serve."""

    def __init__(
        self,
        address: tuple[str, int] | None = None,
        token: Path | None = None,
        hosts: tuple[str, ...] = (),
    ) -> None:
        """`token` is a file with the token for the pages; for `hosts` see Pages.

        Without an address, `start` must not be called.
        """
        self._opened = open_pages(Pages(address, token=token, hosts=hosts), "--console") if address else None
        self._console: Console | None = None

    async def compose(self, stack: AsyncExitStack, service: Service, policy: Policy) -> Console:
        """Make the console over the cache of a service. It ends with the stack."""
        cluster = ConsoleCluster(
            service.cache, service.evaluator, service.informers, service.expirer, service.rebuilds, shared=True
        )
        console = Console(service.client, policy, service.clock, service.supervisor, cluster)
        self._console = await stack.enter_async_context(console)
        return self._console

    async def start(
        self,
        stack: AsyncExitStack,
        service: Service,
        policy: Policy,
        policy_file: Path | None,
        known: bytes | None,
        rejections: RejectionLog,
    ) -> dict[Server, list[socket.socket]]:
        """Make the console's server, with its sockets. `known` is the content of the policy file in force."""
        assert self._opened is not None, "a console without an address cannot start a server"
        console = await self.compose(stack, service, policy)
        return start_pages(console, self._opened, Policies(policy_file), known, rejections)


@asynccontextmanager
async def both(
    api_url: str,
    policy: Policy | None = None,
    supervisor: Supervisor | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[tuple[ServeApp, ConsoleApp]]:
    """The ASGI applications of serve and console in one process, for an API server without authentication.

    `clock` returns seconds.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(Credentials(api_url, None, lambda: None)))
        desk, policy = DeskConsole(), policy or Policy()
        service = await stack.enter_async_context(Service(client, policy, clock, supervisor=supervisor))
        console = await desk.compose(stack, service, policy)
        yield ServeApp(service, Probes(service)), ConsoleApp(console)
