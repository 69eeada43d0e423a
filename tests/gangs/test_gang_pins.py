"""Members that can use one node only: settled members of an earlier plan, and members whose claims are allocated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from extender.api.nodes import NodeSelector, Requirement, Term, only_node
from extender.gangs.gang_problem import GangMember, GangPlan, GangShortage
from extender.gangs.member_limits import NodeLimit
from tests.worlds.gang_worlds import CLIQUE, RACK, GangWorld, allocated, cluster, found_in, nodes_of
from tests.worlds.running_berth import claim


class Watched(frozenset[str]):
    """A set of names that counts its uses."""

    used: int = 0

    def __contains__(self, name: object) -> bool:
        Watched.used += 1
        return super().__contains__(name)


def pinned(world: GangWorld, size: int, limit: NodeLimit | None = None) -> Iterator[GangMember]:
    """Member w-i can use node ni only."""
    return (world.member(f"w-{i}", i, frozenset({f"n{i}"}), limit=limit) for i in range(size))


def with_devices(world: GangWorld, size: int) -> list[GangMember]:
    """Members whose claims are allocated: that of v-i on node ni."""
    for i in range(size):
        allocated(world, f"v-{i}", f"n{i}", "gpu-0")
        world.add_pod(f"v-{i}", f"v-{i}")
    return [world.member(f"v-{i}", i) for i in range(size)]


# -- many of them --------------------------------------------------------------------------------------------------


def test_more_settled_members_than_classes() -> None:
    """The free member goes beside them: n70 is not in their clique, and the other nodes have three GPUs left."""
    world = cluster("s/r/c:70 s/r/d:1")
    world.gang(71)
    plan = world.plan([*pinned(world, 70), world.member("w-70", 70)])
    assert found_in(plan) == (CLIQUE, "c")
    assert nodes_of(plan)[:70] == [f"n{i}" for i in range(70)]


def test_more_allocated_members_than_classes() -> None:
    world = cluster("s/r/c:100 s/r/d:100")
    world.gang(1)
    plan = world.plan([*with_devices(world, 200), world.member("w-0", 200)])
    assert found_in(plan) == (RACK, "r")
    assert isinstance(plan, GangPlan)
    assert [plan.placements[f"v-{i}"][0] for i in range(200)] == [f"n{i}" for i in range(200)]
    assert not any(plan.placements[f"v-{i}"][1].solution.picks for i in range(200))


@pytest.mark.parametrize("settled", [10, 60])
def test_the_cost_of_settled_members_does_not_grow_with_the_number_of_nodes(settled: int) -> None:
    world = cluster("s/r/c:300", busy={f"n{i}": i % 4 for i in range(300)})
    world.gang(settled + 1)
    nodes = [f"n{4 * i}" for i in range(settled)]
    Watched.used = 0
    members = [world.member(f"w-{i}", i, Watched({name})) for i, name in enumerate(nodes)]
    plan = world.plan([*members, world.member(f"w-{settled}", settled)])
    assert nodes_of(plan)[:settled] == nodes
    assert Watched.used <= 2 * settled  # `check` asks once for each member
    assert len(world.rankings) == 1
    assert world.rankings.evaluations == 4  # by the number of devices in use


# -- beside the others ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["excluded", "elsewhere", "gone"])
def test_a_pinned_member_that_may_not_use_its_node_is_a_shortage(field: str) -> None:
    world = cluster("s/r/c:3")
    world.gang(3)
    devices = with_devices(world, 3)
    other = {
        "excluded": world.member("w-2", 2, frozenset({"n2"}), frozenset({"n2"})),
        "elsewhere": world.member("v-2", 2, frozenset({"n1"})),
        "gone": world.member("w-2", 2, frozenset({"gone"})),
    }[field]
    assert world.plan([*devices[:2], other]) == GangShortage(3, 2, "", "")


def test_no_domain_without_the_node_of_a_pinned_member() -> None:
    world = cluster("s/r/c:4 s/r/d:2 s/x/e:1")
    world.gang(2, 3)
    for node, domain in (("n4", "d"), ("n1", "c")):
        members = [world.member("w-0", 0, frozenset({node})), world.member("w-1", 1)]
        assert found_in(world.plan(members)) == (CLIQUE, domain)
    apart = [world.member(f"w-{i}", i, frozenset({node})) for i, node in enumerate(("n0", "n6"))]
    assert world.plan(apart, "required") == GangShortage(2, 1, CLIQUE, "c")


def test_pinned_members_on_nodes_that_share_a_pool() -> None:
    """Each node has room for two of them, and both together too."""
    world = cluster("s/r/c:2")
    pool = {"name": "net", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "net.example.com", "allNodes": True, "pool": pool, "devices": [{"name": "a"}, {"name": "b"}]}
    world.add_slice({"metadata": {"name": "net"}, "spec": spec})
    expression = "device.driver == 'net.example.com'"
    world.add_class({"metadata": {"name": "net"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
    for i in range(3):
        obj = claim(f"w-{i}")
        obj["spec"]["devices"]["requests"] = [{"name": "net", "exactly": {"deviceClassName": "net"}}]
        world.add_claim(obj)
        world.add_pod(f"w-{i}", f"w-{i}")
    nodes = ("n1", "n0", "n1")
    members = [world.member(f"w-{i}", i, frozenset({node})) for i, node in enumerate(nodes)]
    assert nodes_of(world.plan(members[:2])) == ["n1", "n0"]
    assert world.plan(members) == GangShortage(3, 2, "", "")


# -- node selectors ------------------------------------------------------------------------------------------------


def _field(operator: str, *names: str) -> Term:
    return Term(fields=(Requirement("metadata.name", operator, names),))


@pytest.mark.parametrize(
    ("selector", "node"),
    [
        (only_node("n1"), "n1"),
        (NodeSelector((_field("In", "n1"), _field("In", "n1"))), "n1"),
        (NodeSelector((Term((Requirement("zone", "Exists"),), _field("In", "n1").fields),)), "n1"),
        (NodeSelector((_field("In", "n1"), _field("In", "n2"))), None),
        (NodeSelector((_field("In", "n1", "n2"),)), None),
        (NodeSelector((_field("NotIn", "n1"),)), None),
        (NodeSelector((_field("In", "n1"), Term((Requirement("zone", "Exists"),)))), None),
        (NodeSelector((Term((Requirement("metadata.name", "In", ("n1",)),)),)), None),
        (NodeSelector(()), None),
    ],
)
def test_the_node_that_a_selector_names(selector: NodeSelector, node: str | None) -> None:
    assert selector.node == node
