"""Answers filter and prioritize from the newest snapshot.

No function here awaits, so the cache cannot change while a request is answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial

from cachetools import LRUCache

from extender.allocation import NodeInfo, Snapshot
from extender.cache import ClusterCache
from extender.extension.attempt_reasons import GangNodes, main_code, name_gangs
from extender.extension.evaluation_throttle import EvaluationLimits, EvaluationThrottle
from extender.extension.holds import hold
from extender.extension.queueing_hints import QueueingHints
from extender.extension.shortlist_scores import ShortlistScores
from extender.extension.sinks import FilterSink
from extender.extension.unfinished_evaluations import UnfinishedEvaluation, UnfinishedEvaluations
from extender.extension.unschedulable_pods import UnschedulablePods
from extender.model import UNLIMITED, CallBudget, CallBudgetSpent, Code, NodeSelector, Pod, Reason
from extender.policy import Policy
from extender.scheduling import (
    CollectedDomain,
    EvaluationContext,
    Evaluator,
    FilterStatus,
    NodeRanking,
    Pending,
    Placement,
    PodRequirements,
    RankingCache,
    Skip,
    UnschedulableAndUnresolvable,
    evaluate,
    leftover_claims,
    proximity_of,
    requirements_of,
    scores,
    shortlist,
)
from extender.wire import has_all

_REMEMBERED_PODS = 4096  # bound of the shortlists, of the unschedulable pods and of the unfinished evaluations


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The answer to a filter request.

    `passed` lists the names of the nodes that passed; None means that every node passes. `failed` maps the name of a
    node to its reason. `error` is empty unless kube-scheduler should try the pod again.
    """

    passed: list[str] | None = None
    failed: dict[str, str] = field(default_factory=dict)
    error: str = ""


class FilterService:
    """Answers filter and prioritize from the cache, and holds devices in the cache for the pods that passed.

    `clock` returns seconds. `remembered_pods` bounds each memory that has an entry for each pod.
    """

    def __init__(
        self,
        cache: ClusterCache,
        policy: Policy,
        evaluator: Evaluator,
        clock: Callable[[], float],
        sink: FilterSink | None = None,
        remembered_pods: int = _REMEMBERED_PODS,
        rankings: RankingCache | None = None,
        limits: EvaluationLimits | None = None,
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._sink = sink or FilterSink()
        self._evaluator = evaluator
        self.rankings = rankings if rankings is not None else RankingCache()
        # Filter requests that no node passed, by the code of the most frequent reason.
        self.unschedulable_reasons: Counter[str] = Counter()
        self.shortlist_scores = ShortlistScores(remembered_pods)
        self.unschedulable = UnschedulablePods(remembered_pods)
        self.limits = limits or EvaluationLimits()
        self.throttle = EvaluationThrottle(self.limits, clock)
        self._unfinished = UnfinishedEvaluations(remembered_pods)
        self._deleted_pods: LRUCache[str, None] = LRUCache(remembered_pods)  # by UID
        self.queueing_hints = QueueingHints(
            cache, self.unschedulable, self.rankings, self.evaluation, self._postpone, self.kept_from
        )
        self.policy_generation = 0
        self._collected: CollectedDomain | None = None
        self.policy_problem = ""  # why Berth does not use the newest policy file; empty if it does
        self.use_policy(policy)

    def use_policy(self, policy: Policy) -> None:
        """Use this policy for all later requests. Remembered results of the old policy are dropped.

        If a step fails on a bug, the old policy stays.
        """
        digest = policy.digest
        self.rankings.clear()
        self._unfinished.clear()
        self._cache.set_live_memory_seconds(policy.live_memory_seconds)
        self.policy, self.policy_digest, self.policy_problem = policy, digest, ""
        self.policy_generation += 1

    @property
    def collected(self) -> CollectedDomain | None:
        """The domain whose nodes are kept for a waiting gang; None if there is none."""
        return self._collected

    def keep_for_gang(self, collected: CollectedDomain | None) -> None:
        """Keep the nodes of a domain for a gang from now on, in place of those kept before."""
        self._collected = collected

    def reject_policy(self, problem: str) -> None:
        """Note why the newest policy file is not valid. The last valid policy stays in force."""
        self.policy_problem = problem

    def filter(self, pod: Pod, names: Sequence[str], gang_nodes: GangNodes = ()) -> FilterResult:
        """Answer a filter request: the best few of the named nodes, or a reason for each node.

        The devices of the first node are held for the pod. An earlier hold of the pod ends. The reason of a node in
        `gang_nodes` names the gang.
        """
        if not pod.may_need_devices:
            return FilterResult()
        released = self._cache.release(pod.uid)
        answer = self._filter(pod, names, gang_nodes)
        if released:  # the pod may now hold other devices than before
            self._cache.freed()
        return answer

    def _filter(self, pod: Pod, names: Sequence[str], gang_nodes: GangNodes) -> FilterResult:
        snapshot = self._cache.snapshot()
        requirements = requirements_of(pod, snapshot, self.policy)
        match requirements:
            case Skip():
                return FilterResult()
            case Pending():
                return FilterResult(error=requirements.message)
            case UnschedulableAndUnresolvable():
                text = str(requirements.reason)
                if requirements.reason.code is Code.EXTENDED_STALE:
                    for leftover in leftover_claims(pod, snapshot):
                        self._sink.stale_special(leftover)
                self.unschedulable_reasons[requirements.reason.code.name] += 1
                return FilterResult([], dict.fromkeys(names, text))
            case PodRequirements():
                return self._filter_with_requirements(pod, requirements, snapshot, names, gang_nodes)

    def _filter_with_requirements(
        self, pod: Pod, requirements: PodRequirements, snapshot: Snapshot, names: Sequence[str], gang_nodes: GangNodes
    ) -> FilterResult:
        ranking = self.rankings.get_or_create(requirements)
        if not self.update_ranking(pod, requirements, ranking, snapshot):
            of = len(snapshot.node_infos)
            text = str(Reason(Code.UNFINISHED, (str(min(ranking.nodes, of)), str(of))))
            return FilterResult(error=f"pod {pod.key}: {text}")
        selected = self._evaluator.selected_nodes(requirements)
        found = shortlist(ranking, requirements, snapshot, names, self._collected, selected)
        if not found.nodes:
            self.queueing_hints.add(pod.uid, requirements, snapshot.version)
            self._report_unsuitable(pod, requirements, snapshot, names)
            for_gangs = name_gangs(found.reasons, gang_nodes)
            self.unschedulable_reasons[main_code(ranking, found.reasons, self._collected, for_gangs).name] += 1
            return FilterResult([], found.reasons)
        self.unschedulable.remove(pod.uid)
        listed = {name: placement.score for name, placement in found.nodes.items()}
        self.shortlist_scores.put(pod, listed)
        self._hold(pod, requirements, snapshot, *next(iter(found.nodes.items())))
        # Pods that share a claim are sent to the node of its hold, so kube-scheduler gets no other node to choose.
        shared = any(self._cache.store.is_shared(claim.key) for claim in requirements.pending_claims)
        return FilterResult(list(listed)[:1] if shared else list(listed))

    def kept_from(self, requirements: PodRequirements) -> frozenset[str]:
        """The nodes that are kept for a gang, and that the pod must not use."""
        return self._collected.kept_from(requirements) if self._collected is not None else frozenset()

    def update_ranking(self, pod: Pod, requirements: PodRequirements, ranking: NodeRanking, snapshot: Snapshot) -> bool:
        """Evaluate every node within the budget of one call.

        False if the budget ended first, or if it ended for equal requirements less than `retry_seconds` ago.
        """
        namespace, seconds = pod.key.namespace, self.policy.evaluation_seconds
        known = self._unfinished.get(requirements)
        if known is not None and known.gave_up and self._clock() < known.retry_at:
            self._unfinished.add(requirements, pod.uid)
            return False
        budget = self.throttle.budget(namespace, seconds, seconds, known=ranking.complete)
        done = ranking.update(snapshot, self.evaluation_context(snapshot, budget))
        if done and requirements.claim_selectors:
            done = self._evaluator.selected_nodes(requirements).compare(snapshot.node_infos, budget)
        self.throttle.charge(namespace, budget, seconds)
        if not done:
            self._postpone(requirements, [pod.uid])
        elif ranking.stale:
            self._unfinished.add(requirements, pod.uid).gave_up = False
            self._sink.unfinished()
        elif known is not None:
            self._unfinished.done(requirements)
        return done

    def _postpone(self, requirements: PodRequirements, uids: Sequence[str]) -> None:
        """Have the background evaluator continue an evaluation of the pods `uids` whose budget ended."""
        for uid in uids:
            left = self._unfinished.add(requirements, uid)
            left.gave_up, left.retry_at = True, self._clock() + self.limits.retry_seconds
        self._sink.unfinished()

    def continue_evaluation(self) -> bool:
        """Do one stretch of the work that earlier calls left unfinished. True if work is left.

        Raises a bug with one evaluation after it is dropped: the next filter request for one of its pods begins again.
        """
        has_time = cache(self.has_time)  # a namespace may have thousands of evaluations, and no time
        one = self._unfinished.next(lambda one: not one.gave_up or has_time(one.namespace))
        if one is None:
            return bool(self._unfinished)
        # A filter request may come after the deletion of its pod.
        for uid in [uid for uid in one.pods if uid not in self._cache.store.pods]:
            self._unfinished.forget_pod(uid)
        if one.pods:
            try:
                self._continue(one)
            except Exception:
                self._unfinished.done(one.requirements)
                raise
        return bool(self._unfinished)

    def _continue(self, one: UnfinishedEvaluation) -> None:
        seconds, snapshot = self.policy.evaluation_seconds, self._cache.snapshot()
        ranking = self.rankings.get_or_create(one.requirements)
        budget = self.throttle.budget(one.namespace, self.limits.stretch_seconds, seconds)
        if not one.gave_up:
            budget = CallBudget(self.limits.stretch_seconds, self.limits.steps, self._clock)
        context = self.evaluation_context(snapshot, budget)
        done = ranking.update(snapshot, context)
        if one.gave_up:
            self.throttle.charge(one.namespace, budget, seconds)
        if done and one.gave_up:
            one.gave_up = False
            kept = self.kept_from(one.requirements)
            if any(uid in self.unschedulable for uid in one.pods) and ranking.best(None, 1, kept):
                self._sink.fits()
        if done and ranking.refresh(snapshot, context):
            self._unfinished.done(one.requirements)

    def _report_unsuitable(
        self, pod: Pod, requirements: PodRequirements, snapshot: Snapshot, names: Sequence[str]
    ) -> None:
        """Report the allocated claims that the orphan collector should deallocate: the pod fits on no node with them.

        PostFilter of the in-tree plugin does the same. A claim is reported in two cases: a bind of Berth allocated it
        for this pod alone, or its allocation allows none of the named nodes and serves only this pod or its PodGroup.
        A request with one node proves nothing about the other nodes: it may be about the nominated node.
        """
        if not requirements.allocated_claims or (len(names) == 1 and len(snapshot.node_infos) > 1):
            return
        allows_one = cache(partial(_allows_one, snapshot, names))  # claims with devices of one pool have equal pins
        with self.evaluation(pod.key.namespace) as context, suppress(CallBudgetSpent):
            for claim in requirements.allocated_claims:
                context.budget.check_time()  # the selectors of 64 claims may take long
                others = [consumer for consumer in claim.reserved_for if consumer.uid != pod.uid]
                # The orphan collector reads whether a member of the PodGroup is bound.
                of_group = all((consumer.resource, consumer.name) == ("podgroups", pod.group) for consumer in others)
                pin = claim.allocation.node_selector if claim.allocation is not None else None
                if (claim.ours and not others) or (of_group and pin is not None and not allows_one(pin)):
                    self._sink.unsuitable(claim)

    def _hold(
        self, pod: Pod, requirements: PodRequirements, snapshot: Snapshot, node: str, placement: Placement
    ) -> None:
        deadline = self._clock() + requirements.policy.hold_seconds
        hold(self._cache, pod.uid, requirements, snapshot.node_infos[node], placement, deadline)

    def prioritize(self, pod: Pod, names: Sequence[str]) -> list[tuple[str, int]]:
        """The score of each named node, 0 to 10.

        The pod's last filter request computed the scores. A new evaluation would count the pod's own hold against
        the node of the hold.
        """
        known = self.shortlist_scores.scores(pod.uid, names)
        if known is not None:
            return scores(known, names)
        snapshot = self._cache.snapshot()
        requirements = requirements_of(pod, snapshot, self.policy)
        if isinstance(requirements, PodRequirements):
            ranking = self.rankings.get_or_create(requirements)
            if self.update_ranking(pod, requirements, ranking, snapshot):
                return scores({name: p.score for name, p in ranking.best(set(names), len(names))}, names)
        return [(name, 0) for name in names]

    def evaluate_node(
        self, requirements: PodRequirements, node: str, snapshot: Snapshot, budget: CallBudget
    ) -> FilterStatus | None:
        """The status of one node on a snapshot, for bind. None if the node is unknown. Raises CallBudgetSpent."""
        node_info = snapshot.node_infos.get(node)
        if node_info is None:
            return None
        proximity = proximity_of(requirements, snapshot)
        status = self.status_of(requirements, node_info, self.evaluation_context(snapshot, budget))
        return (
            proximity.with_proximity(status, node_info, requirements)
            if proximity is not None and isinstance(status, Placement)
            else status
        )

    def has_time(self, namespace: str, *, for_plan: bool = False) -> bool:
        """Whether the namespace has evaluation time left, with `for_plan` enough for a full call."""
        seconds = self.policy.evaluation_seconds
        return self.throttle.has_tokens(namespace, seconds if for_plan else 0.0, seconds)

    @contextmanager
    def evaluation(
        self, namespace: str, *, for_plan: bool = False, for_bind: PodRequirements | None = None
    ) -> Iterator[EvaluationContext]:
        """An evaluation context: for one step of a search, or for a bind; for a plan its budget is always full."""
        seconds = self.policy.evaluation_seconds
        # Filter accepted the pod of a bind. But a tenant may replace its claims before the bind.
        ranking = self.rankings.peek(for_bind) if for_bind else None
        known = for_bind is None or (ranking is not None and ranking.complete)
        budget = self.throttle.budget(namespace, seconds, seconds, on_credit=for_bind is not None, known=known)
        if for_plan:  # a plan with a smaller budget would fail, and leave nothing but its evaluations
            budget = CallBudget(seconds, self.limits.steps, self._clock)
        try:
            yield self.evaluation_context(self._cache.snapshot(), budget)
        finally:
            self.throttle.charge(namespace, budget, seconds, is_step=not (for_plan or for_bind))

    def earn(self, namespace: str) -> None:
        """Give the namespace the evaluation time that it earns when a pod of it is bound with new devices."""
        self.throttle.earn(namespace, self.policy.evaluation_seconds)

    def status_of(self, requirements: PodRequirements, node_info: NodeInfo, context: EvaluationContext) -> FilterStatus:
        """The status of one node, from the ranking if there is one. Raises CallBudgetSpent."""
        ranking = self.rankings.peek(requirements)
        if ranking is not None:
            return ranking.evaluate(node_info, context)
        return evaluate(node_info, requirements.for_node(node_info.node), context)

    @property
    def unfinished_evaluations(self) -> int:
        """How many evaluations of pod requirements continue in the background."""
        return len(self._unfinished)

    def forget_deleted(self) -> None:
        """Drop what is remembered about deleted slices and deleted pods."""
        store = self._cache.store
        self._evaluator.forget_slices(store.deleted_slices)
        for uid in store.deleted_pods:
            self.forget_pod(uid)
            self._deleted_pods[uid] = None
        store.deleted_slices.clear()
        store.deleted_pods.clear()

    def is_gone(self, uid: str) -> bool:
        """Whether the watch has shown that the pod is deleted or bound. No later event would end what it gets."""
        return uid in self._deleted_pods if (pod := self._cache.store.pods.get(uid)) is None else pod.deleting

    def forget_pod(self, uid: str) -> None:
        """Drop what is remembered about a pod that is bound or deleted."""
        self.unschedulable.remove(uid)
        self.shortlist_scores.forget(uid)
        self._unfinished.forget_pod(uid)

    def remembered(self) -> dict[str, int]:
        """The number of remembered entries of each kind; `ranking_bytes` is an estimate in bytes."""
        return {
            "rankings": len(self.rankings),
            "ranking_bytes": self.rankings.estimated_bytes,
            "statuses": self.rankings.statuses,
            "shortlists": len(self.shortlist_scores),
            "unschedulable": len(self.unschedulable),
            **self._evaluator.remembered(),
        }

    def evaluation_context(self, snapshot: Snapshot, budget: CallBudget = UNLIMITED) -> EvaluationContext:
        """The context for evaluations on a snapshot. `budget` limits their work."""
        return self._evaluator.evaluation_context(snapshot, budget)


def _allows_one(snapshot: Snapshot, names: Sequence[str], pin: NodeSelector) -> bool:
    """Whether the node selector of an allocation matches one of the named nodes."""
    named = names if pin.node is None else [pin.node] if has_all(names, [pin.node]) else []
    found = (node_info.node for name in named if (node_info := snapshot.node_infos.get(name)) is not None)
    return any(pin.matches(node.name, node.labels) for node in found)
