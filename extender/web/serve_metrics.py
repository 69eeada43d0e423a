"""The figures of `berth serve`: its calls, its memory, its writes."""

from __future__ import annotations

from extender.extension import Service
from extender.web.metrics import COMMON, COUNTER, GAUGE, HISTOGRAM, SUMMARY, MetricSource

READINGS: tuple[MetricSource[Service], ...] = (
    *COMMON,
    MetricSource("berth_nodes", GAUGE, "Nodes known", lambda s: len(s.cache.store.nodes)),
    MetricSource(
        "berth_nodes_unbuilt",
        GAUGE,
        "Nodes whose view cannot be built; Berth keeps the view they had before",
        lambda s: len(s.cache.failed_nodes),
    ),
    MetricSource("berth_slices", GAUGE, "ResourceSlices known", lambda s: len(s.cache.store.slices)),
    MetricSource("berth_claims", GAUGE, "ResourceClaims known", lambda s: len(s.cache.store.claims)),
    MetricSource(
        "berth_claims_in_flight", GAUGE, "Claims being bound now", lambda s: len(s.cache.reservations.in_flight)
    ),
    MetricSource(
        "berth_waiting_pods",
        GAUGE,
        "Pods whose last filter was refused",
        lambda s: s.filter_service.unschedulable_count,
    ),
    MetricSource(
        "berth_refusals_total",
        COUNTER,
        "Filters that refused every node, by the code of the reason that most nodes had",
        lambda s: {(code,): count for code, count in s.filter_service.unschedulable_reasons.items()},
        ("code",),
    ),
    MetricSource(
        "berth_budgets_exhausted_total",
        COUNTER,
        "Budgets of evaluation that ended before the work did",
        lambda s: float(s.filter_service.throttle.exhausted),
    ),
    MetricSource(
        "berth_unfinished_demands",
        GAUGE,
        "Demands whose evaluation goes on in the background",
        lambda s: s.filter_service.unfinished_demands,
    ),
    MetricSource("berth_holds", GAUGE, "Pods for which filter holds devices", lambda s: s.cache.reservations.holds),
    MetricSource(
        "berth_shapes",
        GAUGE,
        "Distinct demands whose ranking of all nodes is remembered",
        lambda s: len(s.filter_service.rankings),
    ),
    MetricSource(
        "berth_verdicts",
        GAUGE,
        "Verdicts remembered, one per demand and distinct state of a node",
        lambda s: s.filter_service.rankings.groups,
    ),
    MetricSource(
        "berth_evaluations_total",
        COUNTER,
        "Searches made for a verdict that was not remembered",
        lambda s: s.filter_service.rankings.evaluations,
    ),
    MetricSource(
        "berth_fence_wait_seconds",
        SUMMARY,
        "Waits of binds until the watch showed their writes",
        lambda s: (s.binder.write_barrier.waits, s.binder.write_barrier.seconds),
    ),
    MetricSource(
        "berth_fence_losses_total",
        COUNTER,
        "Binds that gave way to an earlier write of the same device",
        lambda s: s.binder.write_barrier.losses,
    ),
    MetricSource(
        "berth_policy_generation",
        GAUGE,
        "Policies put in force since the start",
        lambda s: s.filter_service.policy_generation,
    ),
    MetricSource(
        "berth_policy_refused",
        GAUGE,
        "1 while the policy file is wrong and the last good one stays in force",
        lambda s: float(bool(s.filter_service.policy_problem)),
    ),
    MetricSource(
        "berth_wakes_total",
        COUNTER,
        "Times the marker class was touched so that waiting pods are tried again",
        lambda s: s.requeuer.touches,
    ),
    MetricSource(
        "berth_claims_deallocated_total",
        COUNTER,
        "Claims deallocated because their pod cannot go where they are allocated",
        lambda s: s.orphans.deallocated,
    ),
    MetricSource(
        "berth_claims_collected_total",
        COUNTER,
        "Allocations by Berth that nobody reserved, taken back",
        lambda s: s.orphans.collected,
    ),
    MetricSource(
        "berth_extended_claims_removed_total",
        COUNTER,
        "Special claims of extended resources left by attempts that ended half way, deleted",
        lambda s: s.orphans.removed,
    ),
    MetricSource(
        "berth_claims_kept_total",
        COUNTER,
        "Claims not taken back, as a fresh read showed them changed or in use",
        lambda s: s.orphans.skipped,
    ),
    MetricSource(
        "berth_call_seconds",
        HISTOGRAM,
        "Seconds to answer a call of kube-scheduler, by verb and HTTP status",
        lambda s: s.calls.values(),
        ("verb", "status"),
    ),
    MetricSource(
        "berth_records_lost_total",
        COUNTER,
        "Records for the console that were dropped before they could be sent",
        lambda s: s.outbox.lost if s.outbox is not None else 0.0,
    ),
    MetricSource(
        "berth_records_failures_total",
        COUNTER,
        "Requests with records that the console did not take",
        lambda s: s.outbox.failures if s.outbox is not None else 0.0,
    ),
)
