"""Values of labels repeat: `r1` under block b1 and `r1` under b2 are two racks, for gangs, pods and explanations."""

from __future__ import annotations

from extender.api.nodes import label_domains
from extender.gangs.gang_problem import GangPlan
from extender.scheduling import path_labels
from extender.scheduling.shortlist import shortlist
from tests.worlds.explained_gangs import explained, members, occupy
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, cluster, found_in, nodes_of
from tests.worlds.running_berth import claim

LEVELS = (CLIQUE, RACK, SPINE)


def test_names_of_domains() -> None:
    """The value alone if it is unique, else the path, from the farthest level, with nothing for a missing label."""
    nodes = {
        "n1": {RACK: "r1", SPINE: "b1"},
        "n2": {RACK: "r1", SPINE: "b2"},
        "n3": {RACK: "r1"},
        "n4": {RACK: "r2", SPINE: "b2"},
        "n5": {SPINE: "b2"},
    }
    found = label_domains(nodes.items(), path_labels(RACK, LEVELS))
    assert found.name_of == {"n1": "b1/r1", "n2": "b2/r1", "n3": "r1", "n4": "r2"}
    assert found.nodes == {name: {node} for node, name in found.name_of.items()}
    assert path_labels("zone", LEVELS) == ("zone",), "a label of a group that is no level"


def test_names_stay_different_where_farther_labels_have_equal_values() -> None:
    nodes = {"n1": {"rack": "r1", "row": "a"}, "n2": {"rack": "r1", "zone": "a"}, "n3": {"rack": "r1"}}
    found = label_domains(nodes.items(), ("rack", "row", "zone"))
    assert found.name_of == {"n1": "/a/r1", "n2": "a//r1", "n3": "r1"}


def test_equal_values_under_different_parents_are_different_racks() -> None:
    world = cluster("b1/r1/-:2 b1/r2/-:1 b2/r1/-:2")
    plan = world.plan(world.gang(3, 4))
    assert found_in(plan) == (SPINE, "b1"), "no rack has three nodes"
    again = world.plan(world.gang(2, 4, "v"))
    assert isinstance(again, GangPlan)
    assert (again.level, again.domain) == (RACK, "b2/r1"), "the smaller spine is whole, too"


def test_a_required_rack_is_a_rack_and_not_all_racks_of_one_name() -> None:
    world = cluster("b1/r1/-:2 b2/r1/-:2")
    shortage = world.plan(world.gang(3, 4), topology_label=RACK)
    assert not isinstance(shortage, GangPlan)
    assert (shortage.room, shortage.level, shortage.domain) == (2, RACK, "b1/r1")


def test_a_replacement_returns_to_its_own_rack() -> None:
    world = cluster("b1/r1/-:2 b2/r1/-:2", busy={"n2": 4})
    assert nodes_of(world.plan(world.gang(1, 4), placed={"n2": 1})) == ["n3"]


def test_an_nvlink_clique_may_span_two_racks() -> None:
    """GB200 NVL36x2: ids of cliques are unique, so their own label identifies them."""
    world = cluster("s/r1/a:2 s/r2/a:2")
    assert found_in(world.plan(world.gang(4, 4), "required")) == (CLIQUE, "a")


def test_other_pods_of_a_group_are_near_in_their_own_rack() -> None:
    world = cluster("b1/r1/-:1 b2/r1/-:1 b2/r1/-:1", "t4-4")
    occupy(world, "first", "n1", 0, 4, group="job")
    world.add_claim(claim("second", 4))
    world.add_pod("second", "second", group="job")
    requirements = world.member("second", 1).requirements
    snapshot = world.cache.snapshot()
    ranking = world.rankings.get_or_create(requirements)
    ranking.update(snapshot, world.evaluator.evaluation_context(snapshot))
    found = shortlist(ranking, requirements, snapshot, ["n0", "n2"]).nodes
    parts = {name: [part.value for part in one.parts if part.name == "clique"] for name, one in found.items()}
    assert list(found) == ["n2", "n0"]
    assert parts["n2"][0] > parts["n0"][0] == 0


def test_an_explanation_names_the_rack_with_its_path() -> None:
    world = cluster("b1/r1/-:1 b2/r1/-:3", "t4-4")
    members(world, 2, gpus=4)
    found = explained(world)
    assert (found.level, found.domain) == (RACK, "b2/r1")
    assert f"in {RACK}=b2/r1" in found.sentence
