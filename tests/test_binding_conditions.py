"""Bind waits for the binding conditions of a driver, over real HTTP."""

from __future__ import annotations

import asyncio

import pytest

from extender.policy import Policy
from tests.dra_worlds import CLAIMS, CONDITIONAL, asks, custom, place, report
from tests.eventually import HANG_SECONDS, eventually
from tests.running_berth import berthing, pod


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("Attached", ""),
        ("Broken", "binding conditions of claim default/p failed"),
    ],
)
async def test_a_binding_condition_is_seen_when_it_changes(condition: str, answer: str) -> None:
    """The bind waits for the driver, and ends with the event that shows its condition."""
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [CONDITIONAL])
        b.cluster.apply(asks("p"))
        b.cluster.apply(pod("p", "p"))
        bind = asyncio.create_task(place(b, "p"))
        await eventually(lambda: b.held() or bind.done())
        assert b.node_of("p") == ""
        assert not bind.done()
        report(b, "p", condition)
        assert await bind == answer
        assert (b.node_of("p"), len(b.held())) == (("n1", 1) if not answer else ("", 0))


async def test_pods_that_share_a_claim_with_failed_conditions_give_it_up_together() -> None:
    """The last of them deallocates it."""
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [CONDITIONAL])
        b.cluster.apply(asks("c"))
        names = [f"p{i}" for i in range(6)]
        for name in names:
            b.cluster.apply(pod(name, "c"))
        await b.settled()
        for name in names:
            assert (await b.filter(name))["NodeNames"] == ["n1"]
        binds = [asyncio.create_task(b.bind(name, "n1")) for name in names]
        await eventually(lambda: len(b.claims()[0]["status"].get("reservedFor") or ()) == len(names))
        report(b, "c", "Broken")
        assert set(await asyncio.gather(*binds)) == {"binding conditions of claim default/c failed"}
        assert not b.held()
        assert not b.claims()[0]["status"].get("reservedFor")


@pytest.mark.parametrize(("writer", "held"), [("", 0), ("berth-of-another-process", 1)])
async def test_an_allocation_that_was_found_and_failed_is_freed_unless_another_process_goes_on_with_it(
    writer: str, held: int
) -> None:
    """The in-tree plugin allocated it before; or another replica takes it over while the bind looks at it."""
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [CONDITIONAL])
        b.cluster.apply(asks("p"))
        uid = b.cluster.apply(pod("p", "p"))["metadata"]["uid"]
        result = {"request": "gpu", "driver": "d.example.com", "pool": "n1", "device": "fabric-0"}
        conditions = {key: CONDITIONAL[key] for key in ("bindingConditions", "bindingFailureConditions")}
        entry = {"resource": "pods", "name": "p", "uid": uid}
        status = {"allocation": {"devices": {"results": [{**result, **conditions}]}}, "reservedFor": [entry]}
        registry = b.cluster.api.registry
        registry.patch(CLAIMS, ("default", "p"), {"status": status}, "status", strategic=False)
        report(b, "p", "Broken")
        reads = 0

        async def take_over(method: str, path: str) -> None:
            nonlocal reads
            if method == "GET" and path.endswith("/resourceclaims/p"):
                reads += 1
                if reads == 2 and writer:  # the first read is that of the bind, the second that of its undo
                    mark = {"metadata": {"annotations": {"berth.dev/allocator": writer}}}
                    registry.patch(CLAIMS, ("default", "p"), mark, "", strategic=False)

        b.cluster.api.intercept = take_over
        assert await place(b, "p") == "binding conditions of claim default/p failed"
        assert len(b.held()) == held
        assert reads >= 2


async def test_drivers_have_the_binding_timeout_of_the_policy() -> None:
    async with berthing({"n1": "t4-4"}, Policy(binding_timeout_seconds=1)) as b:
        custom(b, [CONDITIONAL])
        b.cluster.apply(asks("p"))
        b.cluster.apply(pod("p", "p"))
        assert await place(b, "p") == "binding conditions of claim default/p are not met: binding timeout"
        assert b.held() == []


async def test_one_call_waits_for_drivers_as_long_as_the_policy_says() -> None:
    """After that the allocation stays, and the scheduler's next call goes on with it."""
    async with berthing({"n1": "t4-4"}, Policy(binding_wait_seconds=1)) as b:
        custom(b, [CONDITIONAL])
        b.cluster.apply(asks("p"))
        b.cluster.apply(pod("p", "p"))
        assert await place(b, "p") == "waiting for binding conditions of claim default/p"
        assert len(b.held()) == 1
        report(b, "p", "Attached")
        assert await place(b, "p") == ""
        assert b.node_of("p") == "n1"


async def test_a_process_that_ends_leaves_the_wait_for_drivers_to_the_next() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [CONDITIONAL])
        b.cluster.apply(asks("p"))
        b.cluster.apply(pod("p", "p"))
        bind = asyncio.create_task(place(b, "p"))
        await eventually(lambda: b.held() or bind.done())
        await b.app.service.binder.drain(HANG_SECONDS)
        assert await bind == "waiting for binding conditions of claim default/p"
        assert len(b.held()) == 1, "the allocation stays for the scheduler's next try"
