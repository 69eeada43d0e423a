"""A node of a running gang dies: where the new pod goes, and what it is told where that has no room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.sandbox import carried_machines
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import answer_once_read, bind_all, create_gang, die, member, planned
from tests.worlds.running_berth import Berthing, berthing, claim, pod

pytestmark = pytest.mark.loopback

CLIQUE = "nvidia.com/gpu.clique"
FULL = "group job runs in nvidia.com/gpu.clique=a, where its other pods have no room"
OUTSIDE = "node is outside of the domain in which the pod's group runs"


@asynccontextmanager
async def after_a_death(spare: int, minimum: int, **asked: Any) -> AsyncIterator[Berthing]:
    """A gang of 4 has run on the nodes a0 to a3 of clique a; one of them died with its pod, and a new pod p4 waits.

    `spare` is the number of further nodes of clique a. Clique b has 5 free nodes.
    """
    async with berthing({}) as b:
        for i in range(4 + spare):
            b.cluster.add_node(f"a{i}", carried_machines()["a100-pcie-8-bridged"], {CLIQUE: "a"})
        await create_gang(b, 4, minimum=minimum, **asked)
        nodes = await planned(b, *(f"p{i}" for i in range(4)))
        assert await bind_all(b, nodes) == [""] * 4
        for i in range(5):
            b.cluster.add_node(f"b{i}", carried_machines()["a100-pcie-8-bridged"], {CLIQUE: "b"})
        die(b, "p3", nodes["p3"])
        member(b, "p4", minimum=minimum, **asked)
        await b.settled()
        yield b


async def answer(b: Berthing) -> tuple[set[str], set[str]]:
    """The cliques of the nodes that p4 gets, and its reasons, once Berth has read which pods run."""
    reply = await answer_once_read(b, "p4")
    return {name[0] for name in reply["NodeNames"]}, set(reply["FailedAndUnresolvableNodes"].values())


REQUIRED = {"topology": "required"}
BY_NAME = {"required": "clique"}


@pytest.mark.parametrize("minimum", [4, 3], ids=["a pod of the minimum", "a pod beyond it"])
@pytest.mark.parametrize("asked", [REQUIRED, BY_NAME], ids=["first level", "by name"])
async def test_the_new_pod_returns_to_the_required_clique(asked: dict[str, str], minimum: int) -> None:
    async with after_a_death(1, minimum, **asked) as b:
        assert await answer(b) == ({"a"}, set())


@pytest.mark.parametrize("asked", [REQUIRED, BY_NAME], ids=["first level", "by name"])
async def test_the_new_pod_waits_for_room_in_the_required_clique(asked: dict[str, str]) -> None:
    async with after_a_death(0, 4, **asked) as b:
        assert await answer(b) == (set(), {FULL})
        assert FULL in (await b.client.get("/v1/explain/group/default/job")).text
        b.cluster.add_node("a9", carried_machines()["a100-pcie-8-bridged"], {CLIQUE: "a"})
        await b.settled()
        await eventually(lambda: _fits(b), "the pod fits on the new node")


async def _fits(b: Berthing) -> bool:
    return (await b.filter("p4"))["NodeNames"] == ["a9"]


async def test_a_pod_beyond_the_minimum_waits_for_room_in_the_required_clique() -> None:
    """It was placed in any clique once the minimum ran."""
    async with after_a_death(0, 3, **REQUIRED) as b:
        assert await answer(b) == (set(), {OUTSIDE, "matching devices are in use for request gpu"})
        found = (await b.client.get("/v1/explain/default/p4")).json()
        reasons = {one["reason"]: one["nodes"] for one in found["unschedulable"]}
        assert found["outcome"] == "refused"
        assert reasons[OUTSIDE] == 5


@pytest.mark.parametrize("minimum", [4, 3])
async def test_a_preferred_clique_gives_way(minimum: int) -> None:
    async with after_a_death(0, minimum) as b:
        assert await answer(b) == ({"b"}, set())


@pytest.mark.parametrize("minimum", [4, 3], ids=["a pod of the minimum", "a pod beyond it"])
async def test_elsewhere_the_new_pod_leaves_the_whole_clique_whole(minimum: int) -> None:
    """Clique b is free. Of the 5 nodes of clique c, another pod has one."""
    async with after_a_death(0, minimum) as b:
        for i in range(5):
            b.cluster.add_node(f"c{i}", carried_machines()["a100-pcie-8-bridged"], {CLIQUE: "c"})
        b.cluster.apply(claim("other-gpus", 8))
        b.cluster.apply(pod("other", "other-gpus"))
        await b.settled()
        assert await b.bind("other", "c2") == ""
        await b.settled()
        await answer(b)
        assert (await b.filter("p4"))["NodeNames"][0] == "c0"


@pytest.mark.parametrize("level", ["node", "rack"])
async def test_a_pod_beyond_the_minimum_of_a_gang_on_one_node_or_without_a_label(level: str) -> None:
    """Two pods of four GPUs fill a node, so the third has no room on it. No node has a rack: no plan, and no limit."""
    async with berthing({"n0": "a100-pcie-8-bridged", "n1": "a100-pcie-8-bridged"}) as b:
        await create_gang(b, 2, gpus=4, required=level)
        if level == "rack":
            (text,) = set((await b.filter("p0"))["FailedAndUnresolvableNodes"].values())
            assert text == "no node with devices has the label topology.kubernetes.io/rack that group job needs"
            return
        assert await bind_all(b, await planned(b, "p0", "p1")) == ["", ""]
        member(b, "p4", minimum=2, gpus=4, required=level)
        await b.settled()
        assert await answer(b) == (set(), {OUTSIDE, "matching devices are in use for request gpu"})
