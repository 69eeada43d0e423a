"""Explains groups on the newest snapshot, also for the pods that are placed with their group."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from extender.allocation import Snapshot
from extender.cache import ClusterCache
from extender.console.active_policy import ActivePolicy
from extender.console.decision_history import DecisionHistory
from extender.diagnosis import (
    GangExplanation,
    GangHistory,
    MemberHistory,
    PlannerCaches,
    Scenario,
    apply_scenario,
    explain_gang,
    groups_named,
)
from extender.model import (
    SCHEDULER,
    BerthError,
    CallBudget,
    GroupKey,
    Membership,
    ObjectKey,
    Pod,
    name_on_claims,
    one_line,
)
from extender.policy import Policy
from extender.scheduling import EvaluationContext, Evaluator, GangMemory, RankingCache

_MEMORY_BYTES = 4 << 20  # of evaluations for gangs
_ALONE = ("no-gang", "runs")  # outcomes of groups whose waiting pods are placed one by one
_NO_MEMBERS: Mapping[GroupKey, Membership] = MappingProxyType({})


class UnknownGroup(BerthError):
    """No pod that waits names a group of this name, and no claim has devices for one."""


class GroupExplainer:
    """Each method blocks the event loop for as long as its work takes, `seconds` at most.

    `rankings` follow the snapshots of the cache under the active policy. `held_at` has the time of each hold by the UID
    of its claim, as RFC 3339.
    """

    def __init__(
        self,
        cache: ClusterCache,
        evaluator: Evaluator,
        history: DecisionHistory,
        policy: ActivePolicy,
        rankings: RankingCache,
        held_at: Mapping[str, str],
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._evaluator = evaluator
        self._history = history
        self._policy = policy
        self._caches = PlannerCaches(rankings, GangMemory(_MEMORY_BYTES))
        self._held_at = held_at
        self._clock = clock

    def named(
        self,
        key: ObjectKey,
        scenario: Scenario,
        seconds: float,
        bound_members: Mapping[GroupKey, Membership] = _NO_MEMBERS,
    ) -> list[GangExplanation]:
        """Explain the groups of this name as if the scenario were real. They share the work limit.

        `bound_members` is what a bound pod of each group says, for groups of which no pod waits. Raises UnknownGroup.
        """
        snapshot = self._cache.snapshot()
        groups = groups_named(snapshot, key.namespace, key.name)
        if not groups:
            raise UnknownGroup(f"no pod that waits, and no claim with devices, belongs to a group {one_line(str(key))}")
        changed = apply_scenario(snapshot, (), scenario)
        context, caches = self._context(changed, seconds), self._caches if changed is snapshot else _new_caches()
        return [
            self._explain(group, pods, changed, context, caches, self._policy.policy, bound_members.get(group))
            for group, pods in groups.items()
        ]

    def of_member(self, pod: Pod, scenario: Scenario, policy: Policy | None, seconds: float) -> GangExplanation | None:
        """Explain the group with which a waiting pod is placed; None if the pod is placed alone."""
        membership = pod.membership
        if membership is None or not pod.is_waiting or pod.scheduler != SCHEDULER:
            return None
        snapshot = self._cache.snapshot()
        has_name = bool(membership.key.name)  # else an annotation about a group is all that the pod has
        pods = [other for other in snapshot.pods.values() if _is_in(other, membership.key)] if has_name else [pod]
        changed = apply_scenario(snapshot, (), scenario)
        caches = self._caches if changed is snapshot and policy is None else _new_caches()
        context, chosen = self._context(changed, seconds), policy or self._policy.policy
        found = self._explain(membership.key, pods, changed, context, caches, chosen)
        return found if found.outcome not in _ALONE else None

    def of_bound(self, pod: ObjectKey, uid: str) -> str:
        """The group of a bound pod as namespace/name, by its claims; '' if they name none."""
        for claim in self._cache.store.claims.values():
            if claim.group and any(consumer.uid == uid for consumer in claim.reserved_for):
                return f"{pod.namespace}/{name_on_claims(claim.group)}"
        return ""

    def _context(self, snapshot: Snapshot, seconds: float) -> EvaluationContext:
        budget = CallBudget(seconds, sys.maxsize, self._clock)
        budget.mark_progress()
        return self._evaluator.evaluation_context(snapshot, budget)

    def _explain(
        self,
        key: GroupKey,
        pods: Sequence[Pod],
        snapshot: Snapshot,
        context: EvaluationContext,
        caches: PlannerCaches,
        policy: Policy,
        bound_member: Membership | None = None,
    ) -> GangExplanation:
        entries = [entry for pod in pods if (entry := self._history.entry(pod.uid)) is not None]
        members = {
            entry.uid: MemberHistory(tuple(entry.attempts), entry.first_at, entry.complete_at) for entry in entries
        }
        history = GangHistory(members, self._held_at)
        return explain_gang(key, pods, snapshot, policy, context, caches, history, bound_member)


def _new_caches() -> PlannerCaches:
    return PlannerCaches(RankingCache(), GangMemory())


def _is_in(pod: Pod, key: GroupKey) -> bool:
    return pod.membership is not None and pod.membership.key == key
