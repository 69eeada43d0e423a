"""Explains pods and groups on the newest snapshot: those that wait, are bound, or do not exist yet.

`Explainer` has the answers as JSON, and knows when which explanation of extender.explain applies: a pod that is placed
with its group gets the answer about the group, and beside it how it would fare alone. Its methods block their caller
for as long as their work takes, `seconds` at most. questions.py gives them turns, moves long work into a child process
and reads what the cache lacks. `berth explain --snapshot` uses this class alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any

from extender.allocation import Snapshot
from extender.api.fields import Json
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GroupKey, Membership
from extender.api.pods import DECISION_ANNOTATION, SCHEDULER, Pod
from extender.api.resource_claims import Claim
from extender.base.berth_errors import BerthError
from extender.base.deadline import Deadline, DeadlineExceeded
from extender.base.text_limits import error_line, one_line, shown
from extender.cache import ClusterCache
from extender.console.decision_history import DecidedPod, decision_of
from extender.explain import (
    Explanation,
    GangExplanation,
    PlannerCaches,
    explain,
    explain_gang,
    explain_jobs,
    groups_named,
    namespaces_with_group,
    no_devices,
    other_scheduler,
)
from extender.explain.scenario import Scenario, apply_scenario, with_new_group, without_own_holds
from extender.gangs.gang import gang_minimum
from extender.gangs.gang_problem import MAX_TOGETHER
from extender.gangs.node_rooms import GangMemory
from extender.manifests import Hypothetical, HypotheticalGroup
from extender.policy import Policy
from extender.scheduling import EvaluationContext, Evaluator, RankingCache, requirements_of
from extender.scheduling.requirements import Skip

_RANKINGS_BYTES = 32 << 20
_MEMORY_BYTES = 4 << 20  # of evaluations for gangs
_ALONE = ("no-gang", "runs")  # outcomes of groups whose waiting pods are placed one by one
_NO_MEMBERS: Mapping[GroupKey, Membership] = MappingProxyType({})
_EXISTS = "the cluster has a group {0} already, whose devices stay in use here: berth explain group {0} explains it"
_UNKNOWN = (
    "no pod that waits, and no claim with devices, belongs to a group {}; "
    "the pods of a Job or a JobSet are a group only with the annotation berth.dev/group-min"
)


class UnknownPod(BerthError):
    """No pod of this name waits or is bound."""


class UnknownGroup(BerthError):
    """No pod that waits names a group of this name, and no claim has devices for one."""


@dataclass(frozen=True, slots=True)
class Brief:
    """Why a waiting pod is not placed, in one sentence: about its group if it is placed with its group."""

    outcome: str
    sentence: str
    nearest: str  # the cheapest change that would help; if none is known, the sentence about the group, or ''
    group: GroupKey | None = None  # with which the pod is placed; None if it is placed alone


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The assumptions of a question: the scenario counts as real, and the policy as in force.

    `narrated` names a node whose search is explained step by step.
    """

    scenario: Scenario = field(default_factory=Scenario)
    policy: Policy | None = None  # by default the one in force
    narrated: str = ""


_AS_IS = WhatIf()


class Explainer:
    """Explains on the newest snapshot, under `policy` unless the question has its own. `clock` returns seconds."""

    def __init__(
        self,
        cache: ClusterCache,
        evaluator: Evaluator,
        policy: Policy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cache = cache
        self.clock = clock
        self.policy = policy
        self._evaluator = evaluator
        self._caches = PlannerCaches(RankingCache(_RANKINGS_BYTES), GangMemory(_MEMORY_BYTES))

    def use_policy(self, policy: Policy) -> None:
        """Explain under another policy from now on."""
        self.policy = policy
        self._caches.rankings.clear()

    # -- pods --------------------------------------------------------------------------------------------------

    def named(self, text: str, bound: Iterable[ObjectKey] = ()) -> ObjectKey:
        """The pod that `namespace/name` or a name alone refers to. `bound` are the known bound pods of this name.

        Raises UnknownPod if the name is not unique.
        """
        namespace, slash, name = text.partition("/")
        if slash:
            return ObjectKey(namespace, name)
        waiting = {pod.key for pod in self.cache.store.pods.values() if pod.key.name == text}
        found = sorted(waiting.union(bound))
        if len(found) > 1:
            raise UnknownPod(f"pod name {shown(text)} is ambiguous: {', '.join(map(str, found))}")
        return found[0] if found else ObjectKey("default", text)

    def named_group(self, name: str) -> ObjectKey:
        """The group of this name in any namespace. Raises UnknownGroup unless exactly one namespace has one."""
        found = [ObjectKey(namespace, name) for namespace in namespaces_with_group(self.cache.snapshot(), name)]
        if len(found) > 1:
            raise UnknownGroup(f"group name {shown(name)} is ambiguous: {', '.join(map(str, found))}")
        if not found:
            raise UnknownGroup(_UNKNOWN.format(one_line(name)))
        return found[0]

    def waiting_pod(self, key: ObjectKey) -> Pod | None:
        """The pod of this name that waits."""
        return next((pod for pod in self.cache.store.pods.values() if pod.key == key), None)

    def waiting(self, key: ObjectKey, what_if: WhatIf, seconds: float) -> Json | None:
        """Explain a waiting pod; None if no pod of this name waits.

        A pod that is placed with its group gets the outcome of the group, and `alone` has the explanation of the pod
        alone.
        """
        pod, until = self.waiting_pod(key), self.clock() + seconds
        if pod is None:
            return None
        group = self._group_of_member(pod, what_if, until)
        found = {**self._alone(pod, (), what_if, until), "gang": _group_named_by(pod)}
        if group is not None:
            named = found["gang"]
            found = {**_with_group(found, group), "gang": named}
            found["sentence"] = found["sentence"] if named else group.sentence
        if error_line(pod.scheduler_error) not in found["sentence"]:  # '' is in every text
            found["sentence"] += f"; but {last_attempt_failed(pod)}"
        elif found["outcome"] == "fits" and one_line(pod.unschedulable) not in found["sentence"]:
            found["sentence"] += f"; the last answer of kube-scheduler was: {one_line(pod.unschedulable)}"
        return found

    def brief(self, uid: str, seconds: float, what_if: WhatIf = _AS_IS) -> Brief | None:
        """Why the pod with this UID waits, in brief; None if it does not wait."""
        pod, until = self.cache.store.pods.get(uid), self.clock() + seconds
        if pod is None:
            return None
        group = self._group_of_member(pod, what_if, until)
        if group is not None and pod.membership is not None:
            known = group.sentence if group.outcome != "unfinished" else ""
            nearest = next((_of_group(group, miss.sentence) for miss in group.misses), known)
            key = pod.membership.key
            return Brief(group.outcome, group.sentence, nearest, key if key.name else None)
        found = self._alone(pod, (), what_if, until)
        return Brief(found["outcome"], found["sentence"], next(iter(found["misses"]), ""))

    def group_of(self, uid: str) -> GroupKey | None:
        """The group that a waiting pod names; None if it names none or does not wait."""
        pod = self.cache.store.pods.get(uid)
        return pod.membership.key if pod is not None and pod.membership is not None else None

    def bound(self, pod: Pod, entry: DecidedPod | None) -> Json:
        """Explain a bound pod by its annotation and its claims, or by the entry of the history."""
        snapshot, note = self.cache.snapshot(), pod.annotations.get(DECISION_ANNOTATION)
        decision = entry.decision if entry is not None else decision_of(pod, snapshot)
        outcome = "bound"
        if note is not None:
            sentence = f"pod {pod.key} was bound to {pod.node_name}: {note}"
        elif isinstance(requirements_of(pod, snapshot, self.policy), Skip):
            outcome, sentence = "not-ours", f"{no_devices(pod)}; the pod is bound to node {pod.node_name}"
        else:  # no annotation is written if all claims were allocated before
            why = "its claims were allocated before, or another scheduler bound it"
            sentence = f"pod {pod.key} is bound to {pod.node_name}, without a decision of Berth: {why}"
        found: Json = {"pod": str(pod.key), "outcome": outcome, "sentence": sentence, "gang": _group_named_by(pod)}
        if decision is not None:
            found["decision"] = to_json(decision)
            found["ended"] = pod.ended
            found["sets"] = to_json(entry.sets) if entry is not None and entry.sets is not None else None
        return found

    def hypothetical(self, given: Hypothetical, what_if: WhatIf, seconds: float) -> Iterator[Json]:
        """Explain the groups and then the pods of one request, which share the seconds.

        The classes of the request count as applied. Each group and pod is explained as if the others did not exist. A
        pod that is placed with its group gets the outcome of the group, as in `waiting`. Raises WireError if two pods
        of a group have one name.
        """
        until, gangs = self.clock() + seconds, dict[GroupKey, GangExplanation]()
        what_if = replace(what_if, scenario=replace(what_if.scenario, classes=given.classes))
        for group in given.groups:
            explained = self._new_group(group, what_if, until)
            if explained.outcome != "no-gang":
                gangs[group.key] = explained
            yield to_json(explained)
        for pod, claims, _ in given.pods:
            found = self._alone(pod, claims, what_if, until)
            gang = gangs.get(pod.membership.key) if pod.membership is not None else None
            yield found if gang is None else _with_group(found, gang)

    def _alone(self, pod: Pod, claims: tuple[Claim, ...], what_if: WhatIf, until: float) -> Json:
        """Explain a pod without regard to its group, as if the pod, its claims and the scenario were real.

        The outcome is `unfinished` if the time `until` ended the explanation, or has come already.
        """
        seconds = until - self.clock()
        if seconds <= 0:
            return _unfinished(pod, "the other pods of the request took all the work; ask again with fewer pods")
        snapshot, scenario = self.cache.snapshot(), what_if.scenario
        held = self.cache.reservations.held_for(pod.uid)
        # A remembered ranking follows the real snapshots. So it serves only a question without any change.
        as_is = what_if.policy is None and not claims and not scenario and not held
        if held:
            snapshot = without_own_holds(snapshot, held, pod.claim_keys)
        if not as_is:
            snapshot = apply_scenario(snapshot, claims, scenario)
        context, policy = self._context(snapshot, seconds), what_if.policy or self.policy
        rankings = self._caches.rankings if as_is else None
        try:
            found: Json = to_json(explain(pod, snapshot, policy, context, rankings, what_if.narrated))
        except DeadlineExceeded:
            why = f"gave up after {seconds:.2g} s of work: the claims are too costly to explain at once; ask again"
            found = _unfinished(pod, why)
        if pod.gated:
            found["sentence"] += "; kube-scheduler does not place it before its scheduling gates are removed"
        other = other_scheduler(pod) if found["outcome"] != "not-ours" else ""
        return {**found, "sentence": f"{other}. With it, {found['sentence']}"} if other else found

    def _context(self, snapshot: Snapshot, seconds: float) -> EvaluationContext:
        return self._evaluator.evaluation_context(snapshot, Deadline(seconds, self.clock))

    # -- groups ------------------------------------------------------------------------------------------------

    def groups(
        self,
        key: ObjectKey,
        scenario: Scenario,
        bound_members: Mapping[GroupKey, Membership] = _NO_MEMBERS,
        *,
        seconds: float,
    ) -> list[Json]:
        """Explain the groups of this name: more than one if their pods name them in different ways.

        `bound_members` has the membership of a bound pod of each group of which no pod waits. Raises UnknownGroup.
        """
        snapshot = self.cache.snapshot()
        groups = groups_named(snapshot, key.namespace, key.name)
        if not groups:
            jobs = explain_jobs(snapshot, key.namespace, key.name)
            if not jobs:
                raise UnknownGroup(_UNKNOWN.format(one_line(str(key))))
            return [to_json(job) for job in jobs]
        changed = apply_scenario(snapshot, (), scenario)
        context, caches = self._context(changed, seconds), self._caches if changed is snapshot else PlannerCaches()
        return [
            to_json(explain_gang(group, pods, changed, self.policy, context, caches, bound_members.get(group)))
            for group, pods in groups.items()
        ]

    def _group_of_member(self, pod: Pod, what_if: WhatIf, until: float) -> GangExplanation | None:
        """Explain the group with which a waiting pod is placed; None if the pod is placed alone."""
        membership = pod.membership
        if membership is None or not pod.is_waiting or pod.scheduler != SCHEDULER:
            return None
        snapshot = self.cache.snapshot()
        has_name = bool(membership.key.name)  # else an annotation about a group is all that the pod has
        pods = [other for other in snapshot.pods.values() if _is_in(other, membership.key)] if has_name else [pod]
        changed = apply_scenario(snapshot, (), what_if.scenario)
        found = self._gang(membership.key, pods, changed, what_if, until, is_real=changed is snapshot)
        return found if found.outcome not in _ALONE else None

    def _new_group(self, group: HypotheticalGroup, what_if: WhatIf, until: float) -> GangExplanation:
        """Explain a group that does not exist yet, as if its pods, their claims and the scenario were real.

        The result lists no members. Raises WireError if two of its pods have one name.
        """
        key, snapshot = group.key, self.cache.snapshot()
        minimum = gang_minimum(group.membership, with_new_group(snapshot, key, (), group.policies))
        members = []
        for one in group.members(MAX_TOGETHER, minimum):
            if self.clock() >= until:
                text = f"group {key}: the request takes more than the work limit; ask again with fewer groups or pods"
                return GangExplanation(str(key), key.source.value, "unfinished", text, minimum)
            members.append(one)
        if not members:
            text = f"group {key} has no pods: the manifests create none"
            return GangExplanation(str(key), key.source.value, "waiting", text, minimum)
        pods = [replace(one.pod, scheduler=SCHEDULER) for one in members]
        changed = with_new_group(snapshot, key, pods, group.policies)
        changed = apply_scenario(changed, (claim for one in members for claim in one.claims), what_if.scenario)
        found = self._gang(key, pods, changed, what_if, until, is_real=False)
        exists = snapshot.claims_of_group(key) or any(_is_in(pod, key) for pod in snapshot.pods.values())
        notes = [*_size_notes(group, len(pods)), *([_EXISTS.format(key)] if exists else [])]
        if any(one.pod.scheduler != SCHEDULER for one in members):
            notes.append(f"Berth places its pods only with schedulerName {SCHEDULER}, which they lack")
        return replace(found, sentence="; ".join([found.sentence, *notes]), members=())

    def _gang(
        self, key: GroupKey, pods: Sequence[Pod], snapshot: Snapshot, what_if: WhatIf, until: float, *, is_real: bool
    ) -> GangExplanation:
        caches = self._caches if is_real and what_if.policy is None else PlannerCaches()
        context, policy = self._context(snapshot, until - self.clock()), what_if.policy or self.policy
        return explain_gang(key, pods, snapshot, policy, context, caches, None)


def last_attempt_failed(pod: Pod) -> str:
    """The words for an error with which kube-scheduler's last attempt ended: a bind, or a filter request, failed."""
    return f"its last attempt ended with an error: {error_line(pod.scheduler_error)}"


def _unfinished(pod: Pod, why: str) -> Json:
    found: Json = to_json(Explanation(str(pod.key), "unfinished", f"pod {pod.key}: {why}"))
    return found


def _group_named_by(pod: Pod) -> str:
    """The group as namespace/name; '' without one."""
    membership = pod.membership
    return str(membership.key) if membership is not None and membership.key.name else ""


def _with_group(alone: Json, group: GangExplanation) -> Json:
    """The explanation of a pod that is placed with its group."""
    return {
        **alone,
        "outcome": group.outcome,
        "sentence": f"pod {alone['pod']} waits with its group: {group.sentence}",
        "misses": [_of_group(group, miss.sentence) for miss in group.misses],
        "gang": group.group,
        "alone": alone["sentence"],
    }


def _of_group(group: GangExplanation, miss: str) -> str:
    return f"group {group.group} {miss}"


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


def to_json(found: Any) -> Any:
    """Convert dataclasses, named tuples, tuples and lists into dictionaries and lists for JSON. Sets are sorted."""
    if is_dataclass(found) and not isinstance(found, type):
        return {field.name: to_json(getattr(found, field.name)) for field in fields(found)}
    if hasattr(found, "_asdict"):
        return {name: to_json(value) for name, value in found._asdict().items()}
    if isinstance(found, frozenset):
        return sorted(found)
    return [to_json(item) for item in found] if isinstance(found, tuple | list) else found
