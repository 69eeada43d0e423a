"""The agent's answers to kubelet's liveness probe and to Prometheus."""

from __future__ import annotations

from extender.agent.reader_process import ReaderProcess
from extender.runtime import Supervisor
from extender.web.asgi import TEXT, Answer, Receive, Scope, Send
from extender.web.metrics import TASK_FAILURES, MetricSource, Scrapes, counter

READ_FAILURES: MetricSource[AgentApp] = counter(
    "berth_nvml_failures_total",
    "Failed readings of NVML by cause: crash, hang, or nvml (NVML answered with an error)",
    lambda app: {(cause,): float(count) for cause, count in app.reader.failures.items()},
    "cause",
)


class AgentApp:
    """GET /livez: 200 with the tasks that keep failing and why NVML cannot be read. GET /metrics: failures.

    Neither is a reason to restart the agent: the supervisor restarts the task, the next try has a new reader process.
    """

    reader: ReaderProcess

    def __init__(self, reader: ReaderProcess, supervisor: Supervisor) -> None:
        self.reader = reader
        self.supervisor = supervisor
        self._scrapes = Scrapes((TASK_FAILURES, READ_FAILURES), self)

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
        failing = [f"task {name} keeps failing: {problem}" for name, problem in self.supervisor.failing.items()]
        return Answer(200, "; ".join(["ok", *failing, *filter(None, [self.reader.problem])]).encode(), TEXT)
