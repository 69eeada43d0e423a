"""Gangs on a mixed trace: the same jobs placed pod by pod and by Berth's gang planner, without HTTP.

Two fleets, jobs of one pod and gangs of 2 to 32 pods, by seed. `make bench-gang-quality` prints the tables of
docs/quality.md. A gang runs when its last pod has a node. Until then its other pods hold GPUs and do nothing; after
some minutes of patience they fail, and the Job creates all pods of the gang again.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from benchmarks.gang_traces import KINDS, Job, Kind, created, trace
from extender.allocation import choose
from extender.api.resource_claims import Allocation, Result
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import GangPlan, GangProblem
from extender.scheduling import Placement, shortlist
from tests.worlds.gang_worlds import CLIQUE, POLICY, SPINE, GangWorld, key
from tests.worlds.running_berth import claim

PATIENCE = 10.0  # minutes that the pods of a gang wait for the last one
SEEDS = 3

Placed = Mapping[str, tuple[str, Placement]]  # pod to node and devices
Waiting = tuple[Job, tuple[str, ...]]  # pods of a job that are placed in one step


class Fleet:
    """Nodes in a cache, the pods that wait or run, and their devices."""

    def __init__(self, kind: Kind, seed: int, clique_of: Mapping[str, str] | None = None) -> None:
        """`clique_of` names the nodes and their cliques; None: by number."""
        self.kind, self.world, self.rng = kind, GangWorld(), random.Random(seed)
        if clique_of is None:
            clique_of = {f"node-{i}": f"clique-{i // kind.nodes}" for i in range(kind.nodes * kind.cliques)}
        self.free: dict[str, int] = {}  # GPUs by node
        self.clique: dict[str, str] = {}  # by node
        self.devices: dict[str, tuple[str, tuple[Result, ...]]] = {}  # pod to node and devices
        self._used: set[object] = set()
        for i, (name, clique) in enumerate(clique_of.items()):
            labels = {CLIQUE: clique, SPINE: f"spine-{i // kind.nodes // kind.cliques_per_spine}"}
            self.world.add_node(name, kind.machine, labels)
            self.free[name], self.clique[name] = kind.gpus, clique

    def create(self, job: Job, pod: str) -> None:
        self.world.add_claim(claim(pod, job.gpus))
        self.world.add_pod(pod, pod, **({"group": job.name} if job.members > 1 else {}))

    def use(self, placed: Placed) -> None:
        """Allocate the devices of pods, as their binds would."""
        snapshot = self.world.cache.snapshot()
        for pod, (node, placement) in placed.items():
            (results,) = placement.results(snapshot.node_infos[node])
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
    solution = choose(context.problem(snapshot.node_infos[node], fleet.world.member(pod, 0).requirements), None)
    assert solution is not None, "the node has room"
    return {pod: (node, Placement(solution, (), 0.0, 0.0))}


def pod_by_pod(fleet: Fleet, pods: Sequence[str], gpus: int) -> Placed | None:
    """The best node by Berth's scores, among them the proximity to the other pods of the group."""
    (pod,), world, snapshot = pods, fleet.world, fleet.world.cache.snapshot()
    requirements = world.member(pod, 0).requirements
    ranking = world.rankings.get_or_create(requirements)
    ranking.update(snapshot, world.evaluator.evaluation_context(snapshot))
    found = shortlist(ranking, requirements, snapshot, list(fleet.free)).nodes
    return {pod: next(iter(found.items()))} if found else None


def gang_planner(fleet: Fleet, pods: Sequence[str], gpus: int) -> Placed | None:
    """The plan of a gang; a single pod as `pod_by_pod`."""
    if len(pods) == 1:
        return pod_by_pod(fleet, pods, gpus)
    world, snapshot = fleet.world, fleet.world.cache.snapshot()
    members = tuple(world.member(pod, rank) for rank, pod in enumerate(pods))
    problem = GangProblem(members, POLICY.group_levels, "preferred")
    found = plan_gang(problem, snapshot, world.evaluator.evaluation_context(snapshot), world.rankings, world.memory)
    return found.placements if isinstance(found, GangPlan) else None


Place = Callable[[Fleet, Sequence[str], int], Placed | None]


@dataclass(frozen=True)
class Scheduler:
    name: str
    place: Place
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
    """The outcome of a trace. Waits are in hours."""

    waits: dict[int, list[float]] = field(default_factory=dict)  # by number of pods
    cliques: list[tuple[int, int]] = field(default_factory=list)  # of each gang: its cliques, the fewest possible
    half_placed: set[str] = field(default_factory=set)  # gangs that held devices for some but not all pods
    failures: int = 0  # times that a half placed gang ran out of patience
    # Means over the time until the last arrival, as shares of all GPUs:
    held: float = 0  # held by gangs that are half placed
    stranded: float = 0  # free while a gang waits
    too_small: float = 0  # of these, on nodes with too little room for a pod of any gang that waits


class Simulation:
    """One scheduler and one trace. Pods are tried in the order of their creation, and none blocks the next."""

    def __init__(self, fleet: Fleet, scheduler: Scheduler, patience: float = PATIENCE) -> None:
        self.fleet, self.scheduler, self.outcome = fleet, scheduler, Outcome()
        self._patience = patience / 60
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number, self._now = count(), 0.0
        self._waiting: list[Waiting] = []
        self._forming: dict[str, Job] = {}  # half placed
        self._rounds: Counter[str] = Counter()  # how often the pods of a job failed

    def run(self, jobs: Sequence[Sequence[Job]]) -> Outcome:
        horizon = max(together[0].at for together in jobs)
        for together in jobs:
            self._at(together[0].at, partial(self._create, together))
        while self._events:
            at, _, event = heapq.heappop(self._events)
            if horizon:
                self._measure(max(0.0, min(at, horizon) - self._now) / horizon)
            self._now = at
            event()
            self.outcome.half_placed |= self._forming.keys()
        assert not self._waiting, "every job fits into an empty fleet"
        return self.outcome

    def _measure(self, share: float) -> None:
        """Add the state of the fleet, which was so for this share of the time."""
        held = sum(job.gpus for job in self._forming.values() for pod in job.pods if pod in self.fleet.devices)
        self.outcome.held += share * held / self.fleet.kind.total
        sizes = [job.gpus for job, _ in self._waiting if job.members > 1]
        if sizes:
            free = self.fleet.free.values()
            self.outcome.stranded += share * sum(free) / self.fleet.kind.total
            self.outcome.too_small += share * sum(n for n in free if n < min(sizes)) / self.fleet.kind.total

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._number), event))

    def _create(self, jobs: Sequence[Job]) -> None:
        # Nothing became free: new pods do not fit where equal ones wait.
        self._waiting += self._tried(self._created(jobs), {_shape(entry) for entry in self._waiting})

    def _created(self, jobs: Sequence[Job]) -> list[Waiting]:
        pods = list(created(jobs))
        for job, pod in pods:
            self.fleet.create(job, pod)
        return [(job, tuple(job.pods)) for job in jobs] if self.scheduler.together else [(j, (pod,)) for j, pod in pods]

    def _tried(self, waiting: Sequence[Waiting], failed: set[tuple[int, int]]) -> list[Waiting]:
        """Place what fits, in order; returns the rest. `failed` are shapes that do not fit."""
        left = []
        for entry in waiting:
            job, pods = entry
            placed = self.scheduler.place(self.fleet, pods, job.gpus) if _shape(entry) not in failed else None
            if placed is None:
                failed.add(_shape(entry))
                left.append(entry)
            else:
                self.fleet.use(placed)
                self._placed(job)
        return left

    def _placed(self, job: Job) -> None:
        if all(pod in self.fleet.devices for pod in job.pods):
            self._forming.pop(job.name, None)
            self._start(job)
        elif job.name not in self._forming:
            self._forming[job.name] = job
            self._at(self._now + self._patience, partial(self._fail, job, self._rounds[job.name]))

    def _start(self, job: Job) -> None:
        self.outcome.waits.setdefault(job.members, []).append(self._now - job.at)
        if job.members > 1:
            cliques = {self.fleet.clique[self.fleet.devices[pod][0]] for pod in job.pods}
            self.outcome.cliques.append((len(cliques), job.cliques(self.fleet.kind)))
        self._at(self._now + job.hours, partial(self._end, job))

    def _end(self, job: Job) -> None:
        for pod in job.pods:
            self.fleet.delete(pod)
        self._waiting = self._tried(self._waiting, set())

    def _fail(self, job: Job, number: int) -> None:
        """Pods of a half placed gang run out of patience; its Job creates all again, at the end of the queue."""
        if job.name not in self._forming or self._rounds[job.name] != number:
            return
        del self._forming[job.name]
        self._rounds[job.name] += 1
        self.outcome.failures += 1
        for pod in job.pods:
            self.fleet.delete(pod)
        others = [entry for entry in self._waiting if entry[0] is not job]
        self._waiting = self._tried([*others, *self._created([job])], set())


def _shape(entry: Waiting) -> tuple[int, int]:
    job, pods = entry
    return len(pods), job.gpus


# -- the tables ----------------------------------------------------------------------------------------------------


def row(scheduler: Scheduler, outcomes: Sequence[Outcome]) -> str:
    """A row of the table, over all seeds."""
    cliques = [pair for outcome in outcomes for pair in outcome.cliques]
    inside = statistics.mean(found == 1 for found, least in cliques if least == 1)
    half = sum(len(outcome.half_placed) for outcome in outcomes) / len(cliques)
    held, stranded, small = (
        statistics.mean(getattr(outcome, name) for outcome in outcomes) for name in ("held", "stranded", "too_small")
    )
    waits = (
        60 * statistics.mean(wait for outcome in outcomes for n in sizes for wait in outcome.waits.get(n, ()))
        for sizes in ((1,), (2, 4, 8), (16, 32))
    )
    return (
        f"| {scheduler.name} | {inside:.0%} | {statistics.mean(found for found, _ in cliques):.2f} "
        f"| {half:.0%} | {held:.1%} | {stranded:.1%} ({small:.1%}) | {' | '.join(f'{wait:.0f}' for wait in waits)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--hours", type=float, default=120, help="hours over which jobs arrive")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="minutes that pods of a gang wait for others")
    args = parser.parse_args()
    for kind in KINDS:
        traces = [trace(kind, args.hours, seed) for seed in range(args.seeds)]
        jobs = [job for one in traces for together in one for job in together]
        gangs = [job for job in jobs if job.members > 1]
        small = statistics.mean(job.cliques(kind) == 1 for job in gangs)
        load = sum(job.members * job.gpus * job.hours for job in jobs) / (kind.total * args.hours * args.seeds)
        print(
            f"\n{kind.name}: {kind.cliques} cliques of {kind.nodes} nodes, {kind.total} GPUs, load {load:.0%}, "
            f"{len(jobs) - len(gangs)} single pods, {len(gangs)} gangs; {small:.0%} of them fit into one clique, "
            f"and {statistics.mean(job.cliques(kind) for job in gangs):.2f} cliques for each would be enough\n"
        )
        print("| placement | inside | cliques | half placed | held | stranded | wait: 1 pod | 2-8 pods | 16, 32 pods |")
        print("|---|---|---|---|---|---|---|---|---|")
        for scheduler in SCHEDULERS:
            found = [
                Simulation(Fleet(kind, seed), scheduler, args.patience).run(one) for seed, one in enumerate(traces)
            ]
            print(row(scheduler, found), flush=True)


if __name__ == "__main__":
    main()
