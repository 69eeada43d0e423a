"""Quality of placement: makes all tables of docs/quality.md.

`extender.replay` makes them: the filter, the gang planner, the holds and the binds of `berth serve` on a virtual
cluster, beside rules without Berth.
`TRACES=folder` has the published traces (folders mapa and openb).
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations
from pathlib import Path

import structlog

from benchmarks.replayed_traces import (
    BOARD,
    KINDS,
    TRAY,
    TRAYS,
    Free,
    Kind,
    crowded_jobs,
    gang_jobs,
    machine_of,
    mapa_jobs,
    mixed_fleet,
    openb_fleet,
    openb_pods,
    published,
    rack_fleet,
    small_jobs,
    until_full,
)
from extender.api.gpu_topology import Graph
from extender.api.resource_slices import SliceDecoder
from extender.base.bits import members
from extender.replay import Fleet, Job, LargeShape, Outcome, fleet_of, placer_of, run_replay
from extender.replay.placers import Rule
from extender.sandbox import carried_machines, fabric_slice, parse_nodes
from extender.topology.agent_slices import fabric_of
from extender.topology.sets import bandwidth, ranked

Rows = Iterator[str]
RULES: tuple[Rule, ...] = ("first fit", "berth")

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


def predictions() -> list[tuple[str, int, float, float]]:
    """(machine, GPUs, predicted, measured), both in GB/s"""
    found = []
    for name, count, measured in MEASURED:
        graph = graph_of(name)
        best = ranked(graph, (1 << graph.size) - 1, count)[0]
        found.append((name, count, bandwidth(graph, best), float(measured)))
    return found


def predicted_against_measured() -> Rows:
    yield "| machine | GPUs | predicted | measured | off |"
    yield "|---|---|---|---|---|"
    for name, count, predicted, measured in predictions():
        note = "misfit: its owner reports the measurement as a problem" if name == MISFIT else ""
        yield f"| {name} | {count} | {predicted:.0f} | {measured:.0f} | {note or f'{predicted / measured - 1:+.0%}'} |"


def replayed(fleet: Fleet, jobs: Sequence[Job], rule: Rule, seed: int, large: LargeShape | None = None) -> Outcome:
    return run_replay(fleet, jobs, placer_of(rule), seed, large=large)


# -- one crowded node ----------------------------------------------------------------------------------------------

CROWDED = (
    "a100-pcie-8-bridged",
    "a100-pcie-8-crossed",
    "h100-pcie-8-bridged",
    "dgx1-v100",
    "a40-8-bridged",
    "rtx-a6000-4-bridged",
)


def crowded(seeds: int) -> Rows:
    yield "| machine | first fit | Berth |"
    yield "|---|---|---|"
    for name in CROWDED:
        fleet, gpus = fleet_of(parse_nodes(f"1x{name}")), carried_machines()[name].count
        cells = [_two_gpus(fleet, gpus, rule, seeds) for rule in RULES]
        yield f"| {name} | {' | '.join(cells)} |"


def _two_gpus(fleet: Fleet, gpus: int, rule: Rule, seeds: int) -> str:
    """Mean ring bandwidth of the jobs with two GPUs, and the share of them that links join."""
    outcomes = [replayed(fleet, crowded_jobs(gpus, seed), rule, seed) for seed in range(seeds)]
    pods = [pod for one in outcomes for job in one.started_jobs.values() for pod in job.pods if pod.gpus == 2]
    return f"{statistics.mean(pod.gbps for pod in pods):.0f}, {statistics.mean(pod.is_joined for pod in pods):.0%}"


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


def mapa(folder: Path) -> Rows:
    """Effective bandwidth by MAPA's regression."""
    graph, sets = (
        graph_of("dgx1-v100"),
        [sum(1 << i for i in c) for k in range(2, 6) for c in combinations(range(8), k)],
    )
    quality = {mask: mapa_bandwidth(graph, mask) for mask in sets}
    best = {k: max(quality[mask] for mask in sets if mask.bit_count() == k) for k in range(2, 6)}
    fleet = fleet_of(parse_nodes("1xdgx1-v100"))
    yield "| placement | p25 | p50 | mean | sensitive |"
    yield "|---|---|---|---|---|"
    for rule in RULES:
        values, shares = list[float](), list[float]()
        for seed, path in enumerate(sorted(folder.glob("*.csv"))):
            jobs, sensitive = mapa_jobs(path)
            for name, job in replayed(fleet, jobs, rule, seed).started_jobs.items():
                mask = sum(1 << int(device.rpartition("-")[2]) for device in job.pods[0].devices)
                values.append(quality[mask])
                shares += [quality[mask] / best[mask.bit_count()]] if name in sensitive else []
        p25, p50, _ = statistics.quantiles(values, n=4)
        row = f"{p25:.1f} | {p50:.1f} | {statistics.mean(values):.1f} | {statistics.mean(shares):.3f}"
        yield f"| {_shown(rule)} | {row} |"


# -- openb ---------------------------------------------------------------------------------------------------------


def openb(folder: Path, seeds: int) -> Rows:
    """Percent of the GPUs that are not allocated when jobs for all of them have arrived."""
    fleet, gpus = openb_fleet(folder)
    yield "| workload | first fit | Berth | FGD | Berth - FGD |"
    yield "|---|---|---|---|---|"
    for workload, fgd in sorted(published(folder).items()):
        pods = openb_pods(folder / f"{workload}.csv")
        draws = [until_full(pods, gpus, 42 + seed) for seed in range(seeds)]
        first, berth = ([unallocated(fleet, one, gpus, rule) for one in draws] for rule in RULES)
        name, more = workload.removeprefix("openb_pod_list_"), statistics.mean(berth) - fgd
        yield f"| {name} | {statistics.mean(first):.2f} | {_mean_and_range(berth)} | {fgd:.2f} | {more:+.2f} |"


def _mean_and_range(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ({min(values):.2f}-{max(values):.2f})" if len(values) > 1 else mean


def unallocated(fleet: Fleet, jobs: Sequence[Job], gpus: int, rule: Rule) -> float:
    """Percent of the GPUs that a placement leaves."""
    started = replayed(fleet, jobs, rule, seed=1).started_jobs
    return 100 * (1 - sum(job.gpus for job in jobs if job.name in started) / gpus)


# -- before a large job --------------------------------------------------------------------------------------------

SIZES = (1, 2, 4)


def before_large(seeds: int) -> Rows:
    """How many pods come before one of the two large jobs fits no more, for each seed."""
    rules: tuple[Rule, ...] = ("berth", "first fit", "emptiest node")
    yield f"| GPUs per pod | any plan | {' | '.join(map(_shown, rules))} |"
    yield "|---|---|---|---|---|"
    for size in SIZES:
        fleets = [mixed_fleet(seed) for seed in range(seeds)]
        cells = [[most_of_any_plan(free, size) for _, free in fleets]]
        cells += [[most_of(rule, size, *one) for one in fleets] for rule in rules]
        yield f"| {size} | {' | '.join(', '.join(map(str, cell)) for cell in cells)} |"


def most_of_any_plan(free: Free, size: int) -> int:
    """How many pods any plan could place and keep all trays and the best board for the two jobs."""
    board = min(name for name, left in free.items() if machine_of(name) == BOARD and left == _gpus_of(name))
    return sum(left // size for name, left in free.items() if name != board and machine_of(name) != TRAY)


def most_of(rule: Rule, size: int, fleet: Fleet, free: Free) -> int:
    """How many pods a placement places and keeps all trays and a whole board."""
    jobs = pods_of(size, most_of_any_plan(free, size) + 1)
    started = replayed(fleet, jobs, rule, seed=1).started_jobs.values()
    left = dict(free)
    for number, job in enumerate(sorted(started, key=lambda one: one.at)):
        left[job.pods[0].node] -= size
        whole = Counter(machine_of(name) for name, gpus in left.items() if gpus == _gpus_of(name))
        if whole[TRAY] < TRAYS or not whole[BOARD]:
            return number
    return len(started)


def pods_of(size: int, number: int) -> list[Job]:
    """Pods with so many GPUs that come one after the other and stay."""
    return [Job(f"pod-{i}", float(i), gpus=size) for i in range(number)]


def _gpus_of(node: str) -> int:
    return carried_machines()[machine_of(node)].count


# -- whole racks ---------------------------------------------------------------------------------------------------


def whole_racks(seeds: int, hours: float = 60, shares: Sequence[float] = (0.4, 0.55, 0.7)) -> Rows:
    """How long a whole rack is free while small jobs come and go, and how long these wait."""
    yield "| GPUs that jobs ask for | placement | a whole rack is free | mean wait of jobs |"
    yield "|---|---|---|---|"
    for share in shares:
        for rule in RULES:
            found = [
                replayed(rack_fleet(seed), small_jobs(share, hours, seed), rule, seed, LargeShape(TRAYS, 4))
                for seed in range(seeds)
            ]
            waits = [job.wait for one in found for job in one.started_jobs.values()]
            free = statistics.mean(one.large_place for one in found)
            yield f"| {share:.0%} | {_shown(rule)} | {free:.0%} of the time | {statistics.mean(waits):.0f} s |"


# -- gangs ---------------------------------------------------------------------------------------------------------

_WAITS = ((1, 1), (2, 8), (16, 32))  # pods of a job, from and to


def gangs(seeds: int, hours: float = 120) -> Rows:
    columns = "inside one clique | cliques | restarts | held | allocated | wait: 1 pod | 2-8 | 16, 32"
    yield f"| fleet | placement | {columns} |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for kind in KINDS:
        traces = [gang_jobs(kind, hours, seed) for seed in range(seeds)]
        fleet = kind.fleet
        for rule in ("emptiest node", *RULES):
            yield _gang_row(kind, rule, traces, [replayed(fleet, jobs, rule, 1) for jobs in traces])


def _gang_row(kind: Kind, rule: Rule, traces: Sequence[Sequence[Job]], outcomes: Sequence[Outcome]) -> str:
    started = [
        (job, one.started_jobs[job.name])
        for jobs, one in zip(traces, outcomes, strict=True)
        for job in jobs
        if job.name in one.started_jobs
    ]
    of = [
        (kind.cliques_for(job), len({kind.clique_of(p.node) for p in run.pods})) for job, run in started if job.is_gang
    ]
    waits = (
        f"{statistics.mean(run.wait for job, run in started if least <= job.pods <= most) / 60:.0f}"
        for least, most in _WAITS
    )
    return (
        f"| {kind.name} | {_shown(rule)} | {statistics.mean(found == 1 for least, found in of if least == 1):.0%} "
        f"| {statistics.mean(found for _, found in of):.2f} | {sum(one.failures for one in outcomes) / len(of):.2f} "
        f"| {statistics.mean(one.held for one in outcomes):.1%} "
        f"| {statistics.mean(one.allocated for one in outcomes):.1%} | {' | '.join(waits)} |"
    )


def _shown(rule: Rule) -> str:
    return placer_of(rule).name


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # each bind logs a line
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, help="the folder with mapa and openb")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="only tables whose title has this text")
    args = parser.parse_args()
    tables: dict[str, Callable[[], Rows]] = {
        "Predicted against measured": predicted_against_measured,
        "Two-GPU jobs on a crowded node": lambda: crowded(args.seeds),
        "Pods without a wish before a large job": lambda: before_large(args.seeds),
        "Gangs on a mixed trace": lambda: gangs(args.seeds),
        "Whole racks among small jobs": lambda: whole_racks(args.seeds),
    }
    if args.traces is not None:
        tables["DGX-1V, MAPA's 300-job files"] = lambda: mapa(args.traces / "mapa")
        tables["Alibaba's 2023 GPU trace (openb)"] = lambda: openb(args.traces / "openb", args.seeds)
    else:
        print("MAPA's jobs and Alibaba's trace: give TRACES=folder")
    for title, table in tables.items():
        if args.only in title:
            print(f"\n## {title}\n")
            for row in table():
                print(row, flush=True)


if __name__ == "__main__":
    main()
