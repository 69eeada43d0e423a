"""A member of a committed gang whose Binding the API server refuses: it comes back to its devices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from extender.sandbox import ApiError
from tests.worlds.dra_worlds import CLAIMS, extended
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import NODES, bind_all, create_gang, delete, gets_a_node, member, planned, reasons
from tests.worlds.running_berth import Berthing, berthing, claim, pod
from tests.worlds.tenant_worlds import leftover, stored

pytestmark = pytest.mark.early_timers

FORBIDDEN = ApiError(403, "Forbidden", "not now")


@asynccontextmanager
async def refused() -> AsyncIterator[tuple[Berthing, str, set[tuple[str, str]]]]:
    """p0 and p1 of a gang are bound, and the API server has refused the Binding of p2: its node and its devices."""
    async with berthing(NODES) as b:
        for i in range(3):
            member(b, f"p{i}", gpus=7)
        await b.create(claim("single", 2), pod("alone", "single"))
        nodes = await planned(b, "p0", "p1", "p2")
        service = b.app.service
        held = service.cache.reservations.held_for(b.pod("p2")["metadata"]["uid"])
        devices = {(result.device.pool, result.device.device) for result in held}

        async def refuse(_: str, path: str) -> ApiError | None:
            return FORBIDDEN if path.endswith("pods/p2/binding") else None

        b.cluster.api.intercept = refuse
        answers = await bind_all(b, nodes)
        b.cluster.api.intercept = None
        assert answers[:2] == ["", ""]
        assert "not now" in answers[2]
        assert len(b.held()) == 14, "the claim of p2 is released"
        await b.settled()
        yield b, nodes["p2"], devices


async def test_a_refused_member_keeps_its_devices_and_is_bound_at_its_next_attempt() -> None:
    async with refused() as (b, node, devices):
        assert not (await b.filter("alone"))["NodeNames"], "no other pod gets the devices of p2 meanwhile"
        assert await planned(b, "p2") == {"p2": node}
        assert await b.bind("p2", node) == ""
        assert {(pool, device) for pool, device in b.held() if pool == node} == devices
        assert not b.app.service.gangs.forming
        assert not b.app.service.cache.reservations.holds


async def test_events_of_its_claim_do_not_take_the_devices_of_a_refused_member() -> None:
    """A driver writes its status while the claim is still allocated: the bind undoes its writes."""
    async with berthing(NODES) as b:
        await create_gang(b, 3, gpus=7)
        nodes, cache = await planned(b, "p0", "p1", "p2"), b.app.service.cache
        uid, events = b.pod("p2")["metadata"]["uid"], 0
        devices = cache.reservations.held_for(uid)

        async def refuse(method: str, path: str) -> ApiError | None:
            nonlocal events
            if method == "GET" and path.endswith("pods/p2") and not events:
                events += 1
                label = {"metadata": {"labels": {"seen": "yes"}}}
                b.cluster.api.registry.patch(CLAIMS, ("default", "p2-gpus"), label, "", strategic=False)
                await b.settled()
            return FORBIDDEN if path.endswith("pods/p2/binding") else None

        b.cluster.api.intercept = refuse
        assert "not now" in (await bind_all(b, nodes))[2]
        assert events, "the undo reads the pod while its claim is allocated"
        await b.settled()
        assert len(b.held()) == 14, "the claim of p2 is released"
        assert cache.reservations.held_for(uid) == devices


async def test_a_refused_member_that_does_not_come_back_leaves_its_devices_to_others() -> None:
    async with refused() as (b, node, _):
        delete(b, "pods", "p2")
        await eventually(lambda: not b.app.service.gangs.forming, "the plan ended")
        assert (await b.filter("alone"))["NodeNames"] == [node]


async def test_a_refused_member_whose_node_is_not_offered_is_placed_alone() -> None:
    async with refused() as (b, node, _):
        found = await b.filter("p2", [name for name in NODES if name != node])
        assert not found["NodeNames"], "p0 and p1 have the other nodes"
        assert not b.app.service.gangs.forming
        await eventually(lambda: gets_a_node(b, "p2"), "the bound pods are read")
        assert await planned(b, "p2") == {"p2": node}
        assert await b.bind("p2", node) == ""


async def test_a_member_that_is_deleted_during_its_bind_leaves_its_devices_to_others() -> None:
    """All others are bound, so the plan has ended when the bind fails."""
    async with berthing(NODES) as b:
        await create_gang(b, 3, timeout="24h")
        nodes = await planned(b, "p0", "p1", "p2")
        sent, go_on = asyncio.Event(), asyncio.Event()

        async def not_found(_: str, path: str) -> ApiError | None:
            if not path.endswith("/p2/binding"):
                return None
            sent.set()
            await go_on.wait()
            return ApiError(404, "NotFound", "no pod p2")

        b.cluster.api.intercept = not_found
        uid, cache = b.pod("p2")["metadata"]["uid"], b.app.service.cache
        binds = [asyncio.create_task(b.bind(name, node)) for name, node in nodes.items()]
        await sent.wait()
        assert [await bind for bind in binds[:2]] == ["", ""]
        delete(b, "pods", "p2")
        await eventually(lambda: uid not in cache.store.pods, "Berth knows that the pod is gone")
        go_on.set()
        assert await binds[2] == "no pod p2"
        assert not cache.reservations.by_claim
        await eventually(lambda: len(b.held()) == 16, "the allocation is released")


async def test_claims_for_extended_resources_of_an_earlier_attempt_are_removed() -> None:
    """Berth died after it had allocated the claim of p1, and before the pod's status named the claim."""
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        notes = {"berth.dev/group": "job", "berth.dev/group-min": "2"}
        for name in ("p1", "p2"):
            b.cluster.apply(extended(name, annotations=notes))
        name = await leftover(b)
        text = "the extended-resource claim of an earlier attempt is being removed"
        assert await reasons(b, "p2") == {text}
        await eventually(lambda: stored(b, name) is None, "the orphan collector removes the claim")
        await b.settled()

        async def is_planned() -> bool:
            return bool((await b.filter("p2"))["NodeNames"])

        await eventually(is_planned, "the pause ends")
        assert set(await bind_all(b, await planned(b, "p1", "p2"))) == {""}
