"""The figures of `berth serve`: its calls, its memory, its writes."""

from __future__ import annotations

from extender.service.service import Service
from extender.web.metrics import COMMON, COUNTER, GAUGE, HISTOGRAM, SUMMARY, Reading

READINGS: tuple[Reading[Service], ...] = (
    *COMMON,
    Reading("berth_nodes", GAUGE, "Nodes known", lambda s: len(s.mirror.store.nodes)),
    Reading("berth_nodes_unbuilt", GAUGE, "Nodes whose view cannot be built; Berth keeps the view they had before",
            lambda s: len(s.mirror.unbuilt)),
    Reading("berth_slices", GAUGE, "ResourceSlices known", lambda s: len(s.mirror.store.slices)),
    Reading("berth_claims", GAUGE, "ResourceClaims known", lambda s: len(s.mirror.store.claims)),
    Reading("berth_claims_in_flight", GAUGE, "Claims being bound now", lambda s: len(s.mirror.ledger.in_flight)),
    Reading("berth_waiting_pods", GAUGE, "Pods whose last filter was refused", lambda s: s.judge.waiting),
    Reading("berth_refusals_total", COUNTER, "Filters that refused every node, by the code of the reason that most nodes had",
            lambda s: {(code,): count for code, count in s.judge.refusals.items()}, ("code",)),
    Reading("berth_budgets_exhausted_total", COUNTER, "Budgets of evaluation that ended before the work did",
            lambda s: float(s.judge.throttle.exhausted)),
    Reading("berth_unfinished_demands", GAUGE, "Demands whose evaluation goes on in the background",
            lambda s: s.judge.unfinished_demands),
    Reading("berth_holds", GAUGE, "Pods for which filter holds devices", lambda s: s.mirror.ledger.holds),
    Reading("berth_shapes", GAUGE, "Distinct demands whose ranking of all nodes is remembered", lambda s: len(s.judge.rankings)),
    Reading("berth_verdicts", GAUGE, "Verdicts remembered, one per demand and distinct state of a node", lambda s: s.judge.rankings.groups),
    Reading("berth_evaluations_total", COUNTER, "Searches made for a verdict that was not remembered", lambda s: s.judge.rankings.evaluations),
    Reading("berth_fence_wait_seconds", SUMMARY, "Waits of binds until the watch showed their writes",
            lambda s: (s.binder.fence.waits, s.binder.fence.seconds)),
    Reading("berth_fence_losses_total", COUNTER, "Binds that gave way to an earlier write of the same device", lambda s: s.binder.fence.losses),
    Reading("berth_policy_generation", GAUGE, "Policies put in force since the start", lambda s: s.judge.policy_generation),
    Reading("berth_policy_refused", GAUGE, "1 while the policy file is wrong and the last good one stays in force",
            lambda s: float(bool(s.judge.policy_problem))),
    Reading("berth_wakes_total", COUNTER, "Times the marker class was touched so that waiting pods are tried again",
            lambda s: s.waker.touches),
    Reading("berth_claims_deallocated_total", COUNTER,
            "Claims deallocated because their pod cannot go where they are allocated", lambda s: s.collector.deallocated),
    Reading("berth_claims_collected_total", COUNTER,
            "Allocations by Berth that nobody reserved, taken back", lambda s: s.collector.collected),
    Reading("berth_extended_claims_removed_total", COUNTER,
            "Special claims of extended resources left by attempts that ended half way, deleted", lambda s: s.collector.removed),
    Reading("berth_claims_kept_total", COUNTER,
            "Claims not taken back, as a fresh read showed them changed or in use", lambda s: s.collector.kept),
    Reading("berth_call_seconds", HISTOGRAM, "Seconds to answer a call of kube-scheduler, by verb and HTTP status",
            lambda s: s.calls.values(), ("verb", "status")),
    Reading("berth_records_lost_total", COUNTER, "Records for the console that were dropped before they could be sent",
            lambda s: s.outbox.lost if s.outbox is not None else 0.0),
    Reading("berth_records_failures_total", COUNTER, "Requests with records that the console did not take",
            lambda s: s.outbox.failures if s.outbox is not None else 0.0),
)
