"""Which domain the gang planner chooses: level by level the tightest that fits, and where in it the members go."""

from __future__ import annotations

import pytest

from extender.gangs.gang_problem import GangShortage
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, GangWorld, cluster, found_in, nodes_of, nvl72

# Four GPUs for each node, 8 for each clique, 16 for each rack, 32 and 16 for the spines.
TREE = "s0/r0/c0:2 s0/r0/c1:2 s0/r1/c2:2 s0/r1/c3:2 s1/r2/c4:2 s1/r2/c5:2"


@pytest.mark.parametrize(
    ("members", "level", "domain"),
    [
        (1, "node", "n8"),
        (4, "node", "n8"),
        (5, CLIQUE, "c4"),
        (8, CLIQUE, "c4"),
        (9, RACK, "r2"),
        (16, RACK, "r2"),
        (17, SPINE, "s0"),
        (32, SPINE, "s0"),
        (33, "", ""),
        (48, "", ""),
    ],
)
def test_each_level_is_used_where_no_nearer_one_has_room(members: int, level: str, domain: str) -> None:
    """All domains are whole, so it is the one in the spine with the least room."""
    world = cluster(TREE)
    assert found_in(world.plan(world.gang(members))) == (level, domain)


def test_one_member_too_many_for_all_nodes() -> None:
    world = cluster(TREE)
    assert world.plan(world.gang(49)) == GangShortage(49, 48, "", "")


@pytest.mark.parametrize(
    ("members", "busy", "level", "domain"),
    [
        (2, {"n5": 2, "n7": 1}, "node", "n5"),
        (3, {"n5": 2, "n7": 1}, "node", "n7"),
        (5, {"n4": 1, "n10": 3}, CLIQUE, "c5"),
        (7, {"n4": 1, "n10": 3}, CLIQUE, "c2"),
        (9, {"n5": 3, "n7": 3, "n9": 2}, RACK, "r1"),
        (12, {"n5": 3, "n7": 3, "n9": 2}, RACK, "r2"),
    ],
)
def test_the_domain_that_is_left_with_the_least_room(
    members: int, busy: dict[str, int], level: str, domain: str
) -> None:
    world = cluster(TREE, busy=busy)
    assert found_in(world.plan(world.gang(members))) == (level, domain)


def test_the_rest_of_a_gang_goes_where_it_leaves_other_racks_whole() -> None:
    """16 + 16 + 6 + 16 GPUs: one rack is filled, and the last 5 members go to the rack with 6."""
    world = cluster("s0/r0/-:4 s0/r1/-:4 s0/r2/-:4 s0/r3/-:4", busy={"n8": 2, "n9": 4, "n10": 4})
    plan = world.plan(world.gang(21))
    assert found_in(plan) == (SPINE, "s0")
    assert set(nodes_of(plan)) == {"n0", "n1", "n2", "n3", "n8", "n11"}


def test_as_few_racks_as_possible() -> None:
    """12 members in racks of 4, 4, 8 and 8 GPUs: two racks, not three."""
    world = cluster("s0/r0/-:1 s0/r1/-:1 s0/r2/-:2 s0/r3/-:2")
    assert set(nodes_of(world.plan(world.gang(12)))) == {"n0", "n2", "n3"}
    assert set(nodes_of(world.plan(world.gang(16, prefix="v")))) == {"n2", "n3", "n4", "n5"}


def test_members_with_neighbouring_indexes_are_neighbours() -> None:
    """Nodes of one clique and rack follow each other, and n2 comes before n10."""
    world = GangWorld()
    racks = {"n10": "r0", "n2": "r0", "n1": "r1", "n11": "r1", "n3": "r1", "n4": "r0"}
    for name, rack in racks.items():
        world.add_node(name, "t4-4", {SPINE: "s", RACK: rack})
    plan = world.plan(world.gang(12, 2))
    assert nodes_of(plan) == [name for name in ("n2", "n4", "n10", "n1", "n3", "n11") for _ in range(2)]


def test_indexes_and_not_names_order_the_members() -> None:
    world = cluster("s/r/c:3")
    world.gang(3, 4)
    plan = world.plan([world.member("w-0", 2), world.member("w-1", 0), world.member("w-2", 1)])
    assert nodes_of(plan) == ["n2", "n0", "n1"]


def test_nodes_without_the_label_are_in_no_domain_and_are_used_last() -> None:
    world = cluster("s/r/c:1 s/r/-:2 s/r/d:1")
    assert found_in(world.plan(world.gang(5))) == (RACK, "r")
    assert set(nodes_of(world.plan(world.gang(8, prefix="v")))) == {"n0", "n3"}
    assert set(nodes_of(world.plan(world.gang(9, prefix="u")))) == {"n0", "n3", "n1"}


# -- topology ------------------------------------------------------------------------------------------------------


def test_required_is_the_first_level_or_nothing() -> None:
    world = cluster(TREE, busy={"n2": 1, "n3": 1})
    assert found_in(world.plan(world.gang(4), "required")) == ("node", "n0")
    assert found_in(world.plan(world.gang(6, prefix="v"), "required")) == (CLIQUE, "c1")
    assert world.plan(world.gang(9, prefix="u"), "required") == GangShortage(9, 8, CLIQUE, "c0")


def test_required_without_any_clique() -> None:
    world = cluster("s/r/-:3")
    assert found_in(world.plan(world.gang(4), "required")) == ("node", "n0")
    assert world.plan(world.gang(5, prefix="v"), "required") == GangShortage(5, 4, "node", "n0")


def test_none_takes_any_nodes_but_one_node_if_it_suffices() -> None:
    world = cluster(TREE, busy={"n0": 3, "n1": 3})
    assert found_in(world.plan(world.gang(4), "none")) == ("node", "n2")
    assert found_in(world.plan(world.gang(6, prefix="v"), "none")) == ("", "")


@pytest.mark.parametrize("topology", ["preferred", "none"])
def test_the_label_of_a_group_holds_in_every_topology(topology: str) -> None:
    """33 GPUs are free in two spines together, but in no single spine."""
    world = cluster(TREE)
    plan = world.plan(world.gang(20), topology, topology_label=SPINE)
    assert found_in(plan) == (SPINE, "s0")
    assert world.plan(world.gang(33, prefix="v"), topology, topology_label=SPINE) == GangShortage(33, 32, SPINE, "s0")
    assert found_in(world.plan(world.gang(3, prefix="u"), topology, topology_label=SPINE)) == ("node", "n8")


def test_the_label_of_a_group_may_be_none_of_the_levels() -> None:
    world = GangWorld()
    for i in range(6):
        zone = {"zone": f"z{i % 2}"} if i < 4 else {}
        world.add_node(f"n{i}", "t4-4", {CLIQUE: f"c{i // 2}", **zone})
    assert found_in(world.plan(world.gang(8), topology_label="zone")) == ("zone", "z0")
    assert world.plan(world.gang(9, prefix="v"), topology_label="zone") == GangShortage(9, 8, "zone", "z0")
    for i in range(4):
        world.use(f"n{i}", ["gpu-0", "gpu-1"])
    assert found_in(world.plan(world.gang(2, prefix="u"), topology_label="zone")) == ("node", "n0")
    assert found_in(world.plan(world.gang(3, prefix="t"), topology_label="zone")) == ("zone", "z0"), "not n4 and n5"


def test_within_the_label_of_a_group_the_nearest_level_is_used() -> None:
    world = cluster(TREE)
    assert found_in(world.plan(world.gang(7), topology_label=RACK)) == (CLIQUE, "c4")
    assert found_in(world.plan(world.gang(9, prefix="v"), topology_label=RACK)) == (RACK, "r2")


# -- members that run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "placed", "level", "domain"),
    [
        (2, {"n6": 2}, "node", "n6"),
        (2, {"n6": 4}, CLIQUE, "c3"),
        (2, {"n6": 1, "n7": 1}, CLIQUE, "c3"),
        (8, {"n6": 1}, RACK, "r1"),
        (2, {"n4": 1, "n6": 1}, RACK, "r1"),
        (2, {"n0": 1, "n6": 1}, SPINE, "s0"),
        (2, {"n0": 1, "n11": 1}, "", ""),
    ],
)
def test_a_plan_prefers_the_domain_of_the_members_that_run(
    members: int, placed: dict[str, int], level: str, domain: str
) -> None:
    world = cluster(TREE, busy=placed)
    assert found_in(world.plan(world.gang(members), placed=placed)) == (level, domain)


def test_a_plan_prefers_the_nodes_of_the_members_that_run() -> None:
    world = cluster("s/r/c:4", busy={"n2": 2, "n3": 1})
    assert nodes_of(world.plan(world.gang(3), placed={"n2": 2, "n1": 1})) == ["n1", "n1", "n1"]
    assert nodes_of(world.plan(world.gang(5, prefix="v"), placed={"n2": 2, "n1": 1})) == ["n1", "n1", "n1", "n1", "n2"]


def test_required_returns_to_the_clique_of_most_members_that_run_or_waits() -> None:
    world = cluster(TREE, busy={"n2": 4, "n3": 2})
    assert found_in(world.plan(world.gang(2), "required", placed={"n2": 4})) == (CLIQUE, "c1")
    assert world.plan(world.gang(3, prefix="v"), "required", placed={"n2": 4}) == GangShortage(3, 2, CLIQUE, "c1")
    assert found_in(world.plan(world.gang(5, prefix="u"), "required", placed={"n2": 1, "n4": 2})) == (CLIQUE, "c2")


def test_with_topology_none_a_plan_prefers_the_nodes_of_the_members_that_run() -> None:
    world = cluster(TREE, busy={"n6": 1})
    nodes = nodes_of(world.plan(world.gang(5), "none", placed={"n6": 1}))
    assert nodes == ["n6", "n6", "n6", "n7", "n7"], "then those of the next node in its used clique"


def test_the_label_of_a_group_returns_to_the_value_of_the_members_that_run() -> None:
    world = cluster(TREE, busy={"n8": 2})
    plan = world.plan(world.gang(9), "none", topology_label=RACK, placed={"n8": 2})
    assert found_in(plan) == (RACK, "r2")
    shortage = world.plan(world.gang(15, prefix="v"), "none", topology_label=RACK, placed={"n8": 2})
    assert shortage == GangShortage(15, 14, RACK, "r2")


def test_members_on_a_node_that_the_cache_does_not_have_are_ignored() -> None:
    world = cluster(TREE)
    assert found_in(world.plan(world.gang(4), placed={"gone": 3})) == ("node", "n8")


# -- NVL72 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trays", "busy", "level", "domain"),
    [
        (1, (), "node", "a-1"),
        (4, (), CLIQUE, "clique-a"),
        (4, ("b-3",), CLIQUE, "clique-b"),
        (17, ("b-3",), CLIQUE, "clique-b"),
        (18, ("b-3",), CLIQUE, "clique-a"),
        (18, ("a-1", "b-3"), "", ""),
        (20, (), "", ""),
    ],
)
def test_gangs_of_whole_trays_on_nvl72(trays: int, busy: tuple[str, ...], level: str, domain: str) -> None:
    """A gang takes the rack that is used already, and leaves the whole rack to a gang that needs it."""
    world = GangWorld()
    nvl72(world, busy=busy)
    plan = world.plan(world.gang(trays, 4))
    assert found_in(plan) == (level, domain)
    assert len(set(nodes_of(plan))) == trays
    assert set(nodes_of(plan)).isdisjoint(busy)


def test_a_gang_over_two_nvl72_racks_fills_one_of_them_in_index_order() -> None:
    world = GangWorld()
    nvl72(world)
    nodes = nodes_of(world.plan(world.gang(20, 4)))
    assert nodes == [*(f"a-{i}" for i in range(1, 19)), "b-1", "b-2"]


def test_no_rack_of_nvl72_holds_a_required_gang_of_20() -> None:
    world = GangWorld()
    nvl72(world, busy=("a-7",))
    assert world.plan(world.gang(20, 4), "required") == GangShortage(20, 18, CLIQUE, "clique-b")


def test_a_replacement_returns_to_the_nvl72_rack_of_its_gang() -> None:
    world = GangWorld()
    nvl72(world, busy=[f"b-{i}" for i in range(1, 18)])
    plan = world.plan(world.gang(1, 4), placed={f"b-{i}": 1 for i in range(1, 18)})
    assert (found_in(plan), nodes_of(plan)) == ((CLIQUE, "clique-b"), ["b-18"])
