"""Explains decisions about pods and groups: pods that wait, that were bound, or that do not exist yet."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from extender.cache import ALL_NODES, ClusterCache
from extender.cluster import ClusterError
from extender.console.active_policy import ActivePolicy
from extender.console.bound_member_reader import BoundMemberReader, ReadBound
from extender.console.decision_history import DecisionHistory, decision_of
from extender.console.group_explainer import GroupExplainer
from extender.console.questions import Questions
from extender.diagnosis import (
    Explanation,
    GangExplanation,
    Scenario,
    apply_scenario,
    explain,
    groups_named,
    no_devices,
    other_scheduler,
    without_own_holds,
)
from extender.manifests import Hypothetical
from extender.model import (
    DECISION_ANNOTATION,
    BerthError,
    Claim,
    Deadline,
    DeadlineExceeded,
    GroupKey,
    Membership,
    ObjectKey,
    Pod,
    PoolKey,
    error_line,
    one_line,
    shown,
)
from extender.policy import Policy
from extender.scheduling import Evaluator, PodRequirements, RankingCache, requirements_of
from extender.scheduling.requirements import Skip
from extender.wire import Json, is_object_name

T = TypeVar("T")
WORK_SECONDS = 2.0  # of one question
_RANKINGS_BYTES = 32 << 20
_NO_MEMBERS: Mapping[GroupKey, Membership] = MappingProxyType({})
_WAITING = 6  # questions; the last is answered within the 30 s for which `berth explain` waits


class UnknownPod(BerthError):
    """No pod of this name waits or is bound."""


@dataclass(frozen=True, slots=True)
class Brief:
    """Why a waiting pod is not placed, in one sentence: about its group if it is placed with its group."""

    outcome: str
    sentence: str
    nearest: str  # the cheapest change that would help; if none is known, the sentence about the group, or ''
    group: GroupKey | None = None  # with which the pod is placed; None if it is placed alone


class Explainer:
    """Explains pods on the newest snapshot.

    The coroutines answer one question at a time: see Questions. The other methods block the event loop, for their limit
    of work at most.
    """

    def __init__(
        self,
        cache: ClusterCache,
        evaluator: Evaluator,
        history: DecisionHistory,
        policy: ActivePolicy,
        rebuilt: Callable[[], Awaitable[None]],
        read_pod: Callable[[ObjectKey], Awaitable[Pod]] | None = None,
        *,
        read_bound: ReadBound | None = None,
        clock: Callable[[], float] = time.monotonic,
        work_seconds: float = WORK_SECONDS,
    ) -> None:
        """`read_bound` is that of BoundMemberReader. See Rebuilds.done for `rebuilt`."""
        self._cache = cache
        self._evaluator = evaluator
        self._history = history
        self._policy = policy
        self._rebuilt = rebuilt
        self._read_pod = read_pod
        self._clock = clock
        self._work_seconds = work_seconds
        self._rankings = RankingCache(_RANKINGS_BYTES)
        self._bound_members = BoundMemberReader(cache, read_pod, read_bound, rebuilt)
        self._groups = GroupExplainer(cache, evaluator, policy, self._rankings, clock)
        self._questions = Questions(clock, _WAITING, rebuilt)
        policy.follow(self._rankings.clear)

    async def read(self, parse: Callable[[], T]) -> T:
        """See Questions.read."""
        return await self._questions.read(parse)

    async def in_turn(self, work: Callable[[], T]) -> T:
        """The result of a function that blocks the event loop for a moment. Raises TooManyQuestions."""
        async with self._questions.in_turn():
            return await self._questions.answer(lambda _: work(), self._work_seconds)

    def named(self, text: str) -> ObjectKey:
        """The pod that `namespace/name` or a name alone refers to. Raises UnknownPod if the name is not unique."""
        namespace, slash, name = text.partition("/")
        if slash:
            return ObjectKey(namespace, name)
        waiting = {pod.key for pod in self._cache.store.pods.values() if pod.key.name == text}
        found = sorted(waiting | self._history.pods_named(text))
        if len(found) > 1:
            raise UnknownPod(f"pod name {shown(text)} is ambiguous: {', '.join(map(str, found))}")
        return found[0] if found else ObjectKey("default", text)

    async def pod(
        self,
        key: ObjectKey,
        scenario: Scenario | None = None,
        policy: Policy | None = None,
        narrated: str = "",
    ) -> Json:
        """Explain a pod that exists. `narrated` names a node whose search is explained in full.

        Raises UnknownPod or TooManyQuestions.
        """
        async with self._questions.in_turn():
            pod = self._waiting_pod(key)
            membership = pod.membership if pod is not None else None
            groups = {membership.key: [pod]} if pod is not None and membership is not None else {}
            async with self._bound_members.known(groups):
                found = await self._questions.answer(
                    lambda seconds: self.explain_waiting(key, scenario, policy, narrated, work_seconds=seconds),
                    self._work_seconds,
                )
            return found or await self._of_bound(key)

    def explain_waiting(
        self,
        key: ObjectKey,
        scenario: Scenario | None,
        policy: Policy | None,
        narrated: str,
        *,
        work_seconds: float | None = None,
    ) -> Json | None:
        """Explain a waiting pod; None if no pod of this name waits.

        A pod that is placed with its group gets the outcome of the group, and `alone` has the explanation of the pod
        alone. `work_seconds` limits the work; by default it is the limit of the explainer.
        """
        pod = self._waiting_pod(key)
        if pod is None:
            return None
        found = self._of_waiting(pod, scenario or Scenario(), policy, narrated, work_seconds)
        if error_line(pod.scheduler_error) not in found["sentence"]:  # '' is in every text
            found["sentence"] += f"; but {last_attempt_failed(pod)}"
        elif found["outcome"] == "fits" and one_line(pod.unschedulable) not in found["sentence"]:
            found["sentence"] += f"; the last answer of kube-scheduler was: {one_line(pod.unschedulable)}"
        return found

    async def brief_in_turn(self, uid: str, work_seconds: float) -> Brief | None:
        """`brief`, after the questions that wait."""
        async with self._questions.in_turn(of_user=False):
            return await self._questions.answer(lambda seconds: self.brief(uid, seconds), work_seconds)

    def brief(self, uid: str, work_seconds: float) -> Brief | None:
        """Why the pod with this UID waits, in brief; None if it does not wait."""
        pod = self._cache.store.pods.get(uid)
        if pod is None:
            return None
        group = self._groups.of_member(pod, Scenario(), None, work_seconds)
        if group is not None and pod.membership is not None:
            known = group.sentence if group.outcome != "unfinished" else ""
            nearest = next((_of_group(group, miss.sentence) for miss in group.misses), known)
            key_of_group = pod.membership.key
            return Brief(group.outcome, group.sentence, nearest, key_of_group if key_of_group.name else None)
        found = self.explain_alone(pod, (), Scenario(), None, work_seconds=work_seconds)
        return Brief(found["outcome"], found["sentence"], next(iter(found["misses"]), ""))

    def group_of(self, uid: str) -> GroupKey | None:
        """The group that a waiting pod names; None if it names none or does not wait."""
        pod = self._cache.store.pods.get(uid)
        return pod.membership.key if pod is not None and pod.membership is not None else None

    def _waiting_pod(self, key: ObjectKey) -> Pod | None:
        return next((pod for pod in self._cache.store.pods.values() if pod.key == key), None)

    def _of_waiting(
        self, pod: Pod, scenario: Scenario, policy: Policy | None, narrated: str, work_seconds: float | None
    ) -> Json:
        """The explanation of a waiting pod; that of its group comes first if the pod is placed with it."""
        seconds, began = self._work_seconds if work_seconds is None else work_seconds, self._clock()
        group = self._groups.of_member(pod, scenario, policy, seconds)
        left = seconds - (self._clock() - began)
        alone = self.explain_alone(pod, (), scenario, policy, narrated, work_seconds=left)
        named = _group_named_by(pod)
        if group is None:
            return {**alone, "gang": named}
        found = {**_with_group(alone, group), "gang": named}
        return found if named else {**found, "sentence": group.sentence}

    async def group(self, key: ObjectKey, scenario: Scenario | None = None) -> list[Json]:
        """Explain the groups of this name: more than one if their pods name them in different ways.

        Raises UnknownGroup or TooManyQuestions.
        """
        async with self._questions.in_turn():
            groups = groups_named(self._cache.snapshot(), key.namespace, key.name)
            async with self._bound_members.known(groups) as members:
                return await self._questions.answer(
                    lambda seconds: self.known_groups(key, scenario or Scenario(), members, seconds), self._work_seconds
                )

    def known_groups(
        self,
        key: ObjectKey,
        scenario: Scenario,
        bound_members: Mapping[GroupKey, Membership] = _NO_MEMBERS,
        work_seconds: float | None = None,
    ) -> list[Json]:
        """Explain the groups of this name as if the scenario were real. They share the work limit.

        `bound_members` has the membership of a bound pod of each group of which no pod waits. Raises UnknownGroup.
        """
        seconds = self._work_seconds if work_seconds is None else work_seconds
        groups = self._groups.named(key, scenario, seconds, bound_members)
        return [to_json(group) for group in groups]

    async def _of_bound(self, key: ObjectKey) -> Json:
        """Explain a bound pod from its object and its claims. Raises UnknownPod."""
        unknown = UnknownPod(f"pod {one_line(str(key))} does not wait for Berth, and is not bound")
        if self._read_pod is None or not (is_object_name(key.namespace) and is_object_name(key.name)):
            raise unknown
        try:
            pod = await self._read_pod(key)
        except ClusterError as error:
            raise unknown from error
        if not pod.node_name:
            raise unknown
        await self._rebuilt()
        snapshot = self._cache.snapshot()
        entry, note = self._history.entry(pod.uid), pod.annotations.get(DECISION_ANNOTATION)
        decision = entry.decision if entry is not None else decision_of(pod, snapshot)
        outcome = "bound"
        if note is not None:
            sentence = f"pod {key} was bound to {pod.node_name}: {note}"
        elif isinstance(requirements_of(pod, snapshot, self._policy.policy), Skip):
            outcome, sentence = "not-ours", f"{no_devices(pod)}; the pod is bound to node {pod.node_name}"
        else:  # no annotation is written if all claims were allocated before
            why = "its claims were allocated before, or another scheduler bound it"
            sentence = f"pod {key} is bound to {pod.node_name}, without a decision of Berth: {why}"
        found: Json = {"pod": str(key), "outcome": outcome, "sentence": sentence, "gang": _group_named_by(pod)}
        if decision is not None:
            found["decision"] = to_json(decision)
            found["sets"] = to_json(entry.sets) if entry is not None and entry.sets is not None else None
        return found

    async def hypothetical_all(
        self, given: Hypothetical, scenario: Scenario, policy: Policy | None, narrated: str = ""
    ) -> list[Json]:
        """The list of each_hypothetical.

        Raises TooManyQuestions, or WireError as GroupExplainer.hypothetical does.
        """
        async with self._questions.in_turn():
            return await self._questions.answer(
                lambda seconds: list(self.each_hypothetical(given, scenario, policy, narrated, work_seconds=seconds)),
                self._work_seconds,
            )

    def each_hypothetical(
        self,
        given: Hypothetical,
        scenario: Scenario,
        policy: Policy | None,
        narrated: str,
        *,
        work_seconds: float | None = None,
    ) -> Iterator[Json]:
        """Explain the groups and then the pods of one request, which share the work limit.

        The classes of the request count as applied. Each group and pod is explained as if the others did not exist. A
        pod that is placed with its group gets the outcome of the group, as in `explain_waiting`. Raises
        WireError as GroupExplainer.hypothetical does.
        """
        scenario = replace(scenario, classes=given.classes)
        left, gangs = self._work_seconds if work_seconds is None else work_seconds, dict[GroupKey, GangExplanation]()
        for group in given.groups:
            began = self._clock()
            explained = self._groups.hypothetical(group, scenario, policy, max(left, 0.0))
            left -= self._clock() - began
            if explained.outcome != "no-gang":
                gangs[group.key] = explained
            yield to_json(explained)
        for pod, claims in given.pods:
            began = self._clock()
            found = self.explain_alone(pod, claims, scenario, policy, narrated, work_seconds=left)
            left -= self._clock() - began
            gang = gangs.get(pod.membership.key) if pod.membership is not None else None
            yield found if gang is None else _with_group(found, gang)

    def explain_alone(
        self,
        pod: Pod,
        claims: tuple[Claim, ...],
        scenario: Scenario,
        policy: Policy | None,
        narrated: str = "",
        *,
        work_seconds: float | None = None,
    ) -> Json:
        """Explain a pod without regard to its group, as if the pod, its claims and the scenario were real.

        `narrated` names a node whose search is explained in full. The outcome is `unfinished` if the work limit ended
        the explanation, or if no work is left for it.
        """
        seconds = self._work_seconds if work_seconds is None else work_seconds
        if seconds <= 0:
            return _unfinished(pod, "the other pods of the request took all the work; ask again with fewer pods")
        held = self._cache.held_for(pod.uid)
        nodes = self._cache.store.nodes_of({PoolKey(result.device.driver, result.device.pool) for result in held})
        # A remembered ranking follows the real snapshots. So it serves only a question without any change.
        as_is = policy is None and not claims and not scenario and ALL_NODES not in nodes
        if not as_is:
            scenario = replace(scenario, released=(*scenario.released, *held))
        snapshot = self._cache.snapshot()
        if claims or scenario:
            snapshot = apply_scenario(snapshot, claims, scenario)
        deadline = Deadline(seconds, self._clock)
        context, chosen = self._evaluator.evaluation_context(snapshot, deadline), policy or self._policy.policy
        requirements = requirements_of(pod, snapshot, chosen) if as_is else None
        ranking = self._rankings.get_or_create(requirements) if isinstance(requirements, PodRequirements) else None
        without_holds = without_own_holds(snapshot, held, nodes) if as_is else {}
        try:
            found: Json = to_json(explain(pod, snapshot, chosen, context, ranking, without_holds, narrated))
        except DeadlineExceeded:
            why = f"gave up after {seconds:.2g} s of work: the claims are too costly to explain at once; ask again"
            found = _unfinished(pod, why)
        if pod.gated:
            found["sentence"] += "; kube-scheduler does not place it before its scheduling gates are removed"
        other = other_scheduler(pod) if found["outcome"] != "not-ours" else ""
        return {**found, "sentence": f"{other}. With it, {found['sentence']}"} if other else found


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


def to_json(found: Any) -> Any:
    """Convert dataclasses, named tuples, tuples and lists into dictionaries and lists for JSON. Sets are sorted."""
    if is_dataclass(found) and not isinstance(found, type):
        return {field.name: to_json(getattr(found, field.name)) for field in fields(found)}
    if hasattr(found, "_asdict"):
        return {name: to_json(value) for name, value in found._asdict().items()}
    if isinstance(found, frozenset):
        return sorted(found)
    return [to_json(item) for item in found] if isinstance(found, tuple | list) else found
