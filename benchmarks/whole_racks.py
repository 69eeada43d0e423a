"""Gangs of a whole rack among small jobs that come and go: does a rack stay whole for them?

4 racks of 18 trays, nodes and racks with names in any order. Every whole-rack gang that finds no whole rack is refused.
The same jobs are placed by Berth, as filter and the gang planner choose, and by two rules. `make bench-quality` prints
the table of docs/quality.md. In a replay jobs wait; here they are refused, so that waiting jobs do not fill the racks.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple, Protocol

from benchmarks.replayed_traces import Kind
from extender.api.resource_claims import Allocation, Result
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import GangPlan, GangProblem
from extender.replay import Job
from extender.scheduling import Placement
from extender.scheduling.shortlist import shortlist
from tests.worlds.gang_worlds import CLIQUE, POLICY, SPINE, TRAY, GangWorld, key
from tests.worlds.running_berth import claim

RACKS = Kind("NVL72 racks", TRAY, gpus=4, nodes=18, cliques=4)
STEPS = 400
SEEDS = 8
TRAYS = RACKS.nodes  # of a gang that needs a whole rack
SINGLE_GPUS, GANG_TRAYS = (1, 2, 4), (2, 3, 4, 6)


@dataclass(frozen=True)
class Load:
    """The jobs of a trace, by step."""

    name: str
    small: float  # small jobs in one step, of which half are gangs of a few trays
    small_steps: float  # that a small job runs, in the mean
    whole: float  # whole-rack gangs in one step
    whole_steps: float


LOADS = (Load("few small jobs", 0.8, 12, 0.18, 3), Load("many small jobs", 1.4, 12, 0.35, 2))


def jobs_of(load: Load, seed: int) -> list[list[Job]]:
    """The jobs of each step; a duration is a number of steps."""
    rng, number, found = random.Random(seed), 0, list[list[Job]]()
    for step in range(STEPS):
        jobs = list[Job]()
        for rate, mean in ((load.small, load.small_steps), (load.whole, load.whole_steps)):
            for _ in range(int(rate) + (rng.random() < rate % 1)):
                number += 1
                members, gpus = (TRAYS, RACKS.gpus) if rate == load.whole else _small(rng)
                jobs.append(Job(f"job-{number}", step, rng.expovariate(1 / mean), members, gpus))
        found.append(jobs)
    return found


def _small(rng: random.Random) -> tuple[int, int]:
    """(pods, GPUs of each)"""
    return (1, rng.choice(SINGLE_GPUS)) if rng.random() < 0.5 else (rng.choice(GANG_TRAYS), RACKS.gpus)


@dataclass(frozen=True)
class Names:
    """Names of trays and racks that say nothing of each other."""

    rack_of: dict[str, str]  # by tray, in the order of the racks

    @classmethod
    def shuffled(cls, seed: int) -> Names:
        rng = random.Random(seed)
        racks = [f"rack-{number}" for number in rng.sample(range(100), RACKS.cliques)]
        trays = [f"node-{number}" for number in rng.sample(range(10_000), RACKS.nodes * RACKS.cliques)]
        return cls({name: racks[i // RACKS.nodes] for i, name in enumerate(trays)})


# -- placements ----------------------------------------------------------------------------------------------------


class Scheduler(Protocol):
    """Starts a job whole, or not at all."""

    def start(self, job: Job) -> bool: ...

    def end(self, job: Job) -> None: ...


class Fleet:
    """Nodes in a cache, the pods that run, and their devices."""

    def __init__(self, rack_of: Mapping[str, str]) -> None:
        self.world, self.rack_of = GangWorld(), rack_of
        self._devices: dict[str, tuple[Result, ...]] = {}  # by pod
        self._used: set[object] = set()
        for name, rack in rack_of.items():
            self.world.add_node(name, RACKS.machine, {CLIQUE: rack, SPINE: "spine-0"})

    def create(self, job: Job) -> None:
        for pod in job.pod_names():
            self.world.add_claim(claim(pod, int(job.gpus)))
            self.world.add_pod(pod, pod, **({"group": job.name} if job.is_gang else {}))

    def plan(self, job: Job) -> Mapping[str, tuple[str, Placement]]:
        """The nodes and devices of the job's pods; {} if not all of them fit."""
        world, snapshot, names = self.world, self.world.cache.snapshot(), job.pod_names()
        context = world.evaluator.evaluation_context(snapshot)
        if not job.is_gang:
            requirements = world.member(names[0], 0).requirements
            ranking = world.rankings.get_or_create(requirements)
            ranking.update(snapshot, context)
            best = shortlist(ranking, requirements, snapshot, list(self.rack_of)).nodes
            return {names[0]: next(iter(best.items()))} if best else {}
        pods = tuple(world.member(pod, rank) for rank, pod in enumerate(names))
        problem = GangProblem(pods, POLICY.group_levels, "preferred")
        found = plan_gang(problem, snapshot, context, world.rankings, world.memory)
        return found.placements if isinstance(found, GangPlan) else {}

    def use(self, placed: Mapping[str, tuple[str, Placement]]) -> None:
        """Allocate the devices of pods, as their binds would."""
        snapshot = self.world.cache.snapshot()
        for pod, (node, placement) in placed.items():
            (results,) = placement.results(snapshot.node_infos[node])
            devices = {result.device for result in results}
            assert self._used.isdisjoint(devices), "a device is used twice"
            self._used |= devices
            self._devices[pod] = results
        for pod in placed:
            group = self.world.member(pod, 0).requirements.group
            stored = replace(self.world.cache.store.claims[key(pod)], allocation=Allocation(self._devices[pod]))
            self.world.cache.apply_claim(stored.key, replace(stored, group=group.on_claims if group else ""))

    def delete(self, job: Job) -> None:
        """The pods and their claims are gone, and their devices are free."""
        for pod in job.pod_names():
            self._used -= {result.device for result in self._devices.pop(pod, ())}
            self.world.cache.apply_claim(key(pod), None)
            del self.world.pods[pod]


class Berth:
    """Pods as filter places them, and gangs as the planner does."""

    def __init__(self, names: Names) -> None:
        self._fleet = Fleet(names.rack_of)

    def start(self, job: Job) -> bool:
        self._fleet.create(job)
        placed = self._fleet.plan(job)
        racks = {self._fleet.rack_of[node] for node, _ in placed.values()}
        if not placed or (job.pods == TRAYS and len(racks) > 1):  # such a gang has `required`
            self.end(job)
            return False
        self._fleet.use(placed)
        return True

    def end(self, job: Job) -> None:
        self._fleet.delete(job)


class Rule:
    """Racks and nodes in an order, by numbers of free GPUs only."""

    def __init__(self, names: Names) -> None:
        self._free = dict.fromkeys(names.rack_of, RACKS.gpus)
        self._racks: dict[str, list[str]] = {}
        for name, rack in names.rack_of.items():
            self._racks.setdefault(rack, []).append(name)
        self._nodes: dict[str, list[str]] = {}  # by job

    def start(self, job: Job) -> bool:
        racks = self._ordered()
        anywhere = [] if job.pods == TRAYS else [[name for rack in racks for name in rack]]
        for names in (*racks, *anywhere):
            room = [name for name in names for _ in range(self._free[name] // int(job.gpus))]
            if len(room) >= job.pods:
                self._nodes[job.name] = room[: job.pods]
                for name in room[: job.pods]:
                    self._free[name] -= int(job.gpus)
                return True
        return False

    def end(self, job: Job) -> None:
        for name in self._nodes.pop(job.name):
            self._free[name] += int(job.gpus)

    def _ordered(self) -> list[list[str]]:
        raise NotImplementedError


class FullestRackFirst(Rule):
    """The rack with the fewest free GPUs that holds the whole job, and in it the fullest nodes; or any nodes."""

    def _ordered(self) -> list[list[str]]:
        free = self._free
        racks = sorted(self._racks.values(), key=lambda names: sum(free[name] for name in names))
        return [sorted(names, key=lambda name: free[name]) for names in racks]


class FirstRack(Rule):
    """The first rack by name that holds the whole job, and in it the first nodes."""

    def _ordered(self) -> list[list[str]]:
        return [sorted(self._racks[rack]) for rack in sorted(self._racks)]


SCHEDULERS: dict[str, Callable[[Names], Scheduler]] = {
    "first rack by name": FirstRack,
    "fullest rack first": FullestRackFirst,
    "Berth": Berth,
}


# -- the trace -----------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The number of jobs that started."""

    whole: int  # gangs of a whole rack
    small: int


def simulate(jobs: Sequence[Sequence[Job]], scheduler: Scheduler) -> Outcome:
    """Start the jobs of each step, or refuse them."""
    running: list[tuple[float, int, Job]] = []
    started: Counter[bool] = Counter()
    numbers = count()
    for step, new in enumerate(jobs):
        while running and running[0][0] <= step:
            scheduler.end(heapq.heappop(running)[2])
        for job in new:
            if scheduler.start(job):
                started[job.pods == TRAYS] += 1
                heapq.heappush(running, (step + job.duration, next(numbers), job))
    return Outcome(started[True], started[False])


def table(seeds: int = SEEDS) -> Iterator[str]:
    """The rows of docs/quality.md."""
    yield "| load | placement | whole-rack gangs | small jobs |"
    yield "|---|---|---|---|"
    for load in LOADS:
        traces = [jobs_of(load, seed) for seed in range(seeds)]
        asked = [job.pods == TRAYS for trace in traces for jobs in trace for job in jobs]
        for name, scheduler in SCHEDULERS.items():
            outcomes = [simulate(trace, scheduler(Names.shuffled(seed))) for seed, trace in enumerate(traces)]
            whole, small = (sum(numbers) for numbers in zip(*outcomes, strict=True))
            yield f"| {load.name} | {name} | {whole} of {sum(asked)} | {small} of {len(asked) - sum(asked)} |"
