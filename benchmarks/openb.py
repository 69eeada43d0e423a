"""Packing on Alibaba's 2023 GPU trace, as a library run: nodes rank by FGD's gradient in steps, then by how few pods
require their GPU model, then by best fit.

kube-scheduler breaks ties at random, so ties are random here too. `--traces` names the folder with the node and pod
lists and the published results.
"""

from __future__ import annotations

import csv
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from extender.api.request_mix import WHOLE, RequestShape
from extender.topology.score_parts import STEP, Host, fits, fragment

OVERLOAD = 1.3  # the published workloads are tuned to 130 % of the GPUs
TYPICAL = 0.95  # share of the demand whose shapes count as typical, as in the published simulator


class Rank(NamedTuple):
    """The rank of a placement. The smallest is best."""

    gradient: int  # added fragment, as a number of STEPs
    scarcity: float  # demand of other jobs for this GPU model, see `scarcity`
    gpu_left: int
    cpu_left: int


def scarcity(demand: Iterable[tuple[RequestShape, float]], capacity: Mapping[str, int]) -> dict[str, float]:
    """GPU model to the expected demand of jobs that name models, relative to the number of its GPUs."""
    found = dict.fromkeys(capacity, 0.0)
    for shape, share in demand:
        for model in shape.models & capacity.keys():
            found[model] += share * shape.gpus * shape.milli / len(shape.models) / capacity[model]
    return found


def rank(before: float, after: float, host: Host, shape: RequestShape, scarce: Mapping[str, float]) -> Rank:
    """The rank of a placement. `host` is the rest after it; fragments `before` and `after` are in thousandths."""
    free_choice = shape.gpus and host.model not in shape.models
    return Rank(
        round((after - before) / WHOLE / STEP),
        scarce.get(host.model, 0.0) if free_choice else 0.0,
        sum(host.gpus),
        host.cpu,
    )


def placements(host: Host, shape: RequestShape) -> list[Host]:
    """The distinct possible rests of the host after the job; [] if the job does not fit."""
    if not fits(host, shape):
        return []
    cpu, memory = host.cpu - shape.cpu, host.memory - shape.memory
    if not shape.gpus:
        return [Host(host.model, cpu, memory, host.gpus)]
    if shape.milli == WHOLE:
        left = list(host.gpus)
        for _ in range(shape.gpus):
            left[left.index(WHOLE)] = 0
        return [Host(host.model, cpu, memory, tuple(sorted(left)))]
    found = []
    for amount in sorted({free for free in host.gpus if free >= shape.milli}):
        left = list(host.gpus)
        left[left.index(amount)] -= shape.milli
        found.append(Host(host.model, cpu, memory, tuple(sorted(left))))
    return found


def read_nodes(folder: Path) -> list[Host]:
    with (folder / "openb_node_list_gpu_node.csv").open() as file:
        return [
            Host(r["model"], int(r["cpu_milli"]), int(r["memory_mib"]), (WHOLE,) * int(r["gpu"]))
            for r in csv.DictReader(file)
        ]


def read_pods(path: Path) -> list[RequestShape]:
    with path.open() as file:
        return [
            RequestShape(
                int(r["cpu_milli"]),
                int(r["memory_mib"]),
                int(r["num_gpu"]),
                int(r["gpu_milli"]) if int(r["num_gpu"]) else 0,
                frozenset(filter(None, r.get("gpu_spec", "").split("|"))),
            )
            for r in csv.DictReader(file)
        ]


def gpu_of(shape: RequestShape) -> int:
    return shape.gpus * shape.milli


def workload(pods: list[RequestShape], capacity: int, rng: random.Random) -> list[RequestShape]:
    """The pods in random order, repeated or cut until they request 130 % of the GPUs."""
    arriving = list(pods)
    rng.shuffle(arriving)
    total = sum(map(gpu_of, arriving))
    while total < OVERLOAD * capacity:
        extra = rng.choice(pods)
        arriving.append(extra)
        total += gpu_of(extra)
    rng.shuffle(arriving)
    return arriving


def typical(pods: list[RequestShape]) -> list[tuple[RequestShape, float]]:
    """The most frequent shapes that make up most of the demand, memory aside, with their shares."""
    counts = Counter(RequestShape(p.cpu, 0, p.gpus, p.milli, p.models) for p in pods)
    found, covered = [], 0
    for shape, count in counts.most_common():
        found.append((shape, count))
        covered += count
        if covered >= TYPICAL * len(pods):
            break
    return [(shape, count / covered) for shape, count in found]


class Cluster:
    """Nodes grouped by their free resources: equal nodes are evaluated once."""

    def __init__(self, nodes: list[Host], demand: list[tuple[RequestShape, float]], rng: random.Random) -> None:
        self.groups = Counter(nodes)
        self.demand = tuple(demand)
        self.rng = rng
        capacity: Counter[str] = Counter()
        for node in nodes:
            capacity[node.model] += sum(node.gpus)
        self.scarce = scarcity(demand, capacity)
        self._fragments: dict[Host, float] = {}
        self._choices: dict[RequestShape, dict[Host, tuple | None]] = {}

    def place(self, shape: RequestShape) -> bool:
        known = self._choices.setdefault(shape, {})
        best, ties = None, []
        for host in self.groups:
            if host not in known:
                known[host] = self._evaluate(host, shape)
            choice = known[host]
            if choice is None:
                continue
            if best is None or choice[0] < best:
                best, ties = choice[0], [(host, choice[1])]
            elif choice[0] == best:
                ties.append((host, choice[1]))
        if not ties:
            return False
        host, after = ties[0] if len(ties) == 1 else self.rng.choices(ties, [self.groups[h] for h, _ in ties])[0]
        self.groups[host] -= 1
        if not self.groups[host]:
            del self.groups[host]
        self.groups[after] += 1
        return True

    def _evaluate(self, host: Host, shape: RequestShape) -> tuple | None:
        """The best rank on this host, and the host afterwards."""
        before = self._fragment(host)
        found = None
        for after in placements(host, shape):
            key = rank(before, self._fragment(after), after, shape, self.scarce)
            if found is None or key < found[0]:
                found = (key, after)
        return found

    def _fragment(self, host: Host) -> float:
        known = self._fragments.get(host)
        if known is None:
            known = self._fragments[host] = fragment(host, self.demand)
        return known


def unallocated_at_full(nodes: list[Host], pods: list[RequestShape], seed: int) -> float:
    """Percent of the GPUs that are not allocated once the requests that arrived equal the capacity."""
    rng = random.Random(seed)
    capacity = sum(sum(n.gpus) for n in nodes)
    cluster = Cluster(nodes, typical(pods), rng)
    arrived = allocated = 0
    for shape in workload(pods, capacity, rng):
        arrived += gpu_of(shape)
        if cluster.place(shape):
            allocated += gpu_of(shape)
        if arrived >= capacity:
            break
    return 100 * (1 - allocated / capacity)


def published(folder: Path) -> dict[str, float]:
    with (folder / "expected" / "summary_mean_std.csv").open() as file:
        return {
            r["workload"]: 100 - float(r["alloc_pct_at_100_mean"]) for r in csv.DictReader(file) if r["policy"] == "FGD"
        }


def report(folder: Path, seeds: int, only: str = "") -> list[dict]:
    nodes = read_nodes(folder)
    rows: list[dict[str, Any]] = []
    print(
        f"\nopenb: GPUs unallocated at 100 % arrival, {seeds} seeds, random ties\n{'workload':14} {'berth':>7} "
        f"{'FGD':>7} {'diff':>6} {'s/run':>6}"
    )
    for workload_name, theirs in sorted(published(folder).items()):
        if only and only not in workload_name:
            continue
        pods = read_pods(folder / f"{workload_name}.csv")
        start = time.perf_counter()
        mine = sum(unallocated_at_full(nodes, pods, 42 + s) for s in range(seeds)) / seeds
        seconds = (time.perf_counter() - start) / seeds
        rows.append({"workload": workload_name, "berth": mine, "fgd": theirs})
        print(
            f"{workload_name.removeprefix('openb_pod_list_'):14} {mine:7.2f} {theirs:7.2f} {mine - theirs:+6.2f} "
            f"{seconds:6.1f}",
            flush=True,
        )
    if rows:
        mean = sum(r["berth"] - r["fgd"] for r in rows) / len(rows)
        print(f"mean difference {mean:+.2f} points, worst {max(r['berth'] - r['fgd'] for r in rows):+.2f}")
    return rows
