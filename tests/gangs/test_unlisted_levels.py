"""Preferred labels that are not in group_levels: what they name, how near that is, and that they stay a wish."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from extender.gangs.domains import Domains
from extender.gangs.gang_problem import GangProblem
from extender.sandbox import carried_machines
from tests.worlds.gang_pods import planned
from tests.worlds.gang_worlds import CLIQUE, RACK, SPINE, GangWorld, found_in
from tests.worlds.running_berth import berthing, claim, pod

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
