"""Gangs of a whole rack among small jobs that come and go: does a rack stay whole for them?

4 racks of 18 trays, nodes and racks with names in any order. Every whole-rack gang that finds no whole rack is refused.
The same jobs are placed by Berth, as filter and the gang planner choose, and by two rules. `make bench-gang-quality`
prints the table of docs/quality.md.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, Protocol

from benchmarks.gang_quality import Fleet, gang_planner
from benchmarks.gang_traces import Job, Kind
from tests.worlds.gang_worlds import TRAY

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
    """The jobs of each step; `hours` are steps."""
    rng, number, found = random.Random(seed), 0, list[list[Job]]()
    for step in range(STEPS):
        jobs = list[Job]()
        for rate, mean in ((load.small, load.small_steps), (load.whole, load.whole_steps)):
            for _ in range(int(rate) + (rng.random() < rate % 1)):
                number += 1
                members, gpus = (TRAYS, RACKS.gpus) if rate == load.whole else _small(rng)
                jobs.append(Job(f"job-{number}", step, members, gpus, rng.expovariate(1 / mean)))
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


class Berth:
    """Pods as filter places them, and gangs as the planner does."""

    def __init__(self, names: Names) -> None:
        self._fleet = Fleet(RACKS, 0, names.rack_of)

    def start(self, job: Job) -> bool:
        for pod in job.pods:
            self._fleet.create(job, pod)
        placed = gang_planner(self._fleet, job.pods, job.gpus)
        racks = {self._fleet.clique[node] for node, _ in placed.values()} if placed is not None else set()
        if placed is None or (job.members == TRAYS and len(racks) > 1):  # such a gang has `required`
            self.end(job)
            return False
        self._fleet.use(placed)
        return True

    def end(self, job: Job) -> None:
        for pod in job.pods:
            self._fleet.delete(pod)


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
        anywhere = [] if job.members == TRAYS else [[name for rack in racks for name in rack]]
        for names in (*racks, *anywhere):
            room = [name for name in names for _ in range(self._free[name] // job.gpus)]
            if len(room) >= job.members:
                self._nodes[job.name] = room[: job.members]
                for name in room[: job.members]:
                    self._free[name] -= job.gpus
                return True
        return False

    def end(self, job: Job) -> None:
        for name in self._nodes.pop(job.name):
            self._free[name] += job.gpus

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
                started[job.members == TRAYS] += 1
                heapq.heappush(running, (step + job.hours, next(numbers), job))
    return Outcome(started[True], started[False])


def table(seeds: int = SEEDS) -> Iterator[str]:
    """The rows of docs/quality.md."""
    yield "| load | placement | whole-rack gangs | small jobs |"
    yield "|---|---|---|---|"
    for load in LOADS:
        traces = [jobs_of(load, seed) for seed in range(seeds)]
        asked = [job.members == TRAYS for trace in traces for jobs in trace for job in jobs]
        for name, scheduler in SCHEDULERS.items():
            outcomes = [simulate(trace, scheduler(Names.shuffled(seed))) for seed, trace in enumerate(traces)]
            whole, small = (sum(numbers) for numbers in zip(*outcomes, strict=True))
            yield f"| {load.name} | {name} | {whole} of {sum(asked)} | {small} of {len(asked) - sum(asked)} |"


if __name__ == "__main__":
    for row in table():
        print(row, flush=True)
