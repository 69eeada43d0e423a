"""The metrics of `berth serve`: its calls, its memory, its writes."""

from __future__ import annotations

from extender.serve import Service
from extender.web.metrics import COMMON, MetricSource, counter, gauge, histogram, summary

METRICS: tuple[MetricSource[Service], ...] = (
    *COMMON,
    gauge("berth_nodes", "Nodes in the cache", lambda s: len(s.cache.store.nodes)),
    gauge(
        "berth_nodes_unbuilt",
        "Nodes whose NodeInfo cannot be built; Berth keeps their last NodeInfo",
        lambda s: len(s.cache.failed_nodes),
    ),
    gauge("berth_slices", "ResourceSlices in the cache", lambda s: len(s.cache.slices.published)),
    gauge("berth_claims", "ResourceClaims in the cache", lambda s: len(s.cache.store.claims)),
    gauge("berth_claims_in_flight", "Claims that running binds write", lambda s: len(s.cache.reservations.in_flight)),
    gauge(
        "berth_waiting_pods",
        "Pods whose last filter request no node passed",
        lambda s: len(s.filter_service.unschedulable),
    ),
    counter(
        "berth_refusals_total",
        "Filter requests that no node passed, by the code of the most frequent reason",
        lambda s: {(code,): count for code, count in s.filter_service.unschedulable_reasons.items()},
        "code",
    ),
    counter(
        "berth_evaluations_queued_total",
        "Evaluations and plans of gangs that took longer than a call, so that the queue continues them",
        lambda s: s.evaluations.queued,
    ),
    gauge("berth_unfinished_demands", "Evaluations and plans of gangs in the queue", lambda s: s.evaluations.waiting),
    gauge(
        "berth_holds", "Pods that have devices held since their filter request", lambda s: s.cache.reservations.holds
    ),
    gauge(
        "berth_shapes",
        "Distinct pod requirements whose ranking of all nodes is remembered",
        lambda s: len(s.filter_service.rankings),
    ),
    gauge(
        "berth_verdicts",
        "Remembered evaluations, one per pod requirements and distinct state of a node",
        lambda s: s.filter_service.rankings.statuses,
    ),
    counter(
        "berth_evaluations_total",
        "Evaluations of a node state that was not remembered",
        lambda s: s.filter_service.rankings.evaluations,
    ),
    gauge("berth_gangs_forming", "Gangs with a plan that are being bound", lambda s: len(s.gangs.forming)),
    gauge(
        "berth_gangs_waiting",
        "Gangs that wait for members or for room, by the code of the reason",
        lambda s: {(code,): count for code, count in s.gangs.admission.reasons().items()},
        "code",
    ),
    gauge(
        "berth_gang_collecting",
        "Nodes whose freed devices are kept for a gang that waits for room",
        lambda s: s.gangs.collecting.nodes,
    ),
    counter("berth_gang_plans_total", "Plans of gangs that were made", lambda s: s.gangs.counts.plans),
    counter(
        "berth_gangs_not_planned_total",
        "Attempts to plan a gang that found no plan, by the code of the reason",
        lambda s: {(code,): count for code, count in s.gangs.counts.no_plan.items()},
        "code",
    ),
    counter(
        "berth_gangs_failed_total",
        "Plans of gangs that ended before the minimum could be bound",
        lambda s: s.gangs.counts.failed,
    ),
    summary(
        "berth_gang_bind_seconds",
        "Seconds from the first filter request of a complete gang until its minimum was bound",
        lambda s: (s.gangs.counts.bound, s.gangs.counts.seconds),
    ),
    summary(
        "berth_fence_wait_seconds",
        "Seconds that binds waited until the watch showed their writes",
        lambda s: (s.binder.write_barrier.waits, s.binder.write_barrier.seconds),
    ),
    counter(
        "berth_fence_losses_total",
        "Binds that failed because an earlier write had a device, or may have had it",
        lambda s: s.binder.write_barrier.losses,
    ),
    counter(
        "berth_bind_failures_total",
        "Binds that failed, by the class of the error: the API server's, as Forbidden, or Berth's, as DeviceLost",
        lambda s: {(error,): count for error, count in s.binder.failures.items()},
        "error",
    ),
    gauge(
        "berth_policy_generation", "Policies put in force since the start", lambda s: s.filter_service.policy_generation
    ),
    gauge(
        "berth_policy_refused",
        "1 while the policy file is not valid and the last valid policy stays in force",
        lambda s: float(bool(s.filter_service.policy_problem)),
    ),
    counter(
        "berth_wakes_total",
        "Updates of the marker DeviceClass that made kube-scheduler requeue waiting pods",
        lambda s: s.requeuer.touches,
    ),
    counter(
        "berth_claims_deallocated_total",
        "Claims deallocated because their pod cannot run on the nodes of the allocation, or lacks another claim",
        lambda s: s.orphans.unsuitable,
    ),
    counter(
        "berth_claims_collected_total",
        "Claims deallocated because Berth's allocation was never reserved",
        lambda s: s.orphans.without_consumer,
    ),
    counter(
        "berth_extended_claims_removed_total",
        "Special claims of extended resources deleted after binds that did not complete",
        lambda s: s.orphans.removed,
    ),
    counter(
        "berth_claims_kept_total",
        "Claims not released because a fresh read showed them changed or in use",
        lambda s: s.orphans.skipped,
    ),
    histogram(
        "berth_call_seconds",
        "Seconds to answer a call of kube-scheduler, by verb and HTTP status",
        lambda s: s.calls.values(),
        "verb",
        "status",
    ),
)
