"""The ASGI applications: the verbs, and what people and machines read."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from extender import __version__
from extender.service.service import Service
from extender.service.tracing import TracedService, Traces
from extender.web import explain, fleet, page, policy
from extender.web.asgi import TEXT, Answer, Bodies, Receive, Scope, Send
from extender.web.exporting import Published
from extender.web.guard import Access, header
from extender.web.limits import PAGES, VERBS, Limits, RefusalLog
from extender.web.verbs import Verbs

# Never behind the token: kubelet and Prometheus have none, and the page's shell says nothing about the cluster.
_PROBES = ("/livez", "/readyz")
_OPEN = (*_PROBES, "/metrics", "/version", *page.PATHS)


class App:
    """The verbs first, so that hot paths never enter FastAPI; then the pages, unless they have an address of their own."""

    def __init__(
        self, service: Service, pages: Pages | None, traces: Traces | None = None, limits: Limits = VERBS,
        refusals: RefusalLog | None = None,
    ) -> None:
        self.service, self.turns, self.supervisor = service, service.turns, service.supervisor
        self._verbs = Verbs(service if traces is None else TracedService(service, traces), limits, refusals)
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._verbs.handles(scope["path"]):
            await self._verbs(scope, receive, send)
        elif self._pages is not None:
            await self._pages(scope, receive, send)
        elif scope["type"] == "http":
            await Answer(404, b"only the extender's verbs are here", TEXT).to(send)


class Pages:
    """Probes, metrics, explain, the page; nothing here is begun while kube-scheduler waits. `access` tells which
    requests are answered; without it, those that loopback gets."""

    def __init__(
        self, service: Service, published: Published, access: Access | None = None, limits: Limits = PAGES,
        refusals: RefusalLog | None = None,
    ) -> None:
        self._service, self.turns, self.supervisor = service, service.turns, service.supervisor
        self._published = published
        self._access = access or Access()
        self._bodies = Bodies(limits)
        self._refusals = refusals or RefusalLog()
        # What is asked for again and again is answered beside FastAPI, whose own work is longer than theirs.
        self._polled = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._scrape}
        self._app = _pages(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: Any = self._app
        if scope["type"] == "http":
            await self.turns.pause()
            answer = await self._shortcut(scope, receive)
            if answer is not None:
                await answer.to(send)
                return
        await app(scope, receive, send)

    async def _shortcut(self, scope: Scope, receive: Receive) -> Answer | None:
        """What need not go through FastAPI."""
        path, reads = scope["path"], scope["method"] in ("GET", "HEAD")
        if reads and path in _PROBES:  # kubelet may ask by any name
            return await self._polled[path]()
        refused = self._access.refusal(scope, open_to_all=path in _OPEN)
        if refused is not None:
            host = header(scope, b"host").decode("latin-1")
            self._refusals.note("page not allowed", status=refused.status, host=host)
            return refused
        if reads and path in self._polled:
            return await self._polled[path]()
        match path.split("/"):
            case ["", "v1", "explain", namespace, pod] if reads:
                return await explain.explain_pod(self._service, namespace, pod, scope["query_string"])
            case ["", "v1", "explain"] if scope["method"] == "POST":
                return await explain.explain_imagined(self._service, self._bodies, scope, receive)
        return None

    async def _livez(self) -> Answer:
        stalled = self._service.heartbeat.stalled
        return Answer(503 if stalled else 200, (stalled or "ok").encode(), TEXT)

    async def _readyz(self) -> Answer:
        problems = "; ".join(filter(None, (self._service.not_ready, self._service.degraded)))
        text = "; ".join([problems or "ok", *self._service.warnings])
        return Answer(503 if problems else 200, text.encode(), TEXT)

    async def _scrape(self) -> Answer:
        return Answer(200, self._published.text, CONTENT_TYPE_PLAIN_0_0_4.encode())


def _pages(service: Service) -> FastAPI:
    app = FastAPI(title="Berth", version=__version__, docs_url=None, redoc_url=None)

    @app.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": __version__})

    app.include_router(fleet.router(service))
    app.include_router(policy.router(service))
    app.include_router(page.router())
    return app
