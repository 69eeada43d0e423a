"""Labels of nodes make domains: values repeat, and labels that are no level of the policy have a place among them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from extender.api.label_domains import label_domains
from extender.gangs.domains import Domains
from extender.gangs.gang_problem import GangPlan, GangProblem
from extender.sandbox import carried_machines
from extender.scheduling import path_labels
from extender.scheduling.shortlist import shortlist
from tests.worlds.explained_gangs import explained, members, occupy
from tests.worlds.gang_pods import planned
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, GangWorld, cluster, found_in, nodes_of
from tests.worlds.running_berth import berthing, claim, pod

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
    assert not isinstance(world.plan(world.gang(3, 4), topology_label=RACK), GangPlan)


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


MACHINE = "t4-4"
SUB = "acme.io/subrack"
KUEUE, KAI = "kueue.x-k8s.io/podset-{}-topology", "kai.scheduler/topology-{}-placement"
# Names alternate between the racks, so that neighbours by sub-rack are in different racks.
NODES = {
    f"{sub}-{i}": {SPINE: "s", RACK: rack, SUB: sub}
    for sub, rack in (("x1", "ra"), ("x2", "rb"), ("x3", "ra"), ("x4", "rb"))
    for i in range(2)
}
HOSTS = {name: labels | {SUB: name} for name, labels in NODES.items()}


async def racks_of(nodes: Mapping[str, Mapping[str, str]], size: int, **levels: str) -> list[str]:
    """The racks of the nodes of a gang that takes whole nodes; `levels` are its annotations, see KUEUE and KAI."""
    names = [f"p{i}" for i in range(size)]
    async with berthing({}) as b:
        for name, labels in nodes.items():
            b.cluster.add_node(name, carried_machines()[MACHINE], dict(labels))
        for name in names:
            notes = {"berth.dev/group": "job", "berth.dev/group-min": str(size), **levels}
            b.cluster.apply(claim(name, 4))
            b.cluster.apply(pod(name, name, annotations=notes))
        await b.settled()
        return [nodes[node][RACK] for node in (await planned(b, *names)).values()]


@pytest.mark.loopback
@pytest.mark.parametrize("scheduler", [KUEUE, KAI])
@pytest.mark.parametrize("nodes", [NODES, HOSTS])
@pytest.mark.parametrize("required", [RACK, SPINE, ""])
async def test_a_nearer_label_leaves_the_gang_in_one_rack(
    nodes: dict[str, dict[str, str]], scheduler: str, required: str
) -> None:
    levels = {scheduler.format("preferred"): SUB} | ({scheduler.format("required"): required} if required else {})
    assert len(set(await racks_of(nodes, 4, **levels))) == 1


# -- how near ------------------------------------------------------------------------------------------------------


def world_of(nodes: Mapping[str, Mapping[str, str]]) -> GangWorld:
    world = GangWorld()
    for name, labels in nodes.items():
        world.add_node(name, MACHINE, dict(labels))
    return world


def levels_of(nodes: Mapping[str, Mapping[str, str]], label: str = SUB) -> tuple[str, ...]:
    problem = GangProblem((), (CLIQUE, RACK, SPINE), "preferred", preferred_level=label)
    return Domains(problem, world_of(nodes).cache.snapshot(), nodes).levels


def blocks(*cliques: str | None) -> dict[str, dict[str, str]]:
    """Racks of two nodes, blocks of two racks, one spine. `cliques` are those of the nodes, as far as they have one."""
    found = {f"n{i}": {SPINE: "s", RACK: f"r{i // 2}", SUB: f"b{i // 4}"} for i in range(8)}
    for name, clique in zip(found, cliques, strict=False):
        found[name] |= {CLIQUE: clique} if clique else {}
    return found


@pytest.mark.parametrize(
    ("nodes", "levels"),
    [
        (NODES, (CLIQUE, SUB, RACK, SPINE)),
        (HOSTS, (CLIQUE, SUB, RACK, SPINE)),
        ({**HOSTS, "cpu": {SUB: "cpu"}}, (CLIQUE, SUB, RACK, SPINE)),
        ({name: labels | {CLIQUE: labels[RACK]} for name, labels in HOSTS.items()}, (SUB, CLIQUE, RACK, SPINE)),
        (blocks(), (CLIQUE, RACK, SUB, SPINE)),
        (blocks("c", "c"), (CLIQUE, RACK, SUB, SPINE)),
        ({name: labels | {SUB: "zone"} for name, labels in NODES.items()}, (CLIQUE, RACK, SPINE, SUB)),
        ({name: labels | {SUB: name[-1]} for name, labels in NODES.items()}, (CLIQUE, RACK, SUB, SPINE)),
        ({name: {RACK: "r"} for name in NODES}, (CLIQUE, RACK, SPINE, SUB)),
    ],
)
def test_the_labels_of_the_nodes_tell_how_near_a_label_is(
    nodes: dict[str, dict[str, str]], levels: tuple[str, ...]
) -> None:
    """It is nearer than the first level of which its domains are parts, otherwise the farthest."""
    assert levels_of(nodes) == levels


def test_a_listed_label_and_one_node_have_their_places() -> None:
    assert levels_of(NODES, RACK) == levels_of(NODES, "node") == levels_of(NODES, "") == (CLIQUE, RACK, SPINE)


@pytest.mark.parametrize(("size", "place"), [(2, SUB), (4, RACK), (5, SPINE)])
def test_the_tightest_domain(size: int, place: str) -> None:
    world = world_of(NODES)
    assert found_in(world.plan(world.gang(size, 4), preferred_level=SUB))[0] == place


def test_a_required_label_that_is_preferred_too() -> None:
    world = world_of(NODES)
    level, _ = found_in(world.plan(world.gang(2, 4), topology_label=SUB, preferred_level=SUB))
    assert level == SUB
