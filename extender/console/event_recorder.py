"""One Event on a pod when the reason why it waits changes: what would make it fit, in one sentence.

kube-scheduler tells the reasons themselves in its FailedScheduling event. This one is rare: once per change, at most once
a minute per pod and five a second in all. Events wake no pod.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from extender.cluster import ClusterError, Writer
from extender.console.decision_history import DecisionHistory
from extender.console.explainer import Explainer
from extender.model import ObjectKey

_PAUSE_SECONDS = 0.2  # between two events
_POD_SECONDS = 60.0  # between two events on one pod
_REMEMBERED = 4096  # pods
_WORK_SECONDS = 0.5  # of one explanation
_REST = 9.0  # times as long as an explanation took
Json = dict[str, Any]


class EventRecorder:
    """Runs beside the console; `refused` is called for every record of a refused pod and only remembers."""

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
        self._recorded: OrderedDict[str, tuple[str, float]] = OrderedDict()  # pod UID to reasons told and when
        self._todo: OrderedDict[str, ObjectKey] = OrderedDict()
        self._something = asyncio.Event()
        self._log = structlog.get_logger("berth.events")
        self.events = 0

    def unschedulable(self, pod: ObjectKey, uid: str) -> None:
        """A filter request for the pod named no node."""
        entry = self._history.entry(uid)
        if entry is None or not entry.attempts:
            return
        reasons = "; ".join(text for text, _ in entry.attempts[-1].reasons)
        told, when = self._recorded.get(uid, ("", float("-inf")))
        if reasons == told or self._clock() - when < _POD_SECONDS:
            return
        self._recorded[uid] = reasons, self._clock()
        self._todo[uid] = pod
        for table in (self._recorded, self._todo):
            if len(table) > self._remembered:
                table.popitem(last=False)
        self._something.set()

    async def policy_refused(self, config_map: ObjectKey, problem: str) -> None:
        """An Event on the ConfigMap of the policy."""
        note = f"the last good policy stays in force: {problem}"
        try:
            await self._writer.create_event("ConfigMap", config_map, "", "PolicyRefused", note)
            self.events += 1
        except ClusterError as error:
            self._log.warning("could not write an event", config_map=str(config_map), problem=str(error))

    async def run(self, listed: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled, once everything is listed: no pod fits a cluster of which a part is not known. An
        explanation that took long is followed by a rest many times as long."""
        await listed()
        while True:
            await self._something.wait()
            while self._todo:
                uid, pod = self._todo.popitem(last=False)
                began = self._clock()
                found = self._explained(pod)
                rest = _REST * (self._clock() - began)
                if found is not None:
                    await self._record(uid, pod, found)
                elif uid in self._recorded:  # the same reasons may be worth an Event later
                    self._recorded[uid] = "", self._recorded[uid][1]
                await asyncio.sleep(max(_PAUSE_SECONDS, rest))
            self._something.clear()

    def _explained(self, pod: ObjectKey) -> Json | None:
        """The explanation of a pod that still waits and still fits nowhere."""
        try:
            found = self._explainer.known(pod, work_seconds=_WORK_SECONDS)
        except Exception:  # noqa: BLE001 - the next pod has an Event to get
            self._log.exception("could not explain a pod", pod=str(pod))
            return None
        return found if found is not None and found["outcome"] in ("refused", "blocked") else None

    async def _record(self, uid: str, pod: ObjectKey, found: Json) -> None:
        self._log.info("not placed", pod=str(pod), because=found["sentence"], nodes=found["nodes"])
        try:
            await self._writer.create_event("Pod", pod, uid, "NotPlaced", found["sentence"])
            self.events += 1
        except ClusterError as error:
            self._log.warning("could not write an event", pod=str(pod), problem=str(error))
