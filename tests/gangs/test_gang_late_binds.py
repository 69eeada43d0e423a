"""A bind request that comes after its plan ended, or to a process that made no plan: never a part of a gang."""

from __future__ import annotations

import asyncio

import pytest

from extender.sandbox import ApiError
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import (
    NODES,
    SIX_NODES,
    UNREAD,
    annotate,
    bind_all,
    change,
    create_again,
    create_gang,
    delete,
    ended,
    gets_a_node,
    labelled,
    member,
    planned,
    pod_group,
    reasons,
    running,
)
from tests.worlds.running_berth import berthing

pytestmark = pytest.mark.early_timers


async def test_a_bind_after_a_restart_is_refused_until_the_old_pods_are_read() -> None:
    """The process that planned the new gang has ended. Claims of the old gang, which terminates, are all it left."""
    async with berthing(SIX_NODES) as b:
        await create_again(b)
        assert await b.bind("new0", "n4") == f"group job has no plan for pod default/new0: {UNREAD}"
        assert not b.node_of("new0")
        cache = b.app.service.cache
        await eventually(lambda: cache.snapshot().bound_members, "the refused bind has the old pods read")
        assert "group job has no plan for pod default/new0 any more" in await b.bind("new0", "n4")
        assert not b.node_of("new0")


async def test_a_bind_of_a_further_member_of_a_running_gang_goes_on_after_the_read() -> None:
    async with berthing(SIX_NODES) as b:
        await running(b, *(f"p{i}" for i in range(4)))
        member(b, "p4", minimum=4)
        await b.settled()
        assert UNREAD in await b.bind("p4", "n4")
        await eventually(lambda: b.app.service.cache.snapshot().bound_members, "the bound pods are read")
        assert await b.bind("p4", "n4") == ""


@pytest.mark.parametrize(
    ("text", "planned_on"),
    [
        ("0/6 nodes are available: 6 Insufficient cpu.", False),
        ("0/6 nodes are available: 6 waits until at least 2 pods of group job and their claims exist.", True),
    ],
)
async def test_binds_beyond_the_minimum_go_on_whatever_kube_scheduler_reports(text: str, planned_on: bool) -> None:
    """It reports an attempt from before the plan only when the minimum is being bound."""
    async with berthing(SIX_NODES) as b:
        await create_gang(b, 5, minimum=2)
        nodes = await planned(b, *(f"p{i}" for i in range(5)))
        said = {"type": "PodScheduled", "status": "False", "message": text}

        async def report(_: str, path: str) -> None:
            if path.endswith("/p0/binding"):
                for i in range(2, 5):
                    change(b, f"p{i}", "status", conditions=[said])
                await b.settled()

        b.cluster.api.intercept = report
        assert await bind_all(b, {name: nodes[name] for name in ("p0", "p1")}) == ["", ""]
        assert bool(b.app.service.gangs.forming) == planned_on, "whether the others keep their planned devices"
        rest = {name: nodes[name] for name in ("p2", "p3", "p4")}
        assert await bind_all(b, rest) == ["", "", ""]
        assert len(set(b.held())) == 40


async def test_a_bind_beyond_the_minimum_goes_on_after_the_deadline_of_the_plan() -> None:
    now = [0.0]
    async with berthing(SIX_NODES, clock=lambda: now[0]) as b:
        await create_gang(b, 3, minimum=2)
        nodes = await planned(b, "p0", "p1", "p2")
        plan = next(iter(b.app.service.gangs.forming.values()))
        assert await bind_all(b, {name: nodes[name] for name in ("p0", "p1")}) == ["", ""]
        now[0] = plan.deadline
        assert await b.bind("p2", nodes["p2"]) == ""


async def test_a_bind_goes_on_although_a_new_pod_made_berth_forget_what_it_has_read_of_the_group() -> None:
    async with berthing(SIX_NODES) as b:
        await running(b, *(f"p{i}" for i in range(4)))
        member(b, "p4", minimum=4)
        await b.settled()
        await eventually(lambda: gets_a_node(b, "p4"), "the bound pods are read")
        node = (await b.filter("p4"))["NodeNames"][0]
        member(b, "p5", minimum=4)
        await b.settled()
        assert not b.app.service.cache.snapshot().bound_members
        assert await b.bind("p4", node) == ""


async def test_a_pod_that_was_refused_after_it_had_passed_is_not_bound_alone() -> None:
    async with berthing(SIX_NODES) as b:
        await running(b, *(f"p{i}" for i in range(4)))
        member(b, "p4", minimum=4)
        await b.settled()
        await eventually(lambda: gets_a_node(b, "p4"), "the bound pods are read")
        member(b, "p5", minimum=4)
        await b.settled()
        assert await reasons(b, "p4") == {UNREAD}
        assert UNREAD in await b.bind("p4", "n4")


async def test_a_bind_of_a_further_member_is_refused_until_the_minimum_is_bound() -> None:
    """The Bindings of the minimum may be sent, and the API server has stored none."""
    async with berthing(SIX_NODES) as b:
        await create_gang(b, 3)
        nodes, answer, sent = await planned(b, "p0", "p1", "p2"), asyncio.Event(), set[str]()

        async def refuse_later(_: str, path: str) -> ApiError | None:
            if not path.endswith("/binding"):
                return None
            sent.add(path)
            await answer.wait()
            return ApiError(403, "Forbidden", "no")

        member(b, "p3")
        await b.settled()
        b.cluster.api.intercept = refuse_later
        binds = asyncio.create_task(bind_all(b, nodes))
        await eventually(lambda: len(sent) == 3, "the Bindings of the minimum are sent")
        late = (set(SIX_NODES) - set(nodes.values())).pop()
        try:
            assert await reasons(b, "p3") == {"waits until the minimum of group job is bound"}
            assert "waits until the minimum of group job is bound" in await b.bind("p3", late)
        finally:
            answer.set()
            assert all(await binds)
        assert not b.held()


async def test_a_bind_after_the_pod_group_was_deleted_and_berth_was_restarted() -> None:
    async with berthing(NODES) as b:
        pod_group(b, 3)
        for i in range(3):
            labelled(b, f"p{i}")
        await b.settled()
        b.cluster.api.registry.delete(RESOURCES["scheduling.x-k8s.io", "podgroups"], ("default", "job"))
        await eventually(lambda: not b.app.service.cache.store.group_policies, "the PodGroup is gone")
        for i in range(3):
            assert "waits for PodGroup job, which does not exist" in await b.bind(f"p{i}", f"n{i}")
        assert not b.held()


@pytest.mark.parametrize(
    ("minimum", "text"),
    [
        ("1", "disagree about their minimum (berth.dev/group-min): default/p0 has 3, default/p2 has 1"),
        ("many", "'many' is not a number"),
    ],
)
async def test_a_late_bind_of_a_member_whose_minimum_was_edited(minimum: str, text: str) -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        nodes = await planned(b, "p0", "p1", "p2")
        annotate(b, "p2", {"berth.dev/group-min": minimum})
        delete(b, "pods", "p1")
        await ended(b)
        await b.settled()
        for name in ("p0", "p2"):
            error = await b.bind(name, nodes[name])
            assert error
            assert not b.node_of(name)
        assert text in await b.bind("p2", nodes["p2"])
        assert not b.held()
