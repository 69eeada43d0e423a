"""The pods of a tree of CompositePodGroups over HTTP: one gang, in which each PodGroup has its minimum and level."""

from __future__ import annotations

from typing import Any

import pytest

from extender.sandbox import carried_machines
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import RACK, answer_once_read, bind_all, die, gets_a_node, planned, racks, reasons, requeues
from tests.worlds.group_trees import composite, grouped, pod_group
from tests.worlds.running_berth import Berthing, pod

pytestmark = pytest.mark.loopback

MACHINE = carried_machines()["a100-pcie-8-bridged"]
SPINE = "topology.kubernetes.io/spine"


def two_groups(b: Berthing, **root: Any) -> None:
    """The groups prefill, of 2 pods in one rack, and decode, of 2 pods, below the root llm."""
    b.cluster.apply(composite("llm", 2, **root))
    b.cluster.apply(pod_group("prefill", "llm", 2, RACK))
    b.cluster.apply(pod_group("decode", "llm", 2))


async def test_all_pods_of_the_tree_are_planned_together() -> None:
    """3 nodes would hold prefill alone. With 4, prefill is in rack b although rack a has the first names."""
    names = ("prefill-0", "prefill-1", "decode-0", "decode-1")
    async with racks({"a": 1, "b": 2}) as b:
        two_groups(b)
        for name in names:
            grouped(b, name, name.partition("-")[0])
        await b.settled()
        assert await reasons(b, "prefill-0") == {"no domain has room for all pods of group llm together"}
        assert not b.app.service.cache.reservations.holds
        b.cluster.add_node("c0", MACHINE, {RACK: "c"})
        await b.settled()
        await eventually(lambda: gets_a_node(b, "prefill-0"), "the tree fits")
        nodes = await planned(b, *names)
        assert [nodes[name][0] for name in names[:2]] == ["b", "b"]
        assert await bind_all(b, nodes) == [""] * 4


async def test_the_tree_waits_for_the_pods_of_each_group() -> None:
    """As many pods exist as the tree needs, but none of decode."""
    async with racks({"a": 4}) as b:
        two_groups(b)
        for i in range(4):
            grouped(b, f"p{i}", "prefill")
        await b.settled()
        text = "waits until at least 2 pods of group llm (sub-group decode) and their claims exist"
        assert await reasons(b, "p0") == {text}
        found = (await b.client.get("/v1/explain/group/default/prefill")).text
        assert "group default/llm waits for pods of sub-group decode: it needs at least 2" in found
        for i in range(2):
            grouped(b, f"d{i}", "decode")
        await b.settled()
        await eventually(lambda: gets_a_node(b, "p0"), "the gang is complete")


async def test_pods_wait_for_the_groups_above_them() -> None:
    """The root, and then the second child group, come after the pods."""
    async with racks({"a": 4}) as b:
        b.cluster.apply(pod_group("prefill", "llm", 2))
        for i in range(2):
            grouped(b, f"p{i}", "prefill")
        await b.settled()
        assert await reasons(b, "p0") == {"waits for CompositePodGroup llm, which does not exist"}
        b.cluster.apply(composite("llm", 2))
        child = "child group 2 of CompositePodGroup llm, which does not exist"
        await b.settled()
        assert await reasons(b, "p0") == {f"waits for {child}"}
        assert f"group default/llm waits for {child}" in (await b.client.get("/v1/explain/group/default/llm")).text
        async with requeues(b, "the last group requeues the pods"):
            b.cluster.apply(pod_group("decode", "llm", 1))
            grouped(b, "d0", "decode")
        await b.settled()
        await eventually(lambda: gets_a_node(b, "p0"), "the gang is complete")


async def test_pods_wait_for_a_root_that_the_api_server_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate of the kind may be switched off while its objects exist: half of the tree must not run."""
    async with racks({"a": 4}) as b:
        monkeypatch.setattr(b.app.service.gangs.admission, "_is_served", lambda _: False)
        b.cluster.apply(pod_group("prefill", "llm", 2))
        for i in range(2):
            grouped(b, f"p{i}", "prefill")
        await b.settled()
        assert await reasons(b, "p0") == {"waits for CompositePodGroup llm, which does not exist"}


async def test_a_composite_group_in_another_has_a_level_of_its_own() -> None:
    """Under one spine switch, each replica in one rack, its two PodGroups on any nodes of it."""
    async with racks({"a": 1, "b": 3, "c": 3}) as b:
        for node in ("a0", "b0", "b1", "b2", "c0", "c1", "c2"):
            change = {"metadata": {"labels": {SPINE: "s"}}}
            b.cluster.api.registry.patch(RESOURCES["", "nodes"], ("", node), change, "", strategic=True)
        b.cluster.apply(composite("llm", 2, level=SPINE))
        for replica in ("r0", "r1"):
            b.cluster.apply(composite(replica, 2, "llm", RACK))
            b.cluster.apply(pod_group(f"{replica}-head", replica))
            b.cluster.apply(pod_group(f"{replica}-work", replica, 2))
            for name in ("head", "work", "work"):
                number = len(b.cluster.store.all("pods"))
                grouped(b, f"{replica}-{name}-{number}", f"{replica}-{name}")
        await b.settled()
        names = [one["metadata"]["name"] for one in b.cluster.store.all("pods")]
        nodes = await planned(b, *names)
        used = [{node[0] for name, node in nodes.items() if name.startswith(replica)} for replica in ("r0", "r1")]
        assert sorted(map(sorted, used)) == [["b"], ["c"]]
        assert await bind_all(b, nodes) == [""] * 6
        shown = (await b.client.get("/v1/explain/group/default/llm")).json()[0]["sentence"]
        assert "group default/llm runs: 6 pods bound in" in shown


async def test_groups_beyond_the_minimum_follow() -> None:
    """One child group is enough: b0 and b1 run, and the pod of the other group comes once a node is free."""
    async with racks({"a": 2}) as b:
        b.cluster.apply(composite("llm", 1))
        b.cluster.apply(pod_group("g1", "llm", 2))
        b.cluster.apply(pod_group("g2", "llm", 1))
        for name, group in (("p0", "g1"), ("p1", "g1"), ("q0", "g2")):
            grouped(b, name, group)
        await b.settled()
        assert await bind_all(b, await planned(b, "p0", "p1")) == ["", ""]
        assert not (await answer_once_read(b, "q0"))["NodeNames"]
        b.cluster.add_node("z0", MACHINE)
        await b.settled()
        await eventually(lambda: gets_a_node(b, "q0"), "the pod follows")


async def test_a_new_pod_returns_to_the_rack_of_its_group() -> None:
    async with racks({"a": 2, "b": 2}) as b:
        two_groups(b)
        for name in ("prefill-0", "prefill-1", "decode-0", "decode-1"):
            grouped(b, name, name.partition("-")[0])
        await b.settled()
        nodes = await planned(b, "prefill-0", "prefill-1", "decode-0", "decode-1")
        assert await bind_all(b, nodes) == [""] * 4
        rack = nodes["prefill-0"][0]
        die(b, "prefill-1", nodes["prefill-1"])
        b.cluster.add_node("z0", MACHINE, {RACK: "z"})
        grouped(b, "prefill-2", "prefill")
        await b.settled()
        full = f"group llm (sub-group prefill) runs in {RACK}={rack}, where its other pods have no room"
        assert set((await answer_once_read(b, "prefill-2"))["FailedAndUnresolvableNodes"].values()) == {full}
        b.cluster.add_node(f"{rack}9", MACHINE, {RACK: rack})
        await b.settled()
        await eventually(lambda: gets_a_node(b, "prefill-2"), "the pod returns to its rack")


async def test_a_bound_pod_without_devices_counts_for_its_group() -> None:
    """The driver has no claim that would tell its group, so a new worker must not wait for another driver."""
    async with racks({"a": 2}) as b:
        b.cluster.apply(composite("job", 2))
        b.cluster.apply(pod_group("driver", "job", 1))
        b.cluster.apply(pod_group("workers", "job", 2))
        b.cluster.apply(pod("driver-0", schedulingGroup={"podGroupName": "driver"}))
        for i in range(2):
            grouped(b, f"worker-{i}", "workers")
        await b.settled()
        nodes = await planned(b, "worker-0", "worker-1")
        assert len((await b.filter("driver-0"))["NodeNames"]) == 2
        assert await bind_all(b, {**nodes, "driver-0": "a0"}) == [""] * 3
        die(b, "worker-1", nodes["worker-1"])
        b.cluster.add_node("a9", MACHINE, {RACK: "a"})
        grouped(b, "worker-2", "workers")
        await b.settled()
        await eventually(lambda: gets_a_node(b, "worker-2"), "the driver is read")


async def test_a_cycle_of_groups_is_an_error() -> None:
    async with racks({"a": 1}) as b:
        b.cluster.apply(composite("x", 1, "y"))
        b.cluster.apply(composite("y", 1, "x"))
        b.cluster.apply(pod_group("g", "x", 2))
        grouped(b, "p0", "g")
        await b.settled()
        problem = "CompositePodGroup x is below itself: x -> y -> x (spec.parentCompositePodGroupName)"
        assert await reasons(b, "p0") == {problem}
        assert problem in (await b.client.get("/v1/explain/group/default/g")).text
