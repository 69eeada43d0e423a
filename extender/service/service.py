"""`berth serve` as one object: keeps the mirror, answers the verbs, binds, requeues, and ends in order."""

from __future__ import annotations

import datetime
import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from extender.allocation.features import Features
from extender.cluster.client import ApiClient
from extender.cluster.writer import Writer
from extender.mirror.mirror import Mirror
from extender.model.claim import Claim, ObjectKey, Pod
from extender.model.demand import Mix
from extender.policy import Policy
from extender.records import PolicyState
from extender.runtime.expiring import Expirer
from extender.runtime.informers import Informers
from extender.runtime.supervisor import Supervisor
from extender.service.binder import Binder, Surroundings
from extender.service.calls import Calls
from extender.service.collecting import Collector
from extender.service.continuation import Continuation
from extender.service.decisions import ReservationSink, ServeSink
from extender.service.fence import Fence
from extender.service.judge import FilterAnswer, Judge
from extender.service.outbox import Outbox, Post
from extender.service.throttle import Limits
from extender.service.tracing import Spanner, no_span
from extender.service.waking import Waker
from extender.verdict.evaluator import Evaluator

_DRAIN_SECONDS = 20.0  # below the 30 s that a pod gets to terminate
_SUPPLY = frozenset({"resourceslices", "devicetaintrules", "nodes"})  # events that can help a rejected pod and do not wake it


class Service:
    """Use as an async context manager. Its supervisor runs all background tasks, those of others too, until it ends.
    Without `post` there is no console, and no record is kept; else `post` sends one encoded batch of records.
    `replica` names this process to the console: of two processes of one name, the console takes one to have ended."""

    def __init__(
        self, client: ApiClient, policy: Policy, clock: Callable[[], float] = time.monotonic, span: Spanner = no_span,
        supervisor: Supervisor | None = None, post: Post | None = None, replica: str = "",
    ) -> None:
        self.supervisor = supervisor or Supervisor()
        self.client = client
        self.clock = clock
        self.calls = Calls()
        self.outbox = Outbox(post, replica or _replica(), self._state, clock) if post is not None else None
        put = self.outbox.put if self.outbox is not None else lambda _: None
        writer, features, limits = Writer(client, f"berth-{uuid.uuid4()}"), Features(), Limits()
        self.waker = Waker(writer, _now_rfc3339)
        self.expirer = Expirer(clock)
        self.mirror = Mirror(features, listener=ReservationSink(put, clock, self.waker, self.expirer))
        self.collector = Collector(self.mirror, writer, clock, self.supervisor)
        self.continuation = Continuation(clock, limits.rest)
        self.evaluator = Evaluator(features)
        sink = ServeSink(put, _now_rfc3339, self.waker, self.continuation, self.collector)
        self.judge = Judge(self.mirror, policy, self.evaluator, clock, sink, limits=limits)
        self.informers = Informers(client, self.mirror, clock, self.supervisor, self._applied, _SUPPLY | {"pods"})
        claims = self.informers.reflectors["resourceclaims"]
        self.binder = Binder(
            self.mirror, self.judge, writer, self.informers.progress,
            Fence(self.mirror, self.informers.progress, lambda: claims.version),
            Surroundings(_now_rfc3339, _age_seconds, lambda: str(uuid.uuid4()), put, self.supervisor, span),
        )

    async def __aenter__(self) -> Self:
        self.informers.start()
        start = self.supervisor.start
        start("waker", partial(self.waker.run, self.judge.hints.look))
        start("expirer", partial(self.expirer.run, self.mirror))
        start("collector", self.collector.run)
        start("continuation", partial(self.continuation.run, self.judge.go_on))
        if self.outbox is not None:
            start("records", self.outbox.run)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.binder.drain(_DRAIN_SECONDS)
        finally:
            await self.supervisor.stop()

    def watched(self, uid: str, resource_version: str) -> Pod | None:
        """The pod as the watch showed it, where that is exactly this version of it."""
        pod = self.mirror.store.pods.get(uid)
        return pod if pod is not None and pod.resource_version == resource_version else None

    def filter(self, pod: Pod, names: Sequence[str]) -> FilterAnswer:
        """See Judge.filter. A pod without devices passes even while Berth is not ready."""
        if not pod.may_need_devices:
            return FilterAnswer()
        refusal = self.informers.refusal
        return FilterAnswer(error=refusal) if refusal else self.judge.filter(pod, names)

    def prioritize(self, pod: Pod, names: Sequence[str]) -> list[tuple[str, int]]:
        """See Judge.prioritize."""
        if self.informers.not_ready or not pod.may_need_devices:
            return [(name, 0) for name in names]
        return self.judge.prioritize(pod, names)

    async def bind(self, key: ObjectKey, uid: str, node: str) -> None:
        """See Binder.bind."""
        await self.binder.bind(key, uid, node)

    def _applied(self, kind: str) -> None:
        """An event of this kind was applied: what is gone is forgotten, and new supply may help a rejected pod."""
        self.judge.forget_gone()
        if kind in _SUPPLY:
            self.waker.supply_changed()

    def _state(self) -> tuple[PolicyState, Mix]:
        """What every batch of records says of this process."""
        judge = self.judge
        return PolicyState(judge.policy_generation, judge.policy_digest, judge.policy_problem), self.mirror.mix


def _replica() -> str:
    """The name of the pod, or of the machine; with the process, since a machine may run two."""
    return f"{socket.gethostname()}-{os.getpid()}"


def _age_seconds(claim: Claim) -> float:
    """By the wall clock, as the timestamp is; 0 where the server keeps none."""
    stamp = claim.allocation.timestamp if claim.allocation is not None else ""
    if not stamp:
        return 0.0
    return (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(stamp)).total_seconds()


def _now_rfc3339() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()[:19] + "Z"  # a tenth of what strftime takes
