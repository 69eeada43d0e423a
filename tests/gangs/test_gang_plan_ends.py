"""The end of a plan: no member is bound alone afterwards, and the reasons are true."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extender.base.berth_errors import BerthError
from extender.policy import Policy
from extender.sandbox import ApiError
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.explain_worlds import group_explained as explained
from tests.worlds.explain_worlds import refused
from tests.worlds.gang_fleet import Gangs
from tests.worlds.gang_pods import (
    NODES,
    annotate,
    bind_all,
    create_gang,
    delete,
    ended,
    planned,
    reasons,
    two_binds_of_three,
)
from tests.worlds.running_berth import berthing, bug_after, claim, pod

pytestmark = pytest.mark.loopback

LABEL = "scheduling.x-k8s.io/pod-group"
GROUPS = {
    "scheduling.x-k8s.io/v1alpha1": {"minMember": 3},
    "scheduling.k8s.io/v1beta1": {"schedulingPolicy": {"gang": {"minCount": 3}}},
}


def pod_with_group(name: str, version: str) -> dict[str, Any]:
    obj = pod(name, f"{name}-gpus")
    if version.startswith("scheduling.x-k8s.io"):
        obj["metadata"]["labels"] = {LABEL: "job"}
    else:
        obj["spec"]["schedulingGroup"] = {"podGroupName": "job"}
    return obj


@pytest.mark.parametrize("version", GROUPS)
async def test_a_late_bind_after_the_pod_group_was_deleted(version: str) -> None:
    async with berthing(NODES) as b:
        b.cluster.apply(
            {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": "job", "namespace": "default"}}
            | {"spec": GROUPS[version]}
        )
        for i in range(3):
            b.cluster.apply(claim(f"p{i}-gpus", 8))
            b.cluster.apply(pod_with_group(f"p{i}", version))
        await b.settled()
        nodes = await planned(b, "p0", "p1", "p2")
        b.cluster.api.registry.delete(RESOURCES[version.split("/", maxsplit=1)[0], "podgroups"], ("default", "job"))
        delete(b, "pods", "p2")
        await ended(b)
        for name in ("p0", "p1"):
            assert "has no plan for pod" in await b.bind(name, nodes[name])
            assert not b.node_of(name)
        assert not b.held()


async def test_a_late_bind_after_another_minimum_ended_the_plan() -> None:
    async with berthing(NODES) as b:
        nodes, first = await two_binds_of_three(b)
        for name in nodes:
            annotate(b, name, {"berth.dev/group-min": "4"})
        for bind in first:
            assert "the minimum of group job is 4 now" in await bind
        assert "group job has no plan for pod default/p2" in await b.bind("p2", nodes["p2"])
        assert not any(b.node_of(name) for name in nodes)
        assert not b.held()


async def test_the_reason_after_a_bind_that_failed_names_the_pod_and_the_error() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        nodes = await planned(b, "p0", "p1", "p2")

        async def refuse(method: str, path: str) -> ApiError | None:
            no = method == "PATCH" and path.endswith("resourceclaims/p2-gpus/status")
            return ApiError(403, "Forbidden", "no") if no else None

        b.cluster.api.intercept = refuse
        assert all(await bind_all(b, nodes))
        text = "group job is planned again after a pause: the bind of pod default/p2 failed: no"
        assert await reasons(b, "p2") == {text}
        await refused(b, "p2", text)
        found = await explained(b)
        assert found["sentence"].endswith(f" was: {text}")
        assert {one["pod"]: one["reason"] for one in found["members"]}["default/p2"] == text


@pytest.mark.parametrize(
    "notes", [{"berth.dev/group": "other"}, {"berth.dev/group": None, "berth.dev/group-min": None}]
)
async def test_a_member_that_leaves_the_group_ends_the_plan(notes: dict[str, str | None]) -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        nodes = await planned(b, "p0", "p1", "p2")
        annotate(b, "p2", notes)
        await ended(b)
        assert "has no plan for pod" in await b.bind("p0", nodes["p0"])
        assert not b.app.service.cache.reservations.holds


@pytest.mark.parametrize(
    ("fault", "seen"), [(KeyError("a bug"), KeyError), (asyncio.CancelledError(), BerthError)], ids=["bug", "cancelled"]
)
async def test_a_bug_in_the_bind_of_a_member_ends_the_plan_at_once(fault: BaseException, seen: type[Exception]) -> None:
    """Not only at the deadline: here the clock of the plans stands still."""
    async with berthing(NODES, clock=lambda: 1000.0) as b:
        nodes, others = await two_binds_of_three(b)
        with pytest.raises(seen):
            await bug_after("write barrier", b, "p2", nodes["p2"], fault)
        why = f"the bind of pod default/p2 failed: {type(fault).__name__}: {fault}".removesuffix(": ")
        assert all(why in answer for answer in await asyncio.gather(*others))
        assert await reasons(b, "p0") == {f"group job is planned again after a pause: {why}"}
        if seen is KeyError:  # the claim of a cancelled bind stays for the pod's next bind
            assert not b.held()
            assert not b.app.service.cache.reservations.by_claim


def test_a_plan_whose_binds_end_ends_at_once_if_its_members_have_taken_too_long() -> None:
    """While all binds of the minimum write their claims, a plan may last until its deadline."""
    fleet = Gangs(nodes=3, kinds=1, policy=Policy(gang_seconds=120))
    job = fleet.joined("job", [fleet.pod("a") for _ in range(2)])
    nodes = {one.uid: str(fleet.gangs.filter(one, fleet.names).passed) for one in job}
    (plan,) = fleet.gangs.forming.values()
    for uid, node in nodes.items():
        plan.arrive(uid, node, fleet.clock.now)
    fleet.clock.now = plan.deadline - 1.0
    fleet.monitor.expire()
    assert fleet.gangs.forming, "the claims are written"
    fleet.gangs.plans.bind_ended(plan, job[0].uid)
    fleet.monitor.expire()
    assert not fleet.gangs.forming
