"""The ASGI application: verbs first, then FastAPI for probes and everything people read."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from extender import __version__
from extender.service.service import Service
from extender.web import explain
from extender.web.metrics import Metrics
from extender.web.verbs import Receive, Scope, Send, Verbs


class App:
    """Hot paths never enter FastAPI."""

    def __init__(self, service: Service) -> None:
        self.service = service
        metrics = Metrics(service)
        self._verbs = Verbs(service, metrics)
        self._pages = _pages(service, metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._verbs.handles(scope["path"]):
            await self._verbs(scope, receive, send)
        else:
            await self._pages(scope, receive, send)  # type: ignore[arg-type] # ASGI messages, typed more loosely by FastAPI


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
    return app
