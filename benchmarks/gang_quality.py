"""Gangs on a mixed trace: the same jobs placed pod by pod and by Berth's gang planner, without HTTP.

Two fleets, jobs of one pod and gangs of 2 to 32 pods, by seed. `make bench-gang-quality` prints the tables of
docs/quality.md. A pod-by-pod scheduler starts a gang when its last pod has a node. Until then the other pods hold their
GPUs and do nothing; after `PATIENCE` hours they fail, and their Job creates all pods of the gang again.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from extender.allocation import choose
from extender.model import Allocation, Result
from extender.scheduling import GangPlan, GangProblem, Placement, held_by_claim, plan_gang, problem_for, shortlist
from tests.gang_worlds import CLIQUE, POLICY, SPINE, TRAY, GangWorld, key
from tests.running_berth import claim

MEMBERS, MEMBER_SHARES = (2, 4, 8, 16, 32), (30, 30, 20, 12, 8)
SINGLE_SHARES = {1: 40, 2: 30, 4: 20, 8: 10}  # GPUs of a job of one pod to percent
AT_ONCE, AT_ONCE_SHARES = (1, 2, 3), (60, 25, 15)  # gangs that are created at the same moment
GANG_SHARE = 0.7  # of the GPU-hours
LOAD = 0.8  # GPU-hours that jobs ask for over those of the fleet
MEAN_HOURS = 4.0  # of a job
PATIENCE = 1 / 6  # hours: 10 minutes are the default of torchrun's rendezvous
SEEDS = 3

Placed = Mapping[str, tuple[str, Placement]]  # pod to node and devices


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
    for at in times(hourly * (1 - GANG_SHARE) / of_single):
        found.append([job(at, 1, rng.choices(list(singles), list(singles.values()))[0])])
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


class Fleet:
    """Nodes in a cache, the pods that wait or run, and their devices."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind, self.world, self.rng = kind, GangWorld(), random.Random(seed)
        self.free: dict[str, int] = {}  # GPUs by node
        self.clique: dict[str, str] = {}  # by node
        self.devices: dict[str, tuple[str, tuple[Result, ...]]] = {}  # pod to node and devices
        self._used: set[object] = set()
        for i in range(kind.nodes * kind.cliques):
            number = i // kind.nodes
            labels = {CLIQUE: f"clique-{number}", SPINE: f"spine-{number // kind.cliques_per_spine}"}
            self.world.add_node(f"node-{i}", kind.machine, labels)
            self.free[f"node-{i}"], self.clique[f"node-{i}"] = kind.gpus, labels[CLIQUE]

    def create(self, job: Job, pod: str) -> None:
        self.world.add_claim(claim(pod, job.gpus))
        self.world.add_pod(pod, pod, **({"group": job.name} if job.members > 1 else {}))

    def use(self, placed: Placed) -> None:
        """Allocate the devices of pods, as their binds would."""
        snapshot = self.world.cache.snapshot()
        for pod, (node, placement) in placed.items():
            (results,) = held_by_claim(snapshot.node_infos[node], placement)
            devices = {result.device for result in results}
            assert self._used.isdisjoint(devices), "a device is used twice"
            self._used |= devices
            self.devices[pod] = node, results
            self.free[node] -= len(results)
        for pod in placed:
            group = self.world.member(pod, 0).requirements.group
            stored = replace(self.world.cache.store.claims[key(pod)], allocation=Allocation(self.devices[pod][1]))
            self.world.cache.apply_claim(stored.key, replace(stored, group=group.on_claims if group else ""))

    def delete(self, pod: str) -> None:
        """The pod and its claim are gone, and its devices are free."""
        node, results = self.devices.pop(pod, ("", ()))
        self._used -= {result.device for result in results}
        if node:
            self.free[node] += len(results)
        self.world.cache.apply_claim(key(pod), None)
        del self.world.pods[pod]


# -- placements: the nodes and devices of some pods, or None if not all of them fit --------------------------------


def first_fit(fleet: Fleet, pods: Sequence[str], gpus: int) -> Placed | None:
    """The first node with room."""
    return _in_tree(fleet, pods, next((name for name, free in fleet.free.items() if free >= gpus), ""))


def emptiest(fleet: Fleet, pods: Sequence[str], gpus: int) -> Placed | None:
    """The node with the most free GPUs, ties at random: LeastAllocated, with CPU in proportion to GPUs."""
    most = max(fleet.free.values())
    names = [name for name, free in fleet.free.items() if free == most]
    return _in_tree(fleet, pods, fleet.rng.choice(names) if most >= gpus else "")


def _in_tree(fleet: Fleet, pods: Sequence[str], node: str) -> Placed | None:
    """The devices that the in-tree allocator meets first on a node."""
    if not node:
        return None
    (pod,), snapshot = pods, fleet.world.cache.snapshot()
    context = fleet.world.evaluator.evaluation_context(snapshot)
    solution = choose(problem_for(snapshot.node_infos[node], fleet.world.member(pod, 0).requirements, context), None)
    assert solution is not None, "the node has room"
    return {pod: (node, Placement(solution, (), 0.0, 0.0))}


def pod_by_pod(fleet: Fleet, pods: Sequence[str], gpus: int) -> Placed | None:
    """The best node by Berth's scores, among them the proximity to the other pods of the group."""
    (pod,), world, snapshot = pods, fleet.world, fleet.world.cache.snapshot()
    requirements = world.member(pod, 0).requirements
    ranking = world.rankings.get_or_create(requirements)
    ranking.update(snapshot, world.evaluator.evaluation_context(snapshot))
    found = shortlist(ranking, requirements, snapshot, list(fleet.free)).nodes
    return {pod: found[0]} if found else None


def gang_planner(fleet: Fleet, pods: Sequence[str], gpus: int) -> Placed | None:
    """The plan of a gang; a single pod as `pod_by_pod`."""
    if len(pods) == 1:
        return pod_by_pod(fleet, pods, gpus)
    world, snapshot = fleet.world, fleet.world.cache.snapshot()
    members = tuple(world.member(pod, rank) for rank, pod in enumerate(pods))
    problem, context = GangProblem(members, POLICY.group_levels, "preferred"), world.evaluator.evaluation_context(snapshot)
    found = plan_gang(problem, snapshot, context, world.rankings, world.memory)
    return found.placements if isinstance(found, GangPlan) else None


@dataclass(frozen=True)
class Scheduler:
    name: str
    place: Callable[[Fleet, Sequence[str], int], Placed | None]
    together: bool  # whether all pods of a gang are placed in one step


SCHEDULERS = (
    Scheduler("emptiest node", emptiest, together=False),
    Scheduler("first fit", first_fit, together=False),
    Scheduler("Berth, pod by pod", pod_by_pod, together=False),
    Scheduler("Berth, gangs", gang_planner, together=True),
)


# -- the trace over time -------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came of a trace. Times are in hours; means over time are in GPUs, from 0 to the last arrival."""

    waits: dict[str, list[float]] = field(default_factory=lambda: {"gang": [], "single": []})
    cliques: list[tuple[int, int]] = field(default_factory=list)  # of each gang: its cliques, the fewest possible
    half_placed: set[str] = field(default_factory=set)  # gangs that held devices for some but not all pods
    failures: int = 0  # times that a half placed gang ran out of patience
    means: Counter[str] = field(default_factory=Counter)

    @property
    def inside(self) -> float:
        """The share of gangs inside one clique, among those for which a clique is large enough."""
        return statistics.mean(found == 1 for found, least in self.cliques if least == 1)


class Simulation:
    """One scheduler and one trace. Pods are tried in the order of their creation, and none blocks the next."""

    def __init__(self, fleet: Fleet, scheduler: Scheduler) -> None:
        self.fleet, self.scheduler, self.outcome = fleet, scheduler, Outcome()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number, self._now = count(), 0.0
        self._waiting: list[tuple[Job, tuple[str, ...]]] = []  # pods that are placed in one step
        self._rounds: Counter[str] = Counter()  # how often the pods of a job failed
        self._forming: dict[str, Job] = {}  # half placed

    def run(self, jobs: Sequence[Sequence[Job]]) -> Outcome:
        horizon, gauges = jobs[-1][0].at, dict[str, float]()
        for together in jobs:
            self._at(together[0].at, lambda together=together: self._create(together))
        while self._events:
            at, _, event = heapq.heappop(self._events)
            for name, value in gauges.items():
                self.outcome.means[name] += value * max(0, min(at, horizon) - min(self._now, horizon)) / horizon
            self._now = at
            event()
            self.outcome.half_placed |= self._forming.keys()
            gauges = self._gauges()
        assert not self._waiting, "every job fits into an empty fleet"
        return self.outcome

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._number), event))

    def _create(self, jobs: Sequence[Job]) -> None:
        pods = list(created(jobs))
        for job, pod in pods:
            self.fleet.create(job, pod)
        # Nothing became free: what equal pods wait for, the new ones would not get.
        new = [(job, tuple(job.pods)) for job in jobs] if self.scheduler.together else [(job, (pod,)) for job, pod in pods]
        self._waiting += self._tried(new, {_shape(job, pods) for job, pods in self._waiting})

    def _tried(
        self, waiting: Sequence[tuple[Job, tuple[str, ...]]], failed: set[tuple[int, int]]
    ) -> list[tuple[Job, tuple[str, ...]]]:
        """Place what fits, in order; returns the rest. `failed` are shapes that do not fit."""
        left = []
        for job, pods in waiting:
            placed = self.scheduler.place(self.fleet, pods, job.gpus) if _shape(job, pods) not in failed else None
            if placed is None:
                failed.add(_shape(job, pods))
                left.append((job, pods))
            else:
                self.fleet.use(placed)
                self._placed(job)
        return left

    def _placed(self, job: Job) -> None:
        missing = sum(pod not in self.fleet.devices for pod in job.pods)
        if not missing:
            self._forming.pop(job.name, None)
            self._start(job)
        elif job.name not in self._forming:
            self._forming[job.name] = job
            number = self._rounds[job.name]
            self._at(self._now + PATIENCE, lambda: self._fail(job, number))

    def _start(self, job: Job) -> None:
        self.outcome.waits["gang" if job.members > 1 else "single"].append(self._now - job.at)
        if job.members > 1:
            cliques = {self.fleet.clique[self.fleet.devices[pod][0]] for pod in job.pods}
            self.outcome.cliques.append((len(cliques), job.cliques(self.fleet.kind)))
        self._at(self._now + job.hours, lambda: self._end(job))

    def _end(self, job: Job) -> None:
        for pod in job.pods:
            self.fleet.delete(pod)
        self._waiting = self._tried(self._waiting, set())

    def _fail(self, job: Job, number: int) -> None:
        """Pods of a half placed gang run out of patience; their Job creates all again, at the end of the queue."""
        if job.name not in self._forming or self._rounds[job.name] != number:
            return
        del self._forming[job.name]
        self._rounds[job.name] += 1
        self.outcome.failures += 1
        self._waiting = [entry for entry in self._waiting if entry[0] is not job]
        for pod in job.pods:
            self.fleet.delete(pod)
            self.fleet.create(job, pod)
        self._waiting = self._tried([*self._waiting, *((job, (pod,)) for _, pod in created([job]))], set())

    def _gauges(self) -> dict[str, float]:
        free, kind = self.fleet.free, self.fleet.kind
        idle = sum(job.gpus for job in self._forming.values() for pod in job.pods if pod in self.fleet.devices)
        found = {"idle": idle, "free": sum(free.values()), "waits": 0, "stranded node": 0, "free waits": 0, "stranded clique": 0}
        sizes = {job.gpus for job, _ in self._waiting if job.members > 1}
        if sizes:
            found["waits"] = 1
            found["free waits"] = found["free"]
            found["stranded node"] = sum(one for one in free.values() if one < min(sizes))
        by_clique: dict[str, list[int]] = {}
        for name, clique in self.fleet.clique.items():
            by_clique.setdefault(clique, []).append(free[name])
        weight = 0
        total = 0.0
        for members, share in zip(MEMBERS, MEMBER_SHARES, strict=True):
            for gpus in (kind.gpus, kind.gpus // 2):
                if kind.gpus // gpus * kind.nodes >= members:
                    weight += share
                    total += share * sum(sum(c) for c in by_clique.values() if sum(n // gpus for n in c) < members)
        found["stranded clique"] = total / weight
        return found


def _shape(job: Job, pods: Sequence[str]) -> tuple[int, int]:
    return len(pods), job.gpus


def main() -> None:
    import time
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=120)
    args = parser.parse_args()
    for kind in KINDS:
        jobs = trace(kind, args.hours, args.seed)
        flat = [j for js in jobs for j in js]
        print(f"\n{kind.name}: {kind.total} GPUs, {sum(j.members > 1 for j in flat)} gangs, {sum(j.members == 1 for j in flat)} single; load {sum(j.members*j.gpus*j.hours for j in flat)/kind.total/jobs[-1][0].at:.2f}")
        for scheduler in SCHEDULERS:
            start = time.process_time()
            o = Simulation(Fleet(kind, args.seed), scheduler).run(jobs)
            c = [a for a, _ in o.cliques]; l = [b for _, b in o.cliques]
            g, s = o.waits["gang"], o.waits["single"]
            m = {k: f"{v / kind.total:.1%}" if k != "waits" else f"{v:.1%}" for k, v in o.means.items()}
            print(f"{scheduler.name:18} inside {o.inside:.1%} cliques {statistics.mean(c):.2f} (least {statistics.mean(l):.2f}) half {len(o.half_placed)} failures {o.failures} wait gang {60*statistics.mean(g):.1f} p95 {60*sorted(g)[len(g)*95//100]:.0f} single {60*statistics.mean(s):.1f} min p95 {60*sorted(s)[len(s)*95//100]:.0f} {m} cpu {time.process_time()-start:.0f}s", flush=True)


if __name__ == "__main__":
    main()
