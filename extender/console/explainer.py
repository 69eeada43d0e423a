"""Explains decisions about pods and groups: pods that wait, that were bound, or that do not exist yet."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

from extender.cache import ALL_NODES, ClusterCache
from extender.cluster import ClusterError
from extender.console.active_policy import ActivePolicy
from extender.console.decision_history import DecisionHistory, PodHistory
from extender.diagnosis import (
    Explanation,
    PlannerCaches,
    Scenario,
    apply_scenario,
    explain,
    explain_gang,
    groups_named,
    no_devices,
    without_own_holds,
)
from extender.model import (
    DECISION_ANNOTATION,
    BerthError,
    CallBudget,
    CallBudgetSpent,
    Claim,
    ObjectKey,
    Pod,
    PoolKey,
    WireError,
    one_line,
    shown,
)
from extender.policy import Policy
from extender.scheduling import (
    Evaluator,
    GangMemory,
    PodRequirements,
    RankingCache,
    Skip,
    gang_minimum,
    requirements_of,
)
from extender.wire import Json, decode_pod

WORK_SECONDS = 2.0  # of one explanation
_RANKINGS_BYTES = 32 << 20
_MEMORY_BYTES = 4 << 20  # of evaluations for gangs
_WAITING = 6  # questions; the last is answered within the 30 s for which `berth explain` waits


class UnknownPod(BerthError):
    """No pod of this name waits, and the history has no decision about it."""


class UnknownGroup(BerthError):
    """No pod that waits names a group of this name, and no claim has devices for one."""


class TooManyQuestions(BerthError):
    """So many questions wait for their explanation that no other may wait."""


class Explainer:
    """Explains pods on the newest snapshot. An explanation blocks the event loop, for `work_seconds` at most.

    `pod`, `group` and `hypothetical_all` answer one question at a time. After each, all other work of the console has
    the event loop for as long as the explanation took. At most `waiting` questions wait.
    """

    def __init__(
        self,
        cache: ClusterCache,
        evaluator: Evaluator,
        history: DecisionHistory,
        policy: ActivePolicy,
        read_pod: Callable[[ObjectKey], Awaitable[Json]] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        work_seconds: float = WORK_SECONDS,
        rankings_bytes: int = _RANKINGS_BYTES,
        waiting: int = _WAITING,
    ) -> None:
        self._cache = cache
        self._evaluator = evaluator
        self._history = history
        self._policy = policy
        self._read_pod = read_pod
        self._clock = clock
        self._work_seconds = work_seconds
        self._rankings = RankingCache(rankings_bytes)
        self._planner_caches = PlannerCaches(self._rankings, GangMemory(_MEMORY_BYTES))
        self._most_waiting = waiting
        self._waiting = 0
        self._turn = asyncio.Lock()
        policy.follow(self._rankings.clear)

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
        async with self._in_turn():
            found = self.known(key, scenario, policy, narrated)
        return found or await self._read(key)

    def known(
        self,
        key: ObjectKey,
        scenario: Scenario | None = None,
        policy: Policy | None = None,
        narrated: str = "",
        *,
        work_seconds: float | None = None,
    ) -> Json | None:
        """Explain a waiting pod, or return the decision of a bound pod from the history; None for any other pod.

        `work_seconds` limits the work; by default it is the limit of the explainer.
        """
        entry, pods = self._history.newest(key), self._cache.store.pods
        pod = pods.get(entry.uid) if entry is not None else None
        pod = pod or next((pod for pod in pods.values() if pod.key == key), None)
        if pod is not None:
            found = self.hypothetical(pod, (), scenario or Scenario(), policy, narrated, work_seconds=work_seconds)
            told = {"remembered_since": self._history.since, "gang": self._gang_of(pod)}
            return {**found, **told, **(self._record(entry) if entry else {})}
        if entry is None or entry.decision is None:
            return None
        return {"pod": str(key), "outcome": "bound", "remembered_since": self._history.since, **self._record(entry)}

    def _gang_of(self, pod: Pod) -> str:
        """The gang of a pod as namespace/name; '' if it is in none."""
        membership = pod.membership
        if membership is None or not gang_minimum(membership, self._cache.snapshot()):
            return ""
        return str(membership.key)

    async def group(self, key: ObjectKey, scenario: Scenario | None = None) -> list[Json]:
        """Explain the groups of this name: more than one if their pods name them in different ways.

        Raises UnknownGroup or TooManyQuestions.
        """
        async with self._in_turn():
            return self.known_groups(key, scenario or Scenario())

    def known_groups(self, key: ObjectKey, scenario: Scenario) -> list[Json]:
        """Explain the groups of this name as if the scenario were real. They share the work limit.

        Raises UnknownGroup.
        """
        snapshot = self._cache.snapshot()
        groups = groups_named(snapshot, key.namespace, key.name)
        if not groups:
            raise UnknownGroup(f"no pod that waits, and no claim with devices, belongs to a group {one_line(str(key))}")
        changed = apply_scenario(snapshot, (), scenario)
        caches = self._planner_caches if changed is snapshot else PlannerCaches(RankingCache(), GangMemory())
        budget = CallBudget(self._work_seconds, sys.maxsize, self._clock)
        budget.mark_progress()
        context, found = self._evaluator.evaluation_context(changed, budget), []
        for group, pods in groups.items():
            known = {pod.uid: tuple(entry.attempts) for pod in pods if (entry := self._history.entry(pod.uid))}
            explanation = explain_gang(group, pods, changed, self._policy.policy, context, caches, known)
            found.append({**to_json(explanation), "remembered_since": self._history.since})
        return found

    async def _read(self, key: ObjectKey) -> Json:
        """Explain a pod that neither cache nor history has, from its object: a bound pod without devices, or the
        decision in the pod's annotation. Raises UnknownPod.
        """
        since = f" since {self._history.since}" if self._history.since else ""
        unknown = UnknownPod(
            f"pod {one_line(str(key))} does not wait for Berth, and no decision about it is remembered{since}"
        )
        if self._read_pod is None:
            raise unknown
        try:
            pod = decode_pod(await self._read_pod(key))
        except (ClusterError, WireError) as error:
            raise unknown from error
        note = pod.annotations.get(DECISION_ANNOTATION)
        if note is not None:
            outcome, sentence = "bound", f"pod {key} was bound to {pod.node_name or '?'}: {note}"
        elif pod.node_name and isinstance(requirements_of(pod, self._cache.snapshot(), self._policy.policy), Skip):
            outcome, sentence = "not-ours", f"{no_devices(pod)}; the pod is bound to node {pod.node_name}"
        else:
            raise unknown
        return {"pod": str(key), "outcome": outcome, "sentence": sentence, "remembered_since": self._history.since}

    async def hypothetical_all(
        self,
        pods: Iterable[tuple[Pod, tuple[Claim, ...]]],
        scenario: Scenario,
        policy: Policy | None,
        narrated: str = "",
    ) -> list[Json]:
        """Explain the pods of one request, which share the work limit. Other tasks run between two pods.

        Raises TooManyQuestions.
        """
        found, left = [], self._work_seconds
        async with self._in_turn():
            for pod, claims in pods:
                began = self._clock()
                found.append(self.hypothetical(pod, claims, scenario, policy, narrated, work_seconds=left))
                left -= self._clock() - began
                await asyncio.sleep(0)
        return found

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        if self._waiting >= self._most_waiting:
            raise TooManyQuestions(f"{self._waiting} questions wait for their explanation already: try again")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        began = self._clock()
        try:
            yield
        finally:  # the pause begins after the answer
            asyncio.get_running_loop().call_later(self._clock() - began, self._turn.release)

    def hypothetical(
        self,
        pod: Pod,
        claims: tuple[Claim, ...],
        scenario: Scenario,
        policy: Policy | None,
        narrated: str = "",
        *,
        work_seconds: float | None = None,
    ) -> Json:
        """Explain a pod as if the pod, its claims and the scenario were real.

        `narrated` names a node whose search is explained in full. The outcome is `unfinished` if the work limit ended
        the explanation, or if no work is left for it.
        """
        seconds = self._work_seconds if work_seconds is None else work_seconds
        if seconds <= 0:
            return _unfinished(pod, "the other pods of the request took all the work; ask again with fewer pods")
        held = self._cache.held_for(pod.uid)
        nodes = self._cache.store.nodes_of({PoolKey(result.device.driver, result.device.pool) for result in held})
        as_is = policy is None and not claims and not scenario and ALL_NODES not in nodes
        if not as_is:
            scenario = replace(scenario, released=(*scenario.released, *held))
        snapshot = self._cache.snapshot()
        if claims or scenario:
            snapshot = apply_scenario(snapshot, claims, scenario)
        budget = CallBudget(seconds, sys.maxsize, self._clock)
        budget.mark_progress()
        context, chosen = self._evaluator.evaluation_context(snapshot, budget), policy or self._policy.policy
        requirements = requirements_of(pod, snapshot, chosen) if as_is else None
        ranking = self._rankings.get_or_create(requirements) if isinstance(requirements, PodRequirements) else None
        own = without_own_holds(snapshot, held, nodes) if as_is else {}
        try:
            found: Json = to_json(explain(pod, snapshot, chosen, context, ranking, own, narrated))
        except CallBudgetSpent:
            why = f"gave up after {seconds:.2g} s of work: the claims are too costly to explain at once; ask again"
            found = _unfinished(pod, why)
        return found

    def _record(self, entry: PodHistory) -> Json:
        return {
            "attempts": [to_json(attempt) for attempt in entry.attempts],
            "change": entry.change(),
            "decision": to_json(entry.decision) if entry.decision is not None else None,
        }


def _unfinished(pod: Pod, why: str) -> Json:
    found: Json = to_json(Explanation(str(pod.key), "unfinished", f"pod {pod.key}: {why}"))
    return found


def to_json(found: Any) -> Any:
    """Convert dataclasses, named tuples, tuples and lists into dictionaries and lists for JSON. Sets are sorted."""
    if is_dataclass(found) and not isinstance(found, type):
        return {field.name: to_json(getattr(found, field.name)) for field in fields(found)}
    if hasattr(found, "_asdict"):
        return {name: to_json(value) for name, value in found._asdict().items()}
    if isinstance(found, frozenset):
        return sorted(found)
    return [to_json(item) for item in found] if isinstance(found, tuple | list) else found
