"""`berth console` as one object: it watches the cluster, explains, audits, and writes Events."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

from extender.allocation import Features
from extender.cache import ClusterCache
from extender.cluster import ApiClient, Writer, now_rfc3339
from extender.console.active_policy import ActivePolicy
from extender.console.auditor import Auditor
from extender.console.decision_history import DecisionHistory, DecisionReader
from extender.console.event_recorder import EventRecorder
from extender.console.explainer import Explainer
from extender.console.fleet_overview import FleetOverview
from extender.console.fleet_sampler import FleetSampler
from extender.console.set_comparer import SetComparer
from extender.policy import Policy
from extender.runtime import CacheRefresh, Informers, Supervisor
from extender.scheduling import Evaluator

# Kinds of objects that other components remember besides the cache.
_OBSERVED = frozenset({"resourceslices", "pods"})


@dataclass(frozen=True, slots=True)
class ConsoleCluster:
    """The cache that the console reads, and the objects that keep it up to date.

    With `shared`, the cache belongs to serve in the same process: serve runs the informers, and the cache already has
    serve's reservations. `refresh` is then that of serve.
    """

    cache: ClusterCache
    evaluator: Evaluator
    informers: Informers
    refresh: CacheRefresh
    shared: bool = False


def own_cluster(client: ApiClient, clock: Callable[[], float], supervisor: Supervisor) -> ConsoleCluster:
    """A cache of the console's own, with its own watches."""
    features = Features()
    cache, evaluator = ClusterCache(features), Evaluator(features)

    def forget(_: str) -> None:
        evaluator.forget_slices(cache.slices.deleted)
        cache.slices.deleted.clear()
        cache.store.deleted_pods.clear()
        cache.store.take_changed_groups()

    informers = Informers(client, cache, clock, supervisor, forget, _OBSERVED)
    return ConsoleCluster(cache, evaluator, informers, CacheRefresh(cache))


class Console:
    """Use as an async context manager. The exit stops the supervisor, unless the cache is shared with serve.

    Then serve stops the supervisor after the running binds, which need the watches. `clock` returns seconds.
    """

    def __init__(
        self,
        client: ApiClient,
        policy: Policy,
        clock: Callable[[], float] = time.monotonic,
        supervisor: Supervisor | None = None,
        cluster: ConsoleCluster | None = None,
    ) -> None:
        self.client = client
        self.clock = clock
        self.supervisor = supervisor or Supervisor()
        self.cluster = cluster or own_cluster(client, clock, self.supervisor)
        self.cache, self.informers = self.cluster.cache, self.cluster.informers
        self.refreshed = self.cluster.refresh.wait
        writer, evaluator = Writer(client, "berth-console"), self.cluster.evaluator
        self.policy = ActivePolicy(policy)
        if not self.cluster.shared:
            self.policy.follow(lambda: self.cache.slices.agents.use_seconds(self.policy.policy.live_memory_seconds))
        self.policy.use(policy)
        self.history = DecisionHistory(now_rfc3339())
        self.explainer = Explainer(
            self.cache,
            evaluator,
            self.history,
            self.policy,
            self.refreshed,
            writer.read_pod,
            read_bound=writer.read_bound_members,
            clock=clock,
        )
        self.fleet_sampler = FleetSampler(self.cache, clock)
        self.overview = FleetOverview(
            self.cache, self.history, self.explainer, self.fleet_sampler.trend, clock, self.refreshed
        )
        self.event_recorder = EventRecorder(self.explainer, writer, clock)
        self.auditor = Auditor(self.cache, client, writer, lambda: not self.informers.not_ready)
        self.set_comparer = SetComparer(self.cache, evaluator, self.history, clock)
        self.decision_reader = DecisionReader(self.cache, self.history, writer.read_pod, self.set_comparer.bound)
        self.cache.listeners.append(self.decision_reader)
        self.cache.listeners.append(self.event_recorder)

    async def __aenter__(self) -> Self:
        start = self.supervisor.start
        if not self.cluster.shared:
            self.informers.start()
        start("event-recorder", partial(self.event_recorder.run, self.informers.listed))
        start("auditor", self.auditor.run)
        start("set-comparer", partial(self.set_comparer.run, self.informers.listed, self.refreshed))
        start("fleet-sampler", partial(self.fleet_sampler.run, self.informers.listed, self.refreshed))
        start("decisions", partial(self.decision_reader.run, self.informers.listed, self.refreshed))
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.cluster.shared:
            await self.supervisor.stop()
