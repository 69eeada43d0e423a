"""Explaining on the live picture, in slices of time short enough that no filter notices."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import islice
from math import inf
from typing import Any

from extender.cluster.errors import ClusterError
from extender.mirror.mirror import Mirror
from extender.mirror.store import ALL_NODES
from extender.model.budget import Budget, BudgetSpent
from extender.model.claim import DECISION_ANNOTATION, Claim, ObjectKey, Pod
from extender.model.device import PoolKey
from extender.model.errors import BerthError
from extender.model.pieces import ending, in_pieces
from extender.model.text import one_line, shown
from extender.policy import Policy
from extender.service.journal import Entry, Journal
from extender.service.judge import Judge
from extender.service.stopwatch import Stopwatch
from extender.service.turns import Turns
from extender.verdict.explain import Explanation, explain
from extender.verdict.imagined import Changes, imagine, seen_by_holder

Json = dict[str, Any]
_SECONDS = 0.2  # for an explanation, however many call meanwhile
_PODS = 300  # looked at between two breaths
_WORK_SECONDS = 2.0  # of one explanation, without the time in which others have their turn


class UnknownPod(BerthError):
    """No pod of that name waits and none was decided lately."""


class Explainer:
    """Answers `why`: for pods that wait, pods that were bound lately, and pods that do not exist yet."""

    def __init__(
        self, mirror: Mirror, judge: Judge, journal: Journal, turns: Turns,
        read_pod: Callable[[ObjectKey], Awaitable[Json]] | None = None,
        *, clock: Callable[[], float] = time.monotonic, work_seconds: float = _WORK_SECONDS,
    ) -> None:
        self._clock = clock
        self._work_seconds = work_seconds
        self._turns = turns
        self._read_pod = read_pod
        self._mirror = mirror
        self._judge = judge
        self._journal = journal

    def named(self, text: str) -> ObjectKey:
        """The pod that 'namespace/name' or a bare name stands for. Raises UnknownPod where that is nobody or several."""
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
        *, work_seconds: float | None = None,
    ) -> Json:
        """The explanation of a pod that exists, after so many seconds of work at most. Raises UnknownPod."""
        entry, pods = self._journal.of(key), self._mirror.store.pods
        pod = pods.get(entry.uid) if entry is not None else None
        pod = pod or await self._waiting(key)
        if pod is None:
            if entry is None or entry.decision is None:
                return await self._noted(key)
            return {"pod": str(key), "outcome": "bound", **_record(entry)}
        found = await self.imagined(pod, (), changes or Changes(), policy, narrated, work_seconds=work_seconds)
        await self._turns.pause()
        return {**found, **(_record(entry) if entry is not None else {})}

    async def _waiting(self, key: ObjectKey) -> Pod | None:
        """A pod that waits and was not seen by filter yet."""
        left = iter(list(self._mirror.store.pods.values()))
        while some := list(islice(left, _PODS)):
            found = next((pod for pod in some if pod.key == key), None)
            if found is not None:
                return found
            await self._turns.pause()
        return None

    async def _noted(self, key: ObjectKey) -> Json:
        """What the Binding wrote on a pod that this process did not bind, or bound before it started. Raises UnknownPod."""
        unknown = UnknownPod(f"pod {one_line(str(key))} does not wait for Berth, and no decision about it is remembered")
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

    async def imagined(
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
        await self._turns.pause()
        if claims or changes:
            snapshot = await self._turns.run(ending(in_pieces(partial(imagine, snapshot, claims, changes))))
        begun = self._judge.unfinished(pod, snapshot) if as_is else ""
        if begun:
            return _unfinished(pod, begun)
        watch = Stopwatch(self._clock)
        budget = Budget(work_seconds or self._work_seconds, sys.maxsize, watch)
        budget.keep()
        rules = self._judge.rules(snapshot, budget)
        chosen = policy or self._judge.policy
        ranking = self._judge.ranking_at_hand(pod, snapshot) if as_is else None
        own = seen_by_holder(snapshot, held, nodes) if as_is else {}
        await self._turns.pause()
        # Without a ranking every state of a node is judged: in a hurry, filters would wait for that.
        within = _SECONDS if ranking is not None else inf
        steps = watch.timed(explain(pod, snapshot, chosen, rules, ranking, own, narrated))
        try:
            found = await self._turns.run(steps, within=within)
        except BudgetSpent:
            return _unfinished(pod, f"gave up after {budget.seconds:g} s of work: the claims are too costly to explain")
        await self._turns.pause()
        answer: Json = plain(found)
        return answer


def _unfinished(pod: Pod, why: str) -> Json:
    found: Json = plain(Explanation(str(pod.key), "unfinished", f"pod {pod.key}: {why}"))
    return found


def plain(found: Any) -> Any:
    """Records of any kind as dictionaries and lists, ready for JSON."""
    if is_dataclass(found) and not isinstance(found, type):
        return {field.name: plain(getattr(found, field.name)) for field in fields(found)}
    if hasattr(found, "_asdict"):
        return {name: plain(value) for name, value in found._asdict().items()}
    return [plain(item) for item in found] if isinstance(found, tuple | list) else found


def _record(entry: Entry) -> Json:
    return {
        "attempts": [plain(attempt) for attempt in entry.attempts],
        "change": entry.change(),
        "decision": plain(entry.decision) if entry.decision is not None else None,
    }
