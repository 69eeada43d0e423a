"""Pods without a wish before a large job: how many may come until a gang of 18 trays or a job of 8 x H100 fits no more.

The pods ask for a number of GPUs and nothing else. The filter of serve places them one after the other on a mixed
fleet; the gang planner plans the gang. `make bench-quality` prints the table of docs/quality.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.mixed import FLEET, TRAY, Fleet
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import GangMember, GangPlan, GangProblem
from extender.gangs.gang_trial import GangMemory
from extender.policy import Policy
from extender.sandbox import carried_machines
from extender.scheduling import RankingCache

TRAYS, BOARD = 18, "hgx-h100-8"
LARGE_FLEET = {**FLEET, TRAY: TRAYS}
SIZES = (1, 2, 4)
HELD = 0.2  # share of the GPUs that other pods hold, but for the trays and one board
_PRODUCT = 'device.attributes["gpu.nvidia.com"].productName == "{}"'.format
Free = dict[str, int]  # free GPUs by node


def held_fleet(seed: int) -> Fleet:
    """The fleet; other pods hold GPUs at random, but none of a tray or of the first board."""
    fleet, rng = Fleet(Policy(), LARGE_FLEET), random.Random(seed)
    for name in fleet.names:
        held = [i for i in range(gpus_of(name)) if rng.random() < HELD]
        if held and kind_of(name) != TRAY and name != f"{BOARD}-00":
            fleet.occupy(name, held)
    return fleet


def kind_of(node: str) -> str:
    return node.rpartition("-")[0]


def gpus_of(node: str) -> int:
    return carried_machines()[kind_of(node)].count


def free_gpus(fleet: Fleet) -> Free:
    infos = fleet.cache.snapshot().node_infos
    return {name: infos[name].positions(~infos[name].busy).bit_count() for name in fleet.names}


def both_fit(fleet: Fleet) -> bool:
    """Whether the gang of whole trays in one clique, and the job of eight H100s on one node, fit now."""
    jobs = [(f"tray-{i}", 4, TRAY) for i in range(TRAYS)] + [("eight", 8, BOARD)]
    created = [fleet.create(name, size, _PRODUCT(carried_machines()[kind].product)) for name, size, kind in jobs]
    *trays, eight = [fleet.requirements(pod) for pod, _ in created]
    snapshot, rankings = fleet.cache.snapshot(), RankingCache()
    context = fleet.filter_service.evaluation_context(snapshot)
    ranking = rankings.get_or_create(eight)
    ranking.update(snapshot, context)
    members = tuple(GangMember(f"tray-{rank}", one, rank) for rank, one in enumerate(trays))
    problem = GangProblem(members, fleet.filter_service.policy.group_levels, "required")
    plan = plan_gang(problem, snapshot, context, rankings, GangMemory())
    for _, claim in created:
        fleet.cache.apply_claim(claim.key, None)
    return bool(ranking.best(None, 1)) and isinstance(plan, GangPlan)


def most_of_any_plan(free: Free, size: int) -> int:
    """How many pods any plan could place and keep all trays and the best board for the two jobs."""
    board = min((name for name in free if kind_of(name) == BOARD and free[name] == gpus_of(name)), default="")
    return sum(left // size for name, left in free.items() if name != board and kind_of(name) != TRAY)


def most_of_berth(fleet: Fleet, size: int) -> int:
    """How many pods Berth places before one of the two jobs fits no more."""
    number = 0
    while both_fit(fleet) and fleet.place(number, size) is not None:
        number += 1
    return number if both_fit(fleet) else number - 1


def most_of(choose: Callable[[Free], str], free: Free, size: int) -> int:
    """The same for a rule that chooses a node. Only how many GPUs are free matters to the two jobs."""
    left, number = dict(free), 0
    while True:
        node = choose({name: gpus for name, gpus in left.items() if gpus >= size})
        left[node] -= size
        boards = [name for name in left if kind_of(name) == BOARD and left[name] == gpus_of(name)]
        if not boards or any(left[name] < gpus_of(name) for name in left if kind_of(name) == TRAY):
            return number
        number += 1


def first_node(free: Free) -> str:
    """The first node by name."""
    return min(free)


def emptiest_node(free: Free) -> str:
    """The node with most free GPUs, as LeastAllocated prefers it."""
    return max(sorted(free), key=lambda name: free[name] / gpus_of(name))


def report(seeds: int = 3) -> list[dict]:
    print(f"\npods without a wish that may come before {TRAYS} trays or 8 x H100 fit no more, by seed")
    rows = []
    for size in SIZES:
        for seed in range(seeds):
            fleet = held_fleet(seed)
            free = free_gpus(fleet)
            row = {
                "size": size,
                "seed": seed,
                "any plan": most_of_any_plan(free, size),
                "Berth": most_of_berth(fleet, size),
                "first node": most_of(first_node, free, size),
                "emptiest node": most_of(emptiest_node, free, size),
            }
            rows.append(row)
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    return rows
