"""Writes an Event on a waiting pod when the reasons of its wait change: one sentence that says what would help.

kube-scheduler writes the reasons themselves in its FailedScheduling Event. The event recorder writes one Event per
change, at most one a minute per pod, and at most five a second in all. The namespaces take turns, so that costly pods
of one do not delay the Events of others for long. Events do not requeue pods. The pods of a gang get the sentence about
the gang, which is explained once for all of them that are queued.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import structlog
from cachetools import LRUCache

from extender.api.object_meta import ObjectKey
from extender.api.pods import SCHEDULER, Pod
from extender.cache import CacheListener
from extender.cluster import ClusterError, Writer
from extender.console.explainer import Brief
from extender.console.fair_queue import FairQueue
from extender.console.forked_call import ForkedCallFailed
from extender.console.questions import Questions

_NEVER: tuple[int | None, float] = (None, float("-inf"))
_COUNT = re.compile(
    r"(?:^|[:,.] )(?:preemption: )?[0-9]+(?:/[0-9]+)? |\.$"
)  # how many nodes, in kube-scheduler's message
_PAUSE_SECONDS = 0.2  # between two Events
_EARLY_SECONDS = 1.0  # before the next look at a pod that had an Event within the last minute
_POD_SECONDS = 60.0  # between two Events on one pod
_MAX_PODS = 4096  # that are remembered, and that wait
_WORK_SECONDS = 0.5  # of one explanation
_PAUSE_FACTOR = 9.0  # pause after an explanation, as a multiple of the time that it took
_REPORTED = ("refused", "gave-up", "blocked")  # outcomes that an Event explains better than kube-scheduler's own Event


class EventRecorder(CacheListener):
    """A background task of the console. A pod that kube-scheduler could not place is only queued; `run` explains it."""

    def __init__(self, questions: Questions, writer: Writer, clock: Callable[[], float]) -> None:
        self._questions = questions
        self._writer = writer
        self._clock = clock
        # Pod UID to the hash of the last reasons, which may be long, and the time of the last explanation.
        self._recorded: LRUCache[str, tuple[int | None, float]] = LRUCache(_MAX_PODS)
        self._queue: FairQueue[str, ObjectKey] = FairQueue(_MAX_PODS)  # pod UID to pod
        self._problem = ""  # why the last explanation gave up; '' if it did not
        self._log = structlog.get_logger("berth.events")
        self.events = 0  # Events written

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        if after is None or after.scheduler != SCHEDULER or not (after.unschedulable and after.concerns_berth):
            return
        if before is not None and before.unschedulable == after.unschedulable:
            return
        reasons, (known, when) = _reasons(after.unschedulable), self._recorded.get(after.uid, _NEVER)
        if reasons != known:
            self._recorded[after.uid] = reasons, when
            self._queue.put(after.key.namespace, after.uid, after.key)

    async def policy_rejected(self, config_map: ObjectKey, problem: str) -> None:
        """Write an Event on the ConfigMap of the policy: its policy is not valid."""
        note = f"the last good policy stays in force: {problem}"
        try:
            await self._writer.create_event("ConfigMap", config_map, "", "PolicyRefused", note)
            self.events += 1
        except ClusterError as error:
            self._log.warning("could not write an Event", config_map=str(config_map), problem=str(error))

    async def run(self) -> None:
        """Run until cancelled. Each explanation is followed by a pause many times as long."""
        while True:
            uid, pod = await self._queue.take()
            if self._is_due(uid):
                await self._explain(uid, pod)
            else:
                self._queue.put_later(_EARLY_SECONDS, pod.namespace, uid, pod)

    async def _explain(self, uid: str, pod: ObjectKey) -> None:
        began = self._clock()
        found = await self._explained(uid, pod)
        pause = _PAUSE_FACTOR * min(self._clock() - began, _WORK_SECONDS)
        for other, name in ((uid, pod), *self._take_members(found)):
            reasons = self._recorded.get(other, _NEVER)[0]
            if found is not None and found.outcome in _REPORTED:
                await self._record(other, name, found)
            else:
                reasons = None  # so that the same reasons can cause an Event later
            self._recorded[other] = reasons, self._clock()
            await asyncio.sleep(_PAUSE_SECONDS)
        await asyncio.sleep(max(0.0, pause - _PAUSE_SECONDS))

    def _is_due(self, uid: str) -> bool:
        return self._clock() - self._recorded.get(uid, _NEVER)[1] >= _POD_SECONDS

    def _take_members(self, found: Brief | None) -> list[tuple[str, ObjectKey]]:
        """Take the other pods of an explained gang out of the queue."""
        group = found.group if found is not None else None
        queued = [
            (uid, pod) for uid, pod in self._queue.items() if group and self._questions.explainer.group_of(uid) == group
        ]
        taken = [(uid, pod) for uid, pod in queued if self._is_due(uid)]
        for uid, _ in taken:
            self._queue.pop(uid)
        return taken

    async def _explained(self, uid: str, pod: ObjectKey) -> Brief | None:
        """Explain a pod; None if it does not wait."""
        try:
            found = await self._questions.brief(uid, _WORK_SECONDS)
        except ForkedCallFailed as error:
            if str(error) != self._problem:  # many pods in a row may give up for one reason
                self._problem = str(error)
                self._log.warning("gave up the explanation of a pod", pod=str(pod), problem=self._problem)
            return None
        except Exception:  # noqa: BLE001 - a fault of one pod must not stop the Events of others
            self._log.exception("could not explain a pod", pod=str(pod))
            return None
        self._problem = ""
        return found

    async def _record(self, uid: str, pod: ObjectKey, found: Brief) -> None:
        note = f"{found.sentence}; see berth explain group {found.group}" if found.group else found.sentence
        self._log.info("not placed", pod=str(pod), because=note)
        try:
            await self._writer.create_event("Pod", pod, uid, "NotPlaced", note)
            self.events += 1
        except ClusterError as error:
            self._log.warning("could not write an Event", pod=str(pod), problem=str(error))


def _reasons(message: str) -> int:
    """A hash of the reasons in kube-scheduler's message, without the numbers of nodes and the order, which they set."""
    return hash(frozenset(_COUNT.split(message)))
