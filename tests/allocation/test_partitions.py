"""Partitions of Fabric Manager: each claim gets exactly one, and some solution is found if one exists."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest

from extender.allocation import Features, NodeInfo
from extender.api.pods import decode_pod
from extender.api.reasons import Code
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.gangs.gang_problem import GangShortage
from extender.sandbox import carried_machines
from extender.sandbox.machines import Machine, gpu_slice, node_object
from extender.scheduling import EvaluationContext, FilterStatus, Placement, evaluate
from extender.topology.sets import quality
from tests.worlds.dra_worlds import H100
from tests.worlds.explain_worlds import held_claim
from tests.worlds.filled_caches import claim_for, class_of_driver, device_slice, put, required
from tests.worlds.gang_worlds import GangWorld, nodes_of
from tests.worlds.running_berth import pod

Json = dict[str, Any]
GPU, NIC = "gpu.nvidia.com", "nic.example.com"
PAIRS, QUADS = [(0, 2), (1, 3), (4, 6), (5, 7)], [(0, 1, 2, 3), (4, 5, 6, 7)]


@dataclass(frozen=True)
class Asked:
    """A request for devices of a class among these GPUs."""

    count: int
    among: tuple[int, ...] = tuple(range(8))
    admin: bool = False
    class_: str = GPU
    first: int = 0  # not 0: a first alternative for so many GPUs, which no node has


@dataclass(frozen=True)
class World:
    """A node with GPUs, 4 NICs, partitions, GPUs in use, and a pod with claims."""

    partitions: tuple[tuple[int, ...], ...]
    busy: tuple[int, ...]
    claims: tuple[tuple[Asked, ...], ...]
    machine: str = H100
    bare: bool = False  # the driver leaves out its domain in the names of attributes


def claim_object(name: str, requests: tuple[Asked, ...]) -> Json:
    found = []
    for number, one in enumerate(requests):
        exactly: Json = {"deviceClassName": one.class_, "allocationMode": "ExactCount", "count": one.count}
        if one.class_ == GPU:
            expression = f'device.attributes["{GPU}"].number in {list(one.among)}'
            exactly["selectors"] = [{"cel": {"expression": expression}}]
        if one.admin:
            exactly["adminAccess"] = True
        request: Json = {"name": f"r{number}", "exactly": exactly}
        if one.first:
            never = {"cel": {"expression": f'device.attributes["{GPU}"].number > {8 - one.first}'}}
            first = {**exactly, "name": "never", "count": one.first, "selectors": [never]}
            request = {"name": f"r{number}", "firstAvailable": [first, {**exactly, "name": "then"}]}
        found.append(request)
    return claim_for(*found, name=name, namespace="default")


def machine_of(world: World) -> Machine:
    found = carried_machines().get(world.machine)
    if found is None:
        half = carried_machines()[H100]
        found = replace(half, readings=half.readings * 2)
    return found


def slices(world: World, node: str = "n1") -> Iterator[Json]:
    gpus = gpu_slice(node, machine_of(world))
    for number, device in enumerate(gpus["spec"]["devices"]):
        device["attributes"]["number"] = {"int": number}
        for identity, members in enumerate(world.partitions):
            if number in members:
                name = f"partition{len(members)}"
                device["attributes"][name if world.bare else f"{GPU}/{name}"] = {"int": identity}
    yield gpus
    yield device_slice("n1", NIC, [{"name": f"nic-{number}"} for number in range(4)])


def status(world: World) -> tuple[FilterStatus, NodeInfo]:
    """The status of the node for the pod."""
    cache = put(ClusterCache(), node_object("n1", machine_of(world), {}), *slices(world))
    put(cache, class_of_driver(GPU), class_of_driver(NIC))
    cache.apply_namespace("default", {"resource.kubernetes.io/admin-access": "true"})
    held = [{"request": "r", "driver": GPU, "pool": "n1", "device": f"gpu-{number}"} for number in world.busy]
    objects = [held_claim("held", held)] if held else []
    objects += [claim_object(f"c{number}", requests) for number, requests in enumerate(world.claims)]
    asking = decode_pod(pod("p", *(f"c{number}" for number in range(len(world.claims)))))
    requirements, snapshot = required(asking, put(cache, *objects)), cache.snapshot()
    context = EvaluationContext(Masks(), Features(), snapshot.baseline)
    return evaluate(snapshot.node_infos["n1"], requirements, context), snapshot.node_infos["n1"]


def sets_of(found: FilterStatus, node_info: NodeInfo) -> list[tuple[int, ...]]:
    """The GPUs of each claim."""
    assert isinstance(found, Placement), found
    devices = node_info.inventory.devices
    return [
        tuple(sorted(int(devices[p.bit].id.device[4:]) for p in claim if devices[p.bit].id.driver == GPU))
        for claim in found.solution.picks
    ]


def can_be_had(world: World) -> bool:
    """Brute force over all choices, in the order of claims and requests."""
    joined = {frozenset(one) for one in world.partitions}

    def rest(claim: int, request: int, own: frozenset[int], chosen: frozenset[int]) -> bool:
        if claim == len(world.claims):
            return True
        if request == len(world.claims[claim]):
            return (not own or own in joined) and rest(claim + 1, 0, frozenset(), chosen)
        asked = world.claims[claim][request]
        if asked.class_ == NIC:
            return rest(claim, request + 1, own, chosen)
        free = set(asked.among) - (own if asked.admin else chosen.union(world.busy))
        return any(
            rest(claim, request + 1, own.union(taken), chosen.union(taken)) for taken in combinations(free, asked.count)
        )

    return rest(0, 0, frozenset(), frozenset())


def random_world(rng: random.Random) -> World:
    order = rng.sample(range(8), 8)
    sizes = rng.sample([1, 2, 4, 8], rng.randint(1, 4))
    known = [tuple(sorted(order[i : i + size])) for size in sizes for i in range(0, 8, size)]
    kept = [one for one in known if rng.random() < 0.8]
    claims = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        requests = [
            Asked(
                rng.choice([1, 1, 2, 2, 4] if number == 0 else [1, 2]),
                tuple(sorted(rng.sample(range(8), rng.choice([8, 8, 6, 4])))),
                admin=rng.random() < 0.1,
            )
            for number in range(rng.choice([1, 1, 2]))
        ]
        if rng.random() < 0.2 and not requests[0].admin:
            requests[0] = replace(requests[0], first=4)
        if rng.random() < 0.3:
            requests.insert(rng.randint(0, len(requests)), Asked(2, class_=NIC))
        claims.append(tuple(requests))
    if sum(one.count for claim in claims for one in claim if one.class_ == NIC) > 4:
        return random_world(rng)
    busy = tuple(sorted(rng.sample(range(8), rng.choice([0, 0, 1, 2, 3]))))
    return World(tuple(kept) or (tuple(range(8)),), busy, tuple(claims), bare=rng.random() < 0.5)


@pytest.mark.parametrize("block", range(4))
def test_a_solution_is_found_where_one_exists(block: int) -> None:
    possible = 0
    for seed in range(1000 + block * 75, 1075 + block * 75):
        world = random_world(random.Random(seed))
        found, node_info = status(world)
        assert isinstance(found, Placement) == can_be_had(world), (seed, world, found)
        if isinstance(found, Placement):
            possible += 1
            assert all(not one or one in world.partitions for one in sets_of(found, node_info)), (seed, world)
        else:
            assert found.reason.code is not Code.OUT_OF_BUDGET, (seed, world)
    assert 10 < possible < 65


# The GPUs in use, the counts of each claim's requests, and the GPUs of each claim or the reason.
CASES: dict[str, tuple[tuple[int, ...], tuple[tuple[Asked, ...], ...], object]] = {
    "a pair": ((), ((Asked(2),),), [(0, 2)]),
    "the pair that is free": ((0, 3), ((Asked(2),),), [(4, 6)]),
    "a pair of two requests": ((0, 3), ((Asked(1), Asked(1)),), [(4, 6)]),
    "a pair for each claim, on one NUMA node": ((0,), ((Asked(2),), (Asked(2),)), [(4, 6), (5, 7)]),
    "a pair for each claim": ((0, 5), ((Asked(2),), (Asked(2),)), [(1, 3), (4, 6)]),
    "a pair and four": ((0,), ((Asked(2),), (Asked(4),)), [(1, 3), (4, 5, 6, 7)]),
    "a pair of four free": ((0, 3, 4, 7), ((Asked(2),),), "no partition of 2 GPUs is free"),
    "pairs of both claims": ((0, 3, 4), ((Asked(2),), (Asked(2),)), "no partition of 2 + 2 GPUs is free"),
    "one": ((), ((Asked(1),),), "the node has no partition of 1 GPU"),
    "three": ((), ((Asked(3),),), "the node has no partition of 3 GPUs"),
    "three where two are free": (tuple(range(6)), ((Asked(3),),), "the node has no partition of 3 GPUs"),
    "three beside NICs in use": ((0, 3), ((Asked(3), Asked(2, class_=NIC)),), "the node has no partition of 3 GPUs"),
    "a pair where one is free": (tuple(range(7)), ((Asked(2),),), "matching devices are in use for request r0"),
    "the second alternative": ((), ((Asked(2, first=4),),), [(0, 2)]),
    "none beside the claim of two drivers": ((), ((Asked(2), Asked(2, class_=NIC)),), [(0, 2)]),
    "only NICs": (tuple(range(8)), ((Asked(2, class_=NIC),),), [()]),
    "admin access": (tuple(range(8)), ((Asked(4, admin=True),),), [(0, 1, 2, 3)]),
    "admin access to three": ((), ((Asked(3, admin=True),),), "the node has no partition of 3 GPUs"),
}


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "qualified"])
@pytest.mark.parametrize("name", CASES)
def test_each_claim_gets_one_partition(name: str, bare: bool) -> None:
    busy, claims, expected = CASES[name]
    found, node_info = status(World((*PAIRS, *QUADS), busy, claims, bare=bare))
    if isinstance(expected, str):
        assert str(found.reason) == expected if not isinstance(found, Placement) else found
    else:
        assert sets_of(found, node_info) == expected


def test_a_gpu_without_partitions_is_in_none() -> None:
    """Where only some GPUs name partitions, the driver cannot join the others."""
    found, node_info = status(World((PAIRS[3],), (), ((Asked(2),),)))
    assert sets_of(found, node_info) == [PAIRS[3]]
    found, _ = status(World((PAIRS[3],), (5,), ((Asked(2),),)))
    assert not isinstance(found, Placement)
    assert found.reason.code is Code.PARTITION


def test_the_best_partition_by_links_is_taken() -> None:
    """On a DGX-1 with its cube mesh, of pairs that are free the one with two links; as brute force ranks them."""
    for seed in range(12):
        order = random.Random(seed).sample(range(8), 8)
        pairs = tuple(tuple(sorted(order[i : i + 2])) for i in range(0, 8, 2))
        found, node_info = status(World(pairs, (), ((Asked(2),),), machine="dgx1-v100"))
        assert node_info.fabric is not None
        graph = node_info.fabric.graph
        best = min(pairs, key=lambda pair: quality(graph, 1 << pair[0] | 1 << pair[1], 255))
        assert sets_of(found, node_info) == [best]


def test_the_search_for_half_of_sixteen_gpus_ends() -> None:
    """All 16 GPUs are a partition, too, so each of 6,435 sets with the first GPU is a part of one."""
    halves = (tuple(range(8)), tuple(range(8, 16)))
    asked = Asked(8, tuple(range(16)))
    world = World((*halves, tuple(range(16))), (3,), ((Asked(4, class_=NIC), asked),), machine="16 GPUs")
    found, node_info = status(world)
    assert sets_of(found, node_info) == [halves[1]]
    found, _ = status(replace(world, busy=(3, 9)))
    assert not isinstance(found, Placement)
    assert found.reason.code is Code.PARTITION


def test_a_gang_has_room_for_its_partitions() -> None:
    """Six GPUs are free on each node, and two pairs of them are partitions."""
    gangs = GangWorld()
    for node in ("n1", "n2"):
        gangs.add_node(node, H100)
        raw = next(slices(World((*PAIRS, *QUADS), (), ()), node))
        gangs.add_slice(raw)
        gangs.use(node, ["gpu-0", "gpu-3"])
    assert gangs.plan(gangs.gang(5, 2)) == GangShortage(5)
    assert nodes_of(gangs.plan(gangs.gang(4, 2, "v"))) == ["n1", "n1", "n2", "n2"]
