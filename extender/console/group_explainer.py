"""Explains groups on the newest snapshot, also for the pods that are placed with their group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from extender.allocation import Snapshot
from extender.cache import ClusterCache
from extender.console.active_policy import ActivePolicy
from extender.explain import (
    GangExplanation,
    PlannerCaches,
    Scenario,
    apply_scenario,
    explain_gang,
    explain_job,
    groups_named,
    jobs_named,
    with_new_group,
)
from extender.manifests import HypotheticalGroup
from extender.model import (
    SCHEDULER,
    BerthError,
    Deadline,
    GroupKey,
    Membership,
    ObjectKey,
    Pod,
    one_line,
)
from extender.policy import Policy
from extender.scheduling import MOST_TOGETHER, EvaluationContext, Evaluator, GangMemory, RankingCache, gang_minimum

_MEMORY_BYTES = 4 << 20  # of evaluations for gangs
_ALONE = ("no-gang", "runs")  # outcomes of groups whose waiting pods are placed one by one
_EXISTS = "the cluster has a group {0} already, whose devices stay in use here: berth explain group {0} explains it"
_UNKNOWN = (
    "no pod that waits, and no claim with devices, belongs to a group {}; "
    "the pods of a Job or a JobSet are a group only with the annotation berth.dev/group-min"
)
_NO_MEMBERS: Mapping[GroupKey, Membership] = MappingProxyType({})


class UnknownGroup(BerthError):
    """No pod that waits names a group of this name, and no claim has devices for one."""


class GroupExplainer:
    """Each method blocks its caller for as long as its work takes, `seconds` at most.

    `rankings` follow the snapshots of the cache under the active policy.
    """

    def __init__(
        self,
        cache: ClusterCache,
        evaluator: Evaluator,
        policy: ActivePolicy,
        rankings: RankingCache,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._evaluator = evaluator
        self._policy = policy
        self._caches = PlannerCaches(rankings, GangMemory(_MEMORY_BYTES))
        self._clock = clock

    def named(
        self,
        key: ObjectKey,
        scenario: Scenario,
        seconds: float,
        bound_members: Mapping[GroupKey, Membership] = _NO_MEMBERS,
    ) -> list[GangExplanation]:
        """Explain the groups of this name as if the scenario were real. They share the work limit.

        `bound_members` has the membership of a bound pod of each group of which no pod waits. Raises UnknownGroup.
        """
        snapshot = self._cache.snapshot()
        groups = groups_named(snapshot, key.namespace, key.name)
        if not groups:
            jobs = jobs_named(snapshot, key.namespace, key.name)
            if not jobs:
                raise UnknownGroup(_UNKNOWN.format(one_line(str(key))))
            return [explain_job(job, pods, snapshot) for job, pods in jobs.items()]
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

    def hypothetical(
        self, group: HypotheticalGroup, scenario: Scenario, policy: Policy | None, seconds: float
    ) -> GangExplanation:
        """Explain a group that does not exist yet, as if its pods, their claims and the scenario were real.

        The result lists no members. Raises WireError if two of its pods have one name.
        """
        key, snapshot, began = group.key, self._cache.snapshot(), self._clock()
        minimum = gang_minimum(group.membership, with_new_group(snapshot, key, (), group.policies))
        members = []
        for one in group.members(MOST_TOGETHER, minimum):
            if self._clock() - began >= seconds:
                text = f"group {key}: the request takes more than the work limit; ask again with fewer groups or pods"
                return GangExplanation(str(key), key.source.value, "unfinished", text, minimum)
            members.append(one)
        if not members:
            text = f"group {key} has no pods: the manifests create none"
            return GangExplanation(str(key), key.source.value, "waiting", text, minimum)
        pods = [replace(one.pod, scheduler=SCHEDULER) for one in members]
        changed = with_new_group(snapshot, key, pods, group.policies)
        changed = apply_scenario(changed, (claim for one in members for claim in one.claims), scenario)
        context = self._context(changed, seconds - (self._clock() - began))
        found = self._explain(key, pods, changed, context, _new_caches(), policy or self._policy.policy)
        exists = snapshot.claims_of_group(key) or any(_is_in(pod, key) for pod in snapshot.pods.values())
        notes = [*_size_notes(group, len(pods)), *([_EXISTS.format(key)] if exists else [])]
        if any(one.pod.scheduler != SCHEDULER for one in members):
            notes.append(f"Berth places its pods only with schedulerName {SCHEDULER}, which they lack")
        return replace(found, sentence="; ".join([found.sentence, *notes]), members=())

    def _context(self, snapshot: Snapshot, seconds: float) -> EvaluationContext:
        deadline = Deadline(seconds, self._clock)
        return self._evaluator.evaluation_context(snapshot, deadline)

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
        return explain_gang(key, pods, snapshot, policy, context, caches, bound_member)


def _new_caches() -> PlannerCaches:
    return PlannerCaches(RankingCache(), GangMemory())


def _size_notes(group: HypotheticalGroup, made: int) -> Iterator[str]:
    """The assumptions of the explanation about the number of pods and groups."""
    if group.size is None:
        yield f"the manifests do not say how many pods it gets: {made} are assumed"
    elif group.size > made:
        yield f"of its {group.size} pods, Berth plans {made} together and places the others one by one"
    if group.alike > 1:
        yield f"the manifests create {group.alike} such groups: this is the plan of one"


def _is_in(pod: Pod, key: GroupKey) -> bool:
    return pod.membership is not None and pod.membership.key == key
