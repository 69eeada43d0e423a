"""`berth serve` without HTTP: what it decides, and an orderly end.

`Decisions` answers the verbs from a cache, keeps holds and gangs, binds and requeues pods. `Service` connects the
decisions to the watches and writes of a cluster, `berth replay` to those of a virtual cluster.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Self

from extender.allocation import Features
from extender.api.object_meta import ObjectKey
from extender.api.pod_groups import GROUP_OBJECTS, NEEDED_OBJECTS
from extender.api.pods import Pod
from extender.cache import ClusterCache
from extender.cluster import ApiClient, WallClock, Writer, utc_now
from extender.policy import Policy
from extender.runtime.informers import NOT_READY, CacheRefresh, Informers
from extender.runtime.supervisor import Supervisor
from extender.scheduling import Evaluator
from extender.serve.bind import Binder, Watches
from extender.serve.evaluations import Evaluations
from extender.serve.filter import FilterResult, FilterService, FilterSink
from extender.serve.gangs.gang_barrier import GangBarrier
from extender.serve.gangs.gang_monitor import GangHints, GangMonitor
from extender.serve.gangs.gang_planning import GangPlanning
from extender.serve.gangs.gang_scheduler import GangScheduler
from extender.serve.orphans import OrphanCollector
from extender.serve.telemetry import CallDurations, SpanFactory, Traces, no_span
from extender.serve.wake import QueueingHints, Requeuer

_DRAIN_SECONDS = 20.0  # below the 30 s that a pod gets to terminate

# kube-scheduler does not requeue a pod that an extender rejected when objects of these kinds change.
_SUPPLY = frozenset({"resourceslices", "devicetaintrules", "nodes"})
OBSERVED = _SUPPLY | {"pods", *(one.resource for one in GROUP_OBJECTS)}  # kinds after whose events `applied` is called


class Decisions:
    """The decisions over one cache. `watches` makes what fills the cache, and calls `applied` after each event.

    `clock` returns seconds. `wall_clock` gives the timestamps of claims; it may jump.
    """

    def __init__(
        self,
        writer: Writer,
        watches: Callable[[ClusterCache, Callable[[str], None]], Watches],
        policy: Policy,
        clock: Callable[[], float],
        supervisor: Supervisor,
        wall_clock: WallClock = utc_now,
        span: SpanFactory = no_span,
    ) -> None:
        self.supervisor = supervisor
        self.clock = clock
        features = Features()
        self.evaluations = Evaluations(clock)
        self.requeuer = Requeuer(writer, self.evaluations, wall_clock)
        self.cache = ClusterCache(features)
        self.cache.listeners.append(self.requeuer)
        self.refresh = CacheRefresh(self.cache, clock)
        self.orphans = OrphanCollector(
            self.cache, writer, clock, self.supervisor, lambda uid: uid in self.binder.running
        )
        self.evaluator = Evaluator(features)
        sink = FilterSink(
            self.requeuer.requeue_now, self.orphans.deallocate_unsuitable, self.orphans.remove_stale_special
        )
        self.filter_service = FilterService(self.cache, policy, self.evaluator, self.evaluations, clock, sink)
        self.queueing_hints = QueueingHints(self.cache, self.filter_service)
        self._watches = watches(self.cache, self._applied)
        progress = self._watches.progress
        planning = GangPlanning(self.cache, self.filter_service)
        self.gangs = GangScheduler(
            self.cache,
            self.filter_service,
            planning,
            writer.read_bound_members,
            sink,
            clock,
            progress.notify,
            lambda source: self._watches.is_served(NEEDED_OBJECTS[source].resource),
        )
        self.gang_monitor = GangMonitor(self.gangs, self.cache, sink, clock)
        self.gang_hints = GangHints(self.gangs, self.cache, planning, self.filter_service)
        barrier = GangBarrier(self.gangs, progress, clock)
        self.binder = Binder(
            self.cache, self.filter_service, writer, self._watches, barrier, self.supervisor, wall_clock, span
        )

    def start(self) -> None:
        """Start the watches and the background tasks of the decisions."""
        self._watches.start()
        start = self.supervisor.start
        start("requeue", self._requeue)
        start("gangs", partial(self.gang_monitor.run, self.refresh.wait, self.supervisor))
        start("evaluations", partial(self.evaluations.run, self.refresh.wait, self.supervisor.report))

    def cached_pod(self, uid: str, resource_version: str) -> Pod | None:
        """The pod from the cache, if the cache has exactly this resourceVersion of it."""
        pod = self.cache.store.pods.get(uid)
        return pod if pod is not None and pod.resource_version == resource_version else None

    def filter(self, pod: Pod, names: Sequence[str]) -> FilterResult:
        """See FilterService.filter. A pod that needs no devices passes even while Berth is not ready."""
        if not pod.concerns_berth:
            return FilterResult()
        if missing := self._watches.not_ready:
            return FilterResult(error=f"{NOT_READY}{missing}")
        if self.filter_service.is_gone(pod.uid):
            return FilterResult(error=f"pod {pod.key} was deleted or is bound")
        return self.gangs.filter(self.cache.store.in_tree(pod), names)

    def prioritize(self, pod: Pod, names: Sequence[str]) -> list[tuple[str, int]]:
        """See FilterService.prioritize."""
        if self._watches.not_ready:
            return [(name, 0) for name in names]
        return self.filter_service.prioritize(self.cache.store.in_tree(pod), names)

    async def bind(self, key: ObjectKey, uid: str, node: str) -> None:
        """See Binder.bind. A pod that needs no devices is bound even while Berth is not ready."""
        await self.refresh.wait()
        await self.binder.bind(key, uid, node)

    def use_policy(self, policy: Policy) -> None:
        """Use this policy from now on. A gang may collect devices now, or not any more."""
        self.filter_service.use_policy(policy)
        self.gangs.collecting.wake()

    def _applied(self, kind: str) -> None:
        """Called after each applied event: drop deleted objects, and wake the requeuer if devices may be new."""
        self.filter_service.forget_deleted()
        changed, resized = self.cache.store.take_changed_groups()
        if changed or resized:
            self.gang_monitor.pods_changed(changed, resized)
        if kind in _SUPPLY:
            self.requeuer.supply_changed()

    async def _requeue(self) -> None:
        """Requeue the pods that wait when Berth starts: only the process that rejected them knew what they wait for."""
        await self._watches.listed()
        if any(pod.may_need_devices for pod in self.cache.store.pods.values()):
            self.requeuer.requeue_now()
        await self.requeuer.run(self._rejected_namespaces, self._find_schedulable)

    def _rejected_namespaces(self) -> set[str]:
        """The namespaces with pods or gangs that found no room."""
        return {*self.filter_service.unschedulable.namespaces, *self.gangs.admission.namespaces}

    def _find_schedulable(self, namespace: str) -> Iterator[bool]:
        """Search for a rejected pod, and then for a waiting gang, that fits now. See Requeuer.run.

        A bug with one of them must not delay the next search, which is for all.
        """
        found = False
        for search in (self.queueing_hints.find_schedulable, self.gang_hints.find_schedulable):
            try:
                for found in search(namespace):
                    yield found
            except Exception as bug:  # noqa: BLE001 - see above
                self.supervisor.report("requeue", bug)
                self.requeuer.supply_changed()  # the search may not be complete
            if found:
                break


class Service(Decisions):
    """Use as an async context manager. The supervisor runs all background tasks and ends them at the exit.

    `clock` returns seconds. `wall_clock` gives the timestamps of claims; it may jump.
    """

    def __init__(
        self,
        client: ApiClient,
        policy: Policy,
        clock: Callable[[], float] = time.monotonic,
        span: SpanFactory = no_span,
        supervisor: Supervisor | None = None,
        wall_clock: WallClock = utc_now,
    ) -> None:
        self.client = client
        self.calls = CallDurations()
        supervisor = supervisor or Supervisor()

        def watches(cache: ClusterCache, applied: Callable[[str], None]) -> Informers:
            self.informers = Informers(client, cache, clock, supervisor, applied, OBSERVED)
            return self.informers

        writer = Writer(client, f"berth-{uuid.uuid4()}")
        super().__init__(writer, watches, policy, clock, supervisor, wall_clock, span)

    async def __aenter__(self) -> Self:
        self.start()
        self.supervisor.start("orphans", self.orphans.run)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.binder.drain(_DRAIN_SECONDS)
        finally:
            await self.supervisor.stop()


class TracedService:
    """The verbs of a Service; each call is a span."""

    def __init__(self, service: Service, traces: Traces) -> None:
        self._service = service
        self._traces = traces

    def filter(self, pod: Pod, names: Sequence[str]) -> FilterResult:
        with self._traces.span(pod.uid, "filter", _about(pod.key)) as span:
            answer = self._service.filter(pod, names)
            passed = len(names if answer.passed is None else answer.passed)
            span.set_attributes({"berth.nodes.asked": len(names), "berth.nodes.passed": passed})
            if answer.error:
                self._traces.failed(span, answer.error)
            return answer

    def prioritize(self, pod: Pod, names: Sequence[str]) -> list[tuple[str, int]]:
        asked = {"berth.nodes.asked": len(names)}
        with self._traces.span(pod.uid, "prioritize", _about(pod.key) | asked):
            return self._service.prioritize(pod, names)

    async def bind(self, pod: ObjectKey, uid: str, node: str) -> None:
        with self._traces.span(uid, "bind", _about(pod) | {"k8s.node.name": node}):
            await self._service.bind(pod, uid, node)


def _about(pod: ObjectKey) -> dict[str, str | int]:
    """The attributes of a span."""
    return {"k8s.namespace.name": pod.namespace, "k8s.pod.name": pod.name}
