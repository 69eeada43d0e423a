"""Fleets with cliques, and mixed traces of jobs for them: one pod, or a gang of 2 to 32 pods."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from tests.worlds.gang_worlds import TRAY

MEMBERS, MEMBER_SHARES = (2, 4, 8, 16, 32), (30, 30, 20, 12, 8)
SINGLE_SHARES = {1: 40, 2: 30, 4: 20, 8: 10}  # GPUs of a job of one pod to percent
AT_ONCE, AT_ONCE_SHARES = (1, 2, 3), (60, 25, 15)  # gangs that are created at the same moment
GANG_SHARE = 0.7  # of the GPU-hours
LOAD = 0.8  # GPU-hours that jobs ask for over those of the fleet
MEAN_HOURS = 4.0  # of a job


@dataclass(frozen=True)
class Kind:
    """A fleet of equal nodes: nodes in cliques, cliques in spines."""

    name: str
    machine: str
    gpus: int  # of a node
    nodes: int  # of a clique
    cliques: int
    cliques_per_spine: int = 4

    @property
    def total(self) -> int:
        return self.gpus * self.nodes * self.cliques


KINDS = (Kind("NVL72 racks", TRAY, 4, 18, 8), Kind("HGX nodes", "hgx-h100-8", 8, 8, 16))


@dataclass(frozen=True)
class Job:
    """Pods that run at the same time for some hours: a gang, or one pod."""

    name: str
    at: float  # hour of its creation
    members: int
    gpus: int  # of each pod
    hours: float

    @property
    def pods(self) -> list[str]:
        return [f"{self.name}-{i}" for i in range(self.members)]

    def cliques(self, kind: Kind) -> int:
        """The fewest cliques that it can have."""
        return -(-self.members // (kind.gpus // self.gpus * kind.nodes))


def trace(kind: Kind, hours: float, seed: int) -> list[list[Job]]:
    """Jobs by time of creation; those in one list are created at the same moment."""
    rng, names = random.Random(seed), count()
    singles = {gpus: share for gpus, share in SINGLE_SHARES.items() if gpus <= kind.gpus}
    of_gang, of_single = _mean(MEMBERS, MEMBER_SHARES) * 0.75 * kind.gpus, _mean(list(singles), list(singles.values()))
    hourly = LOAD * kind.total / MEAN_HOURS  # GPUs that jobs ask for in an hour

    def times(rate: float) -> Iterator[float]:
        now = rng.expovariate(rate)
        while now < hours:
            yield now
            now += rng.expovariate(rate)

    def job(at: float, members: int, gpus: int) -> Job:
        return Job(f"job-{next(names)}", at, members, gpus, rng.expovariate(1 / MEAN_HOURS))

    found = []
    for at in times(hourly * GANG_SHARE / of_gang / _mean(AT_ONCE, AT_ONCE_SHARES)):
        together = rng.choices(AT_ONCE, AT_ONCE_SHARES)[0]
        shapes = [(rng.choices(MEMBERS, MEMBER_SHARES)[0], kind.gpus // rng.choice((1, 2))) for _ in range(together)]
        found.append([job(at, *shape) for shape in shapes])
    alone = times(hourly * (1 - GANG_SHARE) / of_single)
    found += [[job(at, 1, rng.choices(list(singles), list(singles.values()))[0])] for at in alone]
    return sorted(found, key=lambda jobs: jobs[0].at)


def _mean(values: Sequence[int], shares: Sequence[int]) -> float:
    return sum(value * share for value, share in zip(values, shares, strict=True)) / sum(shares)


def created(jobs: Sequence[Job]) -> Iterator[tuple[Job, str]]:
    """The pods of Jobs in the order of their creation: the Job controller creates 1, 2, 4, ... pods of each in turn."""
    start, size = 0, 1
    while any(start < job.members for job in jobs):
        for job in jobs:
            yield from ((job, pod) for pod in job.pods[start : start + size])
        start, size = start + size, 2 * size
