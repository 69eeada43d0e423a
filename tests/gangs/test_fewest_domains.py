"""A gang that spans domains uses the fewest sub-domains in all: against brute force on small random worlds."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import pytest

from extender.gangs.spreading import spread
from tests.worlds.gang_worlds import SPINE, cluster, found_in, nodes_of

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
        placed = spread(rooms, paths, [str] * (levels + 1), wanted, used)
        assert sum(placed.values()) == wanted
        assert all(0 < number <= rooms[name] for name, number in placed.items())
        found, best = counts(tuple(placed), paths, used), fewest(world, wanted, used)
        assert found == best, (seed, world, wanted, used, placed)
        different[max(found)] += 1
    assert min(different[number] for number in (1, 2, 3)) >= 10, "the worlds differ"


def test_two_cliques_and_not_three() -> None:
    """Cliques with 3 and 1 free nodes in one rack, and with 3 in another one: a gang of 5 leaves the clique with 1."""
    world = cluster("s/r1/a:3 s/r1/b:1 s/r2/c:3", "t4-4")
    plan = world.plan(world.gang(5, 4))
    assert found_in(plan) == (SPINE, "s")
    assert nodes_of(plan) == ["n0", "n1", "n4", "n5", "n6"], "the rack with less room is filled"


def test_racks_of_equal_number_with_fewer_cliques() -> None:
    """The largest rack has five cliques of one node. Two smaller racks of one clique each have room, too."""
    world = cluster("s/r1/a:1 s/r1/b:1 s/r1/c:1 s/r1/d:1 s/r1/e:1 s/r2/f:4 s/r3/g:4")
    plan = world.plan(world.gang(8, 4))
    assert set(nodes_of(plan)) == {f"n{i}" for i in range(5, 13)}


def test_neighbours_have_neighbouring_ranks() -> None:
    world = cluster("s/r1/a:2 s/r2/b:2 s/r2/c:1", "t4-4")
    nodes = nodes_of(world.plan(world.gang(4, 4)))
    assert nodes == ["n0", "n1", "n2", "n3"]
