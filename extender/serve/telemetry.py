"""The durations of kube-scheduler's calls, and optional OpenTelemetry traces.

The ID of a pod's trace is the pod's UID, for every replica of serve. So one trace has all filter, prioritize and bind
calls of the pod. Without `--traces`, no code of OpenTelemetry runs.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING

from extender import __version__
from extender.base.berth_errors import BerthError, WireError

if TYPE_CHECKING:
    from opentelemetry.trace import Span

# Called with (pod UID, span name); returns a context that lasts as long as the span.
SpanFactory = Callable[[str, str], AbstractContextManager[object]]

_EXPORT_SECONDS = 3.0  # bounds the shutdown if the trace collector does not answer


def no_span(uid: str, name: str) -> AbstractContextManager[object]:
    """The SpanFactory without traces."""
    del uid, name
    return nullcontext()


class Traces:
    """Spans of pods. A thread of OpenTelemetry sends them in batches."""

    def __init__(self, url: str) -> None:
        """`url` is the OTLP/HTTP address of a collector.

        Raises WireError if `url` has no HTTP scheme, BerthError if the packages are not installed.
        """
        if not url.startswith(("http://", "https://")):
            raise WireError("--traces", f"must be http://HOST:PORT or https://HOST:PORT, is {url!r}")
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise BerthError(f"--traces needs more packages ({error}): pip install 'berth[traces]'") from error
        exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=_EXPORT_SECONDS)
        self._api = trace
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "berth", "service.version": __version__})
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("berth", __version__)

    @contextmanager
    def span(self, uid: str, name: str, attributes: Mapping[str, str | int] | None = None) -> Iterator[Span]:
        """A child of the current span, or of the pod's span if there is none. An error inside sets its status."""
        running = self._api.get_current_span()
        above = None if running.get_span_context().is_valid else self._api.set_span_in_context(self._pod(uid))
        with self._tracer.start_as_current_span(name, above, attributes=attributes) as span:
            yield span

    def _pod(self, uid: str) -> Span:
        """The parent span that stands for the pod. Its IDs are made of the pod's UID. It is never sent."""
        try:
            number = uuid.UUID(uid).int
        except ValueError:
            return self._api.INVALID_SPAN
        flags = self._api.TraceFlags(self._api.TraceFlags.SAMPLED)
        return self._api.NonRecordingSpan(
            self._api.SpanContext(number, number & (1 << 64) - 1, is_remote=True, trace_flags=flags)
        )

    def failed(self, span: Span, why: str) -> None:
        """Set the status of a span to an error."""
        span.set_status(self._api.StatusCode.ERROR, why)

    def close(self) -> None:
        """Send the remaining spans, for 3 s at most."""
        self._provider.shutdown()


# Seconds; kube-scheduler waits at least 5.
BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_NAMES = (*map(str, BOUNDS), "+Inf")


class CallDurations:
    """A histogram of the durations of kube-scheduler's calls for each verb and HTTP status, for /metrics.

    Only the event loop uses it, so there is no lock.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Bucketed] = {}

    def observe(self, verb: str, status: int, seconds: float) -> None:
        """Count a call that took `seconds`."""
        calls = self._known.get((verb, status))
        if calls is None:
            calls = self._known[verb, status] = _Bucketed()
        calls.counts[bisect_left(BOUNDS, seconds)] += 1
        calls.seconds += seconds

    def values(self) -> dict[tuple[str, ...], tuple[list[tuple[str, float]], float]]:
        """(verb, status) to ([(bound, cumulative number of calls), ...], sum of seconds). The last bound is +Inf."""
        return {
            (verb, str(status)): (list(zip(_NAMES, map(float, accumulate(calls.counts)), strict=True)), calls.seconds)
            for (verb, status), calls in self._known.items()
        }


class _Bucketed:
    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
