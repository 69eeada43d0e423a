"""After a plan that failed, the reason of all members names one pod that kube-scheduler did not bind."""

from __future__ import annotations

import asyncio

import pytest

from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import NODES, create_gang, member, planned, reasons, say_unschedulable
from tests.worlds.running_berth import Berthing, berthing

CPU = "0/3 nodes are available: 3 Insufficient cpu."


def refused(name: str) -> set[str]:
    told = "kube-scheduler accepts no planned node for pod default/{} of group job: it is planned again after a pause"
    return {told.format(name)}


def late(name: str) -> set[str]:
    return {f"kube-scheduler did not bind pod default/{name} of group job in time: it is planned again after a pause"}


async def ended(b: Berthing) -> None:
    await eventually(lambda: not b.app.service.gangs.forming, "the plan ended")


async def test_a_pod_for_which_kube_scheduler_finds_no_node() -> None:
    async with berthing(NODES) as b:
        await create_gang(b, 3)
        await planned(b, "p0", "p1")
        say_unschedulable(b, "p2", CPU)
        await ended(b)
        for i in range(3):
            assert await reasons(b, f"p{i}") == refused("p2")


@pytest.mark.parametrize("found_no_node", [False, True])
async def test_a_pod_whose_bind_does_not_come(found_no_node: bool) -> None:
    """If kube-scheduler had found no node for a pod before the plan, that pod is the one to look at."""
    now = [0.0]
    async with berthing(NODES, clock=lambda: now[0]) as b:
        for i in range(3):
            member(b, f"p{i}")
        if found_no_node:
            say_unschedulable(b, "p2", CPU)
        await b.settled()
        nodes = await planned(b, "p0")
        bind = asyncio.create_task(b.bind("p0", nodes["p0"]))
        plan = next(iter(b.app.service.gangs.forming.values()))
        await eventually(lambda: plan.arrived, "the bind arrived")
        now[0] = plan.deadline
        assert await reasons(b, "p0") == (refused("p2") if found_no_node else late("p1"))
        assert "2 of 3 pods of group job did not reach bind in time" in await bind


async def test_of_equal_pods_the_same_one_is_named_after_each_attempt() -> None:
    """kube-scheduler retries a pod whose reason changes, and refuses the pod that it tries last."""
    now = [0.0]
    async with berthing(NODES, clock=lambda: now[0]) as b:
        member(b, "launcher", gpus=1)
        await create_gang(b, 2, minimum=3)
        told = []
        for number, last in enumerate(("p1", "p0", "launcher", "p1")):
            await planned(b, *{"launcher", "p0", "p1"} - {last})
            say_unschedulable(b, last, f"attempt {number}: {CPU}")
            await ended(b)
            told.append(await reasons(b, "p0"))
            now[0] += 60.0
        assert told == [refused("p1"), refused("p1"), refused("launcher"), refused("p1")]
