"""`berth console` as one object: it watches the cluster, explains, audits, and writes Events.

The console writes nothing but Events, and no decision depends on it. It has a cache and watches of its own, unless
serve runs in the same process. Users ask `questions`, and the page reads `overview`. Five background tasks do the rest:
they write Events on pods that wait, audit the cluster, read the decisions about bound pods, compare these with first
fit, and count the fleet.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

from extender.allocation import Features
from extender.cache import ClusterCache
from extender.cluster import ApiClient, Writer, now_rfc3339, utc_now
from extender.console.auditor import Auditor
from extender.console.decision_history import DecisionHistory, DecisionReader, SetComparer
from extender.console.event_recorder import EventRecorder
from extender.console.explainer import Explainer
from extender.console.fleet_overview import FleetOverview, FleetSampler
from extender.console.job_history import JobHistory
from extender.console.questions import Questions, RestartQuestions
from extender.policy import Policy
from extender.runtime.informers import CacheRefresh, Informers
from extender.runtime.supervisor import Supervisor
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
        self.explainer = Explainer(self.cache, evaluator, policy, clock)
        self.policy_generation = 0  # policies put in force since the start
        self.policy_problem = ""  # why the newest policy file is not in force; empty if it is
        self.use_policy(policy)
        self.history = DecisionHistory(now_rfc3339())
        self.jobs = JobHistory(lambda: utc_now().timestamp())
        self.questions = Questions(self.explainer, self.history, writer, self.refreshed)
        self.restarts = RestartQuestions(client, self.explainer, self.refreshed)
        self.fleet_sampler = FleetSampler(self.cache, self.refreshed, clock)
        self.overview = FleetOverview(self.cache, self.history, self.explainer, self.fleet_sampler, clock)
        self.event_recorder = EventRecorder(self.questions, writer, clock)
        self.auditor = Auditor(self.cache, client, writer)
        self.set_comparer = SetComparer(self.cache, evaluator, self.history, self.refreshed, clock)
        self.decision_reader = DecisionReader(
            self.cache, self.history, self.jobs, self.set_comparer, writer.read_pod, self.refreshed
        )
        self.cache.listeners.append(self.jobs)
        self.cache.listeners.append(self.decision_reader)
        self.cache.listeners.append(self.event_recorder)

    def use_policy(self, policy: Policy) -> None:
        """Put a policy in force: the console reads its own copy of serve's policy file."""
        self.explainer.use_policy(policy)
        self.policy_generation += 1
        self.policy_problem = ""
        if not self.cluster.shared:
            self.cache.slices.agents.use_seconds(policy.live_memory_seconds)

    def reject_policy(self, problem: str) -> None:
        """Note why the newest policy file is not valid. The last valid policy stays in force."""
        self.policy_problem = problem

    async def __aenter__(self) -> Self:
        if not self.cluster.shared:
            self.informers.start()
        for name, run in {
            "event-recorder": self.event_recorder.run,
            "auditor": self.auditor.run,
            "set-comparer": self.set_comparer.run,
            "fleet-sampler": self.fleet_sampler.run,
            "decisions": self.decision_reader.run,
        }.items():
            self.supervisor.start(name, partial(self._once_listed, run))
        return self

    async def _once_listed(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task once every kind is listed: in an incomplete cache no pod fits, and no claim has devices."""
        await self.informers.listed()
        await run()

    async def __aexit__(self, *_: object) -> None:
        if not self.cluster.shared:
            await self.supervisor.stop()
