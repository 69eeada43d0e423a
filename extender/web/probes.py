"""Probes for kubelet: /livez fails while the event loop is stalled, /readyz until every kind is listed."""

from __future__ import annotations

from extender.runtime import Informers
from extender.web.asgi import TEXT, Answer

PROBES = ("/livez", "/readyz")


def probe(path: str, informers: Informers) -> Answer:
    """The answer to GET of one of PROBES: 200, or 503 with the problems as text. Warnings follow in both cases."""
    if path == "/livez":
        stalled = informers.heartbeat.stalled
        return Answer(503 if stalled else 200, (stalled or "ok").encode(), TEXT)
    problems = "; ".join(filter(None, (informers.not_ready, informers.degraded)))
    text = "; ".join([problems or "ok", *informers.warnings])
    return Answer(503 if problems else 200, text.encode(), TEXT)
