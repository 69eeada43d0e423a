"""The ASGI applications: the verbs, and FastAPI for probes and everything people read."""

from __future__ import annotations

import secrets

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from extender import __version__
from extender.service.service import Service
from extender.service.tracing import TracedService, Traces
from extender.web import explain, fleet, page, policy
from extender.web.metrics import Metrics
from extender.web.verbs import Receive, Scope, Send, Verbs

# Never behind the token: kubelet and Prometheus have none, and the page's shell says nothing about the cluster.
_OPEN = ("/livez", "/readyz", "/metrics", "/version", *page.PATHS)


class App:
    """The verbs first, so that hot paths never enter FastAPI; then the pages, unless they have an address of their own."""

    def __init__(self, service: Service, metrics: Metrics, pages: Pages | None, traces: Traces | None = None) -> None:
        self.service = service
        self._verbs = Verbs(service if traces is None else TracedService(service, traces), metrics)
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._verbs.handles(scope["path"]):
            await self._verbs(scope, receive, send)
        elif self._pages is not None:
            await self._pages(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse("only the extender's verbs are here", 404)(scope, receive, send)  # type: ignore[arg-type] # ASGI messages, typed more loosely


class Pages:
    """Probes, metrics, explain. With a token, all but probes and metrics ask for it as a bearer token."""

    def __init__(self, service: Service, metrics: Metrics, token: str = "") -> None:
        self._token = token.encode()
        self._app = _pages(service, metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._token and scope["path"] not in _OPEN and not self._allowed(scope):
            refusal = PlainTextResponse("a bearer token is needed", 401, {"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)  # type: ignore[arg-type] # as above
            return
        await self._app(scope, receive, send)  # type: ignore[arg-type] # as above

    def _allowed(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return secrets.compare_digest(given, b"Bearer " + self._token)


def _pages(service: Service, metrics: Metrics) -> FastAPI:
    app = FastAPI(title="Berth", version=__version__, docs_url=None, redoc_url=None)

    @app.get("/livez")
    def livez() -> Response:
        return PlainTextResponse("ok")

    @app.get("/readyz")
    def readyz() -> Response:
        missing = service.not_ready
        return PlainTextResponse(missing or "ok", status_code=503 if missing else 200)

    @app.get("/metrics")
    def scrape() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @app.get("/version")
    def version() -> Response:
        return JSONResponse({"version": __version__})

    app.include_router(explain.router(service))
    app.include_router(fleet.router(service))
    app.include_router(policy.router(service))
    app.include_router(page.router())
    return app
