"""Labels of nodes change while a gang forms: a gang that must be in one rack is bound there, or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.sandbox import carried_machines
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import bind_all, member, planned
from tests.worlds.running_berth import Berthing, Json, berthing

pytestmark = pytest.mark.loopback

RACK = "topology.kubernetes.io/rack"


def label(b: Berthing, node: str, **labels: str | None) -> None:
    found = {RACK if key == "rack" else key: value for key, value in labels.items()}
    b.cluster.api.registry.patch(
        RESOURCES["", "nodes"], ("", node), {"metadata": {"labels": found}}, "", strategic=False
    )


@asynccontextmanager
async def plan_in(rack: str = "a", **asked: Any) -> AsyncIterator[tuple[Berthing, dict[str, str]]]:
    """A gang of three pods is planned on the nodes a0, a1 and a2 of rack a. Rack b has three free nodes, too."""
    async with berthing({}) as b:
        for name in ("a0", "a1", "a2"):
            b.cluster.add_node(name, carried_machines()["a100-pcie-8-bridged"], {RACK: rack})
        for i in range(3):
            member(b, f"p{i}", **asked)
        await b.settled()
        nodes = await planned(b, "p0", "p1", "p2")
        assert set(nodes.values()) == {"a0", "a1", "a2"}
        for i in range(3):
            b.cluster.add_node(f"b{i}", carried_machines()["a100-pcie-8-bridged"], {RACK: "b"})
        await b.settled()
        yield b, nodes


def bindings(b: Berthing) -> Counter[str]:
    """The Bindings sent from now on, by pod."""
    sent = Counter[str]()

    async def note(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/binding"):
            sent[path.split("/")[-2]] += 1

    b.cluster.api.intercept = note
    return sent


REQUIRED = {"required": "rack"}
LEFT = f"node a1 is not in {RACK}=a, where the pods of group job must be"


async def test_a_label_that_changed_after_the_plan_ends_it_before_any_claim_is_written() -> None:
    async with plan_in(**REQUIRED) as (b, nodes):
        label(b, "a1", rack="b")
        await b.settled()
        sent = bindings(b)
        answers = await bind_all(b, nodes)
        assert all(LEFT in answer for answer in answers), answers
        assert not sent
        assert not b.held()
        assert not [one for one in b.cluster.store.all("resourceclaims") if one.get("status", {}).get("allocation")]
        again = await eventually(lambda: _found(b, "p0"), "the gang is planned again")
        assert again["NodeNames"][0] in ("a1", "b0", "b1", "b2")


async def test_a_label_that_changes_while_the_claims_are_written() -> None:
    async with plan_in(**REQUIRED) as (b, nodes):
        sent = bindings(b)
        note, (last,) = b.cluster.api.intercept, [pod for pod, node in nodes.items() if node == "a2"]

        async def change(method: str, path: str) -> None:
            assert note is not None
            await note(method, path)
            if method == "PATCH" and path.endswith(f"resourceclaims/{last}-gpus/status"):
                label(b, "a1", rack=None)
                known = b.app.service.cache.store.nodes
                await eventually(lambda: RACK not in known["a1"].labels, "the watch shows the label")

        b.cluster.api.intercept = change
        answers = await bind_all(b, nodes)
        assert all(LEFT in answer for answer in answers), answers
        assert not sent


async def test_the_label_of_a_node_of_a_slice_changes_after_the_plan() -> None:
    async with plan_in(**{"slice-size": "3", "slice-level": "rack"}) as (b, nodes):
        label(b, "a1", rack="b")
        await b.settled()
        sent = bindings(b)
        answers = await bind_all(b, nodes)
        left = f"node a1 is not in {RACK}=a, where the pods of slice 0 must be"
        assert all(left in answer for answer in answers), answers
        assert not sent


@pytest.mark.parametrize(
    ("asked", "changed"), [({}, {"rack": "b"}), (REQUIRED, {"zone": "z"})], ids=["a preferred rack", "another label"]
)
async def test_other_changes_are_no_obstacle(asked: dict[str, str], changed: dict[str, str]) -> None:
    async with plan_in(**asked) as (b, nodes):
        label(b, "a1", **changed)
        await b.settled()
        assert await bind_all(b, nodes) == ["", "", ""]


async def test_a_rack_that_gets_another_name_stays_one_rack() -> None:
    async with plan_in(**REQUIRED) as (b, nodes):
        for name in ("a0", "a1", "a2"):
            label(b, name, rack="new")
        await b.settled()
        assert await bind_all(b, nodes) == ["", "", ""]


async def test_one_node_is_near_enough_without_the_label_of_any_level() -> None:
    """`required` is one node, or one domain of the nearest level. Pods beyond the minimum go nowhere else."""
    async with berthing({"n1": "dgx1-v100", "n2": "dgx1-v100"}) as b:
        for name in ("p0", "p1"):
            member(b, name, minimum=2, gpus=4, topology="required")
        await b.settled()
        nodes = await planned(b, "p0", "p1")
        assert len(set(nodes.values())) == 1
        assert await bind_all(b, nodes) == ["", ""]
        member(b, "later", minimum=2, gpus=4, topology="required")
        await b.settled()

        async def kept_from_others() -> bool:
            found = await b.filter("later")
            assert not found["NodeNames"]
            return "outside of the domain in which the pod's group runs" in str(found)

        await eventually(kept_from_others, "the pod is kept from the other node")


async def _found(b: Berthing, name: str) -> Json | None:
    """The answer for a pod that gets a node, once Berth has read which members run."""
    found = await b.filter(name)
    return found if found["NodeNames"] else None
