"""The metrics of `berth console`: the fleet, the audit, and the records of serve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from extender.console import Console
from extender.diagnosis import CHECKS, FleetStats
from extender.web.metrics import COMMON, COUNTER, GAUGE, SUMMARY, MetricSource, Value


def _by_product(read: Callable[[FleetStats], float]) -> Callable[[Console], Mapping[tuple[str, ...], Value]]:
    return lambda s: {(product,): read(stats) for product, stats in s.fleet_sampler.stats.items()}


def _findings_of(check: str) -> Callable[[Console], Value]:
    return lambda s: s.auditor.by_check()[check]


def _record_faults(console: Console) -> Mapping[tuple[str, ...], Value]:
    faults = console.ingest.counts | Counter(unknown_claims=console.reservations.unknown_claims)
    return {(fault,): float(count) for fault, count in faults.items()}


METRICS: tuple[MetricSource[Console], ...] = (
    *COMMON,
    MetricSource(
        "berth_serve_processes",
        GAUGE,
        "Processes of berth serve that sent records within the last 30 s",
        lambda s: s.ingest.heard,
    ),
    MetricSource(
        "berth_records_taken_total",
        COUNTER,
        "Records of berth serve that the console applied",
        lambda s: s.ingest.taken,
    ),
    MetricSource(
        "berth_records_requests_total",
        COUNTER,
        "Requests with records, by the HTTP status of the answer (version: the records were of an unknown version)",
        lambda s: {(answer,): float(count) for answer, count in s.record_requests.items()},
        ("answer",),
    ),
    MetricSource(
        "berth_records_faults_total",
        COUNTER,
        "Faults of record streams, by kind: repeated, missing or unusable records, ended or evicted processes",
        _record_faults,
        ("fault",),
    ),
    MetricSource("berth_events_total", COUNTER, "Events written", lambda s: s.event_recorder.events),
    MetricSource("berth_agents", GAUGE, "Nodes with a ResourceSlice of the agent", lambda s: len(s.cache.store.fabric)),
    MetricSource(
        "berth_agents_silent",
        GAUGE,
        "Agents silent for so long that Berth ignores their figures of free memory",
        lambda s: len(s.cache.store.silent_agents),
    ),
    MetricSource(
        "berth_agent_age_seconds",
        GAUGE,
        "Seconds since the last heartbeat of the agent with the oldest one, silent agents excluded",
        lambda s: s.cache.oldest_agent(s.clock()),
    ),
    MetricSource(
        "berth_gpus",
        GAUGE,
        "GPUs, and parts of GPUs that no driver publishes whole, by product",
        _by_product(lambda f: f.gpus),
        ("product",),
    ),
    MetricSource(
        "berth_gpus_free",
        GAUGE,
        "GPUs without an allocation or a hold, not even of a share, by product",
        _by_product(lambda f: f.free),
        ("product",),
    ),
    MetricSource(
        "berth_gpus_drifting",
        GAUGE,
        "GPUs whose memory is in use although no claim has them, by product",
        _by_product(lambda f: f.drifting),
        ("product",),
    ),
    MetricSource(
        "berth_gpus_unhealthy",
        GAUGE,
        "GPUs that their agent reports as unhealthy, by product",
        _by_product(lambda f: f.unhealthy),
        ("product",),
    ),
    MetricSource(
        "berth_largest_free_nvlink_set",
        GAUGE,
        "Size of the largest set of free GPUs that NVLink joins in one ring on a node, by product",
        _by_product(lambda f: f.largest_set),
        ("product",),
    ),
    MetricSource(
        "berth_gpu_memory_unclaimed_bytes",
        GAUGE,
        "Memory that no claim has allocated, by product",
        _by_product(lambda f: f.unclaimed_bytes),
        ("product",),
    ),
    MetricSource(
        "berth_gpu_memory_live_free_bytes",
        GAUGE,
        "Memory that the agents report as free, by product",
        _by_product(lambda f: f.live_free_bytes),
        ("product",),
    ),
    MetricSource(
        "berth_gpus_stranded",
        GAUGE,
        "Free GPUs, counted in fractions, that a typical recent job cannot use on their node, by product",
        _by_product(lambda f: f.stranded),
        ("product",),
    ),
    MetricSource(
        "berth_bandwidth_ratio",
        SUMMARY,
        "Ratio of the ring bandwidth of bound pods with several GPUs to the best of that size in the fleet",
        lambda s: (s.history.joined, s.history.joined_share),
    ),
    *(
        MetricSource(
            f"berth_audit_{check.replace('-', '_')}",
            GAUGE,
            f"Audit: {sentence}",
            _findings_of(check),
        )
        for check, sentence in CHECKS.items()
    ),
    MetricSource(
        "berth_audit_drift",
        GAUGE,
        "Audit: claims that differed between the cache and the last fresh list",
        lambda s: s.auditor.differing,
    ),
)
