"""Nodes that the members of a gang prefer: kube-scheduler's score cannot choose, because filter names one node."""

from __future__ import annotations

from typing import Any

import pytest

from extender.api.nodes import Taint, decode_node
from extender.api.pods import decode_pod
from extender.gangs.gang_problem import GangMember
from extender.gangs.node_rooms import MAX_PREFERENCES
from tests.worlds.gang_pods import planned
from tests.worlds.gang_worlds import CLIQUE, RACK, GangWorld, found_in, nodes_of
from tests.worlds.running_berth import Json, berthing, claim, pod

ZONE = "zone"
SOFT = {"key": "maintenance", "effect": "PreferNoSchedule"}


def preferring(*terms: tuple[int, str, str]) -> Json:
    """A preferred node affinity: weight, label and value of each term."""
    found = [
        {"weight": weight, "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}}
        for weight, key, value in terms
    ]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": found}}


class World(GangWorld):
    """Nodes "clique/zone" n0, n1, ... of four GPUs, those of zone `soft` with a soft taint."""

    def __init__(self, layout: str, busy: dict[str, int] | None = None) -> None:
        super().__init__()
        for number, part in enumerate(layout.split()):
            clique, zone = part.split("/")
            name = f"n{number}"
            self.add_node(name, "t4-4", {CLIQUE: clique, RACK: "r", ZONE: zone}, (busy or {}).get(name, 0))
            if zone == "soft":
                labels = self.cache.store.nodes[name].labels
                metadata = {"name": name, "labels": dict(labels)}
                self.cache.apply_node(name, decode_node({"metadata": metadata, "spec": {"taints": [SOFT]}}))

    def members(self, size: int, gpus: int = 4, **spec: Any) -> list[GangMember]:
        """Members of a gang whose pods have these fields in their spec."""
        self.gang(size, gpus)
        for i in range(size):
            self.pods[f"w-{i}"]["spec"].update(spec)
        return [self.member(f"w-{i}", i) for i in range(size)]


TOLERATES = {"tolerations": [{"key": "maintenance", "operator": "Exists"}]}


@pytest.mark.parametrize(
    ("layout", "size", "spec", "nodes"),
    [
        ("a/a a/a b/b b/b", 2, {}, {"n0", "n1"}),
        ("a/a a/a b/b b/b", 2, {"affinity": preferring((100, ZONE, "b"))}, {"n2", "n3"}),
        ("a/a a/a b/b b/b", 2, {"affinity": preferring((40, ZONE, "a"), (60, ZONE, "b"))}, {"n2", "n3"}),
        ("a/a b/b", 1, {"affinity": preferring((1, ZONE, "b"))}, {"n1"}),
        ("a/soft a/soft b/b b/b", 2, {}, {"n2", "n3"}),
        ("a/soft a/soft b/b b/b", 2, TOLERATES, {"n0", "n1"}),
        ("a/soft a/soft b/b b/b", 2, {"affinity": preferring((100, ZONE, "soft"))}, {"n2", "n3"}),
        ("a/soft a/a a/b b/b", 2, {}, {"n1", "n2"}),
        ("a/a a/a a/b a/b", 2, {"affinity": preferring((1, ZONE, "b"))}, {"n2", "n3"}),
        ("a/a a/a a/b", 2, {"affinity": preferring((1, ZONE, "b"))}, {"n0", "n2"}),
    ],
    ids=[
        "no wish", "a clique", "the larger weight", "a node", "no taint", "a tolerated taint", "taint before affinity",
        "no taint within a clique", "nodes within a clique", "one of them",
    ],
)  # fmt: skip
def test_of_equally_tight_places_the_preferred_one(layout: str, size: int, spec: Json, nodes: set[str]) -> None:
    world = World(layout)
    assert set(nodes_of(world.plan(world.members(size, **spec)))) == nodes


@pytest.mark.parametrize(
    ("layout", "busy", "size", "gpus", "spec", "nodes"),
    [
        ("a/a a/a a/a b/b b/b", "n2", 2, 4, {"affinity": preferring((100, ZONE, "b"))}, {"n3", "n4"}),
        ("a/a a/a a/a b/b b/b", "n2", 2, 2, {"affinity": preferring((100, ZONE, "b"))}, {"n3"}),
        ("a/soft a/soft a/a b/b b/b", "n2", 2, 4, {}, {"n3", "n4"}),
        ("a/soft a/soft a/a b/b b/b", "n2", 2, 2, {}, {"n3"}),
        ("a/a a/a a/a b/b b/b", "n2", 2, 4, {}, {"n0", "n1"}),
        ("a/a a/b a/b b/b b/b b/b", "n2", 1, 4, {"affinity": preferring((100, ZONE, "b"))}, {"n1"}),
    ],
    ids=["a clique", "one node", "no taint", "one node, no taint", "no wish", "the used one of two preferred"],
)
def test_a_preferred_place_comes_before_a_used_one(
    layout: str, busy: str, size: int, gpus: int, spec: Json, nodes: set[str]
) -> None:
    """Of equal room. A wish costs a whole clique then, as kube-scheduler's score would."""
    world = World(layout, busy={busy: 4})
    assert set(nodes_of(world.plan(world.members(size, gpus, **spec)))) == nodes


def test_a_tighter_domain_comes_before_a_preferred_one() -> None:
    world = World("a/a a/a b/b b/b b/b")
    plan = world.plan(world.members(2, affinity=preferring((100, ZONE, "b"))))
    assert (found_in(plan), set(nodes_of(plan))) == ((CLIQUE, "a"), {"n0", "n1"})


def test_a_preference_costs_no_further_clique_and_no_further_node() -> None:
    world = World("a/a a/a a/a b/b b/a c/b", busy={"n3": 2})
    affinity = preferring((100, ZONE, "b"))
    found = nodes_of(world.plan(world.members(4, affinity=affinity)))
    assert set(found) == {"n0", "n1", "n2", "n5"}, "cliques a and c, not a, b and c"


@pytest.mark.parametrize(
    ("layout", "zones", "nodes"),
    [
        ("a/a a/b", ["b", ""], ["n1", "n0"]),
        ("a/a a/b", ["", "a"], ["n1", "n0"]),
        ("a/a a/b a/a a/b", ["b", "", "b", ""], ["n1", "n0", "n3", "n2"]),
        ("a/a a/b a/c", ["b", "c", "a"], ["n1", "n2", "n0"]),
        ("a/a a/b a/c", ["", "b a", "b"], ["n2", "n0", "n1"]),
        ("a/a a/a a/b", ["b", "b", ""], ["n0", "n2", "n1"]),
    ],
    ids=["the first", "the second", "by rank", "each its own", "the best sum", "one too many"],
)
def test_each_member_gets_the_node_that_it_prefers(layout: str, zones: list[str], nodes: list[str]) -> None:
    """Of several zones, a member prefers the first one a little more."""
    world = World(layout)
    world.gang(len(zones), 4)
    for i, wanted in enumerate(zones):
        terms = [(10 - place, ZONE, zone) for place, zone in enumerate(wanted.split())]
        world.pods[f"w-{i}"]["spec"]["affinity"] = preferring(*terms)
    assert nodes_of(world.plan([world.member(f"w-{i}", i) for i in range(len(zones))])) == nodes


@pytest.mark.parametrize("size", [60, 100], ids=["compared", "too many to compare"])
def test_a_large_gang_of_members_that_prefer_different_nodes(size: int) -> None:
    world = World(" ".join(f"a/z{number}" for number in range(size)))
    world.gang(size, 4)
    for i in range(size):
        world.pods[f"w-{i}"]["spec"]["affinity"] = preferring((1, ZONE, f"z{size - 1 - i}"))
    plan = world.plan([world.member(f"w-{i}", i) for i in range(size)])
    assert nodes_of(plan) == [f"n{size - 1 - i}" for i in range(size)]


def test_many_different_preferences_are_no_obstacle() -> None:
    world = World(" ".join(f"{clique}/z{number}" for clique in "ab" for number in range(40)))
    members = []
    world.gang(80, 4)
    for i in range(80):
        world.pods[f"w-{i}"]["spec"]["affinity"] = preferring((1, ZONE, f"z{i % 40}"))
        members.append(world.member(f"w-{i}", i))
    assert len({one.prefers for one in members}) > MAX_PREFERENCES
    assert len(set(nodes_of(world.plan(members)))) == 80


def test_what_is_read_of_pods_and_nodes() -> None:
    taints = [SOFT, SOFT, {"key": "x", "effect": "NoSchedule"}]
    node = decode_node({"metadata": {"name": "n"}, "spec": {"taints": taints}})
    assert (node.taints, node.soft_taints) == (
        (Taint("x", effect="NoSchedule"),), (Taint("maintenance", effect="PreferNoSchedule"),),
    )  # fmt: skip
    affinity = preferring((7, ZONE, "b"))
    (term,) = decode_pod(pod("p", "c", affinity=affinity)).preferred_nodes
    assert (term.weight, term.selector.matches("n", {ZONE: "b"}), term.selector.matches("n", {})) == (7, True, False)
    assert decode_pod(pod("p", affinity=affinity)).preferred_nodes == (), "the pod has no devices and no group"
    large = preferring(*((1, ZONE, f"value-{number}") for number in range(1000)))
    assert decode_pod(pod("p", "c", affinity=large)).preferred_nodes == ()
    empty = {"weight": 9, "preference": {}}
    affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = [empty]
    (term,) = decode_pod(pod("p", "c", affinity=affinity)).preferred_nodes
    assert not term.selector.matches("n", {ZONE: "b"}), "as in kube-scheduler, an empty term matches no node"


@pytest.mark.loopback
async def test_filter_names_the_preferred_nodes() -> None:
    async with berthing({f"n{i}": "a100-pcie-8-bridged" for i in range(4)}) as b:
        notes, affinity = {"berth.dev/group": "job", "berth.dev/group-min": "2"}, {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{
                    "weight": 1,
                    "preference": {"matchFields": [
                        {"key": "metadata.name", "operator": "In", "values": ["n2", "n3"]}]},
                }]
            }
        }  # fmt: skip
        for name in ("p0", "p1"):
            b.cluster.apply(claim(f"{name}-gpus", 8))
            b.cluster.apply(pod(name, f"{name}-gpus", annotations=notes, affinity=affinity))
        await b.settled()
        assert set((await planned(b, "p0", "p1")).values()) == {"n2", "n3"}
