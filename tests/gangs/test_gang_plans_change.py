"""Plans of gangs while pods, kube-scheduler and the API server change their minds."""

from __future__ import annotations

import pytest

from extender.policy import Policy
from extender.sandbox.apiserver.registry import RESOURCES
from extender.serve.gangs.gang_state import FormingGang
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import INCOMPLETE, NODES, bind_all, delete, member, planned, reasons, say_unschedulable
from tests.worlds.running_berth import Berthing, berthing, claim, pod

pytestmark = pytest.mark.loopback

MACHINE = "a100-pcie-8-bridged"
FOUR = NODES | {"n3": MACHINE}


def forming(b: Berthing) -> FormingGang:
    return next(iter(b.app.service.gangs.forming.values()))


async def test_members_with_equal_devices_and_different_nodes() -> None:
    """A leader and its workers: kube-scheduler offers each of them other nodes."""
    async with berthing(NODES) as b:
        for name in ("p0", "p1", "p2"):
            member(b, name)
            spec = {"nodeSelector": {"kubernetes.io/hostname": "n0"} if name == "p0" else {}}
            registry = b.cluster.api.registry
            registry.patch(RESOURCES["", "pods"], ("default", name), {"spec": spec}, "", strategic=True)
        await b.settled()
        offered = {"p1": list(NODES), "p0": ["n0"], "p2": list(NODES)}
        nodes = {}
        for name, names in offered.items():
            answer = await b.filter(name, names)
            assert len(answer["NodeNames"] or ()) == 1, (name, answer)
            nodes[name] = answer["NodeNames"][0]
        assert nodes["p0"] == "n0"
        assert await bind_all(b, nodes) == ["", "", ""]


async def test_a_bind_that_gave_up_no_longer_counts_as_arrived() -> None:
    async with berthing(FOUR, Policy(binding_wait_seconds=1)) as b:
        for name in ("p0", "p1", "p2"):
            member(b, name)
        await b.settled()
        nodes = await planned(b, "p0", "p1", "p2")
        assert "waiting for the other pods" in await b.bind("p0", nodes["p0"])
        assert not forming(b).arrived
        rest = [name for name in FOUR if name != nodes["p0"]]
        for _ in range(2):
            answer = await b.filter("p0", rest)
            assert set(answer["NodeNames"] or ()) <= set(rest), "no node that was not offered"


async def test_a_surplus_member_that_is_deleted_ends_the_plan() -> None:
    async with berthing(FOUR) as b:
        for name in ("p0", "p1", "p2"):
            member(b, name, minimum=2, timeout="24h")
        await b.settled()
        nodes = await planned(b, "p0", "p1", "p2")
        assert await bind_all(b, {name: nodes[name] for name in ("p0", "p1")}) == ["", ""]
        assert b.app.service.gangs.forming
        delete(b, "pods", "p2")
        await eventually(lambda: not b.app.service.gangs.forming, "nothing is left to bind")
        assert not b.app.service.cache.reservations.holds


async def test_a_surplus_member_without_a_node_gives_its_devices_back() -> None:
    async with berthing(NODES) as b:
        for name in ("p0", "p1", "p2"):
            member(b, name, minimum=2, timeout="24h")
        await b.settled()
        nodes = await planned(b, "p0", "p1", "p2")
        assert await bind_all(b, {name: nodes[name] for name in ("p0", "p1")}) == ["", ""]
        say_unschedulable(b, "p2", "0/3 nodes are available: 3 Insufficient cpu.")
        await eventually(lambda: not b.app.service.gangs.forming, "the plan is done")
        await b.create(claim("single", 8), pod("alone", "single"))
        assert (await b.filter("alone"))["NodeNames"]


async def test_later_members_do_not_end_the_holds_of_each_other() -> None:
    async with berthing(NODES) as b:
        for name in ("p0", "p1"):
            member(b, name, minimum=2)
        await b.settled()
        assert await bind_all(b, await planned(b, "p0", "p1")) == ["", ""]
        for name in ("p2", "p3"):
            member(b, name, minimum=2)
        await b.settled()

        async def is_placed() -> bool:
            return bool((await b.filter("p2"))["NodeNames"])

        await eventually(is_placed, "the bound pods are read, and p2 gets the last node")
        assert not (await b.filter("p3"))["NodeNames"], "the last node is held for p2"


async def test_a_member_that_kube_scheduler_could_not_place_before_makes_the_plan_short() -> None:
    """Attack: keep devices with a member that no node takes."""
    async with berthing(NODES) as b:
        member(b, "p1", minimum=2, timeout="24h")
        say_unschedulable(b, "p1", "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.")
        await b.settled()
        member(b, "p0", minimum=2, timeout="24h")
        await b.settled()
        await planned(b, "p0")
        plan = forming(b)
        assert plan.doubtful
        assert plan.ends_at - plan.progress_at < 60, "the tenant's time-out does not count while no bind comes"


async def test_an_error_of_the_scheduler_ends_no_plan() -> None:
    async with berthing(NODES) as b:
        for name in ("p0", "p1", "p2"):
            member(b, name)
        await b.settled()
        nodes = await planned(b, "p0", "p1", "p2")
        say_unschedulable(b, "p1", 'Post "http://127.0.0.1:8888/filter": connection reset by peer', "SchedulerError")
        await b.settled()
        assert await bind_all(b, nodes) == ["", "", ""]


async def test_a_gang_that_waits_for_another_is_not_planned_again_at_each_call() -> None:
    async with berthing(NODES, Policy(gang_seconds=3600)) as b:
        for i in range(2):
            member(b, f"a{i}", "a", 2)
            member(b, f"b{i}", "b", 2)
        await b.settled()
        await planned(b, "a0")
        (plan,) = b.app.service.gangs.forming.values()
        plan.progress_at = plan.deadline  # on a busy machine, the plan would end before the last request
        searches = b.app.service.gangs.counts.no_plan
        for _ in range(10):
            for name in ("b0", "b1"):
                assert not (await b.filter(name))["NodeNames"]
        assert searches.total() == 1


async def test_a_changed_minimum_ends_the_plan() -> None:
    async with berthing(NODES) as b:
        groups = RESOURCES["scheduling.x-k8s.io", "podgroups"]
        kind = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup"}
        b.cluster.apply({**kind, "metadata": {"name": "job", "namespace": "default"}, "spec": {"minMember": 2}})
        for i in range(2):
            b.cluster.apply(claim(f"p{i}-gpus", 8))
            found = pod(f"p{i}", f"p{i}-gpus")
            found["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "job"}
            b.cluster.apply(found)
        await b.settled()
        await eventually(lambda: b.app.service.cache.store.group_policies, "the PodGroup is known")
        await planned(b, "p0", "p1")
        b.cluster.api.registry.patch(groups, ("default", "job"), {"spec": {"minMember": 4}}, "", strategic=False)
        await eventually(lambda: not b.app.service.gangs.forming, "the plan ended")
        assert await reasons(b, "p0") == {INCOMPLETE.replace("3", "4")}


@pytest.mark.parametrize("offered", [["n0"], list(NODES)])
async def test_a_nominated_node_is_tried_for_its_pod_alone(offered: list[str]) -> None:
    async with berthing(NODES) as b:
        for name in ("p0", "p1", "p2"):
            member(b, name)
        await b.settled()
        nodes = {"p0": (await b.filter("p0", offered))["NodeNames"][0]}
        nodes |= await planned(b, "p1", "p2")
        assert len(set(nodes.values())) == 3
        assert await bind_all(b, nodes) == ["", "", ""]
