"""The metrics of `berth serve`: its calls, its memory, its writes."""

from __future__ import annotations

from extender.extension import Service
from extender.web.metrics import COMMON, COUNTER, GAUGE, HISTOGRAM, SUMMARY, MetricSource

METRICS: tuple[MetricSource[Service], ...] = (
    *COMMON,
    MetricSource("berth_nodes", GAUGE, "Nodes in the cache", lambda s: len(s.cache.store.nodes)),
    MetricSource(
        "berth_nodes_unbuilt",
        GAUGE,
        "Nodes whose NodeInfo cannot be built; Berth keeps their last NodeInfo",
        lambda s: len(s.cache.failed_nodes),
    ),
    MetricSource("berth_slices", GAUGE, "ResourceSlices in the cache", lambda s: len(s.cache.slices.published)),
    MetricSource("berth_claims", GAUGE, "ResourceClaims in the cache", lambda s: len(s.cache.store.claims)),
    MetricSource(
        "berth_claims_in_flight",
        GAUGE,
        "Claims that running binds write",
        lambda s: len(s.cache.reservations.in_flight),
    ),
    MetricSource(
        "berth_waiting_pods",
        GAUGE,
        "Pods whose last filter request no node passed",
        lambda s: len(s.filter_service.unschedulable),
    ),
    MetricSource(
        "berth_refusals_total",
        COUNTER,
        "Filter requests that no node passed, by the code of the most frequent reason",
        lambda s: {(code,): count for code, count in s.filter_service.unschedulable_reasons.items()},
        ("code",),
    ),
    MetricSource(
        "berth_evaluations_queued_total",
        COUNTER,
        "Evaluations and plans of gangs that took longer than a call, so that the queue continues them",
        lambda s: s.evaluations.queued,
    ),
    MetricSource(
        "berth_unfinished_demands",
        GAUGE,
        "Evaluations and plans of gangs in the queue",
        lambda s: s.evaluations.waiting,
    ),
    MetricSource(
        "berth_holds",
        GAUGE,
        "Pods that have devices held since their filter request",
        lambda s: s.cache.reservations.holds,
    ),
    MetricSource(
        "berth_shapes",
        GAUGE,
        "Distinct pod requirements whose ranking of all nodes is remembered",
        lambda s: len(s.filter_service.rankings),
    ),
    MetricSource(
        "berth_verdicts",
        GAUGE,
        "Remembered evaluations, one per pod requirements and distinct state of a node",
        lambda s: s.filter_service.rankings.statuses,
    ),
    MetricSource(
        "berth_evaluations_total",
        COUNTER,
        "Evaluations of a node state that was not remembered",
        lambda s: s.filter_service.rankings.evaluations,
    ),
    MetricSource(
        "berth_gangs_forming", GAUGE, "Gangs with a plan that are being bound", lambda s: len(s.gangs.forming)
    ),
    MetricSource(
        "berth_gangs_waiting",
        GAUGE,
        "Gangs that wait for members or for room, by the code of the reason",
        lambda s: {(code,): count for code, count in s.gangs.admission.reasons().items()},
        ("code",),
    ),
    MetricSource(
        "berth_gang_collecting",
        GAUGE,
        "Nodes whose freed devices are kept for a gang that waits for room",
        lambda s: s.gangs.collecting.nodes,
    ),
    MetricSource("berth_gang_plans_total", COUNTER, "Plans of gangs that were made", lambda s: s.gangs.counts.plans),
    MetricSource(
        "berth_gangs_not_planned_total",
        COUNTER,
        "Attempts to plan a gang that found no plan, by the code of the reason",
        lambda s: {(code,): count for code, count in s.gangs.counts.no_plan.items()},
        ("code",),
    ),
    MetricSource(
        "berth_gangs_failed_total",
        COUNTER,
        "Plans of gangs that ended before the minimum could be bound",
        lambda s: s.gangs.counts.failed,
    ),
    MetricSource(
        "berth_gang_bind_seconds",
        SUMMARY,
        "Seconds from the first filter request of a complete gang until its minimum was bound",
        lambda s: (s.gangs.counts.bound, s.gangs.counts.seconds),
    ),
    MetricSource(
        "berth_fence_wait_seconds",
        SUMMARY,
        "Seconds that binds waited until the watch showed their writes",
        lambda s: (s.binder.write_barrier.waits, s.binder.write_barrier.seconds),
    ),
    MetricSource(
        "berth_fence_losses_total",
        COUNTER,
        "Binds that failed because an earlier write had a device, or may have had it",
        lambda s: s.binder.write_barrier.losses,
    ),
    MetricSource(
        "berth_bind_failures_total",
        COUNTER,
        "Binds that failed, by the class of the error: the API server's, as Forbidden, or Berth's, as DeviceLost",
        lambda s: {(error,): count for error, count in s.binder.failures.items()},
        ("error",),
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
        "1 while the policy file is not valid and the last valid policy stays in force",
        lambda s: float(bool(s.filter_service.policy_problem)),
    ),
    MetricSource(
        "berth_wakes_total",
        COUNTER,
        "Updates of the marker DeviceClass that made kube-scheduler requeue waiting pods",
        lambda s: s.requeuer.touches,
    ),
    MetricSource(
        "berth_claims_deallocated_total",
        COUNTER,
        "Claims deallocated because their pod cannot run on the nodes of the allocation, or lacks another claim",
        lambda s: s.orphans.unsuitable,
    ),
    MetricSource(
        "berth_claims_collected_total",
        COUNTER,
        "Claims deallocated because Berth's allocation was never reserved",
        lambda s: s.orphans.without_consumer,
    ),
    MetricSource(
        "berth_extended_claims_removed_total",
        COUNTER,
        "Special claims of extended resources deleted after binds that did not complete",
        lambda s: s.orphans.removed,
    ),
    MetricSource(
        "berth_claims_kept_total",
        COUNTER,
        "Claims not taken back because a fresh read showed them changed or in use",
        lambda s: s.orphans.skipped,
    ),
    MetricSource(
        "berth_call_seconds",
        HISTOGRAM,
        "Seconds to answer a call of kube-scheduler, by verb and HTTP status",
        lambda s: s.calls.values(),
        ("verb", "status"),
    ),
)
