"""Gangs with the mistakes of users, and groups whose objects change meanwhile."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from extender.api.reasons import Code
from extender.gangs.gang_problem import MAX_TOGETHER
from extender.policy import Policy
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import (
    INCOMPLETE,
    LABEL,
    NO_ROOM,
    NODES,
    bind_all,
    create_gang,
    delete,
    key,
    labelled,
    member,
    planned,
    pod_group,
    reasons,
    requeues,
)
from tests.worlds.running_berth import Json, berthing, claim, pod

pytestmark = pytest.mark.loopback

MANY_PODS = 5000


async def test_a_gang_with_too_few_pods_waits_and_the_reason_names_a_minimum_above_the_fleet() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 4, minimum=5)
        assert await reasons(b, "p0") == {INCOMPLETE.replace("3", "5")}
        member(b, "p4", minimum=5)
        await b.settled()
        assert await reasons(b, "p0") == {NO_ROOM}
        assert not b.app.service.cache.reservations.by_claim


@pytest.mark.parametrize(
    ("key", "values", "text"),
    [
        ("min", ("2", "3"), "disagree about their minimum (berth.dev/group-min): default/p0 has 2, default/p1 has 3"),
        ("min", ("2", ""), "disagree about their minimum (berth.dev/group-min): default/p0 has 2, default/p1 has none"),
        (
            "topology",
            ("required", "none"),
            "disagree about berth.dev/group-topology: default/p0 has required, default/p1 has none",
        ),
    ],
)
async def test_the_reason_names_two_members_that_disagree(key: str, values: tuple[str, str], text: str) -> None:
    async with berthing(NODES) as b:
        for i, value in enumerate(values):
            notes = {"berth.dev/group": "job", "berth.dev/group-min": "2", f"berth.dev/group-{key}": value}
            b.cluster.apply(claim(f"p{i}-gpus", 8))
            b.cluster.apply(pod(f"p{i}", f"p{i}-gpus", annotations={k: v for k, v in notes.items() if v}))
        await b.settled()
        for name in ("p0", "p1"):
            (said,) = await reasons(b, name)
            assert said.startswith("the pods of group job disagree about")
            assert "default/p0" in said
            assert "default/p1" in said
        assert await reasons(b, "p0") == {f"the pods of group job {text}"}
        assert not b.app.service.cache.reservations.by_claim


@pytest.mark.parametrize("invalid", ["p0", "p1"])
async def test_the_reason_of_the_others_names_the_member_whose_annotation_is_invalid(invalid: str) -> None:
    async with berthing(NODES) as b:
        for name in ("p0", "p1"):
            notes = {"berth.dev/group": "job", "berth.dev/group-min": "many" if name == invalid else "2"}
            b.cluster.apply(claim(f"{name}-gpus", 8))
            b.cluster.apply(pod(name, f"{name}-gpus", annotations=notes))
        await b.settled()
        problem = "pod annotation berth.dev/group-min: 'many' is not a number from 1 to 100000"
        assert await reasons(b, invalid) == {problem}
        assert await reasons(b, "p1" if invalid == "p0" else "p0") == {f"pod default/{invalid} of group job: {problem}"}


@pytest.mark.parametrize("minimum", [None, 1, 0, -1], ids=["an annotation of one", "1", "0", "-1"])
async def test_a_minimum_below_two_is_no_gang(minimum: int | None) -> None:
    async with berthing(NODES) as b:
        if minimum is None:
            member(b, "alone", minimum=1)
        else:
            pod_group(b, minimum)
            labelled(b, "alone")
        await b.settled()
        (node, *_) = (await b.filter("alone"))["NodeNames"]
        assert await b.bind("alone", node) == ""


async def test_members_of_one_name_in_two_namespaces_are_two_groups() -> None:
    async with berthing(NODES) as b:
        member(b, "p0", minimum=2)
        other = pod("p0", annotations={"berth.dev/group": "job", "berth.dev/group-min": "2"})
        other["metadata"]["namespace"] = "other"
        await b.create({"kind": "Namespace", "metadata": {"name": "other"}}, other)
        assert await reasons(b, "p0") == {INCOMPLETE.replace("3", "2")}


@pytest.mark.parametrize("again", [3, 2])
async def test_a_pod_group_that_is_created_again_while_its_pods_have_a_plan(again: int) -> None:
    async with berthing(NODES) as b:
        store, gangs = b.app.service.cache.store, b.app.service.gangs
        pod_group(b, 3)
        for i in range(3):
            labelled(b, f"p{i}")
        await b.settled()
        nodes = await planned(b, "p0", "p1", "p2")
        b.cluster.api.registry.delete(RESOURCES["scheduling.x-k8s.io", "podgroups"], ("default", "job"))
        await eventually(lambda: not store.group_policies, "the PodGroup is gone")
        pod_group(b, again)
        if again == 3:
            await eventually(lambda: store.group_policies, "the PodGroup is known again")
            assert await bind_all(b, nodes) == ["", "", ""]
        else:
            await eventually(lambda: not gangs.forming, "the plan for another minimum ended")
            assert not b.app.service.cache.reservations.holds
            assert "has no plan for pod" in await b.bind("p0", nodes["p0"])


@pytest.mark.parametrize("policy", [{"gang": {"minCount": 3}}, {"basic": {}}, None])
async def test_pods_wait_for_a_pod_group_that_does_not_exist_yet(policy: Json | None) -> None:
    """As in-tree and beside the coscheduling plugin: a Job's controller may create the pods first."""
    async with berthing(NODES) as b:
        for i in range(2):
            b.cluster.apply(claim(f"p{i}-gpus", 8))
            found = pod(f"p{i}", f"p{i}-gpus", **({"schedulingGroup": {"podGroupName": "job"}} if policy else {}))
            found["metadata"]["labels"] = {} if policy else {LABEL: "job"}
            b.cluster.apply(found)
        await b.settled()
        for name in ("p0", "p1"):
            assert await reasons(b, name) == {"waits for PodGroup job, which does not exist"}
        assert not b.app.service.cache.reservations.holds
        async with requeues(b, "the PodGroup requeues the pods"):
            if policy:
                kind = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup"}
                metadata = {"name": "job", "namespace": "default"}
                b.cluster.apply({**kind, "metadata": metadata, "spec": {"schedulingPolicy": policy}})
            else:
                pod_group(b, 3)
        if policy == {"basic": {}}:
            assert (await b.filter("p0"))["NodeNames"], "it names no minimum"
        else:
            assert await reasons(b, "p0") == {INCOMPLETE}


async def test_a_minimum_on_the_pods_needs_no_pod_group() -> None:
    async with berthing(NODES) as b:
        for i in range(2):
            labelled(b, f"p{i}", annotations={"berth.dev/group-min": "2"})
        await b.settled()
        assert await bind_all(b, await planned(b, "p0", "p1")) == ["", ""]


async def test_a_pod_that_is_created_again_under_its_name_is_another_member() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        await planned(b, "p0", "p1", "p2")
        delete(b, "pods", "p2")
        delete(b, "resourceclaims", "p2-gpus")
        await eventually(lambda: not b.app.service.gangs.forming, "the plan ended")
        assert not b.app.service.cache.reservations.holds
        member(b, "p2")
        await b.settled()
        waiting = b.app.service.gangs.admission.get(key())
        assert waiting is not None
        assert waiting.reason.code is Code.GANG_CHANGED
        waiting.retry_at = -inf
        assert await bind_all(b, await planned(b, "p0", "p1", "p2")) == ["", "", ""]


async def test_a_minimum_of_five_thousand_is_rejected_at_once() -> None:
    """Attack: stop others with a huge gang."""
    async with berthing(NODES) as b:
        await create_gang(b, 20, minimum=5000, gpus=1)
        (text,) = await reasons(b, "p0")
        assert text == f"group job has a minimum above {MAX_TOGETHER}: Berth binds no more pods together"


async def test_five_thousand_members_of_a_small_minimum_are_planned_in_part() -> None:
    async with berthing(NODES, Policy(evaluation_seconds=2)) as b:  # the plan also has time on a busy machine
        for i in range(MANY_PODS):
            member(b, f"p{i}", minimum=25, gpus=1)
        await b.settled()
        gangs, first = b.app.service.gangs, await reasons(b, "p0")
        assert first == {NO_ROOM}
        (key,) = b.app.service.cache.store.members
        waiting = gangs.admission.get(key)
        assert waiting is not None
        waiting.retry_at = inf  # on a busy machine, the pause would end before the last request
        plans = gangs.counts.no_plan.total()
        answers = await asyncio.gather(*(reasons(b, f"p{i}") for i in range(1, 50)))
        assert all(found == {NO_ROOM} for found in answers)
        assert gangs.counts.no_plan.total() == plans, "only the first one searched"
