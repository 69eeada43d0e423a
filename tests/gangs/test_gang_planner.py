"""Where the members of a gang go in their domain, and with which devices: shapes, shared claims, other devices."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.allocation import mig_slices
from extender.api.nodes import decode_node
from extender.gangs import gang_planner
from extender.gangs.gang_planner import plan_gang
from extender.gangs.gang_problem import GangPlan, GangProblem, GangShortage
from extender.vendors import COMPUTE_DOMAIN_DRIVER, COMPUTE_DOMAIN_LABEL
from tests.worlds.dra_worlds import extended
from tests.worlds.filled_caches import class_of_driver, device_slice
from tests.worlds.gang_worlds import (
    CLIQUE,
    RACK,
    SPINE,
    TRAY,
    GangWorld,
    allocated,
    cluster,
    found_in,
    nets,
    nodes_of,
    without_memory,
)
from tests.worlds.running_berth import Json, claim

DRIVER = "d.example.com"
SPARE, PAIRED = "hgx-h100-8", "a100-pcie-8-bridged"  # eight GPUs each


def kinds(world: GangWorld, node: str, devices: str) -> None:
    """A node of clique c with devices of one-letter kinds."""
    world.add_node(node, labels={CLIQUE: "c"})
    world.add_class(class_of_driver(DRIVER, "any"))
    found = [{"name": f"d{i}", "attributes": {"kind": {"string": kind}}} for i, kind in enumerate(devices)]
    world.add_slice(device_slice(node, DRIVER, found))


def asks(world: GangWorld, prefix: str, number: int, *options: tuple[str, int]) -> list[str]:
    """Pods that ask for devices of a kind ('' for any); several options are alternatives."""
    forms = []
    for i, (kind, count) in enumerate(options):
        form: Json = {"name": f"o{i}", "deviceClassName": "any", "allocationMode": "ExactCount", "count": count}
        if kind:
            form["selectors"] = [{"cel": {"expression": f"device.attributes['{DRIVER}'].kind == '{kind}'"}}]
        forms.append(form)
    request = {"name": "r", **({"exactly": forms[0]} if len(forms) == 1 else {"firstAvailable": forms})}
    names = [f"{prefix}-{i}" for i in range(number)]
    for name in names:
        world.add_claim(
            {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": {"requests": [request]}}}
        )
        world.add_pod(name, name)
    return names


def problem(world: GangWorld, names: list[str]) -> GangProblem:
    return GangProblem(tuple(world.member(name, i) for i, name in enumerate(names)), (CLIQUE, RACK, SPINE), "preferred")


def alternatives(plan: GangPlan | GangShortage) -> Counter[int]:
    assert isinstance(plan, GangPlan), plan
    return Counter(placement.solution.alternatives[0][0] for _, placement in plan.placements.values())


# -- several members on a node -------------------------------------------------------------------------------------


def test_members_on_one_node_are_counted_one_after_the_other() -> None:
    """Three GPUs each: two members fit on eight, though eight is more than enough for one."""
    world = cluster("s/r/c:3", SPARE)
    assert nodes_of(world.plan(world.gang(5, 3))) == ["n0", "n0", "n1", "n1", "n2"]
    assert world.plan(world.gang(7, 3, "v")) == GangShortage(7)


def test_members_that_need_nvlink_are_counted_by_the_links_that_are_left() -> None:
    """With one GPU of a bridged pair in use on each of two nodes, three members of two fit there, and four beside."""
    world = cluster("s/r/c:3", PAIRED)
    for node in ("n0", "n1"):
        world.use(node, ["gpu-0"])
    plan = world.plan(world.gang(10, 2, topology="required"))
    assert Counter(nodes_of(plan)) == {"n0": 3, "n1": 3, "n2": 4}
    assert world.plan(world.gang(11, 2, "v", topology="required")) == GangShortage(11)


def test_members_with_all_devices_of_a_node_get_a_node_each() -> None:
    world = cluster("s/r/c:3")
    for i in range(3):
        obj = claim(f"w-{i}", allocationMode="All")
        del obj["spec"]["devices"]["requests"][0]["exactly"]["count"]
        world.add_claim(obj)
        world.add_pod(f"w-{i}", f"w-{i}")
    assert nodes_of(world.plan([world.member(f"w-{i}", i) for i in range(3)])) == ["n0", "n1", "n2"]


# -- different members ---------------------------------------------------------------------------------------------


def test_a_leader_shares_a_node_with_its_workers() -> None:
    """Three workers of four GPUs leave half a node for the leader of one."""
    world = cluster("s/r/c:2 s/r/d:2", SPARE)
    leader = world.gang(1, 1, "leader")
    world.gang(3, 4)
    plan = world.plan((*leader, *(world.member(f"w-{i}", i + 1) for i in range(3))))
    assert found_in(plan) == (CLIQUE, "c")
    assert nodes_of(plan) == ["n1", "n0", "n0", "n1"]


def test_large_members_are_placed_before_small_ones_of_lower_index() -> None:
    """The small ones would take one node of two, and leave no whole one for the large member."""
    world = cluster("s/r/c:2", SPARE)
    small = world.gang(6, 1, "a")
    world.gang(1, 8, "b")
    plan = world.plan((*small, world.member("b-0", 9)))
    assert nodes_of(plan) == ["n1"] * 6 + ["n0"]


def test_members_without_a_choice_of_nodes_are_placed_first() -> None:
    """kube-scheduler has chosen n0 for three members: the others must leave them room there."""
    world = cluster("s/r/c:2 s/r/d:2", SPARE)
    world.gang(16)
    members = [world.member(f"w-{i}", i, frozenset({"n0"}) if i >= 13 else None) for i in range(16)]
    plan = world.plan(members)
    assert found_in(plan) == (CLIQUE, "c")
    assert nodes_of(plan)[13:] == ["n0"] * 3


def test_more_kinds_of_members_than_a_gang_may_have() -> None:
    world = cluster("s/r/c:1")
    world.gang(65)
    members = [world.member(f"w-{i}", i, excluded=frozenset({f"x{i}"})) for i in range(65)]
    assert world.plan(members) == GangShortage(65, gave_up=True)


def test_no_members() -> None:
    world = cluster("s/r/c:1")
    assert world.plan(()) == GangPlan({}, "", "")


# -- claims --------------------------------------------------------------------------------------------------------


def test_members_that_share_a_claim_share_its_devices_and_its_node() -> None:
    """p and q share one claim, q and r another; each has a claim of its own besides. Five GPUs need a node of eight."""
    world = cluster("s/r/c:2")
    world.add_node("big", SPARE, {CLIQUE: "c"})
    for name in ("x", "y", "own-0", "own-1", "own-2"):
        world.add_claim(claim(name))
    world.add_pod("p-0", "x", "own-0")
    world.add_pod("p-1", "x", "y", "own-1")
    world.add_pod("p-2", "own-2", "y")
    plan = world.plan([world.member(f"p-{i}", i) for i in range(3)])
    assert nodes_of(plan) == ["big"] * 3
    world.use("big", [f"gpu-{i}" for i in range(4)])
    assert world.plan([world.member(f"p-{i}", i) for i in range(3)]) == GangShortage(3)


def test_pairs_that_share_a_claim_are_spread_pair_by_pair() -> None:
    world = cluster("s/r/c:2")
    names = [f"p-{i}" for i in range(6)]
    for i, name in enumerate(names):
        world.add_claim(claim(f"pair-{i // 2}", 2))
        world.add_pod(name, f"pair-{i // 2}")
    plan = world.plan([world.member(name, i) for i, name in enumerate(names)])
    assert nodes_of(plan) == ["n0"] * 4 + ["n1"] * 2


def test_a_member_whose_claim_is_allocated_stays_on_its_node() -> None:
    world = cluster("s/r/c:2 s/r/d:2")
    allocated(world, "w-1", "n3", "gpu-0")
    for i in (0, 2):
        world.add_claim(claim(f"w-{i}", 3))
    for i in range(3):
        world.add_pod(f"w-{i}", f"w-{i}")
    plan = world.plan([world.member(f"w-{i}", i) for i in range(3)])
    assert (found_in(plan), nodes_of(plan)) == ((CLIQUE, "d"), ["n2", "n3", "n3"])


# -- nodes that a member may use -----------------------------------------------------------------------------------


def test_members_use_only_their_nodes() -> None:
    world = cluster("s/r/c:2 s/r/d:2")
    world.gang(6)
    only = frozenset({"n1", "n2", "n3"})
    plan = world.plan([world.member(f"w-{i}", i, only) for i in range(6)])
    assert (found_in(plan), set(nodes_of(plan))) == ((CLIQUE, "d"), {"n2", "n3"})
    assert world.plan([world.member(f"w-{i}", i, frozenset({"n1"})) for i in range(6)]) == GangShortage(6)


# -- other devices and alternatives --------------------------------------------------------------------------------


def test_alternatives_are_tried_for_all_members_together() -> None:
    """With two GPUs each, two members fit on the node. So all four get one: a nearer level is worth more."""
    world = GangWorld()
    for node in ("n0", "n1"):
        kinds(world, node, "aaaa")
    plan = world.plan_problem(problem(world, asks(world, "w", 4, ("", 2), ("", 1))))
    assert (found_in(plan), alternatives(plan)) == (("node", "n0"), {1: 4})
    plan = world.plan_problem(problem(world, asks(world, "v", 2, ("", 2), ("", 1))))
    assert (found_in(plan), alternatives(plan)) == (("node", "n0"), {0: 2})


def test_members_get_other_devices_than_the_preferred_ones_where_others_need_these() -> None:
    """v takes any device, d0 by preference, and w needs one of kind a."""
    world = GangWorld()
    kinds(world, "n0", "ab")
    plan = world.plan_problem(problem(world, asks(world, "v", 1, ("", 1)) + asks(world, "w", 1, ("a", 1))))
    assert found_in(plan) == ("node", "n0")


def test_a_shortage_says_whether_the_search_ended_at_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    world = GangWorld()
    kinds(world, "n0", "ab")
    asked = problem(world, asks(world, "v", 1, ("", 1)) + asks(world, "w", 1, ("a", 1)))
    snapshot = world.cache.snapshot()
    context = world.evaluator.evaluation_context(snapshot)
    with monkeypatch.context() as patched:
        patched.setattr(gang_planner, "MAX_STEPS", 0)
        assert plan_gang(asked, snapshot, context) == GangShortage(2, gave_up=True)
    more = problem(world, [*(member.uid for member in asked.members), *asks(world, "u", 1, ("b", 1))])
    assert world.plan_problem(more) == GangShortage(3)


def test_a_plan_at_a_wider_level_where_the_search_at_a_nearer_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    world = GangWorld()
    kinds(world, "n0", "ab")
    kinds(world, "n1", "ab")
    asked = problem(world, asks(world, "v", 1, ("", 1)) + asks(world, "w", 1, ("a", 1)))
    snapshot = world.cache.snapshot()
    context = world.evaluator.evaluation_context(snapshot)
    with monkeypatch.context() as patched:
        patched.setattr(gang_planner, "MAX_STEPS", 0)
        assert found_in(plan_gang(asked, snapshot, context)) == (CLIQUE, "c")
    assert found_in(without_memory(world, asked)) == ("node", "n0")


# -- kinds of devices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "level"), [(4, "node"), (7, CLIQUE)])
def test_extended_resources(members: int, level: str) -> None:
    """Pods with nvidia.com/gpu: 1 and no claim; each plan makes a special claim for every member."""
    world = cluster("s/r/c:2")
    world.add_class(
        {
            "metadata": {"name": "gpu.nvidia.com"},
            "spec": {
                "extendedResourceName": "nvidia.com/gpu",
                "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
            },
        }
    )
    for i in range(members):
        world.pods[f"w-{i}"] = extended(f"w-{i}")
        world.pods[f"w-{i}"]["metadata"]["uid"] = f"w-{i}"
    plan = world.plan([world.member(f"w-{i}", i) for i in range(members)])
    assert isinstance(plan, GangPlan)
    assert plan.level == level
    assert all(len(placement.solution.picks[0]) == 1 for _, placement in plan.placements.values())


def test_partitions_of_gpus_are_counted_by_their_counters() -> None:
    """Eight GPUs of eight slices each: a node has room for 16 members with half a GPU, or for 14 beside a whole GPU."""
    world = GangWorld()
    for node in ("n0", "n1"):
        world.add_node(node, labels={CLIQUE: "c"})
        for one in mig_slices(node):
            world.add_slice(one)
    mig = "device.attributes['mig.example.com'].profile"
    world.add_class(
        {
            "metadata": {"name": "mig"},
            "spec": {"selectors": [{"cel": {"expression": "device.driver == 'mig.example.com'"}}]},
        }
    )

    def members(whole: int, halves: int) -> list[str]:
        names = [f"whole-{i}" for i in range(whole)] + [f"half-{i}" for i in range(halves)]
        for name in names:
            profile = "7g" if name.startswith("whole") else "4g"
            world.add_claim(claim(name, selector=f"{mig} == '{profile}'", deviceClassName="mig"))
            world.add_pod(name, name)
        return names

    assert found_in(world.plan_problem(problem(world, members(0, 16)))) == ("node", "n0")
    assert found_in(world.plan_problem(problem(world, members(1, 14)))) == ("node", "n0")
    assert Counter(nodes_of(world.plan_problem(problem(world, members(0, 17))))) == {"n0": 16, "n1": 1}
    assert Counter(nodes_of(world.plan_problem(problem(world, members(3, 11))))) == {"n0": 3, "n1": 11}


def test_devices_of_a_pool_that_spans_nodes_are_given_once() -> None:
    """Each member needs a GPU and one of two devices that all nodes can use."""
    world = cluster("s/r/c:2")
    nets(world, 2)
    for i in range(3):
        obj = claim(f"w-{i}", 3)
        obj["spec"]["devices"]["requests"].append({"name": "net", "exactly": {"deviceClassName": "net"}})
        world.add_claim(obj)
        world.add_pod(f"w-{i}", f"w-{i}")
    members = [world.member(f"w-{i}", i) for i in range(3)]
    assert nodes_of(world.plan(members[:2])) == ["n0", "n1"]
    world.add_node("n2", "t4-4", {CLIQUE: "c"})
    assert world.plan(members) == GangShortage(3)


def test_a_node_with_a_device_plugin_needs_no_devices_for_extended_resources() -> None:
    world = cluster("s/r/c:1")
    world.add_class({"metadata": {"name": "gpu.nvidia.com"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}})
    node = {"metadata": {"name": "plugin", "labels": {CLIQUE: "c"}}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    world.cache.apply_node("plugin", decode_node(node))
    for i in range(6):
        world.pods[f"w-{i}"] = extended(f"w-{i}")
        world.pods[f"w-{i}"]["metadata"]["uid"] = f"w-{i}"
    plan = world.plan([world.member(f"w-{i}", i) for i in range(6)])
    assert nodes_of(plan) == ["plugin"] * 6


@pytest.mark.parametrize("order", list(itertools.permutations(("a", "b", "ab"))))
def test_a_member_with_two_shared_claims_joins_both_groups(order: tuple[str, ...]) -> None:
    world = GangWorld()
    world.add_node("n0", "t4-4")
    world.add_node("n1", "t4-4")
    world.add_claim(claim("a", 3))
    world.add_claim(claim("b", 1))
    for name in order:
        world.add_pod(name, *name)
    plan = world.plan([world.member(name, rank) for rank, name in enumerate(order)])
    assert isinstance(plan, GangPlan), plan
    assert len({node for node, _ in plan.placements.values()}) == 1


# -- ComputeDomains ------------------------------------------------------------------------------------------------


def of_domain(world: GangWorld, domain: str, size: int) -> list[str]:
    """Pods of a ComputeDomain that take a node each."""
    parameters = {"kind": "ComputeDomainChannelConfig", "domainID": domain}
    for i in range(size):
        obj = claim(f"{domain}-{i}", 4)
        obj["spec"]["devices"]["config"] = [{"opaque": {"driver": COMPUTE_DOMAIN_DRIVER, "parameters": parameters}}]
        world.add_claim(obj)
        world.add_pod(f"{domain}-{i}", f"{domain}-{i}")
    return [f"{domain}-{i}" for i in range(size)]


@pytest.mark.parametrize(
    ("size", "cliques", "level"),
    [(3, {"a"}, CLIQUE), (5, {"a", "c"}, RACK), (8, {"a", "c"}, RACK), (9, {"a", "b", "c"}, RACK)],
)
def test_a_gang_uses_the_clique_of_another_domain_last(size: int, cliques: set[str], level: str) -> None:
    """Clique b has three nodes left: the tightest domain for three members, and for the rest of five."""
    world = cluster("s/r/a:4 s/r/b:4 s/r/c:4", TRAY)
    node = world.cache.store.nodes["n4"]
    world.cache.apply_node("n4", replace(node, labels={**node.labels, COMPUTE_DOMAIN_LABEL: "y"}))
    plan = world.plan_problem(problem(world, of_domain(world, "x", size)))
    assert {world.cache.store.nodes[name].labels[CLIQUE] for name in nodes_of(plan)} == cliques
    assert found_in(plan)[0] == level
