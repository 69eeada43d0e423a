"""The ASGI applications of serve and of the console, each over an API server without authentication."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from extender.cluster import ApiClient, Credentials
from extender.console import Console
from extender.policy import Policy
from extender.runtime.supervisor import Supervisor
from extender.serve import Service
from extender.web.console.console_app import ConsoleApp
from extender.web.serve_app import Probes, ServeApp


def anonymous(api_url: str) -> ApiClient:
    """A client without credentials."""
    return ApiClient(Credentials(api_url, None, lambda: None))


@asynccontextmanager
async def serve_application(
    api_url: str, policy: Policy | None = None, supervisor: Supervisor | None = None
) -> AsyncIterator[ServeApp]:
    async with anonymous(api_url) as client, Service(client, policy or Policy(), supervisor=supervisor) as service:
        yield ServeApp(service, Probes(service))


@asynccontextmanager
async def console_application(api_url: str) -> AsyncIterator[ConsoleApp]:
    async with anonymous(api_url) as client, Console(client, Policy()) as console:
        yield ConsoleApp(console)
