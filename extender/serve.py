"""Composition: the one place that knows everybody. Starts Berth against a cluster and serves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn

from extender.cluster.client import ApiClient
from extender.cluster.credentials import Credentials, load_credentials
from extender.policy import Policy, load_policy
from extender.service.service import Service
from extender.web.app import App

# kube-scheduler closes idle connections after 90 s; ours must live longer, or a request meets a closing socket.
_KEEP_ALIVE_SECONDS = 120


def read_policy(path: Path | None) -> Policy:
    """The policy of a file, or the default. Raises PolicyError or OSError."""
    return load_policy(path.read_text()) if path is not None else Policy()


def serve(kubeconfig: Path | None, host: str, port: int, policy_path: Path | None) -> None:
    """Serve until a signal ends the process."""
    asyncio.run(run(load_credentials(kubeconfig), host, port, read_policy(policy_path)))


async def run(credentials: Credentials, host: str, port: int, policy: Policy) -> None:
    """Serve in the running loop. Binds in flight are finished before this returns."""
    async with ApiClient(credentials) as client, Service(client, policy) as service:
        await server(App(service), host, port).serve()


@asynccontextmanager
async def application(api_url: str, policy: Policy | None = None) -> AsyncIterator[tuple[App, Callable[[], str]]]:
    """The ASGI application against an API server without credentials, and what it still lacks to be ready."""
    credentials = Credentials(api_url, None, lambda: None)
    async with ApiClient(credentials) as client, Service(client, policy or Policy()) as service:
        yield App(service), lambda: service.not_ready


def server(app: App, host: str, port: int) -> uvicorn.Server:
    """A uvicorn server for an application, without access log: the hot path writes no lines."""
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", access_log=False, lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS, http="httptools", loop="uvloop",
    )
    return uvicorn.Server(config)
