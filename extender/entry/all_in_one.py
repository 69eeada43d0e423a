"""Serve and the console in one process, over one cache: for one command on a developer's machine.

A module of its own: neither `berth serve` alone nor `berth console` loads the code of the other.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from extender.cache import ClusterCache
from extender.cluster import ApiClient, Credentials
from extender.console import Console, ConsoleCluster, RestartAdvisor
from extender.policy import Policy
from extender.serve import Service
from extender.web.console.console_app import ConsoleApp
from extender.web.serve_app import Probes, ServeApp


def console_over(service: Service, policy: Policy) -> Console:
    """A console over the cache of a service that has started. The caller enters its context."""
    cluster = ConsoleCluster(service.cache, service.evaluator, service.informers, service.refresh, shared=True)
    return Console(service.client, policy, service.clock, service.supervisor, cluster)


@asynccontextmanager
async def both(
    api_url: str,
    policy: Policy | None = None,
    clock: Callable[[], float] = time.monotonic,
    advisor: Callable[[ClusterCache], RestartAdvisor] | None = None,
) -> AsyncIterator[tuple[ServeApp, ConsoleApp]]:
    """The ASGI applications of serve and console in one process, for an API server without authentication.

    `clock` returns seconds. For `advisor` see RestartQuestions.
    """
    policy = policy or Policy()
    async with (
        ApiClient(Credentials(api_url, None, lambda: None)) as client,
        Service(client, policy, clock) as service,
        console_over(service, policy) as console,
    ):
        console.restarts.advisor = advisor
        yield ServeApp(service, Probes(service)), ConsoleApp(console)
