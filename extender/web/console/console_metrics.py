"""The metrics of `berth console`: the fleet and the audit."""

from __future__ import annotations

from collections.abc import Callable

from extender.console import CHECKS, Console
from extender.explain.fleet_rows import FleetStats
from extender.web.metrics import COMMON, MetricSource, Value, counter, gauge, summary


def _by_product(name: str, what: str, read: Callable[[FleetStats], float]) -> MetricSource[Console]:
    """A figure of the fleet, by product of the GPUs."""
    return gauge(
        name,
        f"{what}, by product",
        lambda s: {(product,): read(stats) for product, stats in s.fleet_sampler.stats.items()},
        "product",
    )


def _findings_of(check: str) -> Callable[[Console], Value]:
    return lambda s: s.auditor.by_check()[check]


METRICS: tuple[MetricSource[Console], ...] = (
    *COMMON,
    counter(
        "berth_decisions_left_out_total",
        "Pods that left the watch and that the console did not read, because too many left it at once",
        lambda s: s.decision_reader.left_out,
    ),
    counter("berth_events_total", "Events written", lambda s: s.event_recorder.events),
    gauge("berth_agents", "Nodes with a ResourceSlice of the agent", lambda s: len(s.cache.slices.fabric)),
    gauge(
        "berth_agents_silent",
        "Agents silent for so long that Berth ignores their figures of free memory",
        lambda s: len(s.cache.slices.agents.silent),
    ),
    gauge(
        "berth_agent_age_seconds",
        "Seconds since the last heartbeat of the agent with the oldest one, silent agents excluded",
        lambda s: s.cache.slices.agents.oldest(s.clock()),
    ),
    _by_product("berth_gpus", "GPUs, and parts of GPUs that no driver publishes whole", lambda f: f.gpus),
    _by_product("berth_gpus_free", "GPUs without an allocation or a hold, not even of a share", lambda f: f.free),
    _by_product(
        "berth_gpus_closed",
        "GPUs in no use with a device taint, tolerated or not, or whose node takes no pods",
        lambda f: f.closed,
    ),
    _by_product("berth_gpus_drifting", "GPUs whose memory is in use although no claim has them", lambda f: f.drifting),
    _by_product("berth_gpus_unhealthy", "GPUs that their agent reports as unhealthy", lambda f: f.unhealthy),
    _by_product(
        "berth_largest_free_nvlink_set",
        "Size of the largest set of free GPUs that links, such as NVLink, join in one ring on a node",
        lambda f: f.largest_set,
    ),
    _by_product("berth_gpu_memory_unclaimed_bytes", "Memory that no claim has allocated", lambda f: f.unclaimed_bytes),
    _by_product(
        "berth_gpu_memory_live_free_bytes", "Memory that the agents report as free", lambda f: f.live_free_bytes
    ),
    _by_product(
        "berth_gpus_stranded",
        "Free GPUs, counted in fractions, that a typical recent job cannot use on their node",
        lambda f: f.stranded,
    ),
    summary(
        "berth_bandwidth_ratio",
        "Ratio of the ring bandwidth of bound pods with several GPUs to the best of that size on the free node",
        lambda s: (s.history.joined, s.history.joined_share),
    ),
    *(
        gauge(f"berth_audit_{check.replace('-', '_')}", f"Audit: {sentence}", _findings_of(check))
        for check, sentence in CHECKS.items()
    ),
    gauge(
        "berth_audit_drift",
        "Audit: claims that differed between the cache and the last fresh list",
        lambda s: s.auditor.differing,
    ),
)
