"""Which domain the gang planner chooses: level by level the tightest that fits, and where in it the members go."""

from __future__ import annotations

import random
from typing import Any

import pytest

from extender.gangs.gang_problem import GangPlan
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, TRAY, GangWorld, cluster, nodes_of, nvl72, place

# Four GPUs for each node, 8 for each clique, 16 for each rack, 32 and 16 for the spines.
TREE = "s0/r0/c0:2 s0/r0/c1:2 s0/r1/c2:2 s0/r1/c3:2 s1/r2/c4:2 s1/r2/c5:2"
FULL = 4
REQUIRED, ANY = {"topology": "required"}, {"topology": "none"}
IN_RACK, IN_SPINE = {"topology_label": RACK}, {"topology_label": SPINE}
BOTH = REQUIRED | IN_RACK


def full(*nodes: int) -> dict[str, int]:
    return {f"n{i}": FULL for i in nodes}


@pytest.mark.parametrize(
    ("layout", "busy", "pods", "asked", "found"),
    [
        # Each level is used where no nearer one has room. All domains are whole: the spine with the least room.
        (TREE, {}, 1, {}, "node n8"),
        (TREE, {}, 4, {}, "node n8"),
        (TREE, {}, 5, {}, "clique c4"),
        (TREE, {}, 8, {}, "clique c4"),
        (TREE, {}, 9, {}, "rack r2"),
        (TREE, {}, 16, {}, "rack r2"),
        (TREE, {}, 17, {}, "spine s0"),
        (TREE, {}, 32, {}, "spine s0"),
        (TREE, {}, 33, {}, "all"),
        (TREE, {}, 48, {}, "all"),
        (TREE, {}, 49, {}, "no room"),
        # The domain that is left with the least room.
        (TREE, {"n5": 2, "n7": 1}, 2, {}, "node n5"),
        (TREE, {"n5": 2, "n7": 1}, 3, {}, "node n7"),
        (TREE, {"n4": 1, "n10": 3}, 5, {}, "clique c5"),
        (TREE, {"n4": 1, "n10": 3}, 7, {}, "clique c2"),
        (TREE, {"n5": 3, "n7": 3, "n9": 2}, 9, {}, "rack r1"),
        (TREE, {"n5": 3, "n7": 3, "n9": 2}, 12, {}, "rack r2"),
        ("s/r/c:1 s/r/-:2 s/r/d:1", {}, 5, {}, "rack r"),
        # `required` is the first level or nothing; `none` takes any nodes, but one node if it suffices.
        (TREE, {"n2": 1, "n3": 1}, 4, REQUIRED, "node n0"),
        (TREE, {"n2": 1, "n3": 1}, 6, REQUIRED, "clique c1"),
        (TREE, {"n2": 1, "n3": 1}, 9, REQUIRED, "no room"),
        ("s/r/-:3", {}, 4, REQUIRED, "node n0"),
        ("s/r/-:3", {}, 5, REQUIRED, "no room"),
        (TREE, {"n0": 3, "n1": 3}, 4, ANY, "node n2"),
        (TREE, {"n0": 3, "n1": 3}, 6, ANY, "all"),
        # One node.
        (TREE, {"n0": 1}, 4, {"topology": "node"}, "node n1"),
        (TREE, {"n0": 1}, 5, {"topology": "node"}, "no room"),
        (TREE, {"n0": 1}, 4, {"topology": "node", "placed": {"n0": 1}}, "no room"),
        # All pods on one value of a label, in every topology. 33 GPUs are free in two spines together.
        (TREE, {}, 20, IN_SPINE, "spine s0"),
        (TREE, {}, 20, ANY | IN_SPINE, "spine s0"),
        (TREE, {}, 33, IN_SPINE, "no room"),
        (TREE, {}, 33, ANY | IN_SPINE, "no room"),
        (TREE, {}, 3, ANY | IN_SPINE, "node n8"),
        (TREE, {}, 7, IN_RACK, "clique c4"),
        (TREE, {}, 9, IN_RACK, "rack r2"),
        (TREE, {}, 4, IN_RACK | {"preferred_level": CLIQUE}, "node n8"),
        (TREE, {}, 8, IN_RACK | {"preferred_level": CLIQUE}, "clique c4"),
        (TREE, {}, 16, IN_RACK | {"preferred_level": CLIQUE}, "rack r2"),
        (TREE, {}, 17, IN_RACK | {"preferred_level": CLIQUE}, "no room"),
        # The first level is required, and the PodGroup has a constraint to one rack.
        (TREE, {}, 8, BOTH, "clique c4"),
        (TREE, {}, 9, BOTH, "no room"),
        ("s/r0/a:1 s/r1/a:1", {}, 5, BOTH, "no room"),
        ("s/r0/-:1 s/r1/-:1", {}, 4, BOTH, "node n0"),
        ("s/r0/-:2", {}, 5, BOTH, "no room"),
        ("s/-/a:2", {}, 4, BOTH, "no room"),
        # With pods that run.
        (TREE, {"n6": 2}, 2, {"placed": {"n6": 2}}, "node n6"),
        (TREE, {"n6": 4}, 2, {"placed": {"n6": 4}}, "clique c3"),
        (TREE, {"n6": 1, "n7": 1}, 2, {"placed": {"n6": 1, "n7": 1}}, "clique c3"),
        (TREE, {"n6": 1}, 8, {"placed": {"n6": 1}}, "rack r1"),
        (TREE, {"n4": 1, "n6": 1}, 2, {"placed": {"n4": 1, "n6": 1}}, "rack r1"),
        (TREE, {"n0": 1, "n6": 1}, 2, {"placed": {"n0": 1, "n6": 1}}, "spine s0"),
        (TREE, {"n0": 1, "n11": 1}, 2, {"placed": {"n0": 1, "n11": 1}}, "all"),
        (TREE, {}, 4, {"placed": {"gone": 3}}, "node n8"),
        (TREE, {"n2": 4, "n3": 2}, 2, REQUIRED | {"placed": {"n2": 4}}, "clique c1"),
        (TREE, {"n2": 4, "n3": 2}, 3, REQUIRED | {"placed": {"n2": 4}}, "no room"),
        (TREE, {"n2": 4, "n3": 2}, 5, REQUIRED | {"placed": {"n2": 1, "n4": 2}}, "clique c2"),
        (TREE, {"n8": 2}, 9, ANY | IN_RACK | {"placed": {"n8": 2}}, "rack r2"),
        (TREE, {"n8": 2}, 15, ANY | IN_RACK | {"placed": {"n8": 2}}, "no room"),
    ],
)  # fmt: skip
def test_the_tightest_domain(layout: str, busy: dict[str, int], pods: int, asked: dict[str, Any], found: str) -> None:
    """Pods with one GPU each."""
    world = cluster(layout, busy=busy)
    assert place(world.plan(world.gang(pods), **asked)) == found


@pytest.mark.parametrize(
    ("layout", "busy", "pods", "gpus", "found"),
    [
        ("s/r/a:4 s/r/b:4", full(4, 5, 6), 2, 2, "node n7"),
        ("s/r/a:4 s/r/b:4", full(0, 4, 5), 1, 4, "node n6"),  # of used cliques, the one with the least room
        ("s/r1/a:2 s/r1/b:2 s/r2/c:2 s/r2/d:2", full(6, 7), 2, 4, "clique c"),  # in the used rack
        ("s1/r1/-:2 s1/r2/-:2 s2/r3/-:2 s2/r4/-:2", full(6, 7), 2, 4, "rack r3"),  # in the used spine
        ("s1/r1/a:2 s1/r2/b:2 s2/r3/c:2 s2/r4/d:2", full(6, 7), 2, 2, "node n4"),  # a spine, for a node
        ("s/r1/-:2 s/r2/-:2", full(3), 2, 2, "node n2"),
        ("s/r1/a:2 s/r2/b:4", full(2, 3), 2, 4, "clique b"),  # the domain itself is used
        ("s/r/a:2 -/-/-:1", {}, 2, 2, "node n2"),  # a node in no domain keeps the clique whole
        ("s/r/a:2 -/-/-:1", full(0), 2, 2, "node n1"),  # but a used clique comes first
        ("s/r/a:4 s/r/b:2", {}, 1, 4, "node n4"),  # of whole cliques, the smaller one
        ("s1/r1/-:2 s2/r2/-:3 s2/r3/-:2", full(5, 6), 2, 2, "node n2"),  # a larger rack in a used spine
        ("s1/r1/a:2 s2/r2/b:2 s2/r2/c:2", full(4), 2, 2, "node n5"),
        ("s1/r1/-:2 s2/r2/-:3", {}, 2, 2, "node n0"),  # of whole racks in whole spines, the smaller one
        ("s/r/a:1 s/r/b:2", {"n0": 1, "n2": FULL}, 1, 3, "node n0"),  # the least room comes before the used clique
    ],
)
def test_the_partly_used_parent_comes_first(
    layout: str, busy: dict[str, int], pods: int, gpus: int, found: str
) -> None:
    """A gang that fits into several equal domains goes where the domain around them is partly used."""
    world = cluster(layout, busy=busy)
    assert place(world.plan(world.gang(pods, gpus))) == found


RACKS = "s0/r0/-:4 s0/r1/-:4 s0/r2/-:4 s0/r3/-:4"
SPINES = "s1/r1/-:2 s1/r2/-:2 s2/r3/-:2 s2/r4/-:2 s2/r5/-:1"
SMALL = {"n0": 2, "n1": 2, "n2": 2}


@pytest.mark.parametrize(
    ("layout", "busy", "pods", "gpus", "asked", "nodes"),
    [
        # One rack of four is filled, and the last 5 pods go to the rack with 6 GPUs.
        (RACKS, {"n8": 2, "n9": 4, "n10": 4}, 21, 1, {}, "n0 n1 n2 n3 n8 n11"),
        ("s0/r0/-:1 s0/r1/-:1 s0/r2/-:2 s0/r3/-:2", {}, 12, 1, {}, "n0 n2 n3"),  # two racks, not three
        ("s0/r0/-:1 s0/r1/-:1 s0/r2/-:2 s0/r3/-:2", {}, 16, 1, {}, "n2 n3 n4 n5"),
        # Nodes without the label are used last.
        ("s/r/c:1 s/r/-:2 s/r/d:1", {}, 8, 1, {}, "n0 n3"),
        ("s/r/c:1 s/r/-:2 s/r/d:1", {}, 9, 1, {}, "n0 n1 n3"),
        # Used domains first.
        ("s/r1/-:2 s/r2/-:2 s/r3/-:3", full(4), 3, 4, {}, "n0 n5 n6"),
        (SPINES, full(8), 5, 4, {}, "n0 n4 n5 n6 n7"),
        ("s/r1/a:2 s/r1/b:2 s/r2/c:2 s/r2/d:2", full(6), 5, 4, {}, "n0 n1 n4 n5 n7"),
        ("s/r1/a:2 s/r2/b:2", full(2), 1, 4, ANY, "n3"),
        ("s/r1/-:2 -/r2/-:2", full(3), 3, 4, ANY, "n0 n1 n2"),
        # Of nodes with equal room, those with the fewest free GPUs.
        ("s/r/a:1 s/r/b:1 s/r/c:1 s/r/d:1", {"n1": 1, "n3": 1}, 2, 3, ANY, "n1 n3"),
        ("s/r/a:1 s/r/b:1 s/r/c:1 s/r/d:1", {"n1": 1, "n3": 1}, 2, 3, {}, "n1 n3"),
        # The nodes of the pods that run, then those of their clique.
        ("s/r/c:4", {"n2": 2, "n3": 1}, 3, 1, {"placed": {"n2": 2, "n1": 1}}, "n1"),
        ("s/r/c:4", {"n2": 2, "n3": 1}, 5, 1, {"placed": {"n2": 2, "n1": 1}}, "n1 n2"),
        (TREE, {"n6": 1}, 5, 1, ANY | {"placed": {"n6": 1}}, "n6 n7"),
        # The fewest nodes.
        ("s/r0/c0:3 s/r1/c1:1 s/r1/c2:1", SMALL, 10, 1, {"preferred_level": "node"}, "n0 n3 n4"),
    ],
)
def test_the_nodes_of_a_gang(
    layout: str, busy: dict[str, int], pods: int, gpus: int, asked: dict[str, Any], nodes: str
) -> None:
    world = cluster(layout, busy=busy)
    assert (
        " ".join(sorted(set(nodes_of(world.plan(world.gang(pods, gpus), **asked))), key=lambda n: int(n[1:]))) == nodes
    )


@pytest.mark.parametrize("preferred", ["", RACK, CLIQUE])
def test_the_fewest_domains_of_each_level(preferred: str) -> None:
    """Cliques with 3 and 1 nodes in the rack r0, and one with 3 nodes in r1. No level has a domain for 5 nodes."""
    world = cluster("s/r0/c0:3 s/r0/c1:1 t/r1/c2:3")
    plan = world.plan(world.gang(5, 4), preferred_level=preferred)
    labels = world.cache.snapshot().node_infos
    assert {labels[name].node.labels[CLIQUE] for name in nodes_of(plan)} == {"c0", "c2"}


def test_members_with_neighbouring_indexes_are_neighbours() -> None:
    """Nodes of one clique and rack follow each other, and n2 comes before n10. Names of pods do not matter."""
    world = GangWorld()
    racks = {"n10": "r0", "n2": "r0", "n1": "r1", "n11": "r1", "n3": "r1", "n4": "r0"}
    for name, rack in racks.items():
        world.add_node(name, "t4-4", {SPINE: "s", RACK: rack})
    plan = world.plan(world.gang(12, 2))
    assert nodes_of(plan) == [name for name in ("n2", "n4", "n10", "n1", "n3", "n11") for _ in range(2)]
    ranks = [world.member(f"w-{i}", 11 - i) for i in range(12)]
    assert nodes_of(world.plan(ranks)) == nodes_of(plan)[::-1]


def test_the_label_of_a_group_may_be_none_of_the_levels() -> None:
    world = GangWorld()
    for i in range(6):
        zone = {"zone": f"z{i % 2}"} if i < 4 else {}
        world.add_node(f"n{i}", "t4-4", {CLIQUE: f"c{i // 2}", **zone})
    assert place(world.plan(world.gang(8), topology_label="zone")) == "zone z0"
    assert place(world.plan(world.gang(9, prefix="v"), topology_label="zone")) == "no room"
    for i in range(4):
        world.use(f"n{i}", ["gpu-0", "gpu-1"])
    assert place(world.plan(world.gang(2, prefix="u"), topology_label="zone")) == "node n0"
    assert place(world.plan(world.gang(3, prefix="t"), topology_label="zone")) == "zone z0", "not n4 and n5"


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


# -- NVL72 ---------------------------------------------------------------------------------------------------------

MOST_OF_B = [f"b-{i}" for i in range(1, 18)]


@pytest.mark.parametrize(
    ("trays", "busy", "asked", "found"),
    [
        (1, (), {}, "node a-1"),
        (4, (), {}, "clique clique-a"),
        (4, ("b-3",), {}, "clique clique-b"),
        (17, ("b-3",), {}, "clique clique-b"),
        (18, ("b-3",), {}, "clique clique-a"),
        (18, ("a-1", "b-3"), {}, "all"),
        (20, (), {}, "all"),
        (20, ("a-7",), REQUIRED, "no room"),
        (18, (*MOST_OF_B, "b-18"), REQUIRED, "clique clique-a"),
        (1, MOST_OF_B, {"placed": dict.fromkeys(MOST_OF_B, 1)}, "clique clique-b"),
    ],
)
def test_gangs_of_whole_trays_on_nvl72(trays: int, busy: tuple[str, ...], asked: dict[str, Any], found: str) -> None:
    """A gang takes the rack that is used already, and leaves the whole rack to a gang that needs it."""
    world = GangWorld()
    nvl72(world, busy=busy)
    plan = world.plan(world.gang(trays, 4), **asked)
    assert place(plan) == found
    if isinstance(plan, GangPlan):
        assert len(plan.nodes) == trays
        assert plan.nodes.isdisjoint(busy)


def test_a_gang_over_two_nvl72_racks_fills_one_of_them_in_index_order() -> None:
    world = GangWorld()
    nvl72(world)
    nodes = nodes_of(world.plan(world.gang(20, 4)))
    assert nodes == [*(f"a-{i}" for i in range(1, 19)), "b-1", "b-2"]
