"""Answers `why`: for pods that wait, pods that were bound lately, and pods that do not exist yet."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from extender.cluster.errors import ClusterError
from extender.console.journal import Entry, Journal
from extender.console.policies import ActivePolicy
from extender.diagnosis.explain import Explanation, explain
from extender.diagnosis.scenario import Changes, imagine, seen_by_holder
from extender.mirror.mirror import Mirror
from extender.mirror.store import ALL_NODES
from extender.model.budget import Budget, BudgetSpent
from extender.model.claim import DECISION_ANNOTATION, Claim, ObjectKey, Pod
from extender.model.device import PoolKey
from extender.model.errors import BerthError
from extender.model.text import one_line, shown
from extender.policy import Policy
from extender.verdict.demand import Demand, demand_of
from extender.verdict.evaluator import Evaluator
from extender.verdict.rankings import Rankings

Json = dict[str, Any]
WORK_SECONDS = 2.0  # of one explanation
_RANKINGS_BYTES = 32 << 20


class UnknownPod(BerthError):
    """No pod of that name waits and none was decided lately."""


class Explainer:
    """Explains on the mirror as it is. Nothing waits while an explanation is made, and nothing else runs."""

    def __init__(
        self, mirror: Mirror, evaluator: Evaluator, journal: Journal, policy: ActivePolicy,
        read_pod: Callable[[ObjectKey], Awaitable[Json]] | None = None,
        *, clock: Callable[[], float] = time.monotonic, work_seconds: float = WORK_SECONDS,
        rankings_bytes: int = _RANKINGS_BYTES,
    ) -> None:
        self._mirror = mirror
        self._evaluator = evaluator
        self._journal = journal
        self._policy = policy
        self._read_pod = read_pod
        self._clock = clock
        self._work_seconds = work_seconds
        self._rankings = Rankings(rankings_bytes)
        policy.follow(self._rankings.clear)

    def named(self, text: str) -> ObjectKey:
        """The pod that 'namespace/name' or a bare name stands for. Raises UnknownPod where a name is not unique."""
        namespace, slash, name = text.partition("/")
        if slash:
            return ObjectKey(namespace, name)
        waiting = {pod.key for pod in self._mirror.store.pods.values() if pod.key.name == text}
        found = sorted(waiting | self._journal.pods_named(text))
        if len(found) > 1:
            raise UnknownPod(f"pod name {shown(text)} is ambiguous: {', '.join(map(str, found))}")
        return found[0] if found else ObjectKey("default", text)

    async def pod(
        self, key: ObjectKey, changes: Changes | None = None, policy: Policy | None = None, narrated: str = "",
    ) -> Json:
        """The explanation of a pod that exists. Raises UnknownPod."""
        return self.known(key, changes, policy, narrated) or await self._annotated(key)

    def known(
        self, key: ObjectKey, changes: Changes | None = None, policy: Policy | None = None, narrated: str = "",
        *, work_seconds: float | None = None,
    ) -> Json | None:
        """The explanation of a pod that waits, after so many seconds of work at most, or the record of one that was
        bound lately; None for another."""
        entry, pods = self._journal.of(key), self._mirror.store.pods
        pod = pods.get(entry.uid) if entry is not None else None
        pod = pod or next((pod for pod in pods.values() if pod.key == key), None)
        if pod is not None:
            found = self.imagined(pod, (), changes or Changes(), policy, narrated, work_seconds=work_seconds)
            return {**found, **(self._record(entry) if entry is not None else {})}
        if entry is None or entry.decision is None:
            return None
        return {"pod": str(key), "outcome": "bound", **self._record(entry)}

    async def _annotated(self, key: ObjectKey) -> Json:
        """What the Binding wrote on a pod of which no record came, or came before the console started. Raises
        UnknownPod."""
        since = f" since {self._journal.since}" if self._journal.since else ""
        unknown = UnknownPod(f"pod {one_line(str(key))} does not wait for Berth, and no decision about it is remembered{since}")
        if self._read_pod is None:
            raise unknown
        try:
            found = await self._read_pod(key)
        except ClusterError as error:
            raise unknown from error
        note = (found["metadata"].get("annotations") or {}).get(DECISION_ANNOTATION)
        if note is None:
            raise unknown
        return {"pod": str(key), "outcome": "bound", "sentence": f"pod {key} was bound to {found['spec'].get('nodeName', '?')}: {note}"}

    def imagined(
        self, pod: Pod, claims: tuple[Claim, ...], changes: Changes, policy: Policy | None, narrated: str = "",
        *, work_seconds: float | None = None,
    ) -> Json:
        """The explanation of a pod as if it, its claims and the changes were real; the search on one node in full. The
        outcome is 'unfinished' after too much work."""
        held = self._mirror.held_for(pod.uid)
        nodes = self._mirror.store.nodes_of({PoolKey(result.device.driver, result.device.pool) for result in held})
        as_is = policy is None and not claims and not changes and ALL_NODES not in nodes
        if not as_is:
            changes = replace(changes, given_back=(*changes.given_back, *held))
        snapshot = self._mirror.snapshot()
        if claims or changes:
            snapshot = imagine(snapshot, claims, changes)
        budget = Budget(work_seconds or self._work_seconds, sys.maxsize, self._clock)
        budget.keep()
        rules, chosen = self._evaluator.rules(snapshot, budget), policy or self._policy.policy
        demand = demand_of(pod, snapshot, chosen) if as_is else None
        ranking = self._rankings.at_hand(demand) if isinstance(demand, Demand) else None
        own = seen_by_holder(snapshot, held, nodes) if as_is else {}
        try:
            found: Json = plain(explain(pod, snapshot, chosen, rules, ranking, own, narrated))
        except BudgetSpent:
            why = f"gave up after {budget.seconds:g} s of work: the claims are too costly to explain at once; ask again"
            found = plain(Explanation(str(pod.key), "unfinished", f"pod {pod.key}: {why}"))
        return found

    def _record(self, entry: Entry) -> Json:
        return {
            "attempts": [plain(attempt) for attempt in entry.attempts],
            "change": entry.change(),
            "decision": plain(entry.decision) if entry.decision is not None else None,
            "remembered_since": self._journal.since,
        }


def plain(found: Any) -> Any:
    """Records of any kind as dictionaries and lists, ready for JSON. Sets, which have no order, are sorted."""
    if is_dataclass(found) and not isinstance(found, type):
        return {field.name: plain(getattr(found, field.name)) for field in fields(found)}
    if hasattr(found, "_asdict"):
        return {name: plain(value) for name, value in found._asdict().items()}
    if isinstance(found, frozenset):
        return sorted(found)
    return [plain(item) for item in found] if isinstance(found, tuple | list) else found
