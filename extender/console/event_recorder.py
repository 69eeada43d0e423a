"""Writes an Event on a waiting pod when the reasons of its wait change: one sentence that says what would help.

kube-scheduler writes the reasons themselves in its FailedScheduling Event. The event recorder writes one Event per
change, at most one a minute per pod, and at most five a second in all. Events do not requeue pods.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from cachetools import LRUCache

from extender.cluster import ClusterError, Writer
from extender.console.decision_history import DecisionHistory
from extender.console.explainer import Explainer
from extender.model import ObjectKey

_PAUSE_SECONDS = 0.2  # between two Events
_POD_SECONDS = 60.0  # between two Events on one pod
_REMEMBERED = 4096  # pods
_WORK_SECONDS = 0.5  # of one explanation
_REST = 9.0  # pause after an explanation, as a multiple of the time that it took
Json = dict[str, Any]


class EventRecorder:
    """A background task of the console. `unschedulable` only queues a pod; `run` explains it and writes the Event."""

    def __init__(
        self,
        explainer: Explainer,
        history: DecisionHistory,
        writer: Writer,
        clock: Callable[[], float],
        remembered: int = _REMEMBERED,
    ) -> None:
        self._explainer = explainer
        self._history = history
        self._writer = writer
        self._clock = clock
        self._remembered = remembered
        # Pod UID to (reasons, time) of the last Event.
        self._recorded: LRUCache[str, tuple[str, float]] = LRUCache(remembered)
        self._queue: OrderedDict[str, ObjectKey] = OrderedDict()
        self._queued = asyncio.Event()
        self._log = structlog.get_logger("berth.events")
        self.events = 0  # Events written

    def unschedulable(self, pod: ObjectKey, uid: str) -> None:
        """Queue a pod whose last filter request no node passed."""
        entry = self._history.entry(uid)
        if entry is None or not entry.attempts:
            return
        reasons = "; ".join(text for text, _ in entry.attempts[-1].reasons)
        last_reasons, when = self._recorded.get(uid, ("", float("-inf")))
        if reasons == last_reasons or self._clock() - when < _POD_SECONDS:
            return
        self._recorded[uid] = reasons, self._clock()
        self._queue[uid] = pod
        if len(self._queue) > self._remembered:
            self._queue.popitem(last=False)
        self._queued.set()

    async def policy_rejected(self, config_map: ObjectKey, problem: str) -> None:
        """Write an Event on the ConfigMap of the policy: its policy is not valid."""
        note = f"the last good policy stays in force: {problem}"
        try:
            await self._writer.create_event("ConfigMap", config_map, "", "PolicyRefused", note)
            self.events += 1
        except ClusterError as error:
            self._log.warning("could not write an Event", config_map=str(config_map), problem=str(error))

    async def run(self, listed: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled, once every kind is listed: in an incomplete cache no pod fits.

        Each explanation is followed by a pause many times as long.
        """
        await listed()
        while True:
            await self._queued.wait()
            while self._queue:
                uid, pod = self._queue.popitem(last=False)
                began = self._clock()
                found = self._explained(pod)
                rest = _REST * (self._clock() - began)
                if found is not None:
                    await self._record(uid, pod, found)
                elif uid in self._recorded:  # so that the same reasons can cause an Event later
                    self._recorded[uid] = "", self._recorded[uid][1]
                await asyncio.sleep(max(_PAUSE_SECONDS, rest))
            self._queued.clear()

    def _explained(self, pod: ObjectKey) -> Json | None:
        """Explain a pod; None if it does not wait or fits on a node now."""
        try:
            found = self._explainer.known(pod, work_seconds=_WORK_SECONDS)
        except Exception:  # noqa: BLE001 - a fault of one pod must not stop the Events of others
            self._log.exception("could not explain a pod", pod=str(pod))
            return None
        return found if found is not None and found["outcome"] in ("refused", "blocked") else None

    async def _record(self, uid: str, pod: ObjectKey, found: Json) -> None:
        self._log.info("not placed", pod=str(pod), because=found["sentence"], nodes=found["nodes"])
        try:
            await self._writer.create_event("Pod", pod, uid, "NotPlaced", found["sentence"])
            self.events += 1
        except ClusterError as error:
            self._log.warning("could not write an Event", pod=str(pod), problem=str(error))
