"""A supervisor whose tasks fail when a test wants it, and the service with this supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx

from extender.cluster import Delays
from extender.runtime.supervisor import Supervisor
from extender.sandbox import Cluster
from extender.web.serve_app import ServeApp
from tests.worlds.applications import serve_application
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.running_berth import cluster_of

QUICK = Delays(first=0.001, most=0.01)


class Breakable(Supervisor):
    """A supervisor whose tasks raise on demand, from inside, as a bug would. `runs` counts the starts of each."""

    def __init__(self, delays: Delays = QUICK) -> None:
        super().__init__(delays)
        self.runs: dict[str, int] = {}
        self._breaks: dict[str, asyncio.Event] = {}
        self._again: set[str] = set()

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._breaks[name] = asyncio.Event()

        async def breakable() -> None:
            self.runs[name] = self.runs.get(name, 0) + 1
            if name in self._again:
                raise RuntimeError(f"a bug in {name}")
            self._breaks[name].clear()
            task = asyncio.ensure_future(run())
            broken = asyncio.ensure_future(self._breaks[name].wait())
            try:
                await asyncio.wait([task, broken], return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return await task
                raise RuntimeError(f"a bug in {name}")
            finally:
                task.cancel()
                broken.cancel()
                await asyncio.gather(task, broken, return_exceptions=True)

        super().start(name, breakable)

    def break_(self, name: str, *, again: bool = False) -> None:
        """Let the task raise; `again`, then each further run, too."""
        if again:
            self._again.add(name)
        self._breaks[name].set()

    def mend(self) -> None:
        self._again.clear()


@asynccontextmanager
async def composed(supervisor: Supervisor) -> AsyncIterator[tuple[Cluster, ServeApp, httpx.AsyncClient]]:
    """The service without a console, and a client of it."""
    cluster = cluster_of({"n1": "t4-4"})
    async with cluster.serving() as api, serve_application(api, supervisor=supervisor) as app:
        await eventually(lambda: not app.service.informers.not_ready)
        async with client_of(app) as client:
            yield cluster, app, client


def client_of(app: object) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]  # httpx types ASGI more narrowly
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=HANG_SECONDS)
