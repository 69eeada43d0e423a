"""The agent's answer to kubelet's liveness probe."""

from __future__ import annotations

from extender.agent.slice_publisher import SlicePublisher
from extender.web.asgi import TEXT, Answer, Receive, Scope, Send


class Liveness:
    """GET /livez: 200, or 503 while NVML hangs."""

    def __init__(self, publisher: SlicePublisher) -> None:
        self._publisher = publisher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive  # requests have no body
        if scope["type"] == "http":
            await self._answer(scope["method"], scope["path"]).to(send)

    def _answer(self, method: str, path: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return Answer(405, b"only GET is answered", TEXT)
        if path != "/livez":
            return Answer(404, b"berth agent has only /livez", TEXT)
        return Answer(503 if self._publisher.hung else 200, (self._publisher.hung or "ok").encode(), TEXT)
