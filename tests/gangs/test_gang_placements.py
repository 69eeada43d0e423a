"""The in-tree gang scheduling asks about each topology domain, and then binds in any of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from extender.sandbox import carried_machines
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import bind_all, create_gang, requeues
from tests.worlds.gang_pods import reasons as reasons_of
from tests.worlds.running_berth import Berthing, Json, berthing, claim, pod

pytestmark = pytest.mark.loopback

RACK = "topology.kubernetes.io/rack"
RACKS = {rack: [f"{rack}{i}" for i in range(3)] for rack in "abc"}


@asynccontextmanager
async def racks(minimum: int = 3, members: int = 3, gpus: int = 8) -> AsyncIterator[Berthing]:
    """Three racks of three nodes, and a gang of pods with so many of 8 GPUs each, with a PodGroup for one rack."""
    async with berthing({}) as b:
        for rack, names in RACKS.items():
            for name in names:
                b.cluster.add_node(name, carried_machines()["a100-pcie-8-bridged"], {RACK: rack})
        spec: Json = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
        spec["schedulingConstraints"] = {"topology": [{"key": RACK}]}
        b.cluster.apply({
            "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "job"}, "spec": spec,
        })  # fmt: skip
        await eventually(lambda: b.app.service.cache.store.group_policies, "the PodGroup is known")
        for i in range(members):
            b.cluster.apply(claim(f"p{i}-gpus", gpus))
            b.cluster.apply(pod(f"p{i}", f"p{i}-gpus", schedulingGroup={"podGroupName": "job"}))
        await b.settled()
        yield b


async def tried(b: Berthing, names: Sequence[str], members: int = 3) -> dict[str, str]:
    """The node of each member if kube-scheduler offers these nodes. It takes the rest of each node in its mind."""
    found: dict[str, str] = {}
    for i in range(members):
        left = [name for name in names if name not in found.values()]
        answer = await b.filter(f"p{i}", left)
        assert len(answer["NodeNames"] or ()) == 1, (i, answer)
        found[f"p{i}"] = answer["NodeNames"][0]
    return found


@pytest.mark.parametrize("chosen", ["a", "b", "c"])
async def test_kube_scheduler_binds_in_any_domain_that_it_has_tried(chosen: str) -> None:
    async with racks() as b:
        nodes = {rack: await tried(b, names) for rack, names in RACKS.items()}
        assert await bind_all(b, nodes[chosen]) == ["", "", ""]
        assert {name: b.node_of(name) for name in nodes[chosen]} == nodes[chosen]
        assert {pool for pool, _ in b.held()} == set(RACKS[chosen])
        assert not b.app.service.gangs.forming
        assert not b.app.service.cache.reservations.holds


async def test_a_gang_that_tries_another_domain_leaves_the_nodes_of_the_gang_that_comes_first() -> None:
    async with racks(gpus=1) as b:
        for group, size, count in (("first", 2, 1), ("large", 3, 6)):
            await create_gang(b, size, group, gpus=count, prefix=f"{group}-")
        for i in range(2):
            assert (await b.filter(f"first-{i}", RACKS["b"]))["NodeNames"]
        assert not (await b.filter("large-0", RACKS["b"]))["NodeNames"]
        assert b.app.service.gangs.admission.comes_first is not None
        nodes = {f"p{i}": (await b.filter(f"p{i}", RACKS["a"]))["NodeNames"][0] for i in range(3)}
        answer = await b.filter("p0", RACKS["b"])
        assert not answer["NodeNames"]
        told = {"waits until group default/first is bound: both need the same node"}
        assert set(answer["FailedAndUnresolvableNodes"].values()) == told
        assert await bind_all(b, nodes) == ["", "", ""], "the plan for the other domain stays"


async def test_a_gang_is_bound_in_a_domain_that_was_tried_before_an_older_gang_got_the_turn_there() -> None:
    async with racks(gpus=3) as b:
        for group, size, count in (("first", 2, 1), ("large", 3, 6)):
            await create_gang(b, size, group, gpus=count, prefix=f"{group}-")
        await b.create(claim("held", 8), pod("alone", "held"))
        assert (await b.filter("alone", ["b0"]))["NodeNames"] == ["b0"]
        assert not (await b.filter("large-0", RACKS["b"]))["NodeNames"], "it has no room yet"
        b.cluster.api.registry.delete(RESOURCES["", "pods"], ("default", "alone"))
        await b.settled()
        tried_first = {f"p{i}": (await b.filter(f"p{i}", RACKS["b"]))["NodeNames"][0] for i in range(3)}
        assert (await b.filter("p0", RACKS["a"]))["NodeNames"]
        (left,) = set(RACKS["b"]) - set(tried_first.values())
        assert (await b.filter("first-0", [left]))["NodeNames"] == [left]

        async def comes_first() -> bool:
            await b.filter("large-0", RACKS["b"])
            return b.app.service.gangs.admission.comes_first is not None

        await eventually(comes_first, "the large gang comes first")
        assert await bind_all(b, tried_first) == ["", "", ""]


async def test_a_gang_is_bound_where_kube_scheduler_chose_although_its_namespace_has_queued_work() -> None:
    """The domains without room cost its time, and the claims are about to be written."""
    async with racks() as b:
        nodes = {rack: await tried(b, names) for rack, names in RACKS.items()}
        service = b.app.service.filter_service
        with service.evaluations.deadline_of_call("another"):
            service.evaluations.queue("default", "costly", lambda _: False)
        assert not service.evaluations.has_time("default")
        assert await bind_all(b, nodes["a"]) == ["", "", ""]


async def test_a_new_round_does_not_renew_the_turn_of_a_gang() -> None:
    """Else a gang that never reaches bind could keep its slots without end."""
    async with racks() as b:
        await tried(b, RACKS["a"])
        (first,) = b.app.service.gangs.forming.values()
        for names in (RACKS["a"], RACKS["b"]):
            await tried(b, names)
            (plan,) = b.app.service.gangs.forming.values()
            assert plan is not first
            assert plan.since == first.since


async def test_devices_of_an_earlier_domain_that_another_pod_has_taken_fail_the_gang_as_a_whole() -> None:
    async with racks() as b:
        first = await tried(b, RACKS["a"])
        await tried(b, RACKS["b"])
        await b.create(claim("single", 1), pod("alone", "single"))
        assert (await b.filter("alone", ["a1"]))["NodeNames"] == ["a1"]
        assert await b.bind("alone", "a1") == ""
        answers = await bind_all(b, first)
        assert all("no pod of group job is bound" in answer for answer in answers), answers
        assert len(b.held()) == 1
        assert not b.app.service.cache.reservations.holds
        assert await reasons_of(b, "p0"), "the gang pauses"


async def test_a_member_beyond_the_minimum_is_bound_beside_the_others_or_retried() -> None:
    async with racks(minimum=2) as b:
        first = await tried(b, RACKS["a"])
        await tried(b, RACKS["b"])
        answers = await bind_all(b, first)
        assert answers.count("") >= 2, answers
        late = [name for name in first if not b.node_of(name)]
        for name in late:
            answer = await b.filter(name, RACKS["a"])
            assert await b.bind(name, answer["NodeNames"][0]) == ""
        assert {b.node_of(name) for name in first} == set(RACKS["a"])


async def test_a_gang_that_was_offered_some_nodes_is_requeued_when_a_hold_ends() -> None:
    """Only Berth sees that. In-tree plugins reject some nodes in most clusters, also without topology constraints."""
    async with racks() as b:
        await b.create(claim("held", 8), pod("alone", "held"))
        assert (await b.filter("alone", ["a0"]))["NodeNames"] == ["a0"]
        assert not (await b.filter("p0", RACKS["a"]))["NodeNames"]
        async with requeues(b, "the gang is requeued"):
            b.cluster.api.registry.delete(RESOURCES["", "pods"], ("default", "alone"))
        assert await bind_all(b, await tried(b, RACKS["a"])) == ["", "", ""]
