"""A gang that spans domains uses the fewest sub-domains in all: against brute force on small random worlds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

from extender.gangs.gang_problem import GangPlan
from extender.gangs.spreading import spread
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, GangWorld, cluster, nodes_of

World = tuple[dict[str, int], list[dict[str, str]]]  # room by node; sub-domain by node, of each level


def random_world(rng: random.Random, levels: int) -> World:
    """Up to 9 nodes in a tree of domains."""
    rooms = {f"n{i}": rng.randint(1, 4) for i in range(rng.randint(2, 9))}
    paths, widths = dict.fromkeys(rooms, "d"), [rng.randint(1, 4) for _ in range(levels)]
    found = []
    for width in widths:
        paths = {name: f"{path}.{rng.randrange(width)}" for name, path in paths.items()}
        found.append(paths)
    return rooms, found


def counts(nodes: tuple[str, ...], levels: list[dict[str, str]], used: frozenset[str]) -> tuple[int, ...]:
    """The sub-domains of each level, the farthest first, and the nodes, without those that the gang uses already."""
    known = [*levels, {name: name for level in levels or [{}] for name in level} or {name: name for name in nodes}]
    return tuple(len({level[name] for name in nodes} - {level[name] for name in used}) for level in known)


def fewest(world: World, wanted: int, used: frozenset[str]) -> tuple[int, ...]:
    """By brute force over all sets of nodes with enough room."""
    rooms, levels = world
    sets = (nodes for size in range(len(rooms) + 1) for nodes in combinations(rooms, size))
    return min(counts(nodes, levels, used) for nodes in sets if sum(rooms[name] for name in nodes) >= wanted)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_brute_force_finds_no_fewer_sub_domains(levels: int) -> None:
    different = Counter[int]()
    for seed in range(250):
        rng = random.Random(seed)
        world = rooms, paths = random_world(rng, levels)
        wanted = rng.randint(1, sum(rooms.values()))
        used = frozenset(rng.sample(sorted(rooms), rng.choice([0, 0, 1, 2])))
        placed = spread(rooms, paths, [sorted] * (levels + 1), wanted, used)
        assert sum(placed.values()) == wanted
        assert all(0 < number <= rooms[name] for name, number in placed.items())
        found, best = counts(tuple(placed), paths, used), fewest(world, wanted, used)
        assert found == best, (seed, world, wanted, used, placed)
        different[max(found)] += 1
    assert min(different[number] for number in (1, 2, 3)) >= 10, "the worlds differ"


# -- members of two sizes --------------------------------------------------------------------------------------------

Sizes = dict[int, int]  # GPUs of a member to the number of such members


def mixed_world(seed: int, *, has_cliques: bool) -> tuple[GangWorld, dict[str, int], list[dict[str, str]], Sizes]:
    """Up to 6 nodes of 4 GPUs in racks and cliques: the free GPUs by node, and the rack, clique and node of each."""
    rng, world, free = random.Random(seed), GangWorld(), dict[str, int]()
    racks, cliques = dict[str, str](), dict[str, str]()
    for i in range(rng.randint(2, 6)):
        name, busy = f"n{i}", rng.choice([0, 0, 1, 2, 3])
        racks[name] = f"r{rng.randrange(3)}"
        cliques[name] = f"{racks[name]}.{rng.randrange(2)}"
        labels = {RACK: racks[name], SPINE: "s"} | ({CLIQUE: cliques[name]} if has_cliques else {})
        world.add_node(name, "t4-4", labels, busy)
        free[name] = 4 - busy
    sizes = {size: rng.randint(1, 3) for size in rng.choice([(1, 4), (1, 2), (2, 3), (1, 3), (2, 4)])}
    return world, free, [racks, *([cliques] if has_cliques else []), {name: name for name in free}], sizes


def has_room(free: list[int], sizes: Sizes) -> bool:
    """Whether all members fit on nodes with these free GPUs, by all distributions."""
    (small, few), (large, many) = sizes.items()
    left = {(few, many)}
    for gpus in free:
        left = {
            (a - i, b - j)
            for a, b in left
            for j in range(min(b, gpus // large) + 1)
            for i in range(min(a, (gpus - j * large) // small) + 1)
        }
    return (0, 0) in left


@pytest.mark.parametrize("has_cliques", [True, False])
def test_members_of_two_sizes_are_in_the_fewest_sub_domains(*, has_cliques: bool) -> None:
    spanning = 0
    for seed in range(150):
        world, free, levels, sizes = mixed_world(seed, has_cliques=has_cliques)
        sets = (nodes for size in range(1, len(free) + 1) for nodes in combinations(free, size))
        fitting = [nodes for nodes in sets if has_room([free[name] for name in nodes], sizes)]
        members = [
            replace(one, rank=100 * size + rank)
            for size, number in sizes.items()
            for rank, one in enumerate(world.gang(number, size, f"g{size}"))
        ]
        plan = world.plan(members)
        assert isinstance(plan, GangPlan) == bool(fitting), (seed, plan)
        if isinstance(plan, GangPlan):
            fewest = min(tuple(len({level[name] for name in nodes}) for level in levels) for nodes in fitting)
            found = tuple(len({level[name] for name in plan.nodes}) for level in levels)
            assert found == fewest, (seed, free, levels, sizes, plan.nodes)
            spanning += fewest[1] > 1
    assert spanning >= 30


def test_with_too_many_choices_a_gang_of_two_sizes_still_fits() -> None:
    """40 racks of 3 nodes with 3, 2 and 1 free GPUs are filled to the last GPU."""
    busy = {f"n{i}": 1 + i % 3 for i in range(120)}
    world = cluster(" ".join(f"s/r{i}/r{i}:3" for i in range(40)), busy=busy)
    members = [*world.gang(40, 3, "large"), *(replace(one, rank=100) for one in world.gang(40, 2, "middle"))]
    members += [replace(one, rank=200) for one in world.gang(40, 1, "small")]
    assert len(set(nodes_of(world.plan(members)))) == 120


def test_racks_of_equal_number_with_fewer_cliques() -> None:
    """The largest rack has five cliques of one node. Two smaller racks of one clique each have room, too."""
    world = cluster("s/r1/a:1 s/r1/b:1 s/r1/c:1 s/r1/d:1 s/r1/e:1 s/r2/f:4 s/r3/g:4")
    plan = world.plan(world.gang(8, 4))
    assert set(nodes_of(plan)) == {f"n{i}" for i in range(5, 13)}
