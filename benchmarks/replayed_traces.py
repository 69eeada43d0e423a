"""Published traces, and traces with gangs, as fleets and jobs of a replay, for the tables of docs/quality.md."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from extender.api.fields import Json
from extender.replay import Fleet, Job, fleet_of
from extender.replay.published_traces import read_nodes
from extender.sandbox import MachineNode, carried_machines, parse_nodes
from extender.vendors import CLIQUE_LABEL
from tests.worlds.running_berth import status_in_use

HOUR = 3600.0
OVERLOAD = 1.3  # openb's published workloads request 130 % of the GPUs
MEMBERS, MEMBER_SHARES = (2, 4, 8, 16, 32), (30, 30, 20, 12, 8)  # pods of a gang, and percent
SINGLE_SHARES = {1: 40, 2: 30, 4: 20, 8: 10}  # GPUs of a job of one pod to percent
AT_ONCE, AT_ONCE_SHARES = (1, 2, 3), (60, 25, 15)  # gangs that are created at the same moment
GANG_SHARE = 0.7  # of the GPU-hours
LOAD = 0.8  # GPU-hours that jobs ask for over those of the fleet
MEAN_HOURS = 4.0  # of a job


# -- Alibaba's openb -----------------------------------------------------------------------------------------------


def openb_fleet(folder: Path) -> tuple[Fleet, int]:
    """The 1,213 nodes with GPUs, whose GPUs pods may share, and the number of GPUs."""
    machines = read_nodes(folder / "openb_node_list_gpu_node.csv")
    return fleet_of(machines, jobs=[Job("share", 0.0, gpus=0.5)]), sum(node.machine.count for node in machines)


def openb_pods(path: Path) -> list[Job]:
    """The pods of a list, without their times: the lists with more jobs of several GPUs have none."""
    with path.open(encoding="utf-8") as file:
        return [_openb_pod(f"pod-{number}", row) for number, row in enumerate(csv.DictReader(file))]


def _openb_pod(name: str, row: dict[str, str]) -> Job:
    gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"])
    share = milli / 1000 if gpus == 1 and milli < 1000 else float(gpus)
    cpu, ram = int(row["cpu_milli"]), int(row["memory_mib"]) << 20
    return Job(name, 0.0, gpus=share, product=row.get("gpu_spec") or "", cpu=cpu, ram=ram)


def until_full(pods: Sequence[Job], gpus: int, seed: int) -> list[Job]:
    """Pods in random order that arrive one after the other, until they ask for all GPUs. None of them ends.

    As in the published simulations: pods are repeated at random up to 130 % of the GPUs, then shuffled.
    """
    rng, arriving = random.Random(seed), list(pods)
    rng.shuffle(arriving)
    asked = sum(job.gpus for job in arriving)
    while asked < OVERLOAD * gpus:
        arriving.append(rng.choice(pods))
        asked += arriving[-1].gpus
    rng.shuffle(arriving)
    found, asked = list[Job](), 0.0
    while asked < gpus:
        job = arriving[len(found)]
        found.append(replace(job, name=f"pod-{len(found)}", arrival=float(len(found)), duration=math.inf))
        asked += job.gpus
    return found


def published(folder: Path) -> dict[str, float]:
    """Percent of the GPUs that FGD left unallocated when jobs for 100 % of them had arrived, by workload."""
    with (folder / "expected" / "summary_mean_std.csv").open(encoding="utf-8") as file:
        return {
            row["workload"]: 100 - float(row["alloc_pct_at_100_mean"])
            for row in csv.DictReader(file)
            if row["policy"] == "FGD"
        }


# -- MAPA's jobs ---------------------------------------------------------------------------------------------------


def mapa_jobs(path: Path) -> tuple[list[Job], set[str]]:
    """(the jobs of a file, the names of those whose speed depends on bandwidth)"""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    jobs = [
        Job(f"job-{number}", float(row["arrival"]), float(row["service"]), gpus=float(row["num_gpus"]))
        for number, row in enumerate(rows)
    ]
    return jobs, {job.name for job, row in zip(jobs, rows, strict=True) if row["bw_sensitive"] == "1"}


# -- one crowded node ----------------------------------------------------------------------------------------------


def crowded_jobs(gpus: int, seed: int, number: int = 2000) -> list[Job]:
    """Jobs of 1, 2 and 4 GPUs (50, 40 and 10 %) that ask for 90 % of the GPU-hours of a node with so many GPUs."""
    rng, now, found = random.Random(seed), 0.0, list[Job]()
    sizes, shares = (1, 2, 4), (50, 40, 10)
    gap = HOUR * _mean(sizes, shares) / (0.9 * gpus)
    for one in range(number):
        now += rng.expovariate(1 / gap)
        wanted = float(rng.choices(sizes, shares)[0])
        found.append(Job(f"job-{one}", now, rng.expovariate(1 / HOUR), gpus=wanted))
    return found


# -- before a large job --------------------------------------------------------------------------------------------

MIXED = {
    "hgx-h100-8": 6,
    "a100-pcie-8-bridged": 8,
    "dgx1-v100": 6,
    "h100-pcie-8-bridged": 6,
    "l40s-8-pix": 8,
    "rtx-a6000-4-bridged": 8,
    "gb200-nvl72-tray": 18,
}
TRAY, BOARD = "gb200-nvl72-tray", "hgx-h100-8"
HELD = 0.2  # share of the GPUs that other pods hold, but for the trays and one board
Free = dict[str, int]  # free GPUs by node


def machine_of(node: str) -> str:
    """The machine of a node of the mixed fleet."""
    return node.rpartition("-")[0]


def mixed_fleet(seed: int) -> tuple[Fleet, Free]:
    """Nodes of all kinds, all trays in one clique. Pods hold GPUs at random, but none of a tray or the first board."""
    rng, machines, claims, free = random.Random(seed), list[MachineNode](), list[Json](), Free()
    for name in sorted(f"{kind}-{i:02}" for kind, number in MIXED.items() for i in range(number)):
        machine = carried_machines()[machine_of(name)]
        machines.append(MachineNode(name, machine, {CLIQUE_LABEL: TRAY} if machine_of(name) == TRAY else {}))
        held = [i for i in range(machine.count) if rng.random() < HELD]
        is_kept = machine_of(name) == TRAY or name == f"{BOARD}-00"
        claims += [_held(name, held)] if held and not is_kept else []
        free[name] = machine.count - (0 if is_kept else len(held))
    return fleet_of(machines, claims), free


def _held(node: str, gpus: Sequence[int]) -> Json:
    """The claim of a pod that has these GPUs."""
    results = [{"request": "g", "driver": "gpu.nvidia.com", "pool": node, "device": f"gpu-{i}"} for i in gpus]
    asked = {"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": len(gpus)}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"held-{node}", "namespace": "other", "uid": f"held-{node}"},
        "spec": {"devices": {"requests": [asked]}},
        "status": status_in_use(results, {"p": f"pod-{node}"}),
    }


# -- whole racks among small jobs ----------------------------------------------------------------------------------

RACKS, TRAYS = 4, 18
SMALL_GPUS, SMALL_GANGS = (1, 2, 4), (2, 3, 4, 6)  # of jobs of one pod; whole trays of a gang


def rack_fleet(seed: int) -> Fleet:
    """Racks of trays with names that say nothing of each other."""
    rng, machine = random.Random(seed), carried_machines()[TRAY]
    racks, trays = rng.sample(range(100), RACKS), rng.sample(range(10_000), RACKS * TRAYS)
    labels = [{CLIQUE_LABEL: f"rack-{racks[i // TRAYS]}"} for i in range(len(trays))]
    return fleet_of([MachineNode(f"node-{number}", machine, one) for number, one in zip(trays, labels, strict=True)])


def small_jobs(share: float, hours: float, seed: int) -> list[Job]:
    """Jobs of an hour in the mean that ask for a share of the GPUs: half are pods, half gangs of a few whole trays."""
    rng, gpus, found = random.Random(seed), carried_machines()[TRAY].count, list[Job]()
    each = (sum(SMALL_GPUS) / len(SMALL_GPUS) + gpus * sum(SMALL_GANGS) / len(SMALL_GANGS)) / 2
    for at in _times(rng, share * gpus * RACKS * TRAYS / each, hours):
        pods, size = (1, rng.choice(SMALL_GPUS)) if rng.random() < 0.5 else (rng.choice(SMALL_GANGS), gpus)
        found.append(Job(f"job-{len(found)}", at * HOUR, rng.expovariate(1 / HOUR), pods, float(size)))
    return found


# -- gangs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A fleet of equal nodes in cliques."""

    name: str
    machine: str
    gpus: int  # of a node
    nodes: int  # of a clique
    cliques: int

    @property
    def total(self) -> int:
        return self.gpus * self.nodes * self.cliques

    @property
    def fleet(self) -> Fleet:
        return fleet_of(parse_nodes(f"{self.nodes * self.cliques}x{self.machine}/{self.nodes}"))

    def cliques_for(self, job: Job) -> int:
        """The fewest cliques that a gang can have."""
        return -(-job.pods // (self.gpus // int(job.gpus) * self.nodes))

    def clique_of(self, node: str) -> int:
        return int(node.rpartition("-")[2]) // self.nodes


KINDS = (Kind("NVL72", "gb200-nvl72-tray", 4, 18, 8), Kind("HGX", "hgx-h100-8", 8, 8, 16))


def gang_jobs(kind: Kind, hours: float, seed: int) -> list[Job]:
    """Jobs of one pod, and gangs of 2 to 32 pods that take a whole or half a node each; some are created together."""
    rng, names = random.Random(seed), count()
    singles = {gpus: share for gpus, share in SINGLE_SHARES.items() if gpus <= kind.gpus}
    of_gang, of_single = _mean(MEMBERS, MEMBER_SHARES) * 0.75 * kind.gpus, _mean(list(singles), list(singles.values()))
    hourly = LOAD * kind.total / MEAN_HOURS  # GPUs that jobs ask for in an hour

    def job(at: float, pods: int, gpus: int) -> Job:
        return Job(f"job-{next(names)}", at * HOUR, rng.expovariate(1 / MEAN_HOURS / HOUR), pods, float(gpus))

    found = list[Job]()
    for at in _times(rng, hourly * GANG_SHARE / of_gang / _mean(AT_ONCE, AT_ONCE_SHARES), hours):
        for _ in range(rng.choices(AT_ONCE, AT_ONCE_SHARES)[0]):
            found.append(job(at, rng.choices(MEMBERS, MEMBER_SHARES)[0], kind.gpus // rng.choice((1, 2))))
    for at in _times(rng, hourly * (1 - GANG_SHARE) / of_single, hours):
        found.append(job(at, 1, rng.choices(list(singles), list(singles.values()))[0]))
    return sorted(found, key=lambda one: one.arrival)


def _times(rng: random.Random, rate: float, until: float) -> Iterator[float]:
    now = rng.expovariate(rate)
    while now < until:
        yield now
        now += rng.expovariate(rate)


def _mean(values: Sequence[int], shares: Sequence[int]) -> float:
    return sum(value * share for value, share in zip(values, shares, strict=True)) / sum(shares)
