"""Answers filter and prioritize from the newest snapshot.

A filter request: what the pod needs (`requirements_of`); the ranking of all nodes for these requirements, which equal
pods share (`RankingCache`), brought up to date for what changed since; of it, the best few of the named nodes
(`shortlist`). The devices on the first of them are held for the pod, so that the next request does not promise them
again. Prioritize answers with the scores that filter found. If the evaluation does not end within the call's time, the
answer is an error, with which kube-scheduler tries the pod again, and the queue goes on (`Evaluations`). If no node
fits, each node has its reason, and the pod is remembered until a change makes it fit (`serve/wake.py`).

A status is what one node says to one pod's requirements: a Placement, or why it is Unschedulable. A deadline is the end
of the time for finding statuses (`Evaluations` gives it), and a context is a deadline with what a snapshot adds.

No function here awaits, so the cache cannot change while a request is answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial

from cachetools import LRUCache

from extender.allocation import NodeInfo, Snapshot
from extender.api.extender_v1 import has_all
from extender.api.nodes import NodeSelector
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey
from extender.api.pods import Pod
from extender.api.reasons import Code, Reason
from extender.api.resource_claims import Claim
from extender.base.deadline import Deadline, DeadlineExceeded
from extender.base.fair_lru import FairLRU
from extender.cache import ClusterCache
from extender.policy import Policy
from extender.scheduling import (
    EvaluationContext,
    Evaluator,
    FilterStatus,
    NodeRanking,
    Placement,
    PodRequirements,
    RankingCache,
    beside_own,
    evaluate,
    requirements_of,
)
from extender.scheduling.requirements import ErrorStatus, Skip, UnschedulableAndUnresolvable, leftover_claims
from extender.scheduling.shortlist import CollectedDomain, DevicelessScores, proximity_of, scores, shortlist, with_cpu
from extender.serve.evaluations import Evaluations

MAX_PODS = 4096  # in each memory that has an entry for each pod


class UnschedulablePods:
    """Pods that fitted no node in their last filter request, by equivalence class; berth_waiting_pods counts them.

    The pods of a class fit on the same nodes, and belong to one namespace, which pays for their evaluations. At most
    MAX_PODS, see FairLRU: the namespace with the most loses the one that was rejected longest ago.

    A pod with large claims counts as several: its requirements keep the claims after their deletion.
    """

    def __init__(self) -> None:
        # UID to equivalence class; the pods of one class have claims of one size.
        self._pods: FairLRU[str, Hashable] = FairLRU(MAX_PODS, lambda key: self._classes[key][0].counts_as)
        self.searched: dict[str, int] = {}  # version of the snapshot that the last search covered, by namespace
        # Key of the equivalence class to the requirements of one of its pods, and the UIDs of all its pods.
        self._classes: dict[Hashable, tuple[PodRequirements, dict[str, None]]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def add(self, uid: str, requirements: PodRequirements, version: int) -> None:
        """Remember a pod that fits on no node of the snapshot `version`.

        If no other pod of its namespace waits, the next search starts there.
        """
        if requirements.namespace not in self.namespaces:
            self.searched[requirements.namespace] = version
        self.remove(uid)
        key = requirements.namespace, requirements.key, requirements.node_selectors
        self._classes.setdefault(key, (requirements, {}))[1][uid] = None
        for dropped in self._pods.put(requirements.namespace, uid, key):
            self._remove_pod(*dropped)

    def remove(self, uid: str) -> None:
        """Forget a pod that fits now, or that is bound or deleted."""
        key = self._pods.pop(uid)
        if key is not None:
            self._remove_pod(uid, key)

    def _remove_pod(self, uid: str, key: Hashable) -> None:
        pods = self._classes[key][1]
        del pods[uid]
        if not pods:
            del self._classes[key]

    def uids(self) -> list[str]:
        """UIDs of the pods, the namespaces in turn, the longest waiting of each first."""
        return [uid for uid, _ in self._pods.items()]

    @property
    def namespaces(self) -> list[str]:
        """The namespaces with waiting pods."""
        return self._pods.namespaces

    def waiting(self, requirements: PodRequirements) -> list[str]:
        """UIDs of the waiting pods with these requirements."""
        return self.pods((requirements.namespace, requirements.key, requirements.node_selectors))

    def keys(self, namespace: str) -> list[Hashable]:
        """Keys of the equivalence classes of a namespace that have waiting pods, the longest waiting first."""
        return list(dict.fromkeys(key for _, key in self._pods.of(namespace)))

    def requirements(self, key: Hashable) -> PodRequirements | None:
        """The requirements of one pod of an equivalence class; None if no pod of it waits."""
        found = self._classes.get(key)
        return found[0] if found is not None else None

    def pods(self, key: Hashable) -> list[str]:
        """UIDs of the waiting pods of an equivalence class."""
        return list(self._classes[key][1]) if key in self._classes else []


RunnerUp = tuple[str, float]
"""The best node that was not chosen, and how much lower it scored than the chosen one; ('', 0.0) without one."""


class ShortlistScores:
    """The nodes that passed the last filter request of a pod; prioritize and bind read their scores.

    Node names with scores, the best first, for at most MAX_PODS, see FairLRU."""

    def __init__(self) -> None:
        self._known: FairLRU[str, Mapping[str, float]] = FairLRU(MAX_PODS)  # by pod UID

    def __len__(self) -> int:
        return len(self._known)

    def put(self, pod: Pod, scores: Mapping[str, float]) -> None:
        """Remember the nodes of a filter request, in place of those of an earlier one."""
        self._known.put(pod.key.namespace, pod.uid, scores)

    def scores(self, uid: str, names: Collection[str]) -> Mapping[str, float] | None:
        """The scores of the pod's nodes; None if a node in `names` is not one of them."""
        known = self._known.get(uid)
        return known if known is not None and known.keys() >= set(names) else None

    def runner_up(self, uid: str, node: str, last: Collection[str] = ()) -> RunnerUp:
        """The best node of the pod other than `node` and those in `last`, which are no choice whatever their score."""
        known = self._known.get(uid) or {}
        others = [(score, name) for name, score in known.items() if name != node and name not in last]
        if node not in known or not others:
            return "", 0.0
        score, name = max(others, key=lambda other: other[0])
        return name, known[node] - score

    def forget(self, uid: str) -> None:
        """Drop the scores of a pod that is bound or deleted."""
        self._known.pop(uid)


_HELD = str(Reason(Code.HELD))

GangNodes = Iterable[tuple[str, GroupKey]]
"""Each node with devices that are held for a gang, and the gang."""


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The answer to a filter request.

    `passed` lists the names of the nodes that passed; None means that every node passes. `failed` maps the name of a
    node to its reason. `error` is empty unless kube-scheduler should try the pod again.
    """

    passed: list[str] | None = None
    failed: dict[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(slots=True)
class FilterSink:
    """What filter requests and gangs call at their events; by default nothing.

    A function must not raise, block, or call the filter service.
    """

    # A rejected pod or gang may fit now, so kube-scheduler should retry the pods that Berth rejected.
    fits: Callable[[], None] = lambda: None
    # A claim is allocated on nodes where its pod cannot run, and no other pod has it reserved.
    unsuitable: Callable[[Claim], None] = lambda _: None
    # A special claim is left over from a bind that did not complete.
    stale_special: Callable[[ObjectKey], None] = lambda _: None


class FilterService:
    """Answers filter and prioritize from the cache, and holds devices in the cache for the pods that passed.

    `clock` returns seconds.
    """

    def __init__(
        self,
        cache: ClusterCache,
        policy: Policy,
        evaluator: Evaluator,
        evaluations: Evaluations,
        clock: Callable[[], float],
        sink: FilterSink | None = None,
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._sink = sink or FilterSink()
        self.evaluator = evaluator
        self.rankings = RankingCache()
        # berth_refusals_total: filter requests that no node passed, by the code of the most frequent reason.
        self.unschedulable_reasons: Counter[str] = Counter()
        self.shortlist_scores = ShortlistScores()
        self.unschedulable = UnschedulablePods()
        self.evaluations = evaluations
        self._deleted_pods: LRUCache[str, None] = LRUCache(MAX_PODS)  # by UID
        self.policy_generation = 0
        self._deviceless = DevicelessScores()
        self.collected: CollectedDomain | None = None  # its nodes are kept for a waiting gang
        self.policy_problem = ""  # why Berth does not use the newest policy file; empty if it does
        self.use_policy(policy)

    def use_policy(self, policy: Policy) -> None:
        """Use this policy for all later requests. Remembered results of the old policy are dropped.

        If a step fails on a bug, the old policy stays.
        """
        self.rankings.clear()
        self.evaluations.seconds = policy.evaluation_seconds
        self._cache.slices.agents.use_seconds(policy.live_memory_seconds)
        self.policy, self.policy_problem = policy, ""
        self.policy_generation += 1

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
        try:
            snapshot = self._cache.snapshot()
            requirements = requirements_of(pod, snapshot, self.policy)
            match requirements:
                case Skip():
                    return FilterResult()
                case ErrorStatus():
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
        finally:
            if released:  # the pod may now hold other devices than before
                self._cache.freed()

    def _filter_with_requirements(
        self, pod: Pod, requirements: PodRequirements, snapshot: Snapshot, names: Sequence[str], gang_nodes: GangNodes
    ) -> FilterResult:
        ranking = self.rankings.get_or_create(requirements)
        if not self.update_ranking(pod, requirements, ranking, snapshot):
            of = len(snapshot.node_infos)
            text = str(Reason(Code.UNFINISHED, (str(min(ranking.nodes, of)), str(of))))
            return FilterResult(error=f"pod {pod.key}: {text}")
        selected = self.evaluator.selected_nodes(requirements) if requirements.node_selectors else None
        found = shortlist(ranking, requirements, snapshot, names, self.collected, selected)
        if not found.nodes:
            self.unschedulable.add(pod.uid, requirements, snapshot.version)
            self._report_unsuitable(pod, requirements, snapshot, names)
            for_gangs = _name_gangs(found.reasons, gang_nodes)
            self.unschedulable_reasons[_main_code(ranking, found.reasons, self.collected, for_gangs).name] += 1
            return FilterResult([], found.reasons)
        self.unschedulable.remove(pod.uid)
        listed = {name: placement.score for name, placement in found.nodes.items()}
        self.shortlist_scores.put(pod, listed)
        node, placement = next(iter(found.nodes.items()))
        if requirements.allocated_claims or requirements.promised_claims:
            with self.context_of_call(pod.key.namespace) as context, suppress(DeadlineExceeded):  # bind chooses again
                placement = beside_own(placement, snapshot.node_infos[node], requirements, context)
        node_info, until = snapshot.node_infos[node], self._clock() + requirements.policy.hold_seconds
        claims = requirements.for_node(node_info.node).pending_claims
        self._cache.hold(placement.holds(pod.uid, claims, node_info, until))
        # Pods that share a claim are sent to the node of its hold, so kube-scheduler gets no other node to choose.
        shared = any(self._cache.store.is_shared(claim.key) for claim in requirements.pending_claims)
        return FilterResult(list(listed)[:1] if shared else list(listed))

    def kept_from(self, requirements: PodRequirements) -> frozenset[str]:
        """The nodes that are kept for a gang, and that the pod must not use."""
        return self.collected.kept_from(requirements) if self.collected is not None else frozenset()

    def update_ranking(self, pod: Pod, requirements: PodRequirements, ranking: NodeRanking, snapshot: Snapshot) -> bool:
        """Evaluate every node within this call. False if that takes longer: the queue does the rest."""
        if _queue_key(requirements) in self.evaluations:
            return False
        with self.evaluations.deadline_of_call(requirements.namespace) as deadline:
            done = self._update(requirements, ranking, snapshot, deadline)
        if not done:
            self.queue_evaluation(requirements, pod.uid)
        elif ranking.stale:
            self._queue_refresh(requirements, pod.uid)
        return done

    def _update(
        self, requirements: PodRequirements, ranking: NodeRanking, snapshot: Snapshot, deadline: Deadline
    ) -> bool:
        return ranking.update(snapshot, self.evaluator.evaluation_context(snapshot, deadline)) and (
            not requirements.claim_selectors
            or self.evaluator.selected_nodes(requirements).compare(snapshot.node_infos, deadline)
        )

    def queue_evaluation(self, requirements: PodRequirements, uid: str = "") -> None:
        """Queue the evaluation of all nodes, for the pod `uid` and those that were rejected.

        It ends early if all of them are deleted or bound.
        """
        policy = self.policy_generation

        def work(deadline: Deadline) -> bool:
            snapshot, pods = self._cache.snapshot(), self._cache.store.pods
            waiting = any(one in pods for one in self.unschedulable.waiting(requirements))
            if policy != self.policy_generation or not (waiting or uid in pods):
                return True
            ranking = self.rankings.get_or_create(requirements)
            if not self._update(requirements, ranking, snapshot, deadline):
                return False
            if waiting and ranking.best(None, 1, self.kept_from(requirements)):
                self._sink.fits()
            if ranking.stale:
                self._queue_refresh(requirements, uid)
            return True

        key, size = _queue_key(requirements), requirements.counts_as
        self.evaluations.queue(requirements.namespace, key, work, size)

    def _queue_refresh(self, requirements: PodRequirements, uid: str) -> None:
        """Queue the computation of scores that are out of date. No call waits for it."""

        def work(deadline: Deadline) -> bool:
            ranking, snapshot = self.rankings.peek(requirements), self._cache.snapshot()
            if ranking is None or uid not in self._cache.store.pods:
                return True  # a new policy begins with new rankings
            context = self.evaluator.evaluation_context(snapshot, deadline)
            return ranking.update(snapshot, context) and ranking.refresh(snapshot, context)

        key, size = ("scores", requirements.namespace, requirements.key), requirements.counts_as
        self.evaluations.queue(requirements.namespace, key, work, size, is_awaited=False)

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
        with self.context_of_call(pod.key.namespace) as context, suppress(DeadlineExceeded):
            for claim in requirements.allocated_claims:
                context.deadline.check_time()  # the selectors of 64 claims may take long
                others = [consumer for consumer in claim.reserved_for if consumer.uid != pod.uid]
                # The orphan collector reads whether a member of the PodGroup is bound.
                of_group = all((consumer.resource, consumer.name) == ("podgroups", pod.group) for consumer in others)
                pin = claim.allocation.node_selector if claim.allocation is not None else None
                if (claim.is_of_berth and not others) or (of_group and pin is not None and not allows_one(pin)):
                    self._sink.unsuitable(claim)

    def prioritize(self, pod: Pod, names: Sequence[str]) -> list[tuple[str, int]]:
        """The score of each named node, 0 to 10.

        The pod's last filter request computed the scores. A new evaluation would count the pod's own hold against
        the node of the hold, so a process that did not answer that request scores nothing.
        """
        known = self.shortlist_scores.scores(pod.uid, names)
        if known is not None:
            return scores(known, names)
        snapshot = self._cache.snapshot()
        if isinstance(requirements_of(pod, snapshot, self.policy), Skip):
            return self._deviceless.of(names, snapshot)
        return [(name, 0) for name in names]

    def status_for_bind(
        self, requirements: PodRequirements, node: str, snapshot: Snapshot, deadline: Deadline
    ) -> FilterStatus | None:
        """The status of one node on a snapshot, for bind. None if the node is unknown. Raises DeadlineExceeded."""
        node_info = snapshot.node_infos.get(node)
        if node_info is None:
            return None
        proximity = proximity_of(requirements, snapshot)
        context = self.evaluator.evaluation_context(snapshot, deadline)
        status = self.node_status(requirements, node_info, context)
        if isinstance(status, Placement):
            status = beside_own(status, node_info, requirements, context)
            status = with_cpu(status, node_info, requirements, snapshot)
            status = proximity.with_proximity(status, node_info, requirements) if proximity is not None else status
        return status

    @contextmanager
    def context_of_call(self, namespace: str) -> Iterator[EvaluationContext]:
        """An evaluation context for one call about a pod of this namespace."""
        with self.evaluations.deadline_of_call(namespace) as deadline:
            yield self.evaluation_context(deadline)

    @contextmanager
    def deadline_of_bind(self, requirements: PodRequirements, uid: str) -> Iterator[Deadline]:
        """The deadline for a bind of the pod `uid`. After DeadlineExceeded the queue evaluates the requirements.

        A pod that filter accepted has the time of a whole call. But a tenant may replace its claims before the bind.
        """
        ranking, calls = self.rankings.peek(requirements), self.evaluations
        give = calls.full_deadline if ranking is not None and ranking.complete else calls.deadline_of_call
        try:
            with give(requirements.namespace) as deadline:
                yield deadline
        except DeadlineExceeded:
            self.queue_evaluation(requirements, uid)
            raise

    def evaluation_context(self, deadline: Deadline) -> EvaluationContext:
        """The evaluation context of the newest snapshot."""
        return self.evaluator.evaluation_context(self._cache.snapshot(), deadline)

    def node_status(
        self, requirements: PodRequirements, node_info: NodeInfo, context: EvaluationContext
    ) -> FilterStatus:
        """The status of one node, from the ranking if there is one. Raises DeadlineExceeded."""
        ranking = self.rankings.peek(requirements)
        if ranking is not None:
            return ranking.evaluate(node_info, context)
        return evaluate(node_info, requirements.for_node(node_info.node), context)

    def forget_deleted(self) -> None:
        """Drop what is remembered about deleted slices and deleted pods."""
        self.evaluator.forget_slices(self._cache.slices.deleted)
        for uid in self._cache.store.deleted_pods:
            self.unschedulable.remove(uid)
            self.shortlist_scores.forget(uid)
            self._deleted_pods[uid] = None
        self._cache.slices.deleted.clear()
        self._cache.store.deleted_pods.clear()

    def is_gone(self, uid: str) -> bool:
        """Whether the watch has shown that the pod is deleted or bound. No later event would end what it gets."""
        return uid in self._deleted_pods if (pod := self._cache.store.pods.get(uid)) is None else pod.deleting

    def remembered(self) -> dict[str, int]:
        """The number of remembered entries of each kind; `ranking_bytes` is an estimate in bytes."""
        return {
            "rankings": len(self.rankings),
            "ranking_bytes": self.rankings.estimated_bytes,
            "statuses": self.rankings.statuses,
            "shortlists": len(self.shortlist_scores),
            "unschedulable": len(self.unschedulable),
            **self.evaluator.remembered(),
        }


def _allows_one(snapshot: Snapshot, names: Sequence[str], pin: NodeSelector) -> bool:
    """Whether the node selector of an allocation matches one of the named nodes."""
    named = names if pin.node is None else [pin.node] if has_all(names, [pin.node]) else []
    found = (node_info.node for name in named if (node_info := snapshot.node_infos.get(name)) is not None)
    return any(pin.matches(node.name, node.labels) for node in found)


def _queue_key(requirements: PodRequirements) -> Hashable:
    """The key of a queued evaluation. That of one namespace does not delay equal requirements of another."""
    return "evaluation", requirements.namespace, requirements.key


def _name_gangs(reasons: dict[str, str], gang_nodes: GangNodes) -> int:
    """Name the gang in the reason of each node whose devices are held for it. Returns the number of these nodes."""
    found = {node: key for node, key in gang_nodes if reasons.get(node) == _HELD}
    reasons.update({node: str(Reason(Code.HELD_FOR_GANG, (str(key),))) for node, key in found.items()})
    return len(found)


def _main_code(
    ranking: NodeRanking, reasons: dict[str, str], collected: CollectedDomain | None, for_gangs: int
) -> Code:
    """The code that the metric counts.

    `reasons` maps each named node to its reason. `for_gangs` is the number of nodes with devices held for a gang.
    """
    code = ranking.main_reason() or Code.ELSEWHERE
    if collected is not None and str(collected.reason) in reasons.values():
        return Code.COLLECTED_FOR_GANG
    held = for_gangs and code is Code.HELD and for_gangs >= sum(text == _HELD for text in reasons.values())
    return Code.HELD_FOR_GANG if held else code
