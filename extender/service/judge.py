"""Deciding on the live picture: demands, rankings, shortlists. Nothing here waits, so nothing can come between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cachetools import LRUCache

from extender.allocation.view import NodeView, Snapshot
from extender.mirror.mirror import Mirror
from extender.model.budget import UNLIMITED, Budget
from extender.model.claim import Pod
from extender.model.reasons import Code, Reason
from extender.policy import Policy
from extender.service.decisions import FilterSink, NoSink
from extender.service.hints import Hints
from extender.service.throttle import Limits, Throttle
from extender.service.unfinished import Unfinished, UnfinishedDemands
from extender.service.unschedulable import UnschedulablePods
from extender.verdict.demand import Blocked, Demand, NotOurs, NotReady, demand_of, leftover_claim
from extender.verdict.evaluate import Rules, Verdict, evaluate
from extender.verdict.evaluator import Evaluator
from extender.verdict.grants import Grant
from extender.verdict.grouping import nearness
from extender.verdict.ranking import Ranking
from extender.verdict.rankings import Rankings
from extender.verdict.verbs import held_by_claim, scores, shortlist
from extender.wire.names import estimated_len

_REMEMBERED_PODS = 4096  # shortlists kept for prioritize and for pods that wait


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """What filter tells the scheduler. `passed` None means that every name passes untouched."""

    passed: list[str] | None = None
    failed: dict[str, str] = field(default_factory=dict)
    error: str = ""


class Judge:
    """Answers filter and prioritize from the mirror, and keeps the holds that filter places."""

    def __init__(
        self, mirror: Mirror, policy: Policy, evaluator: Evaluator, clock: Callable[[], float],
        sink: FilterSink | None = None, remembered_pods: int = _REMEMBERED_PODS, rankings: Rankings | None = None, limits: Limits | None = None,
    ) -> None:
        self._mirror = mirror
        self._clock = clock
        self._sink = sink or NoSink()
        self._evaluator = evaluator
        self.rankings = rankings if rankings is not None else Rankings()
        self.refusals: Counter[str] = Counter()  # filters that refused every node, by the code of the main reason
        self._shortlists: LRUCache[str, dict[str, float]] = LRUCache(remembered_pods)
        self._rejected = UnschedulablePods(remembered_pods)
        self.limits = limits or Limits()
        self.throttle = Throttle(self.limits, clock)
        self._unfinished = UnfinishedDemands(remembered_pods)
        self.hints = Hints(mirror, self._rejected, self.rankings, self._evaluation, self._postpone)
        self.policy_generation = 0
        self.policy_problem = ""  # why the newest policy file is not in force
        self.use_policy(policy)

    def use_policy(self, policy: Policy) -> None:
        """From now on decide by this policy."""
        self.policy = policy
        self.policy_digest = policy.digest
        self.policy_generation += 1
        self.policy_problem = ""
        self._mirror.believe_agents_for(policy.live_memory_seconds)
        self.rankings.clear()
        self._unfinished.clear()

    def refuse_policy(self, problem: str) -> None:
        """The newest policy is wrong; the last good one stays in force."""
        self.policy_problem = problem

    def filter(self, pod: Pod, names: Sequence[str]) -> FilterAnswer:
        """Where the pod's claims can be served: the best few nodes, the first of them held."""
        if not pod.may_need_devices:
            return FilterAnswer()
        self._mirror.expire(self._clock())
        released = self._mirror.release(pod.uid)
        answer = self._judged(pod, names)
        if released:  # the pod may hold other devices now
            self._mirror.freed()
        return answer

    def _judged(self, pod: Pod, names: Sequence[str]) -> FilterAnswer:
        snapshot = self._mirror.snapshot()
        demand = demand_of(pod, snapshot, self.policy)
        match demand:
            case NotOurs():
                return FilterAnswer()
            case NotReady():
                return FilterAnswer(error=demand.message)
            case Blocked():
                text = str(demand.reason)
                leftover = leftover_claim(pod, snapshot)
                if demand.reason.code is Code.EXTENDED_STALE and leftover is not None:
                    self._sink.stale_special(leftover)
                self._sink.attempted(pod, 0, len(names), [(text, len(names))])
                self.refusals[demand.reason.code.name] += 1
                return FilterAnswer([], dict.fromkeys(names, text))
            case Demand():
                return self._shortlisted(pod, demand, snapshot, names)

    def _shortlisted(self, pod: Pod, demand: Demand, snapshot: Snapshot, names: Sequence[str]) -> FilterAnswer:
        ranking = self.rankings.at_hand(demand)
        if not self._follow(pod, demand, ranking, snapshot):
            text = str(_unfinished(ranking, snapshot))
            self._sink.attempted(pod, 0, len(names), [(text, len(names))])
            return FilterAnswer(error=f"pod {pod.key}: {text}")
        found = shortlist(ranking, demand, snapshot, names)
        if not found.nodes:
            self.hints.rejected(pod.uid, demand, snapshot.version)
            self._escape(pod, demand, snapshot, names)
            self._sink.attempted(pod, 0, len(names), ranking.refused().items())
            self.refusals[(ranking.main_refusal() or Code.ELSEWHERE).name] += 1
            return FilterAnswer([], found.reasons)
        self._rejected.remove(pod.uid)
        self._shortlists[pod.uid] = {name: grant.score for name, grant in found.nodes}
        self._sink.attempted(pod, len(found.nodes), estimated_len(names))
        self._hold(pod, demand, snapshot, *found.nodes[0])
        # Pods that share a claim follow its hold: kube-scheduler must not prefer another node for the first of them.
        shared = any(self._mirror.store.is_shared(claim.key) for claim in demand.open)
        return FilterAnswer([name for name, _ in (found.nodes[:1] if shared else found.nodes)])

    def _follow(self, pod: Pod, demand: Demand, ranking: Ranking, snapshot: Snapshot) -> bool:
        """Judge every node within the budget of a call; False where that was not enough, or lately was not."""
        namespace, seconds, known = pod.key.namespace, self.policy.evaluation_seconds, self._unfinished.get(demand)
        if known is not None and known.gave_up and self._clock() < known.retry_at:
            self._unfinished.add(demand, pod.uid)
            return False
        budget = self.throttle.budget(namespace, seconds, seconds)
        done = ranking.follow(snapshot, self.rules(snapshot, budget))
        self.throttle.charge(namespace, budget, seconds)
        if not done:
            self._postpone(demand, [pod.uid])
        elif ranking.stale:
            self._unfinished.add(demand, pod.uid).gave_up = False
            self._sink.unfinished()
        elif known is not None:
            self._unfinished.done(demand)
        return done

    def _postpone(self, demand: Demand, uids: Sequence[str]) -> None:
        """A budget ended before the demand of these pods was evaluated: that goes on in slices."""
        for uid in uids:
            left = self._unfinished.add(demand, uid)
            left.gave_up, left.retry_at = True, self._clock() + self.limits.retry_seconds
        self._sink.unfinished()

    def go_on(self) -> bool:
        """One slice of work on what calls left unfinished; whether some of it is still left."""
        one = self._unfinished.next(self._may_go_on)
        if one is None:
            return bool(self._unfinished)
        for uid in [uid for uid in one.pods if uid not in self._mirror.store.pods]:  # filtered after they had gone
            self._unfinished.forget_pod(uid)
        if one.pods:
            self._go_on(one)
        return bool(self._unfinished)

    def _may_go_on(self, one: Unfinished) -> bool:
        return not one.gave_up or self.throttle.has_tokens(one.namespace, self.policy.evaluation_seconds)

    def _go_on(self, one: Unfinished) -> None:
        seconds, snapshot = self.policy.evaluation_seconds, self._mirror.snapshot()
        ranking = self.rankings.at_hand(one.demand)
        budget = self.throttle.budget(one.namespace, self.limits.slice_seconds, seconds)
        if not one.gave_up:
            budget = Budget(self.limits.slice_seconds, self.limits.steps, self._clock)
        rules = self.rules(snapshot, budget)
        done = ranking.follow(snapshot, rules)
        if one.gave_up:
            self.throttle.charge(one.namespace, budget, seconds)
        if done and one.gave_up:
            one.gave_up = False
            if any(uid in self._rejected for uid in one.pods) and ranking.best(None, 1):
                self._sink.fits()
        if done and ranking.refresh(snapshot, rules):
            self._unfinished.done(one.demand)

    def _escape(self, pod: Pod, demand: Demand, snapshot: Snapshot, names: Sequence[str]) -> None:
        """A claim that only this pod or its PodGroup uses, allocated where the pod cannot go, is given back (in-tree:
        PostFilter).

        A single name may be the scheduler asking about a nominated node: that says nothing about the others.
        """
        if not demand.settled or (len(names) == 1 and len(snapshot.views) > 1):
            return
        views = [view for name in names if (view := snapshot.views.get(name)) is not None]
        for claim in demand.settled:
            pin = claim.allocation.node_selector if claim.allocation is not None else None
            # The collector finds out whether a member of the PodGroup is bound.
            own = all(c.uid == pod.uid or (c.resource, c.name) == ("podgroups", pod.group) for c in claim.reserved_for)
            if pin is not None and own and not any(pin.matches(v.node.name, v.node.labels) for v in views):
                self._sink.unsuitable(claim)

    def _hold(self, pod: Pod, demand: Demand, snapshot: Snapshot, node: str, grant: Grant) -> None:
        deadline = self._clock() + demand.policy.hold_seconds
        view = snapshot.views[node]
        for claim, results in zip(demand.on(view.node).open, held_by_claim(view, grant), strict=True):
            self._mirror.hold(claim.uid, pod.uid, node, results, deadline)

    def prioritize(self, pod: Pod, names: Sequence[str]) -> list[tuple[str, int]]:
        """0..10 per node. Answered from the pod's last filter, whose hold would otherwise count against its own node."""
        known = self._shortlists.get(pod.uid)
        if known is not None and all(name in known for name in names):
            return scores(known, names)
        snapshot = self._mirror.snapshot()
        demand = demand_of(pod, snapshot, self.policy)
        if not isinstance(demand, Demand):
            return [(name, 0) for name in names]
        ranking = self.rankings.at_hand(demand)
        if not self._follow(pod, demand, ranking, snapshot):
            return [(name, 0) for name in names]
        return scores({name: grant.score for name, grant in ranking.best(set(names), len(names))}, names)

    def runner_up(self, uid: str, node: str) -> tuple[str, float]:
        """The best other node when the pod was filtered last, and how much less it was worth; ('', 0) where there was none."""
        known = self._shortlists.get(uid, {})
        others = [(score, name) for name, score in known.items() if name != node]
        if node not in known or not others:
            return "", 0.0
        score, name = max(others, key=lambda other: other[0])
        return name, known[node] - score

    def decide(self, demand: Demand, node: str, snapshot: Snapshot) -> Verdict | None:
        """The verdict of one node on the newest snapshot, for bind; None for an unknown node. Raises BudgetSpent."""
        view = snapshot.views.get(node)
        if view is None:
            return None
        near, seconds = nearness(demand, snapshot), self.policy.evaluation_seconds
        # A whole budget, whatever the namespace has left: filter let the pod pass.
        budget = Budget(seconds, self.limits.steps, self._clock)
        try:
            verdict = self._evaluate(demand, view, self.rules(snapshot, budget))
        finally:
            self.throttle.charge(demand.namespace, budget, seconds)
        return near.added(verdict, view, demand) if near is not None and isinstance(verdict, Grant) else verdict

    @contextmanager
    def _evaluation(self, demand: Demand) -> Iterator[Rules]:
        """The rules for one step of a look, with a budget of a call."""
        seconds = self.policy.evaluation_seconds
        budget = self.throttle.budget(demand.namespace, seconds, seconds)
        try:
            yield self.rules(self._mirror.snapshot(), budget)
        finally:
            self.throttle.charge(demand.namespace, budget, seconds)

    def _evaluate(self, demand: Demand, view: NodeView, rules: Rules) -> Verdict:
        ranking = self.rankings.peek(demand)
        return ranking.judge(view, rules) if ranking is not None else evaluate(view, demand.on(view.node), rules)

    @property
    def unfinished_demands(self) -> int:
        """Demands whose evaluation goes on in the background."""
        return len(self._unfinished)

    def forget_gone(self) -> None:
        """Drop masks of slices, and what is known of pods, that are gone."""
        store = self._mirror.store
        self._evaluator.forget_slices(store.gone_slices)
        for uid in store.gone_pods:
            self.forget_pod(uid)
        store.gone_slices.clear()
        store.gone_pods.clear()

    def rejected(self) -> list[str]:
        """UIDs of the pods whose last filter was refused, the longest waiting first; without those filtered after they had gone."""
        for uid in self._rejected.uids():
            if uid not in self._mirror.store.pods:
                self._rejected.remove(uid)
        return self._rejected.uids()

    @property
    def waiting(self) -> int:
        """Pods whose last filter was refused."""
        return len(self._rejected)

    def forget_pod(self, uid: str) -> None:
        """The pod is bound or gone."""
        self._rejected.remove(uid)
        self._shortlists.pop(uid, None)
        self._unfinished.forget_pod(uid)

    def remembered(self) -> dict[str, int]:
        """How much of everything is kept in memory."""
        return {
            "rankings": len(self.rankings),
            "ranking_bytes": self.rankings.estimated_bytes,
            "verdicts": self.rankings.groups,
            "shortlists": len(self._shortlists),
            "rejected": len(self._rejected),
            **self._evaluator.remembered(),
        }

    def rules(self, snapshot: Snapshot, budget: Budget = UNLIMITED) -> Rules:
        """What verdicts on a snapshot depend on, and how much work they may take."""
        return self._evaluator.rules(snapshot, budget)


def _unfinished(ranking: Ranking, snapshot: Snapshot) -> Reason:
    return Reason(Code.UNFINISHED, (str(min(ranking.nodes, len(snapshot.views))), str(len(snapshot.views))))
