"""Berth as one object: starts the watches, answers the verbs, binds, wakes, and ends in order."""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Self

import structlog

from extender.allocation.features import Features
from extender.cluster.client import ApiClient
from extender.cluster.reflector import Json, Kind, Reflector
from extender.cluster.writer import Writer
from extender.mirror.mirror import Mirror
from extender.model.claim import Claim, ObjectKey, Pod
from extender.policy import Policy
from extender.service.auditing import Auditor
from extender.service.binder import Binder, Surroundings
from extender.service.calls import Calls
from extender.service.collecting import Collector
from extender.service.continuation import Continuation
from extender.service.expiring import Expirer
from extender.service.explaining import Explainer
from extender.service.fence import Fence
from extender.service.heartbeat import Heartbeat
from extender.service.journal import Journal
from extender.service.judge import FilterAnswer, Judge
from extender.service.overview import Overview
from extender.service.progress import Progress
from extender.service.shadow import Shadow
from extender.service.supervisor import Supervisor
from extender.service.surveying import Surveyor
from extender.service.telling import Teller
from extender.service.tidying import tidy
from extender.service.tracing import Spanner, no_span
from extender.service.turns import Turns
from extender.service.waking import Waker
from extender.service.watching import kinds

_SILENT_SECONDS = 180.0  # a reflector opens a silent watch again every 90 s, which a healthy API server accepts at once
_DRAIN_SECONDS = 20.0  # below the 30 s that a pod gets to terminate
_NAMED = 8  # nodes named in a warning
_SUPPLY = frozenset({"resourceslices", "devicetaintrules", "nodes"})  # events that can help a rejected pod and do not wake it


class Service:
    """Use as an async context manager; `not_ready` says what is missing. Its supervisor runs all background tasks,
    those of others too, until the service ends."""

    def __init__(
        self, client: ApiClient, policy: Policy, clock: Callable[[], float] = time.monotonic, span: Spanner = no_span,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.supervisor = supervisor or Supervisor()
        self.heartbeat = Heartbeat(clock)
        features = Features()
        self.mirror = Mirror(features)
        self.journal = Journal(_now_rfc3339)
        self.judge = Judge(self.mirror, policy, features, clock, self.journal)
        writer = Writer(client, f"berth-{uuid.uuid4()}")
        self.turns = Turns()
        self.calls = Calls()
        self.explainer = Explainer(self.mirror, self.judge, self.journal, self.turns, writer.read_pod, clock=clock)
        self.overview = Overview(self.mirror, self.judge, self.journal, self.explainer, self.turns)
        self._progress = Progress()
        self.binder = Binder(
            self.mirror, self.judge, writer, self._progress,
            Fence(self.mirror, self._progress, lambda: self.reflectors["resourceclaims"].version),
            Surroundings(_now_rfc3339, _age_seconds, lambda: str(uuid.uuid4()), self.journal, self.supervisor, span),
        )
        self.collector = Collector(self.mirror, writer, clock, self.supervisor)
        self.auditor = Auditor(self.mirror, client, writer, self.turns, lambda: not self.not_ready)
        self.surveyor = Surveyor(self.mirror, self.turns)
        self.client = client
        self.clock = clock
        self.teller = Teller(self.explainer, self.journal, writer, clock)
        self.shadow = Shadow(self.judge, self.turns, _now_rfc3339, self.mirror.keep)
        self.judge.on_refused = self.teller.refused
        self.judge.on_decided = self.shadow.decided
        self.continuation = Continuation(self.judge.go_on, clock, self.judge.limits.rest)
        self.judge.on_unfinished = self.continuation.unfinished
        self.judge.on_unsuitable = self.collector.unsuitable
        self.judge.on_stale_special = self.collector.stale_special
        self.waker = Waker(self.judge.hints.look, writer, _now_rfc3339)
        self.judge.on_fits = self.waker.fits
        self.expirer = Expirer(self.mirror, clock)
        self.mirror.on_freed = self.waker.supply_changed
        self.mirror.on_sooner = self.expirer.sooner
        self.reflectors = {
            kind.name: Reflector(client, self._observed(kind), self._progress.advance, self.turns.give_way, clock)
            for kind in kinds(self.mirror, clock)
        }
        self._log = structlog.get_logger("berth.service")

    async def __aenter__(self) -> Self:
        for name, reflector in self.reflectors.items():
            self.supervisor.start(f"watch-{name}", reflector.run)
        for name, run in (
            ("heartbeat", self.heartbeat.run), ("waker", self.waker.run), ("expirer", self.expirer.run),
            ("collector", self.collector.run), ("teller", self.teller.run), ("auditor", self.auditor.run),
            ("shadow", self.shadow.run), ("continuation", self.continuation.run), ("surveyor", self._survey),
            ("garbage-collection", partial(tidy, self.turns, self._settle_down)),
        ):
            self.supervisor.start(name, run)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.binder.drain(_DRAIN_SECONDS)
        finally:
            await self.supervisor.stop()

    @property
    def not_ready(self) -> str:
        """'' when every kind has been listed, else what is missing and why."""
        missing: dict[str, list[str]] = {}  # by what stands in the way, as one cause often does for all
        for name, reflector in self.reflectors.items():
            if not reflector.listed:
                missing.setdefault(reflector.problem, []).append(name)
        if not missing:
            return ""
        told = [", ".join(names) + (f" ({problem})" if problem else "") for problem, names in missing.items()]
        hint = "; berth doctor names what mends it" if any(missing) else ""
        return f"not listed yet: {', '.join(told)}{hint}"

    @property
    def degraded(self) -> str:
        """'' while every watch is heard of, else the silent ones. Calls are answered nevertheless: a bind ends only once
        the watch has shown what it wrote."""
        silent = [
            f"the watch of {name} has been silent for {reflector.silence:.0f} s"
            + (f" ({reflector.problem})" if reflector.problem else "")
            for name, reflector in self.reflectors.items()
            if reflector.listed and reflector.silence > _SILENT_SECONDS
        ]
        return "; ".join(silent)

    @property
    def warnings(self) -> list[str]:
        """What is wrong although Berth is ready, a sentence each; nodes and objects of a kind are named, at most _NAMED
        of each."""
        unbuilt = self.mirror.unbuilt
        told = [f"task {name} keeps failing: {problem}" for name, problem in self.supervisor.failing.items()]
        told += [f"the view of node {name} cannot be built: {why}" for name, why in islice(unbuilt.items(), _NAMED)]
        told += [f"and of {len(unbuilt) - _NAMED} more nodes"] if len(unbuilt) > _NAMED else []
        for kind, reflector in self.reflectors.items():
            found = reflector.unreadable
            told += [f"{kind} {key} cannot be read: {one.problem}" for key, one in islice(found.items(), _NAMED)]
            told += [f"and {len(found) - _NAMED} more {kind}"] if len(found) > _NAMED else []
        return told

    def watched(self, uid: str, resource_version: str) -> Pod | None:
        """The pod as the watch showed it, where that is exactly this version of it."""
        pod = self.mirror.store.pods.get(uid)
        return pod if pod is not None and pod.resource_version == resource_version else None

    def filter(self, pod: Pod, names: Sequence[str]) -> FilterAnswer:
        """See Judge.filter. A pod without devices passes even while Berth is not ready."""
        if not pod.may_need_devices:
            return FilterAnswer()
        missing = self.not_ready
        return FilterAnswer(error=f"berth is not ready, {missing}") if missing else self.judge.filter(pod, names)

    def prioritize(self, pod: Pod, names: Sequence[str]) -> list[tuple[str, int]]:
        """See Judge.prioritize."""
        if self.not_ready or not pod.may_need_devices:
            return [(name, 0) for name in names]
        return self.judge.prioritize(pod, names)

    async def bind(self, key: ObjectKey, uid: str, node: str) -> None:
        """See Binder.bind."""
        await self.binder.bind(key, uid, node)

    def _observed(self, kind: Kind) -> Kind:
        """The kind, with the waker told about supply, and what is gone forgotten."""
        if kind.name not in _SUPPLY | {"pods"}:
            return kind

        def apply(key: str, obj: Json | None) -> None:
            kind.apply(key, obj)
            self.judge.forget_gone()
            if kind.name in _SUPPLY:
                self.waker.supply_changed()

        return replace(kind, apply=apply)

    async def _survey(self) -> None:
        await self._progress.until(lambda: not self.not_ready, float("inf"))
        await self.surveyor.run()

    async def _settle_down(self) -> None:
        """Once everything is listed."""
        await self._progress.until(lambda: not self.not_ready, float("inf"))
        self.mirror.present()
        self._log.info("ready", nodes=len(self.mirror.store.nodes), slices=len(self.mirror.store.slices))


def _age_seconds(claim: Claim) -> float:
    """By the wall clock, as the timestamp is; 0 where the server keeps none."""
    stamp = claim.allocation.timestamp if claim.allocation is not None else ""
    if not stamp:
        return 0.0
    return (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(stamp)).total_seconds()


def _now_rfc3339() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()[:19] + "Z"  # a tenth of what strftime takes
