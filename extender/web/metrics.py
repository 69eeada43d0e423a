"""Metrics in Prometheus' text format: the metrics of both processes, and the answer to a scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from extender.cluster import ApiClient
from extender.runtime.supervisor import Supervisor
from extender.web.asgi import Answer

if TYPE_CHECKING:
    from extender.runtime.informers import Informers  # it loads the cache, which the node agent does not need

GAUGE, COUNTER, SUMMARY, HISTOGRAM = GaugeMetricFamily, CounterMetricFamily, SummaryMetricFamily, HistogramMetricFamily
Family = CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily | HistogramMetricFamily
S_contra = TypeVar("S_contra", contravariant=True)
S = TypeVar("S")

_COPY_SECONDS = 1.0  # for which one text answers all requests


Histogram = tuple[Sequence[tuple[str, float]], float]
"""([(bound as text, cumulative number of calls), ...], sum of seconds). The last bound is +Inf."""
Value = float | tuple[float, float] | Histogram
"""The value of a summary is the pair (count, sum)."""
Reader = Callable[[S_contra], Value | Mapping[tuple[str, ...], Value]]


@dataclass(frozen=True, slots=True)
class MetricSource(Generic[S_contra]):
    """One metric. `value` reads it from a source: one value, or with labels a mapping of label values to values."""

    name: str
    family: type[Family]
    help: str
    value: Reader[S_contra]
    labels: tuple[str, ...] = ()


def gauge(name: str, what: str, value: Reader[S], *labels: str) -> MetricSource[S]:
    return MetricSource(name, GAUGE, what, value, labels)


def counter(name: str, what: str, value: Reader[S], *labels: str) -> MetricSource[S]:
    return MetricSource(name, COUNTER, what, value, labels)


def summary(name: str, what: str, value: Reader[S], *labels: str) -> MetricSource[S]:
    return MetricSource(name, SUMMARY, what, value, labels)


def histogram(name: str, what: str, value: Reader[S], *labels: str) -> MetricSource[S]:
    return MetricSource(name, HISTOGRAM, what, value, labels)


class Supervised(Protocol):
    """Every process has a supervisor."""

    @property
    def supervisor(self) -> Supervisor: ...


class Process(Supervised, Protocol):
    """The attributes that serve and console share."""

    @property
    def informers(self) -> Informers: ...
    @property
    def client(self) -> ApiClient: ...


TASK_FAILURES: MetricSource[Supervised] = counter(
    "berth_task_failures_total",
    "Failures of a background task, which is then restarted, and bugs with one object, which do not end it",
    lambda s: {(name,): float(count) for name, count in s.supervisor.failures.items()},
    "task",
)
COMMON: tuple[MetricSource[Process], ...] = (
    gauge("berth_ready", "1 once every kind is listed", lambda s: float(not s.informers.not_ready)),
    TASK_FAILURES,
    counter(
        "berth_api_requests_total",
        "Requests to the API server other than watches, by method and HTTP status (empty: no answer)",
        lambda s: {key: float(count) for key, count in s.client.answers.items()},
        "method",
        "status",
    ),
    gauge(
        "berth_watch_silence_seconds",
        "Seconds since the last event on the watch of a kind, bookmarks included",
        lambda s: {(name,): r.silence for name, r in s.informers.reflectors.items()},
        "kind",
    ),
    gauge(
        "berth_watch_failures",
        "Consecutive failures of list or watch of a kind",
        lambda s: {(name,): float(r.failures) for name, r in s.informers.reflectors.items()},
        "kind",
    ),
    counter(
        "berth_lists_total",
        "Complete lists of a kind; a list after the first means that a watch was lost, or showed nothing for 5 minutes",
        lambda s: {(name,): float(r.lists) for name, r in s.informers.reflectors.items()},
        "kind",
    ),
    gauge(
        "berth_unreadable_objects",
        "Objects whose newest version cannot be read; Berth keeps the last readable version",
        lambda s: {(name,): float(len(r.unreadable)) for name, r in s.informers.reflectors.items()},
        "kind",
    ),
)


class Scrapes(Collector, Generic[S_contra]):
    """Answers GET /metrics, in the text format 0.0.4, with values that are less than a second old.

    It renders the text, which takes about a millisecond, at most once a second. `clock` returns seconds.
    """

    def __init__(
        self,
        metrics: Sequence[MetricSource[S_contra]],
        source: S_contra,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._source = source
        self._clock = clock
        self._rendered_at = float("-inf")
        self._text = b""

    def answer(self) -> Answer:
        """The answer to one request."""
        now = self._clock()
        if now - self._rendered_at >= _COPY_SECONDS:
            self._text, self._rendered_at = generate_latest(self), now
        return Answer(200, self._text, CONTENT_TYPE_PLAIN_0_0_4.encode())

    def collect(self) -> Iterator[Family]:
        """The metrics as prometheus_client renders them."""
        for metric in self._metrics:
            family: Any = metric.family(metric.name, metric.help, labels=metric.labels)
            found = metric.value(self._source)
            for labels, value in found.items() if isinstance(found, Mapping) else [((), found)]:
                family.add_metric(labels, *(value if isinstance(value, tuple) else (value,)))
            yield family
