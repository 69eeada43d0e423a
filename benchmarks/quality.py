"""Quality of placement against published figures, by seed: predictions, one crowded node, MAPA's jobs, Alibaba's trace.

`make bench-quality` runs what needs no input; `TRACES=folder` adds the published traces (folders mapa and openb).
"""

from __future__ import annotations

import argparse
import csv
import heapq
import json
import math
import random
import statistics
from collections.abc import Callable
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

from extender.api.gpu_topology import Graph
from extender.api.resource_slices import SliceDecoder
from extender.base.bits import members
from extender.sandbox import carried_machines, fabric_slice
from extender.topology.agent_slices import fabric_of
from extender.topology.sets import bandwidth, is_joined, ranked

ROOT = Path(__file__).resolve().parents[1]
Policy = Callable[[Graph, int, int, random.Random], int]

# machine, GPUs, measured all-reduce bus bandwidth in GB/s (public reports of nccl-tests; of HCCL demo for gaudi3-8)
MEASURED = [
    ("dgx1-v100", 8, 129),
    ("hgx-a100-8", 8, 232.5),
    ("a100-board-4", 2, 72),
    ("a100-pcie-8-bridged", 2, 208),
    ("hgx-h100-8", 8, 370),
    ("h200-nvl-4", 2, 109),
    ("gaudi3-8", 8, 513),
    ("h100-pcie-8-bridged", 2, 115),
]
MISFIT = "h100-pcie-8-bridged"  # the reporter found the measurement low
# Boards that no carried file has: GPUs, links per pair (or into a switch), whether there is one, GB/s per link.
EXTRA = {
    "hgx-a100-8": (8, 12, True, 20.0),
    "a100-board-4": (4, 4, False, 20.0),
    "h200-nvl-4": (4, 6, False, 20.6),
    "gaudi3-8": (8, 3, False, 25.0),
}


def graph_of(name: str) -> Graph:
    if name in EXTRA:
        size, links, switched, rate = EXTRA[name]
        table = tuple(tuple(0 if switched or i == j else links for j in range(size)) for i in range(size))
        return Graph(table, (links if switched else 0,) * size, rate, 20.0, ((0,) * size,) * size, (0,) * size)
    found = fabric_of(SliceDecoder().decode(fabric_slice("n", carried_machines()[name])).devices)
    assert found is not None
    return found.graph


def predictions() -> list[dict]:
    print(f"{'machine':22} {'GPUs':>4} {'predicted':>9} {'measured':>9} {'off':>6}")
    rows = []
    for name, count, measured in MEASURED:
        graph = graph_of(name)
        found = bandwidth(graph, ranked(graph, (1 << graph.size) - 1, count)[0])
        off = found / measured - 1
        rows.append({"machine": name, "gpus": count, "predicted": found, "measured": measured, "off": off})
        print(
            f"{name:22} {count:4} {found:9.0f} {measured:9.0f} "
            f"{off:+6.0%}{'   (misfit: the measurement is reported as a problem)' if name == MISFIT else ''}"
        )
    return rows


# -- one node, always a backlog ----------------------------------------------------------------------------------


def lowest(graph: Graph, free: int, count: int, _: random.Random) -> int:
    return sum(1 << i for i in members(free)[:count])


def at_random(graph: Graph, free: int, count: int, rng: random.Random) -> int:
    return sum(1 << i for i in rng.sample(members(free), count))


def berth(graph: Graph, free: int, count: int, _: random.Random) -> int:
    return ranked(graph, free, count)[0]


POLICIES: dict[str, Policy] = {"lowest index": lowest, "today's order": at_random, "berth": berth}


def crowded(graph: Graph, policy: Policy, seed: int, jobs: int = 2000) -> list[int]:
    """Masks given to 2-GPU jobs on one node that always has a queue: 1, 2 or 4 GPUs with 50, 40, 10 %."""
    rng = random.Random(seed)
    running: list[Any] = []
    free, now, found = (1 << graph.size) - 1, 0.0, []
    for _ in range(jobs):
        count = rng.choices([1, 2, 4], [50, 40, 10])[0]
        duration = rng.expovariate(1.0)
        while free.bit_count() < count:
            now, _, mask = heapq.heappop(running)
            free |= mask
        mask = policy(graph, free, count, rng)
        free &= ~mask
        heapq.heappush(running, (now + duration, rng.random(), mask))
        if count == 2:
            found.append(mask)
    return found


def backlog() -> list[dict]:
    print("\n2-GPU jobs on a crowded node, 5 seeds: mean ring GB/s, share joined by NVLink")
    print(f"{'machine':22}" + "".join(f"{name:>18}" for name in POLICIES))
    rows = []
    for name in (
        "a100-pcie-8-bridged",
        "a100-pcie-8-crossed",
        "h100-pcie-8-bridged",
        "dgx1-v100",
        "a40-8-bridged",
        "rtx-a6000-4-bridged",
    ):
        graph, cells = graph_of(name), []
        for policy_name, policy in POLICIES.items():
            masks = [m for seed in range(5) for m in crowded(graph, policy, seed)]
            mean = statistics.mean(bandwidth(graph, m) for m in masks)
            share = sum(is_joined(graph, m) for m in masks) / len(masks)
            cells.append(f"{mean:8.0f} {share:8.0%}")
            rows.append({"machine": name, "policy": policy_name, "gbps": mean, "joined": share})
        print(f"{name:22}" + "".join(f"{cell:>18}" for cell in cells))
    return rows


# -- MAPA's jobs on a DGX-1V ---------------------------------------------------------------------------------------


def mapa_bandwidth(graph: Graph, mask: int) -> float:
    """The regression of MAPA (SC'21) over the best ring: x double, y single, z PCIe edges."""
    chosen = members(mask)
    if len(chosen) < 2:
        return 0.0
    first, *rest = chosen
    rings: list[tuple[int, list[int]]] = []
    for order in permutations(rest):
        ring = [first, *order]
        edges = [(ring[i], ring[(i + 1) % len(ring)]) for i in range(len(ring))]
        counts = [sum(min(graph.links[a][b], 2) == n for a, b in edges) for n in (2, 1, 0)]
        total = 50 * counts[0] + 25 * counts[1] + 10 * counts[2]
        rings.append((total, counts))
    return _regression(*max(rings, key=lambda ring: ring[0])[1])


def _regression(x: int, y: int, z: int) -> float:
    terms = (
        (16.39670455, x),
        (4.536821878, y),
        (1.55623404, z),
        (-20.69484581, 1 / (x + 1)),
        (-9.467461958, 1 / (y + 1)),
        (7.615106783, 1 / (z + 1)),
        (-7.973335727, x * y),
        (12.73323772, y * z),
        (-4.195655221, x * z),
        (-8.413419363, 1 / (x * y + 1)),
        (62.85125807, 1 / (y * z + 1)),
        (27.41832588, 1 / (x * z + 1)),
        (-5.114108079, x * y * z),
        (-46.97390071, 1 / (x * y * z + 1)),
    )
    return sum(weight * value for weight, value in terms)


def fifo(
    graph: Graph, jobs: list[dict], policy: Policy, seed: int, quality: dict[int, float]
) -> list[tuple[dict, int]]:
    """First in, first out, the head of the queue blocks."""
    rng = random.Random(seed)
    running: list[Any] = []
    free, now, found = (1 << graph.size) - 1, 0.0, []
    for job in jobs:
        now = max(now, float(job["arrival"]))
        count = int(job["num_gpus"])
        while running and running[0][0] <= now:
            free |= heapq.heappop(running)[2]
        while free.bit_count() < count:
            now, _, mask = heapq.heappop(running)
            free |= mask
        mask = policy(graph, free, count, rng)
        free &= ~mask
        heapq.heappush(running, (now + float(job["service"]), rng.random(), mask))
        found.append((job, mask))
    return found


def mapa(folder: Path) -> list[dict]:
    graph = graph_of("dgx1-v100")
    quality = {
        m: mapa_bandwidth(graph, m)
        for k in range(2, 6)
        for m in (sum(1 << i for i in c) for c in combinations(range(8), k))
    }
    best = {k: max(v for m, v in quality.items() if m.bit_count() == k) for k in range(2, 6)}
    print(
        "\nDGX-1V, MAPA's 300-job files: predicted effective bandwidth of all jobs; sensitive jobs against the best on "
        "an idle server"
    )
    print(f"{'policy':16} {'p25':>6} {'p50':>6} {'mean':>6} {'sensitive':>10}")
    rows = []
    for name, policy in POLICIES.items():
        placed = []
        for number, path in enumerate(sorted(folder.glob("*.csv"))):
            with path.open() as file:
                placed += fifo(graph, list(csv.DictReader(file)), policy, number, quality)
        values = sorted(quality[m] for _, m in placed)
        shares = [quality[m] / best[m.bit_count()] for job, m in placed if job["bw_sensitive"] == "1"]
        row = {
            "policy": name,
            "p25": values[len(values) // 4],
            "p50": values[len(values) // 2],
            "mean": statistics.mean(values),
            "sensitive": statistics.mean(shares),
        }
        rows.append(row)
        print(f"{name:16} {row['p25']:6.1f} {row['p50']:6.1f} {row['mean']:6.1f} {row['sensitive']:10.3f}")
    return rows


def main() -> None:
    from benchmarks import large_jobs, openb

    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    result: dict = {"predictions": predictions(), "backlog": backlog()}
    result["large_jobs"] = large_jobs.report(args.seeds)
    if args.traces is not None:
        result["mapa"] = mapa(args.traces / "mapa")
        result["openb"] = openb.report(args.traces / "openb", args.seeds)
    else:
        print("\nMAPA's jobs and Alibaba's trace: give TRACES=folder")
    folder = ROOT / "bench-results"
    folder.mkdir(exist_ok=True)
    (folder / "quality.json").write_text(
        json.dumps(result, indent=1, default=lambda v: None if isinstance(v, float) and math.isnan(v) else v)
    )


if __name__ == "__main__":
    main()
