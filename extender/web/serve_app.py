"""The ASGI applications of `berth serve`: the verbs, the probes and the metrics, without a framework."""

from __future__ import annotations

from extender.extension import Service, TracedService, Traces
from extender.web.asgi import PROBES, TEXT, Answer, Receive, Scope, Send, probe
from extender.web.http_limits import VERBS, HttpLimits, RejectionLog
from extender.web.metrics import Scrapes
from extender.web.serve_metrics import METRICS
from extender.web.verbs import Verbs


class Probes:
    """GET /livez, /readyz and /metrics."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._scrapes = Scrapes(METRICS, service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive  # requests have no body
        if scope["type"] == "http":
            await self._answer(scope["method"], scope["path"]).to(send)

    def _answer(self, method: str, path: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return Answer(405, b"only GET is answered", TEXT)
        if path in PROBES:
            return probe(path, self._service.informers)
        if path == "/metrics":
            return self._scrapes.answer()
        return Answer(
            404, b"berth serve has only the extender's verbs, probes and metrics; berth console has the rest", TEXT
        )


class ServeApp:
    """The verbs, and the probes too if `probes` is set: None means that they have an address of their own."""

    def __init__(
        self,
        service: Service,
        probes: Probes | None,
        traces: Traces | None = None,
        limits: HttpLimits = VERBS,
        rejections: RejectionLog | None = None,
    ) -> None:
        self.service = service
        self._verbs = Verbs(service if traces is None else TracedService(service, traces), limits, rejections)
        self._probes = probes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if self._verbs.handles(scope["path"]):
            await self._verbs(scope, receive, send)
        elif self._probes is not None:
            await self._probes(scope, receive, send)
        else:
            await Answer(404, b"this address only serves the extender's verbs", TEXT).to(send)
