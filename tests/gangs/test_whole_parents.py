"""A gang that fits into several equal domains goes where the domain around them is partly used: others stay whole."""

from __future__ import annotations

import random

import pytest

from extender.gangs.gang_problem import GangPlan
from tests.worlds.gang_worlds import CLIQUE, RACK, TRAY, GangWorld, cluster, found_in, nodes_of, nvl72

FULL = 4  # GPUs of a node of `cluster`


@pytest.mark.parametrize(
    ("layout", "full", "pods", "gpus", "level", "domain"),
    [
        pytest.param("s/r/a:4 s/r/b:4", (4, 5, 6), 2, 2, "node", "n7", id="the clique with one free node"),
        pytest.param("s/r/a:4 s/r/b:4", (0, 4, 5), 1, 4, "node", "n6", id="of used cliques, that with the least room"),
        pytest.param("s/r1/a:2 s/r1/b:2 s/r2/c:2 s/r2/d:2", (6, 7), 2, 4, CLIQUE, "c", id="the used rack"),
        pytest.param(
            "s1/r1/a:1 s1/r1/b:1 s1/r2/c:1 s1/r2/d:1 s2/r3/e:1 s2/r3/f:1 s2/r4/g:1 s2/r4/h:1",
            (6, 7),
            2,
            4,
            RACK,
            "r3",
            id="the used spine",
        ),
        pytest.param("s1/r1/a:2 s1/r2/b:2 s2/r3/c:2 s2/r4/d:2", (6, 7), 2, 2, "node", "n4", id="a spine, for a node"),
        pytest.param("s/r1/-:2 s/r2/-:2", (3,), 2, 2, "node", "n2", id="a rack without cliques"),
        pytest.param("s/r1/a:2 s/r2/b:4", (2, 3), 2, 4, CLIQUE, "b", id="the domain itself is used"),
        pytest.param("s/r/a:2 -/-/-:1", (), 2, 2, "node", "n2", id="a node in no domain keeps the clique whole"),
        pytest.param("s/r/a:2 -/-/-:1", (0,), 2, 2, "node", "n1", id="but a used clique comes first"),
        pytest.param("s/r/a:4 s/r/b:2", (), 1, 4, "node", "n4", id="of whole cliques, the smaller one"),
        pytest.param("s1/r1/-:2 s2/r2/-:3 s2/r3/-:2", (5, 6), 2, 2, "node", "n2", id="a larger rack in a used spine"),
        pytest.param("s1/r1/a:2 s2/r2/b:2 s2/r2/c:2", (4,), 2, 2, "node", "n5", id="a used clique"),
        pytest.param("s1/r1/-:2 s2/r2/-:3", (), 2, 2, "node", "n0", id="of whole racks in whole spines, the smaller"),
    ],
)
def test_the_partly_used_parent_comes_first(
    layout: str, full: tuple[int, ...], pods: int, gpus: int, level: str, domain: str
) -> None:
    world = cluster(layout, busy={f"n{i}": FULL for i in full})
    assert found_in(world.plan(world.gang(pods, gpus))) == (level, domain)


@pytest.mark.parametrize(
    ("layout", "full", "pods", "topology", "nodes"),
    [
        pytest.param("s/r1/-:2 s/r2/-:2 s/r3/-:3", (4,), 3, "preferred", "n0 n5 n6", id="the used rack, then a whole"),
        pytest.param(
            "s1/r1/-:2 s1/r2/-:2 s2/r3/-:2 s2/r4/-:2 s2/r5/-:1", (8,), 5, "preferred", "n0 n4 n5 n6 n7", id="spines"
        ),
        pytest.param("s/r1/a:2 s/r1/b:2 s/r2/c:2 s/r2/d:2", (6,), 5, "preferred", "n0 n1 n4 n5 n7", id="a used rack"),
        pytest.param("s/r1/a:2 s/r2/b:2", (2,), 1, "none", "n3", id="any node, in the used clique"),
        pytest.param("s/r1/-:2 -/r2/-:2", (3,), 3, "none", "n0 n1 n2", id="all of them"),
    ],
)
def test_a_gang_that_spans_domains_takes_the_used_ones(
    layout: str, full: tuple[int, ...], pods: int, topology: str, nodes: str
) -> None:
    world = cluster(layout, busy={f"n{i}": FULL for i in full})
    assert set(nodes_of(world.plan(world.gang(pods, 4), topology))) == set(nodes.split())


def test_of_nodes_with_equal_room_the_one_with_the_fewest_free_gpus() -> None:
    """The cliques have 4, 3, 4 and 3 free GPUs: pods of 3 GPUs leave the free nodes whole."""
    world = cluster("s/r/a:1 s/r/b:1 s/r/c:1 s/r/d:1", busy={"n1": 1, "n3": 1})
    for topology in ("none", "preferred"):
        assert set(nodes_of(world.plan(world.gang(2, 3, topology), topology))) == {"n1", "n3"}


def test_on_one_node_the_least_room_comes_before_the_used_clique() -> None:
    """Both nodes have room for one pod of 3 GPUs: n0 has 3 in a clique of its own, n1 has 4 in a used clique."""
    world = cluster("s/r/a:1 s/r/b:2", busy={"n0": 1, "n2": FULL})
    assert nodes_of(world.plan(world.gang(1, 3))) == ["n0"]


def test_after_a_small_gang_a_whole_rack_still_fits() -> None:
    world = GangWorld()
    nvl72(world, busy=[f"b-{i}" for i in range(1, 18)])
    assert nodes_of(world.plan(world.gang(2, 2))) == ["b-18"] * 2
    world.use("b-18", [f"gpu-{i}" for i in range(4)])
    assert found_in(world.plan(world.gang(18, 4, "big"), "required")) == (CLIQUE, "clique-a")


@pytest.mark.parametrize("seed", range(10))
def test_the_names_do_not_matter(seed: int) -> None:
    """Racks of 6 trays with 6, 3, 1 and 0 free ones, with names in any order: gangs of one tray fill 1, then 3."""
    world, rng = GangWorld(), random.Random(seed)
    names = [f"node-{number}" for number in rng.sample(range(1000), 24)]
    racks = [names[i : i + 6] for i in range(0, 24, 6)]
    for clique, rack, free in zip(rng.sample("abcd", 4), racks, (6, 3, 1, 0), strict=True):
        for position, name in enumerate(rack):
            world.add_node(name, TRAY, {CLIQUE: clique}, busy=0 if position < free else FULL)
    taken = list[str]()
    for number in range(4):
        plan = world.plan(world.gang(2, 2, f"g{number}"))
        assert isinstance(plan, GangPlan)
        (node,) = plan.nodes
        taken.append(node)
        world.use(node, [f"gpu-{i}" for i in range(FULL)])
    assert taken[:1] == racks[2][:1]
    assert set(taken[1:]) == set(racks[1][:3])
