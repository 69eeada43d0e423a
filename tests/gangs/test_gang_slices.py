"""Gangs with slices and sub-groups over HTTP: where they go, what they are told, and how a new pod returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.sandbox import carried_machines
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import (
    NO_ROOM,
    RACK,
    answer_once_read,
    bind_all,
    delete,
    die,
    gets_a_node,
    member,
    planned,
    racks,
    reasons,
)
from tests.worlds.running_berth import Berthing, claim, pod

pytestmark = pytest.mark.loopback

SLICES: dict[str, Any] = {"slice-size": "2", "slice-level": "rack"}


async def test_each_slice_is_in_one_rack() -> None:
    """Racks of 3, 3 and 1 nodes hold two slices of 2 pods; without slices the racks a and b would hold 6 pods."""
    async with racks({"a": 3, "b": 3, "c": 1}) as b:
        for i in range(4):
            member(b, f"p{i}", minimum=4, **SLICES)
            member(b, f"q{i}", group="other", minimum=4, **SLICES)
        await b.settled()
        nodes = await planned(b, "p0", "p1", "p2", "p3")
        assert [nodes[f"p{i}"][0] for i in range(4)] == ["a", "a", "b", "b"]
        assert await bind_all(b, nodes) == [""] * 4
        assert await reasons(b, "q0") == {"no domain has room for all pods of group other together"}
        b.cluster.add_node("c1", carried_machines()["a100-pcie-8-bridged"], {RACK: "c"})
        b.cluster.add_node("c2", carried_machines()["a100-pcie-8-bridged"], {RACK: "c"})
        b.cluster.add_node("c3", carried_machines()["a100-pcie-8-bridged"], {RACK: "c"})
        await b.settled()
        await eventually(lambda: gets_a_node(b, "q0"), "the gang fits on the new nodes of one rack")


async def test_slices_that_do_not_divide_the_pods_are_an_error() -> None:
    async with racks({"a": 3}) as b:
        for i in range(3):
            member(b, f"p{i}", minimum=3, **SLICES)
        await b.settled()
        problem = "pod annotation berth.dev/group-slice-size: 2 does not divide the 3 pods of group job"
        assert await reasons(b, "p0") == {problem}
        assert f"group default/job is rejected: {problem}" in (await b.client.get("/v1/explain/group/default/job")).text


@asynccontextmanager
async def after_a_death(layout: Mapping[str, int]) -> AsyncIterator[Berthing]:
    """Two slices of 2 run in the racks a and b; the node of p3 in rack b dies, and a new pod v3 has its index."""
    async with racks(layout) as b:
        for i in range(4):
            member(b, f"p{i}", minimum=4, **SLICES)
        await b.settled()
        nodes = await planned(b, "p0", "p1", "p2", "p3")
        assert [nodes[f"p{i}"][0] for i in range(4)] == ["a", "a", "b", "b"]
        assert await bind_all(b, nodes) == [""] * 4
        die(b, "p3", nodes["p3"])
        b.cluster.add_node("a9", carried_machines()["a100-pcie-8-bridged"], {RACK: "a"})
        member(b, "v3", minimum=4, **SLICES)
        await b.settled()
        yield b


async def test_a_new_pod_returns_to_the_rack_of_its_slice() -> None:
    async with after_a_death({"a": 2, "b": 3}) as b:
        assert [name[0] for name in (await answer_once_read(b, "v3"))["NodeNames"]] == ["b"]


async def test_a_new_pod_waits_for_room_in_the_rack_of_its_slice() -> None:
    """Rack a has a free node, but the slice runs in rack b."""
    async with after_a_death({"a": 2, "b": 2}) as b:
        full = f"group job (slice 1) runs in {RACK}=b, where its other pods have no room"
        assert set((await answer_once_read(b, "v3"))["FailedAndUnresolvableNodes"].values()) == {full}
        assert full in (await b.client.get("/v1/explain/group/default/job")).text
        b.cluster.add_node("b9", carried_machines()["a100-pcie-8-bridged"], {RACK: "b"})
        await b.settled()
        await eventually(lambda: gets_a_node(b, "v3"), "the pod fits on the new node")


async def test_new_pods_of_two_slices_wait_for_room_in_both_racks() -> None:
    """Then for room in rack a, once rack b has room."""
    async with racks({"a": 2, "b": 2, "c": 2}) as b:
        for i in range(4):
            member(b, f"p{i}", minimum=4, **SLICES)
        await b.settled()
        nodes = await planned(b, "p0", "p1", "p2", "p3")
        assert await bind_all(b, nodes) == [""] * 4
        for i in (1, 3):
            die(b, f"p{i}", nodes[f"p{i}"])
            member(b, f"v{i}", minimum=4, **SLICES)
        await b.settled()
        both = f"group job (slice 0, slice 1) runs in {RACK}=a, in {RACK}=b, where its other pods have no room"
        assert set((await answer_once_read(b, "v1"))["FailedAndUnresolvableNodes"].values()) == {both}
        assert both in (await b.client.get("/v1/explain/group/default/job")).text
        b.cluster.add_node("b8", carried_machines()["a100-pcie-8-bridged"], {RACK: "b"})
        await b.settled()
        one = f"group job (slice 0) runs in {RACK}=a, where its other pods have no room"

        async def says_one() -> bool:
            return set((await b.filter("v1"))["FailedAndUnresolvableNodes"].values()) == {one}

        await eventually(says_one, "only rack a lacks room")
        b.cluster.add_node("a8", carried_machines()["a100-pcie-8-bridged"], {RACK: "a"})
        await b.settled()
        await eventually(lambda: gets_a_node(b, "v1"), "both pods fit")
        assert {name: node[0] for name, node in (await planned(b, "v1", "v3")).items()} == {"v1": "a", "v3": "b"}


async def test_a_pod_beyond_the_minimum_follows_its_slice() -> None:
    """p0 to p3 are the minimum; p5 comes after p4, whose slice runs in rack c."""
    async with racks({"a": 2, "b": 2}) as b:
        for i in range(4):
            member(b, f"p{i}", minimum=4, **SLICES)
        await b.settled()
        assert await bind_all(b, await planned(b, "p0", "p1", "p2", "p3")) == [""] * 4
        b.cluster.add_node("c0", carried_machines()["a100-pcie-8-bridged"], {RACK: "c"})
        member(b, "p4", minimum=4, **SLICES)
        await b.settled()
        assert (await answer_once_read(b, "p4"))["NodeNames"] == ["c0"]
        assert await b.bind("p4", "c0") == ""
        b.cluster.add_node("a9", carried_machines()["a100-pcie-8-bridged"], {RACK: "a"})
        member(b, "p5", minimum=4, **SLICES)
        await b.settled()
        assert not (await answer_once_read(b, "p5"))["NodeNames"]
        b.cluster.add_node("c1", carried_machines()["a100-pcie-8-bridged"], {RACK: "c"})
        await b.settled()
        await eventually(lambda: gets_a_node(b, "p5"), "the pod follows its slice")


async def test_a_late_pod_has_room_beside_its_slice() -> None:
    """The first four pods are of three slices. Each slice has a rack with room for both of its pods."""
    async with racks({"a": 2, "b": 2, "c": 2}) as b:
        for i in (0, 2, 3, 5):
            member(b, f"p{i}", minimum=4, **SLICES)
        await b.settled()
        nodes = await planned(b, "p0", "p2", "p3", "p5")
        assert {pod: node[0] for pod, node in nodes.items()} == {"p0": "a", "p2": "b", "p3": "b", "p5": "c"}
        assert await bind_all(b, nodes) == [""] * 4
        for late, rack in (("p4", "c"), ("p1", "a")):
            member(b, late, minimum=4, **SLICES)
            await b.settled()
            (node,) = (await answer_once_read(b, late))["NodeNames"]
            assert node[0] == rack
            assert await b.bind(late, node) == ""


async def test_slices_without_room_for_absent_pods_are_placed() -> None:
    async with racks({"a": 2, "b": 2}) as b:
        for i in (0, 2, 3, 5):
            member(b, f"p{i}", minimum=4, **SLICES)
        await b.settled()
        nodes = await planned(b, "p0", "p2", "p3", "p5")
        assert nodes["p2"][0] == nodes["p3"][0] != nodes["p0"][0] == nodes["p5"][0]


async def test_a_new_pod_without_an_index_takes_the_place_of_a_dead_one() -> None:
    """Pods of a Job whose names end at random. Rack a has a free node, too, and its slice is whole."""
    async with racks({"a": 2, "b": 2}) as b:
        for name in ("job-b", "job-c", "job-d", "job-f"):
            member(b, name, minimum=4, **SLICES)
        await b.settled()
        nodes = await planned(b, "job-b", "job-c", "job-d", "job-f")
        assert [node[0] for node in nodes.values()] == ["a", "a", "b", "b"]
        assert await bind_all(b, nodes) == [""] * 4
        delete(b, "pods", "job-d")
        delete(b, "resourceclaims", "job-d-gpus")
        b.cluster.add_node("a9", carried_machines()["a100-pcie-8-bridged"], {RACK: "a"})
        member(b, "job-a", minimum=4, **SLICES)
        await b.settled()
        assert (await answer_once_read(b, "job-a"))["NodeNames"] == [nodes["job-d"]]
        assert await b.bind("job-a", nodes["job-d"]) == ""


def replicated(b: Berthing, job: str, index: int, gpus: int, minimum: int = 3, **notes: Any) -> None:
    """A pod of a replicated job of the JobSet js."""
    name = f"js-{job}-0-{index}"
    b.cluster.apply(claim(f"{name}-gpus", gpus))
    found = pod(
        name,
        f"{name}-gpus",
        annotations={"berth.dev/group-min": str(minimum)} | {f"berth.dev/subgroup-{k}": v for k, v in notes.items()},
    )
    found["metadata"]["labels"] = {
        "jobset.sigs.k8s.io/jobset-name": "js",
        "jobset.sigs.k8s.io/replicatedjob-name": job,
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    b.cluster.apply(found)


async def test_the_replicated_jobs_of_a_jobset_have_levels_of_their_own() -> None:
    """The leader is on one node; both workers, of 8 GPUs each, are in one rack."""
    async with racks({"a": 1, "b": 2}) as b:
        replicated(b, "leader", 0, 4, required="node")
        for i in range(2):
            replicated(b, "worker", i, 8, required="rack")
        await b.settled()
        nodes = await planned(b, "js-leader-0-0", "js-worker-0-0", "js-worker-0-1")
        assert [node[0] for node in nodes.values()] == ["a", "b", "b"]


async def test_a_gang_waits_for_the_minimum_of_each_sub_group() -> None:
    async with racks({"a": 4}) as b:
        for i in range(3):
            replicated(b, "worker", i, 8, 4, min="2")
        replicated(b, "leader", 0, 4, 4, min="2")
        await b.settled()
        text = "waits until at least 2 pods of group js (sub-group leader) and their claims exist"
        assert await reasons(b, "js-worker-0-0") == {text}
        found = (await b.client.get("/v1/explain/group/default/js")).text
        assert "group default/js waits for pods of sub-group leader: it needs at least 2" in found
        replicated(b, "leader", 1, 4, 4, min="2")
        await b.settled()
        await eventually(lambda: gets_a_node(b, "js-worker-0-0"), "the gang is complete")


async def test_no_room_for_slices_is_told() -> None:
    async with racks({"a": 1, "b": 1, "c": 1, "d": 1}) as b:
        for i in range(4):
            member(b, f"p{i}", minimum=4, **SLICES)
        await b.settled()
        assert await reasons(b, "p0") == {NO_ROOM}
