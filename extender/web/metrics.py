"""/metrics: what the service counts, read when it is asked for, and how long the verbs take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.mirror.audit import KINDS
from extender.service.service import Service

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)  # kube-scheduler waits 5 s or more


class Reading(NamedTuple):
    """One figure of the service."""

    name: str
    kind: type[CounterMetricFamily | GaugeMetricFamily]
    help: str
    value: Callable[[Service], float]


READINGS = (
    Reading("berth_ready", GaugeMetricFamily, "1 when every kind has been listed", lambda s: float(not s.not_ready)),
    Reading("berth_nodes", GaugeMetricFamily, "Nodes known", lambda s: len(s.mirror.store.nodes)),
    Reading("berth_slices", GaugeMetricFamily, "ResourceSlices known", lambda s: len(s.mirror.store.slices)),
    Reading("berth_claims", GaugeMetricFamily, "ResourceClaims known", lambda s: len(s.mirror.store.claims)),
    Reading("berth_claims_in_flight", GaugeMetricFamily, "Claims being bound now", lambda s: len(s.mirror.ledger.in_flight)),
    Reading("berth_drifting_gpus", GaugeMetricFamily, "GPUs whose memory is in use though no claim holds them",
            lambda s: sum(view.drift.bit_count() for view in s.mirror.snapshot().views.values())),
    Reading("berth_waiting_pods", GaugeMetricFamily, "Pods whose last filter was refused", lambda s: s.judge.waiting),
    Reading("berth_holds", GaugeMetricFamily, "Pods for which filter holds devices", lambda s: s.mirror.ledger.holds),
    Reading("berth_policy_generation", GaugeMetricFamily, "Policies put in force since the start", lambda s: s.judge.policy_generation),
    Reading("berth_policy_refused", GaugeMetricFamily, "1 while the policy file is wrong and the last good one stays in force",
            lambda s: float(bool(s.judge.policy_problem))),
    Reading("berth_wakes_total", CounterMetricFamily, "Times the marker class was touched so that waiting pods are tried again",
            lambda s: s.waker.touches),
    Reading("berth_events_total", CounterMetricFamily, "Events written on pods whose reason to wait changed", lambda s: s.teller.events),
    *(
        Reading(f"berth_audit_{kind.replace('-', '_')}", GaugeMetricFamily, f"Audit: {sentence}",
                lambda s, kind=kind: s.auditor.by_kind()[kind])  # type: ignore[misc] # the default binds the kind
        for kind, sentence in KINDS.items()
    ),
    Reading("berth_audit_drift", GaugeMetricFamily, "Audit: claims that the watch had wrong when last compared with a fresh list", lambda s: s.auditor.drifted),
    Reading("berth_claims_deallocated_total", CounterMetricFamily,
            "Claims deallocated because their pod cannot go where they are allocated", lambda s: s.collector.deallocated),
    Reading("berth_claims_collected_total", CounterMetricFamily,
            "Allocations by Berth that nobody reserved, taken back", lambda s: s.collector.collected),
    Reading("berth_extended_claims_removed_total", CounterMetricFamily,
            "Special claims of extended resources left by attempts that ended half way, deleted", lambda s: s.collector.removed),
)
SECONDS = ("berth_call_seconds", "Seconds to answer a call of kube-scheduler, by verb and HTTP status")


class Metrics:
    """One registry per application: two services in one process do not mix."""

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_State(service))
        self._seconds = Histogram(*SECONDS, ["verb", "status"], buckets=_BUCKETS, registry=self._registry)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a call."""
        self._seconds.labels(path[1:], status).observe(seconds)

    def text(self) -> bytes:
        """The exposition format, text/plain version 0.0.4."""
        return generate_latest(self._registry)


class _State(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        for reading in READINGS:
            family = reading.kind(reading.name, reading.help)
            family.add_metric([], reading.value(self._service))
            yield family

    def describe(self) -> Iterable[Metric]:
        """Names only: the service may not be readable yet."""
        return [reading.kind(reading.name, reading.help) for reading in READINGS]
