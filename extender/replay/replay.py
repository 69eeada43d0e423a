"""One replay: jobs arrive, wait, run and end on a virtual cluster, in virtual time.

The cluster is the cache of serve and what fills it (`virtual_api`), kube-scheduler's queue (`virtual_scheduler`) and a
placement. With Berth, the placement is `Decisions`: the filter, the gangs, the holds and the binds of serve. Time moves
from event to event (`virtual_time`). Equal input and seed give equal outcomes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count

from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod, decode_pod
from extender.api.resource_claims import Claim, decode_claim
from extender.cache import ClusterCache
from extender.replay.fleets import Fleet
from extender.replay.jobs import Job
from extender.replay.node_room import Amounts
from extender.replay.outcome import MAX_NAMED, Meter, Outcome, PlacedPod, placed_pod
from extender.replay.placements import Placement, placing_of
from extender.replay.virtual_api import VirtualApi, VirtualWatches
from extender.replay.virtual_scheduler import VirtualScheduler, Waiting
from extender.replay.virtual_time import in_virtual_time, wall_clock
from extender.runtime.cache_tasks import HoldExpirer
from extender.runtime.supervisor import Supervisor
from extender.serve.decisions import Decisions

PATIENCE_SECONDS = 600.0  # how long pods of a half placed gang wait for the last one, without Berth
_ROUND_SECONDS, _MAX_ROUNDS = 60.0, 10  # of waiting for pauses of gangs, after the last event
_SAMPLES = 60


@dataclass(eq=False)
class _Run:
    """A job in the cluster. `attempt` counts its restarts; `nodes` are those of its bound pods, by UID."""

    job: Job
    attempt: int = 0
    pods: dict[str, tuple[Pod, Claim | None]] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    runs: bool = False

    def of(self, *, gangs: bool) -> Hashable:
        """The class of its pods in the queue. `gangs`: whether the placement knows gangs."""
        return (self.job.name, self.attempt) if gangs and self.job.is_gang else self.job.shape


def run_replay(
    fleet: Fleet,
    jobs: Sequence[Job],
    placement: Placement,
    seed: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Replay the jobs, which are in the order of their arrival. `progress` is told how many have arrived.

    Raises WireError for an object of the fleet that cannot be read.
    """
    return in_virtual_time(Replay(fleet, jobs, placement, seed, progress).run())


class Replay:
    """See run_replay. `run` must run in a VirtualLoop."""

    def __init__(
        self, fleet: Fleet, jobs: Sequence[Job], placement: Placement, seed: int, progress: Callable[[int], None]
    ) -> None:
        self._fleet = fleet
        self._jobs = jobs
        self._placement = placement
        self._seed = seed
        self._progress = progress
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._runs: dict[str, _Run] = {}  # by name of the job
        self._run_of: dict[str, _Run] = {}  # by UID of the pod
        self._failures = 0
        self._waiting_gpus = 0.0
        self._templates: dict[Hashable, Claim] = {}  # by shape of the job

    async def run(self) -> Outcome:
        """Replay all jobs, and return what was found."""
        loop = asyncio.get_running_loop()
        supervisor = Supervisor(clock=loop.time)
        self._api = VirtualApi(self._bound, self._requeue)
        self.decisions = Decisions(
            self._api, self._watches(supervisor), self._placement.policy, loop.time, supervisor, wall_clock
        )
        self._fleet.apply(self.decisions.cache)
        room = self._fleet.room()
        placing = placing_of(self._placement, self.decisions, self._api, len(room.names))
        self._scheduler = VirtualScheduler(self._api, placing, room, self._seed)
        until = self._jobs[-1].arrival
        self._meter = Meter(self.decisions.cache.snapshot(), self._placement.policy.group_levels, until)
        self.decisions.start()
        supervisor.start("kube-scheduler", self._scheduler.run)
        try:
            await self._replay()
        finally:
            await supervisor.stop()
        return self._meter.outcome(
            self._placement.name, len(self._jobs), loop.time(), self._failures, self._never_started()
        )

    def _watches(self, supervisor: Supervisor) -> Callable[[ClusterCache, Callable[[str], None]], VirtualWatches]:
        def watches(cache: ClusterCache, applied: Callable[[str], None]) -> VirtualWatches:
            expirer = HoldExpirer(cache, asyncio.get_running_loop().time)
            found = VirtualWatches(self._api, expirer, supervisor)
            self._api.connect(cache, applied, found.progress)
            return found

        return watches

    # -- events ----------------------------------------------------------------------------------------------

    async def _replay(self) -> None:
        loop, events, arrived = asyncio.get_running_loop(), 0, 0
        every = max(len(self._jobs) * 2 // _SAMPLES, 1)
        while arrived < len(self._jobs) or self._events:
            arrival = self._jobs[arrived].arrival if arrived < len(self._jobs) else math.inf
            at = min(arrival, self._events[0][0] if self._events else math.inf)
            await asyncio.sleep(max(at - loop.time(), 0.0))
            while self._events and self._events[0][0] <= at:  # what ends makes room for what arrives
                heappop(self._events)[2]()
                events += 1
            while arrived < len(self._jobs) and self._jobs[arrived].arrival <= at:
                self._create(_Run(self._jobs[arrived]))
                arrived, events = arrived + 1, events + 1
                self._progress(arrived)
            if events // every > (events - 1) // every or events == 1:
                await asyncio.sleep(0)
                self._meter.sample(at, self._waiting_gpus, self.decisions.cache.snapshot())
            if arrived == len(self._jobs) and not self._events:
                await self._last_pauses()

    async def _last_pauses(self) -> None:
        """Nothing runs and nothing arrives. Wait for the pauses of gangs, and for back-offs."""
        for _ in range(_MAX_ROUNDS):
            await asyncio.sleep(_ROUND_SECONDS)
            if self._events or not self._scheduler.waiting:
                return

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heappush(self._events, (time, next(self._numbers), event))

    def _requeue(self) -> None:
        self._scheduler.requeue()

    def _create(self, run: _Run) -> None:
        """The pods and the claims of a job, which then wait."""
        job, berth = run.job, self._placement.is_berth
        self._runs[job.name] = run
        self._waiting_gpus += job.all_gpus
        requests = Amounts(job.cpu, job.ram, 1)
        created = []
        for name in job.pod_names(run.attempt):
            uid = f"uid-{name}"
            obj = job.pod(name, plain=not berth)
            obj["metadata"] |= {"uid": uid, "resourceVersion": "1"}
            pod, claim = decode_pod(obj), self._claim(job, name)
            run.pods[uid] = pod, claim
            self._run_of[uid] = run
            created.append(Waiting(pod, run.of(gangs=berth), requests, berth and job.is_gang))
            self._api.create(pod, claim)
        for waiting in created:
            self._scheduler.add(waiting)

    def _claim(self, job: Job, name: str) -> Claim | None:
        if job.claim_spec is None:
            return None
        known = self._templates.get(job.shape)
        if known is None:
            known = self._templates[job.shape] = decode_claim(job.claim_object(name))
        return replace(known, key=ObjectKey(known.key.namespace, name), uid=f"claim-{name}")

    def _bound(self, uid: str, node: str) -> None:
        """A pod has a node. With its last pod, a job starts."""
        run, now = self._run_of[uid], asyncio.get_running_loop().time()
        run.nodes[uid] = node
        self._waiting_gpus -= run.job.pod_gpus
        self._meter.use(run.job.pod_gpus, now)
        if len(run.nodes) == len(run.pods):
            run.runs = True
            snapshot = self.decisions.cache.snapshot()
            pods = [self._measured(run, one) for one in run.pods]
            self._meter.started(run.job, now - run.job.arrival, pods, snapshot)
            if run.job.duration < math.inf:
                self._at(now + run.job.duration, lambda: self._end(run))
        elif len(run.nodes) == 1 and not self._placement.is_berth:
            self._at(now + PATIENCE_SECONDS, lambda: self._give_up(run))

    def _measured(self, run: _Run, uid: str) -> PlacedPod:
        _, claim = run.pods[uid]
        cache, node = self.decisions.cache, run.nodes[uid]
        stored = cache.store.claims[claim.key] if claim is not None else None
        results = stored.allocation.results if stored is not None and stored.allocation is not None else ()
        return placed_pod(cache.snapshot().node_infos[node], results)

    def _end(self, run: _Run) -> None:
        """All pods of a job are deleted: it has ended, or gave up."""
        now, job = asyncio.get_running_loop().time(), run.job
        for uid, (pod, claim) in run.pods.items():
            self._scheduler.remove(uid, run.of(gangs=self._placement.is_berth))
            self._api.delete(pod, claim.key if claim is not None else None)
            del self._run_of[uid]
        self._meter.use(-len(run.nodes) * job.pod_gpus, now)
        self._waiting_gpus -= (len(run.pods) - len(run.nodes)) * job.pod_gpus
        del self._runs[job.name]
        self._requeue()

    def _give_up(self, run: _Run) -> None:
        """The pods of a half placed gang run out of patience. Its controller creates all again."""
        if not run.runs and self._runs.get(run.job.name) is run:
            self._failures += 1
            self._end(run)
            self._create(_Run(run.job, run.attempt + 1))

    def _never_started(self) -> dict[str, str]:
        """The first jobs that did not start, each with the most frequent reason of a pod."""
        found = dict[str, str]()
        for waiting in self._scheduler.waiting:
            job = self._run_of[waiting.pod.uid].job.name
            if job not in found and len(found) < MAX_NAMED:
                found[job] = max(waiting.reasons, key=lambda one: (waiting.reasons[one], one), default="was not tried")
        return found
