"""The ASGI application of `berth console`: it checks access, then FastAPI routes the request."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from extender import __version__
from extender.console import Console, Turns
from extender.web.access_control import Access
from extender.web.asgi import PROBES, Answer, BodyReader, Receive, Scope, Send, header, probe, problem
from extender.web.console import explain_routes, page_routes
from extender.web.console.console_metrics import METRICS
from extender.web.http_limits import PAGES, HttpLimits, RejectionLog
from extender.web.metrics import Scrapes

# Paths without a token: kubelet and Prometheus have none, and the files of the page have no data of the cluster.
_OPEN = (*PROBES, "/metrics", "/version", *page_routes.PATHS)
_OF_CLUSTER = ("/v1/explain", "/v1/fleet", "/v1/nodes", "/v1/claims")  # a cache with missing kinds would answer wrongly
# The answer with 5,000 claims has a megabyte, and takes 25 ms of the event loop.
_LARGE = ("/v1/fleet", "/v1/nodes", "/v1/claims", "/v1/audit", "/v1/policy")
_MAX_WAITING = 16  # requests for these


class ConsoleApp:
    """Probes, metrics, explain, fleet and the page. `access` has the access rules, by default those of loopback."""

    def __init__(
        self,
        console: Console,
        access: Access | None = None,
        limits: HttpLimits = PAGES,
        rejections: RejectionLog | None = None,
    ) -> None:
        self.console = console
        self._access = access or Access()
        self._bodies = BodyReader(limits)
        self._rejections = rejections or RejectionLog()
        self._scrapes = Scrapes(METRICS, console)
        self._turns = Turns(_MAX_WAITING, "requests wait for their answer")
        self._app: Any = routes(console)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = await self._shortcut(scope, receive)
        if answer is not None:
            await answer.to(send)
        elif scope["path"].startswith(_LARGE):
            async with self._turns.one():
                began = time.monotonic()
                try:
                    await self._app(scope, receive, send)
                finally:
                    self._turns.blocked = time.monotonic() - began
        else:
            await self._app(scope, receive, send)

    async def _shortcut(self, scope: Scope, receive: Receive) -> Answer | None:
        """The answer to a request that is rejected or that needs no FastAPI, else None."""
        path, reads = scope["path"], scope["method"] in ("GET", "HEAD")
        if reads and path in PROBES:  # before the check of the Host header, which kubelet sets to any name
            return probe(path, self.console.informers)
        rejected = self._access.rejection(scope, open_to_all=path in _OPEN)
        if rejected is not None:
            host = header(scope, b"host").decode("latin-1")
            self._rejections.note("page not allowed", status=rejected.status, host=host)
            return rejected
        if reads and path == "/metrics":
            return self._scrapes.answer()
        not_ready = self.console.informers.not_ready_text
        if not_ready and path.startswith(_OF_CLUSTER):
            return problem(503, not_ready)
        if path.startswith(_LARGE) and self._turns.full:
            return problem(429, self._turns.full)
        if path == "/v1/explain" and scope["method"] == "POST":
            return await explain_routes.explain_hypothetical(self.console, self._bodies, scope, receive)
        return None


def routes(console: Console) -> FastAPI:
    app = FastAPI(title="Berth", version=__version__, docs_url=None, redoc_url=None)

    @app.get("/version")
    async def version() -> Response:
        """The release."""
        return JSONResponse({"version": __version__})

    app.include_router(explain_routes.router(console))
    app.include_router(page_routes.router(console))
    app.include_router(page_routes.static_files())
    return app
