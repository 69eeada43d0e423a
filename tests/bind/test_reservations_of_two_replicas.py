"""Two replicas bind one pod at once. If the Binding of one fails, it removes no consumer that the other relies on.

Found by `make chaos` on a slow machine: a pod was bound, and its claim was not reserved for it.
"""

from __future__ import annotations

import asyncio

import pytest

from extender.sandbox import ApiError
from tests.worlds.applications import replicas
from tests.worlds.dra_worlds import CLAIMS
from tests.worlds.eventually import eventually
from tests.worlds.interceptions import CUT, NO, Once, SlowWrite
from tests.worlds.running_berth import Serving, berthing, claim, pod
from tests.worlds.tenant_worlds import allocated

pytestmark = pytest.mark.loopback

NODES = {"n1": "t4-4"}


def reserved_for(b: Serving) -> list[str]:
    """The pods for which the claim c is reserved."""
    found = b.cluster.store["resourceclaims", ("default", "c")]["status"].get("reservedFor") or ()
    return sorted(consumer["name"] for consumer in found)


async def create(a: Serving, b: Serving, *names: str) -> None:
    """Create pods that share the claim c, and ask both replicas for their nodes."""
    for name in names:
        a.cluster.apply(pod(name, "c"))
    await asyncio.gather(a.settled(), b.settled())
    for name in names:
        for one in (a, b):
            assert (await one.filter(name))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("lost", [False, True], ids=["undone", "the reply of the undo is lost"])
async def test_a_failed_bind_leaves_the_reservation_of_an_allocated_claim_to_the_other_replica(*, lost: bool) -> None:
    """Both found the claim allocated, and reserve it for the pod. The second Binding is refused; the first is stored
    after the second bind has read that the pod is not bound."""
    async with replicas(NODES) as ((a, b), (_, gate)):
        a.cluster.apply(claim("c"))
        await create(a, b, "first")
        assert await a.bind("first", "n1") == ""
        await create(a, b, "p")
        gate.close()
        sent, go_on = 0, asyncio.Event()
        slow = asyncio.create_task(a.bind("p", "n1"))

        async def meanwhile(method: str, path: str) -> ApiError | None:
            nonlocal sent
            if path.endswith("/binding"):
                sent += 1
                if sent == 2:
                    return NO
                await go_on.wait()
            elif sent == 1 and method == "GET" and path.endswith("/c"):
                gate.open()  # the second bind read the claim after a conflict, and waits until the watch shows it
            return None

        async def bind_first() -> None:
            go_on.set()
            assert await slow == ""

        undo = Once("PATCH", "/c/status", bind_first, CUT if lost else None, if_=lambda: sent == 2)

        async def meanwhile_or_undo(method: str, path: str) -> ApiError | None:
            return await meanwhile(method, path) or (None if lost else await undo(method, path))

        a.cluster.api.intercept, a.cluster.api.intercept_reply = meanwhile_or_undo, undo if lost else None
        await eventually(lambda: sent == 1)
        assert "no" in await b.bind("p", "n1")
        assert undo.done
        assert a.node_of("p") == "n1"
        assert reserved_for(a) == ["first", "p"]


async def test_a_failed_bind_leaves_the_reservation_that_it_allocated_to_the_other_replica() -> None:
    """One replica allocated the claim for the pod, and another pod reserved it. The Binding is refused, and the other
    replica binds the pod after the first has read that the pod is not bound."""
    async with replicas(NODES) as ((a, b), _):
        a.cluster.apply(claim("c"))
        await create(a, b, "p", "second")
        sent, undone, go_on = 0, 0, asyncio.Event()
        failing = asyncio.create_task(a.bind("p", "n1"))

        async def meanwhile(method: str, path: str) -> ApiError | None:
            nonlocal sent, undone
            if path.endswith("/binding"):
                sent += 1
                if sent == 1:
                    await go_on.wait()
                    return NO
            elif go_on.is_set() and method == "PATCH" and path.endswith("/c/status"):
                undone += 1
                if undone == 2:  # the first is the deallocation, which conflicts with the reservation of the other pod
                    assert await b.bind("p", "n1") == ""
            return None

        a.cluster.api.intercept = meanwhile
        await eventually(lambda: sent == 1)
        await b.settled()
        assert await b.bind("second", "n1") == ""
        await b.settled()
        go_on.set()
        assert "no" in await failing
        assert undone >= 2
        assert a.node_of("p") == "n1"
        assert reserved_for(a) == ["p", "second"]


async def test_a_failed_bind_leaves_the_reservation_of_an_allocation_that_it_does_not_know() -> None:
    """The other replica moved the claim, and reserved it for the same pod, before this bind could reserve it."""
    async with berthing(NODES) as b:
        await b.create(claim("c"), pod("first", "c"), pod("p", "c"))
        allocated(b, "c", "gpu-0", "first")
        await b.settled()
        b.cluster.api.intercept = move = Once("PATCH", "/c/status", lambda: allocated(b, "c", "gpu-1", "p"))
        assert "allocated elsewhere" in await b.bind("p", "n1")
        assert move.done
        assert reserved_for(b) == ["p"]


async def test_pods_that_wait_with_a_lost_allocation_do_not_keep_it() -> None:
    """Each found its reservation, and left the claim to the other. Found by `make chaos`, two replicas."""
    async with berthing(NODES) as b:
        await b.create(claim("taken"), pod("owner", "taken"), claim("c"), pod("p", "c"), pod("q", "c"))
        allocated(b, "taken", "gpu-0", "owner")
        await b.settled()
        allocated(b, "c", "gpu-0", "p", "q")
        await b.settled()
        for name in ("p", "q"):
            assert "allocated to another claim first" in await b.bind(name, "n1")
        assert b.held() == [("n1", "gpu-0")]
        assert not b.cluster.store["resourceclaims", ("default", "c")]["status"].get("allocation")
        await b.settled()
        assert await b.bind("q", "n1") == ""
        await b.settled()
        assert await b.bind("p", "n1") == ""
        assert reserved_for(b) == ["p", "q"]


async def test_a_slow_bind_reads_whether_its_reservation_was_removed() -> None:
    """The other replica removed it, and looked for the Binding before it was sent."""
    async with berthing(NODES) as b:
        await b.create(claim("c"), pod("first", "c"), pod("p", "c"))
        assert await b.bind("first", "n1") == ""
        await b.settled()

        def remove() -> None:
            patch = {"status": {"reservedFor": [{"$patch": "delete", "uid": b.pod("p")["metadata"]["uid"]}]}}
            b.cluster.api.registry.patch(CLAIMS, ("default", "c"), patch, "status", strategic=True)

        b.cluster.api.intercept = SlowWrite("/c/status", "/resourceclaims/c", remove)
        assert await b.bind("p", "n1") == "claim default/c was released in the meantime"
        assert b.node_of("p") == ""
