"""The metrics of `berth console`: the fleet and the audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from extender.console import Console
from extender.explain import CHECKS, FleetStats
from extender.web.metrics import COMMON, COUNTER, GAUGE, SUMMARY, MetricSource, Value


def _by_product(read: Callable[[FleetStats], float]) -> Callable[[Console], Mapping[tuple[str, ...], Value]]:
    return lambda s: {(product,): read(stats) for product, stats in s.fleet_sampler.stats.items()}


def _findings_of(check: str) -> Callable[[Console], Value]:
    return lambda s: s.auditor.by_check()[check]


METRICS: tuple[MetricSource[Console], ...] = (
    *COMMON,
    MetricSource(
        "berth_decisions_left_out_total",
        COUNTER,
        "Pods that left the watch and that the console did not read, because too many left it at once",
        lambda s: s.decision_reader.left_out,
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
