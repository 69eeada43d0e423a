"""The agent's answers to kubelet's liveness probe and to Prometheus."""

from __future__ import annotations

from extender.agent.slice_publisher import SlicePublisher
from extender.runtime import Supervisor
from extender.web.asgi import TEXT, Answer, Receive, Scope, Send
from extender.web.metrics import TASK_FAILURES, Scrapes


class AgentApp:
    """GET /livez: 200 with the tasks that keep failing, or 503 while NVML hangs. GET /metrics: failures of each task.

    A task that keeps failing is no reason to restart the agent: the supervisor restarts the task.
    """

    def __init__(self, publisher: SlicePublisher, supervisor: Supervisor) -> None:
        self._publisher = publisher
        self.supervisor = supervisor
        self._scrapes = Scrapes((TASK_FAILURES,), self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive  # requests have no body
        if scope["type"] == "http":
            await self._answer(scope["method"], scope["path"]).to(send)

    def _answer(self, method: str, path: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return Answer(405, b"only GET is answered", TEXT)
        if path == "/metrics":
            return self._scrapes.answer()
        if path != "/livez":
            return Answer(404, b"berth agent has only /livez and /metrics", TEXT)
        failing = (f"task {name} keeps failing: {problem}" for name, problem in self.supervisor.failing.items())
        return Answer(
            503 if self._publisher.hung else 200, "; ".join([self._publisher.hung or "ok", *failing]).encode(), TEXT
        )
