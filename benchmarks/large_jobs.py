"""Pods without a wish before a large job: how many may come until a gang of 18 trays or a job of 8 x H100 fits no more.

The pods ask for a number of GPUs and nothing else. The filter of serve places them one after the other on a mixed
fleet; the gang planner plans the gang. `make bench-quality` prints the table of docs/quality.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from extender.allocation import Features
from extender.api.fields import Json
from extender.api.pods import Pod, decode_pod
from extender.api.resource_claims import Allocation, Claim, Result, decode_claim
from extender.api.resource_slices import DeviceId
from extender.base.deadline import NO_DEADLINE
from extender.cache import ClusterCache
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import GangMember, GangPlan, GangProblem
from extender.gangs.gang_trial import GangMemory
from extender.policy import Policy
from extender.runtime.informers import watched_resources
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS
from extender.scheduling import Evaluator, Placement, PodRequirements, RankingCache, requirements_of
from extender.serve.filter import FilterService

FLEET = {
    "hgx-h100-8": 6,
    "a100-pcie-8-bridged": 8,
    "dgx1-v100": 6,
    "h100-pcie-8-bridged": 6,
    "l40s-8-pix": 8,
    "rtx-a6000-4-bridged": 8,
    "gb200-nvl72-tray": 18,
}
TRAY, TRAYS, BOARD = "gb200-nvl72-tray", 18, "hgx-h100-8"
SIZES = (1, 2, 4)
HELD = 0.2  # share of the GPUs that other pods hold, but for the trays and one board
_PRODUCT = 'device.attributes["gpu.nvidia.com"].productName == "{}"'.format
Free = dict[str, int]  # free GPUs by node


class Fleet:
    """A cache and a filter service in one process, with the writes of a bind."""

    def __init__(self, policy: Policy, fleet: Mapping[str, int] = FLEET) -> None:
        features = Features()
        self.cache = ClusterCache(features)
        apply = {kind.name: kind.apply for kind in watched_resources(self.cache)}
        apply["deviceclasses"]("gpu.nvidia.com", GPU_CLASS)
        for kind, count in fleet.items():
            labels = {policy.group_levels[0]: kind} if kind == TRAY else {}  # all trays are one clique
            for i in range(count):
                name, machine = f"{kind}-{i:02}", carried_machines()[kind]
                apply["nodes"](name, node_object(name, machine, labels))
                for obj in (gpu_slice(name, machine), fabric_slice(name, machine)):
                    apply["resourceslices"](obj["metadata"]["name"], obj)
        self.names = sorted(self.cache.store.nodes)
        self.filter_service = FilterService(self.cache, policy, Evaluator(features), lambda: 0.0)

    def create(self, name: str, count: int, selector: str = "") -> tuple[Pod, Claim]:
        """A pod and its claim for so many GPUs."""
        request: Json = {"deviceClassName": "gpu.nvidia.com", "count": count}
        if selector:
            request["selectors"] = [{"cel": {"expression": selector}}]
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
        claim = decode_claim({"metadata": {"namespace": "x", "name": name, "uid": f"u-{name}"}, "spec": spec})
        self.cache.apply_claim(claim.key, claim)
        claims = [{"name": "g", "resourceClaimName": name}]
        metadata = {"namespace": "x", "name": name, "uid": f"p-{name}"}
        return decode_pod({"metadata": metadata, "spec": {"resourceClaims": claims}}), claim

    def requirements(self, pod: Pod) -> PodRequirements:
        found = requirements_of(pod, self.cache.snapshot(), self.filter_service.policy)
        assert isinstance(found, PodRequirements)
        return found

    def place(self, number: int, count: int) -> Placement | None:
        """Place a job on the best node, as filter and bind would."""
        pod, claim = self.create(f"c{number}", count)
        passed = self.filter_service.filter(pod, self.names).passed
        self.cache.release(pod.uid)
        if not passed:
            self.cache.apply_claim(claim.key, None)
            return None
        snapshot, requirements = self.cache.snapshot(), self.requirements(pod)
        placement = self.filter_service.evaluate_node(requirements, passed[0], snapshot, NO_DEADLINE)
        assert isinstance(placement, Placement)
        ((_, allocation),) = placement.allocations(
            snapshot.node_infos[passed[0]],
            requirements,
            self.filter_service.evaluator.evaluation_context(snapshot),
            lambda: "share",
        )
        self.cache.apply_claim(claim.key, replace(claim, allocation=Allocation(allocation.results)))
        return placement

    def occupy(self, node: str, gpus: Collection[int]) -> None:
        """Allocate GPUs of a node to another pod."""
        _, claim = self.create(f"held-{node}", len(gpus))
        results = [Result("gpu", DeviceId("gpu.nvidia.com", node, f"gpu-{i}")) for i in gpus]
        self.cache.apply_claim(claim.key, replace(claim, allocation=Allocation(tuple(results))))


def held_fleet(seed: int) -> Fleet:
    """The fleet; other pods hold GPUs at random, but none of a tray or of the first board."""
    fleet, rng = Fleet(Policy()), random.Random(seed)
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
    context = fleet.filter_service.evaluator.evaluation_context(snapshot)
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


def table(seeds: int = 3) -> Iterator[str]:
    """The rows of docs/quality.md: the numbers of each seed."""
    yield "| GPUs per pod | any plan | Berth | first node | emptiest node |"
    yield "|---|---|---|---|---|"
    for size in SIZES:
        cells: list[list[int]] = [[], [], [], []]
        for seed in range(seeds):
            fleet = held_fleet(seed)
            free = free_gpus(fleet)
            found = (
                most_of_any_plan(free, size),
                most_of_berth(fleet, size),
                most_of(first_node, free, size),
                most_of(emptiest_node, free, size),
            )
            for cell, number in zip(cells, found, strict=True):
                cell.append(number)
        yield f"| {size} | {' | '.join(', '.join(map(str, cell)) for cell in cells)} |"
