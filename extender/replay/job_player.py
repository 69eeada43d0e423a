"""Plays a file of jobs on the sandbox cluster: the same pods and claims as in a replay, in real time.

A replay skips the time between events. Here it passes, faster by a factor, so that users can watch the page.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from extender.api.fields import Json
from extender.base.berth_errors import WireError
from extender.replay.jobs import NAMESPACE, Job
from extender.sandbox import ApiError, Cluster


class Progress(NamedTuple):
    """Numbers of jobs. `at` is the time of the file, in seconds."""

    at: float
    jobs: int
    arrived: int
    waiting: int  # not all pods have a node
    running: int
    ended: int


@dataclass(eq=False)
class _Played:
    """A job in the cluster, and which of its pods have a node."""

    job: Job
    bound: set[str] = field(default_factory=set)


class JobPlayer:
    """Creates the pods and claims of jobs at their arrival, and deletes them when their duration is over.

    `speed`: so many seconds of the file pass in one second. The seconds of holds, back-offs and gangs stay as they are.
    """

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], speed: float) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._speed = speed
        self._played: dict[str, _Played] = {}  # by pod
        self._arrived = self._started = self._ended = 0
        self._to_end = 0  # jobs that run, and whose end is known
        self._begin = asyncio.get_running_loop().time()
        cluster.store.listen(lambda change: self._changed(change.obj) if change.resource == "pods" else None)

    def create_due(self) -> None:
        """Create the jobs whose time has come. Callers call it again and again. Raises WireError that names the job."""
        now = self.progress.at
        while self._arrived < len(self._jobs) and (job := self._jobs[self._arrived]).arrival <= now:
            try:
                self._create(job)
            except ApiError as error:
                raise WireError(f"job {job.name}", str(error)) from error
            self._arrived += 1

    def _create(self, job: Job) -> None:
        played = _Played(job)
        for name, template in job.named_pods():
            self._played[name] = played
            pod = self._cluster.apply(job.pod(name, template, plain=False))
            if template.claim_spec is not None:
                claim = template.claim_object(name)
                owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}
                claim["metadata"]["ownerReferences"] = [owner]  # it goes with the pod
                self._cluster.apply(claim)

    @property
    def progress(self) -> Progress:
        """The state of all jobs now."""
        at = (asyncio.get_running_loop().time() - self._begin) * self._speed
        waiting, running = self._arrived - self._started, self._started - self._ended
        return Progress(at, len(self._jobs), self._arrived, waiting, running, self._ended)

    @property
    def has_events(self) -> bool:
        """Whether a job is to arrive, or to end."""
        return self._arrived < len(self._jobs) or self._to_end > 0

    def waiting(self) -> dict[str, str]:
        """The jobs that wait, each with its first pod without a node, as namespace/name."""
        found = dict[str, str]()
        for name, one in self._played.items():
            if name not in one.bound:
                found.setdefault(one.job.name, f"{NAMESPACE}/{name}")
        return found

    def _changed(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        played = self._played.get(name)
        if played is None or name in played.bound or not (pod.get("spec") or {}).get("nodeName"):
            return
        played.bound.add(name)
        if len(played.bound) == played.job.all_pods:
            self._started += 1
            if played.job.duration < math.inf:
                self._to_end += 1
                asyncio.get_running_loop().call_later(played.job.duration / self._speed, self._end, played.job)

    def _end(self, job: Job) -> None:
        self._ended += 1
        self._to_end -= 1
        for name, _ in job.named_pods():
            del self._played[name]
            self._cluster.delete_pod(NAMESPACE, name)
