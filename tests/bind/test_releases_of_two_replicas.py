"""One replica takes an allocation back, and the other is about to bind the pod: no pod is bound without its devices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extender.sandbox import ApiError
from extender.sandbox.apiserver.registry import RESOURCES
from extender.serve.undo import IN_FLIGHT_GRACE_SECONDS
from tests.worlds.applications import replicas
from tests.worlds.eventually import eventually
from tests.worlds.interceptions import Holding, Once, SlowWrite
from tests.worlds.running_berth import Serving, berthing, claim, one_node, pod
from tests.worlds.tenant_worlds import allocated, allocated_twice, patch, stored

pytestmark = pytest.mark.loopback

Json = dict[str, Any]
CLAIMS, ALLOCATOR = RESOURCES["resource.k8s.io", "resourceclaims"], "berth.dev/allocator"
OTHER: Json = {"metadata": {"annotations": {ALLOCATOR: "berth-other"}}}
RELEASED: Json = {"status": {"allocation": None, "reservedFor": None}}


def has_devices(b: Serving, name: str) -> bool:
    return bool(stored(b, name)["status"].get("allocation"))


async def test_an_unsuitable_allocation_stays_if_the_binding_of_the_other_replica_is_on_its_way() -> None:
    """The scheduler of one replica cannot use the claim's node; the other replica is about to bind the pod there."""
    nodes = {"n1": "t4-4", "n2": "t4-4", "n3": "t4-4"}
    async with replicas(nodes, claim("c"), pod("p", "c")) as ((a, b), _):
        assert "n1" in (await a.filter("p"))["NodeNames"]
        hold_back = Holding("/binding")

        async def bind_now() -> None:
            hold_back.go_on.set()
            assert await slow == ""

        a.cluster.api.intercept, a.cluster.api.intercept_reply = hold_back, Once("GET", "/pods/p", bind_now)
        slow = asyncio.create_task(a.bind("p", "n1"))
        await hold_back.sent.wait()
        await b.settled()
        assert not (await b.filter("p", ["n2", "n3"]))["NodeNames"]
        await eventually(lambda: b.app.service.orphans.skipped + b.app.service.orphans.unsuitable)
        assert a.node_of("p") == "n1"
        assert has_devices(a, "c")


async def test_a_slow_bind_reads_whether_its_own_allocation_was_released() -> None:
    """Another replica did so after the write barrier: the watch has not shown it yet."""
    async with one_node(claim("c"), pod("p", "c")) as b:
        release = SlowWrite("/c/status", "/resourceclaims/c", lambda: patch(b, "c", RELEASED, "status"))
        b.cluster.api.intercept = release
        assert await b.bind("p", "n1") == "claim default/c was released in the meantime"
        assert b.node_of("p") == ""


async def test_a_bind_whose_reads_are_slow_reads_its_claims_again() -> None:
    """The first claim may have been released while the API server took long to return the second."""
    async with one_node(claim("c1"), claim("c2"), pod("p", "c1", "c2")) as b:

        async def release() -> None:
            await asyncio.sleep(IN_FLIGHT_GRACE_SECONDS)
            patch(b, "c1", RELEASED, "status")

        b.cluster.api.intercept = SlowWrite("/c2/status", "/resourceclaims/c2", release)
        assert await b.bind("p", "n1") == "claim default/c1 was released in the meantime"
        assert b.node_of("p") == ""


async def test_an_api_server_that_is_always_slow_does_not_keep_a_pod_from_being_bound() -> None:
    """256 binds of one claim once read it again and again until their time was over."""
    async with one_node(claim("c"), pod("p", "c")) as b:

        async def take_time(method: str, path: str) -> None:
            if path.endswith(("/resourceclaims/c", "/c/status")):
                await asyncio.sleep(0.6 * IN_FLIGHT_GRACE_SECONDS)

        b.cluster.api.intercept = take_time
        assert await b.bind("p", "n1") == ""


async def test_a_slow_bind_reads_whether_the_first_writer_of_its_allocation_has_marked_it_again() -> None:
    """That process may be about to take the allocation back."""
    async with one_node(claim("c"), pod("first", "c"), pod("p", "c")) as b:
        allocated(b, "c", "gpu-0", "first", "p")
        await b.settled()
        mark_again = SlowWrite("/resourceclaims/c", "/resourceclaims/c", lambda: patch(b, "c", OTHER))
        b.cluster.api.intercept = mark_again
        assert await b.bind("p", "n1") == "claim default/c was taken over by another process"
        assert b.node_of("p") == ""


async def test_a_lost_device_is_not_released_from_a_pod_that_another_replica_has_just_marked_and_bound() -> None:
    """The other replica saw no earlier claim with the device: it knows the order of the two writes."""
    async with berthing({"n1": "t4-4"}) as b:
        await allocated_twice(b, "first", "c")
        marks = iter(("berth-other-bind", "berth-other-retry"))
        marked = 0

        async def mark(method: str, path: str) -> None:
            nonlocal marked
            if method == "GET" and path.endswith("/resourceclaims/c"):
                for one in marks:
                    patch(b, "c", {"metadata": {"annotations": {ALLOCATOR: one}}})
                    marked += 1
                    break

        async def bind_it(method: str, path: str) -> ApiError | None:
            if method == "GET" and path.endswith("/pods/p-c") and marked == 2 and not b.node_of("p-c"):
                b.cluster.api.registry.bind(("default", "p-c"), {"target": {"name": "n1"}})
            return None

        b.cluster.api.intercept, b.cluster.api.intercept_reply = mark, bind_it
        assert "was allocated to another claim first" in await b.bind("p-c", "n1")
        assert b.node_of("p-c") == "n1"
        assert has_devices(b, "c")


async def test_a_claim_that_was_allocated_again_while_a_bind_reserved_it_is_checked_as_of_that_time() -> None:
    """The allocation looks as before: the same device, within the same second. Another claim was in between."""
    async with replicas({"n1": "t4-4"}) as ((a, _), (gate, _)):
        await a.create(claim("c"), pod("first", "c"), pod("p", "c"), claim("between"), pod("owner", "between"))
        allocated(a, "c", "gpu-0", "first")
        await a.settled()
        assert (await a.filter("p"))["NodeNames"] == ["n1"]
        gate.close()

        async def allocated_again(method: str, path: str) -> None:
            if method == "PATCH" and path.endswith("/c/status") and not has_devices(a, "between"):
                patch(a, "c", RELEASED, "status")
                allocated(a, "between", "gpu-0", "owner")
                allocated(a, "c", "gpu-0", "first")

        a.cluster.api.intercept = allocated_again
        bind = asyncio.create_task(a.bind("p", "n1"))
        await eventually(lambda: bind.done() or len(stored(a, "c")["status"]["reservedFor"]) > 1)
        gate.open()
        assert "was allocated to another claim first" in await bind
        assert a.node_of("p") == ""
