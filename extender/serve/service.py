"""`berth serve` as one object: its decisions, the watches and writes over HTTP, and an orderly end."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.cache import ClusterCache
from extender.cluster import ApiClient, WallClock, Writer, utc_now
from extender.policy import Policy
from extender.runtime.informers import Informers
from extender.runtime.supervisor import Supervisor
from extender.serve.decisions import OBSERVED, Decisions
from extender.serve.filter import FilterResult
from extender.serve.telemetry import CallDurations, SpanFactory, Traces, no_span

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_DRAIN_SECONDS = 20.0  # below the 30 s that a pod gets to terminate


class Service(Decisions):
    """Use as an async context manager. The supervisor runs all background tasks and ends them at the exit.

    `clock` returns seconds. `wall_clock` gives the timestamps of claims; it may jump.
    """

    def __init__(
        self,
        client: ApiClient,
        policy: Policy,
        clock: Callable[[], float] = time.monotonic,
        span: SpanFactory = no_span,
        supervisor: Supervisor | None = None,
        wall_clock: WallClock = utc_now,
    ) -> None:
        self.client = client
        self.calls = CallDurations()
        supervisor = supervisor or Supervisor()

        def watches(cache: ClusterCache, applied: Callable[[str], None]) -> Informers:
            self.informers = Informers(client, cache, clock, supervisor, applied, OBSERVED)
            return self.informers

        writer = Writer(client, f"berth-{uuid.uuid4()}")
        super().__init__(writer, watches, policy, clock, supervisor, wall_clock, span)

    async def __aenter__(self) -> Self:
        self.start()
        self.supervisor.start("orphans", self.orphans.run)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.binder.drain(_DRAIN_SECONDS)
        finally:
            await self.supervisor.stop()


class TracedService:
    """The verbs of a Service; each call is a span."""

    def __init__(self, service: Service, traces: Traces) -> None:
        self._service = service
        self._traces = traces

    def filter(self, pod: Pod, names: Sequence[str]) -> FilterResult:
        with self._traces.span(pod.uid, "filter") as span:
            _name(span, pod.key)
            answer = self._service.filter(pod, names)
            passed = len(names if answer.passed is None else answer.passed)
            span.set_attributes({"berth.nodes.asked": len(names), "berth.nodes.passed": passed})
            if answer.error:
                self._traces.failed(span, answer.error)
            return answer

    def prioritize(self, pod: Pod, names: Sequence[str]) -> list[tuple[str, int]]:
        with self._traces.span(pod.uid, "prioritize") as span:
            _name(span, pod.key)
            span.set_attribute("berth.nodes.asked", len(names))
            return self._service.prioritize(pod, names)

    async def bind(self, pod: ObjectKey, uid: str, node: str) -> None:
        with self._traces.span(uid, "bind") as span:
            _name(span, pod)
            span.set_attribute("k8s.node.name", node)
            await self._service.bind(pod, uid, node)


def _name(span: Span, pod: ObjectKey) -> None:
    span.set_attributes({"k8s.namespace.name": pod.namespace, "k8s.pod.name": pod.name})
