"""Limits of members on a node, which kube-scheduler has shown, and members that can use one node only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from extender.api.nodes import NodeSelector, Requirement, Term, decode_node, only_node
from extender.gangs.gang_problem import GangMember, GangPlan, GangShortage
from extender.gangs.member_limits import NodeLimit
from tests.worlds.dra_worlds import extended
from tests.worlds.gang_worlds import CLIQUE, RACK, GangWorld, allocated, cluster, found_in, nets, nodes_of, place
from tests.worlds.running_berth import Json, claim

WHOLE = "hgx-h100-8"  # eight GPUs


def limited(world: GangWorld, size: int, limit: NodeLimit, count: int = 1, prefix: str = "w") -> list[GangMember]:
    world.gang(size, count, prefix)
    return [world.member(f"{prefix}-{i}", i, limit=limit) for i in range(size)]


# -- with preferred devices ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "pods", "most", "placed", "asked", "found"),
    [
        # Six pods with a GPU each would fit on one node; kube-scheduler has room for two on each.
        ("s/r/c:4 s/r/d:2", 6, 2, {}, {}, "clique c: n0 n0 n1 n1 n2 n2"),
        ("s/r/c:3", 3, 2, {"n0": 2, "n1": 1}, {}, "clique c: n1 n2 n2"),
        ("s/r/c:3", 2, 1, {"n0": 3}, {}, "clique c: n1 n2"),  # it accepted three on n0 and refused a second one
        ("-/ra/a:3 -/rb/b:3", 4, 2, {}, {}, "clique a: n0 n0 n1 n1"),
        ("-/ra/a:3 -/rb/b:3", 4, 1, {}, {}, "all: n0 n1 n2 n3"),
        ("-/ra/a:3 -/rb/b:3", 3, 1, {"n0": 1, "n1": 1, "n2": 1}, {}, "clique b: n3 n4 n5"),
        ("s/r/c:3 s/r/d:1", 8, 2, {"n1": 1}, {}, "no room"),
        ("s/r/c:3 s/r/d:1", 8, 2, {"n1": 1}, {"topology": "required"}, "no room"),
        ("s/r/c:3 s/r/d:1", 1, 1, {f"n{i}": 1 for i in range(4)}, {}, "no room"),
    ],
)
def test_no_node_gets_more_members_than_the_limit(
    layout: str, pods: int, most: int, placed: dict[str, int], asked: dict[str, str], found: str
) -> None:
    world = cluster(layout, WHOLE)
    plan = world.plan(limited(world, pods, NodeLimit(most, placed)), **asked)
    assert f"{place(plan)}: {' '.join(nodes_of(plan))}" == found if isinstance(plan, GangPlan) else place(plan) == found


def test_members_of_each_kind_have_their_own_limit() -> None:
    """Two members with three GPUs and one with two fit on a node, by GPUs and by limits."""
    world = cluster("s/r/c:3", WHOLE)
    large = limited(world, 4, NodeLimit(2, {}), 3, "a")
    small = limited(world, 3, NodeLimit(1, {}), 2, "b")
    nodes = nodes_of(world.plan((*large, *small)))
    assert Counter(nodes[:4]) == {"n0": 2, "n1": 2}
    assert sorted(nodes[4:]) == ["n0", "n1", "n2"]


def test_members_that_share_a_claim_count_one_by_one() -> None:
    world = cluster("s/r/c:2")
    world.add_claim(claim("shared"))
    for i in range(2):
        world.add_pod(f"w-{i}", "shared")

    def members(limit: NodeLimit) -> list[GangMember]:
        return [world.member(f"w-{i}", i, limit=limit) for i in range(2)]

    assert nodes_of(world.plan(members(NodeLimit(2, {})))) == ["n0", "n0"]
    assert nodes_of(world.plan(members(NodeLimit(2, {"n0": 1})))) == ["n1", "n1"]
    assert world.plan(members(NodeLimit(1, {}))) == GangShortage(2)


@pytest.mark.parametrize("kinds", [1, 2])
def test_members_that_take_no_devices_count_too(kinds: int) -> None:
    """A device plugin gives the node's GPUs, so Berth counts no devices there."""
    world = GangWorld()
    world.add_class({"metadata": {"name": "gpu.nvidia.com"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}})
    for i in range(3):
        node: Json = {"metadata": {"name": f"n{i}", "labels": {CLIQUE: "c"}}}
        node["status"] = {"allocatable": {"nvidia.com/gpu": "8"}}
        world.cache.apply_node(f"n{i}", decode_node(node))
    for i in range(4):
        world.pods[f"w-{i}"] = extended(f"w-{i}")
        world.pods[f"w-{i}"]["metadata"]["uid"] = f"w-{i}"
    limit = NodeLimit(2, {"n1": 1})
    excluded = [frozenset({f"gone-{i % kinds}"}) for i in range(4)]
    plan = world.plan([world.member(f"w-{i}", i, None, excluded[i], limit) for i in range(4)])
    assert found_in(plan) == (CLIQUE, "c")
    assert max(Counter(nodes_of(plan)).values()) == 2


# -- with other devices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "placed", "level"),
    [
        (3, {}, "node"),
        (6, {}, CLIQUE),
        (7, {}, None),
        (4, {"n0": 2}, CLIQUE),
        (5, {"n0": 2}, None),
        (1, {"n0": 5, "n1": 3}, None),
    ],
)
def test_a_complete_search_keeps_to_the_limit(members: int, placed: dict[str, int], level: str | None) -> None:
    """Each member takes a device of a pool that spans both nodes, or two; only one for each leaves enough for all."""
    world = cluster("s/r/c:2")
    nets(world, members)
    names = [f"w-{i}" for i in range(members)]
    for name in names:
        obj = claim(name)
        options = [{"name": f"o{n}", "deviceClassName": "net", "count": n} for n in (2, 1)]
        obj["spec"]["devices"]["requests"] = [{"name": "net", "firstAvailable": options}]
        world.add_claim(obj)
        world.add_pod(name, name)
    limit = NodeLimit(3, placed)
    found = world.plan([world.member(name, i, limit=limit) for i, name in enumerate(names)])
    assert (found.level if isinstance(found, GangPlan) else None) == level


def test_a_search_counts_members_that_take_the_same_devices_on_other_nodes() -> None:
    """The first member goes to n1, and the others share n0 in vain; with it on n2 the same devices are taken."""
    world = cluster("s/r/c:3")
    nets(world, 3)
    for i in range(3):
        obj = claim(f"w-{i}")
        obj["spec"]["devices"]["requests"] = [{"name": "net", "exactly": {"deviceClassName": "net"}}]
        world.add_claim(obj)
        world.add_pod(f"w-{i}", f"w-{i}")
    limit, first = NodeLimit(1, {}), frozenset({"n0", "n1"})
    plan = world.plan(
        [
            world.member("w-0", 0, frozenset({"n1", "n2"}), limit=limit),
            world.member("w-1", 1, first, limit=limit),
            world.member("w-2", 2, first, frozenset({"gone"}), limit),
        ]
    )
    assert nodes_of(plan) == ["n2", "n0", "n1"]


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
    assert world.plan([*devices[:2], other]) == GangShortage(3)


def test_no_domain_without_the_node_of_a_pinned_member() -> None:
    world = cluster("s/r/c:4 s/r/d:2 s/x/e:1")
    world.gang(2, 3)
    for node, domain in (("n4", "d"), ("n1", "c")):
        members = [world.member("w-0", 0, frozenset({node})), world.member("w-1", 1)]
        assert found_in(world.plan(members)) == (CLIQUE, domain)
    apart = [world.member(f"w-{i}", i, frozenset({node})) for i, node in enumerate(("n0", "n6"))]
    assert world.plan(apart, "required") == GangShortage(2)


def test_pinned_members_on_nodes_that_share_a_pool() -> None:
    """Each node has room for two of them, and both together too."""
    world = cluster("s/r/c:2")
    nets(world, 2)
    for i in range(3):
        obj = claim(f"w-{i}")
        obj["spec"]["devices"]["requests"] = [{"name": "net", "exactly": {"deviceClassName": "net"}}]
        world.add_claim(obj)
        world.add_pod(f"w-{i}", f"w-{i}")
    nodes = ("n1", "n0", "n1")
    members = [world.member(f"w-{i}", i, frozenset({node})) for i, node in enumerate(nodes)]
    assert nodes_of(world.plan(members[:2])) == ["n1", "n0"]
    assert world.plan(members) == GangShortage(3)


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
