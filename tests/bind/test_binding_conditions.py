"""Bind waits for the binding conditions of a driver, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from extender.api.object_meta import ObjectKey
from extender.api.pods import decode_pod
from extender.cache import ClusterCache
from extender.cluster import utc_now
from extender.policy import Policy
from extender.runtime.informers import WatchProgress
from extender.serve.bind import MAX_WAITING, MAX_WAITING_OF_NAMESPACE, DriverWaits
from extender.serve.gangs.gang_admission import SlotLimits
from extender.web.asgi import VERBS
from tests.worlds.dra_worlds import CLAIMS, CONDITIONAL, asks, custom, place, report
from tests.worlds.eventually import HANG_SECONDS, eventually
from tests.worlds.faulty_world import World
from tests.worlds.running_berth import Berthing, berthing, pod
from tests.worlds.skipping_loop import in_virtual_time
from tests.worlds.tenant_worlds import ALLOCATOR, patch, uid_of

pytestmark = pytest.mark.loopback


@asynccontextmanager
async def waiting_for_driver(policy: Policy | None = None) -> AsyncIterator[Berthing]:
    """The pod p asks for a device that its driver attaches first."""
    async with berthing({"n1": "t4-4"}, policy) as b:
        custom(b, [CONDITIONAL])
        await b.create(asks("p"), pod("p", "p"))
        yield b


async def filtered_pods_of_one_claim(b: Berthing, count: int, notes: dict[str, str] | None = None) -> list[str]:
    """They share a claim for such a device."""
    custom(b, [CONDITIONAL])
    names = [f"p{i}" for i in range(count)]
    await b.create(asks("c"), *(pod(name, "c", annotations=notes) for name in names))
    for name in names:
        assert (await b.filter(name))["NodeNames"] == ["n1"]
    return names


TAKEN_OVER = {"metadata": {"annotations": {ALLOCATOR: "berth-of-another-process"}}}


@pytest.mark.parametrize(
    ("condition", "answer"), [("Attached", ""), ("Broken", "binding conditions of claim default/p failed")]
)
async def test_a_binding_condition_is_seen_when_it_changes(condition: str, answer: str) -> None:
    """The bind waits for the driver, and ends with the event that shows its condition."""
    async with waiting_for_driver() as b:
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
        names = await filtered_pods_of_one_claim(b, 6)
        binds = [asyncio.create_task(b.bind(name, "n1")) for name in names]
        await eventually(lambda: len(b.claims()[0]["status"].get("reservedFor") or ()) == len(names))
        report(b, "c", "Broken")
        assert set(await asyncio.gather(*binds)) == {"binding conditions of claim default/c failed"}
        assert not b.held()
        assert not b.claims()[0]["status"].get("reservedFor")


@pytest.mark.parametrize("taken_over", [False, True])
async def test_an_allocation_that_was_found_and_failed_is_freed_unless_another_process_goes_on_with_it(
    *, taken_over: bool
) -> None:
    """The in-tree plugin allocated it before; or another replica takes it over while the bind looks at it."""
    async with waiting_for_driver() as b:
        result = {"request": "gpu", "driver": "d.example.com", "pool": "n1", "device": "fabric-0"}
        conditions = {key: CONDITIONAL[key] for key in ("bindingConditions", "bindingFailureConditions")}
        entry = {"resource": "pods", "name": "p", "uid": uid_of(b, "p")}
        status = {"allocation": {"devices": {"results": [{**result, **conditions}]}}, "reservedFor": [entry]}
        patch(b, "p", {"status": status}, "status")
        report(b, "p", "Broken")
        reads = 0

        async def take_over(method: str, path: str) -> None:
            nonlocal reads
            if method == "GET" and path.endswith("/resourceclaims/p"):
                reads += 1
                if reads == 2 and taken_over:  # the first read is that of the bind, the second that of its undo
                    patch(b, "p", TAKEN_OVER)

        b.cluster.api.intercept = take_over
        assert await place(b, "p") == "binding conditions of claim default/p failed"
        assert len(b.held()) == taken_over
        assert reads >= 2


async def test_a_bind_stops_if_another_process_takes_the_claim_over_while_it_waits_for_the_driver() -> None:
    async with waiting_for_driver() as b:
        bind = asyncio.create_task(place(b, "p"))
        await eventually(lambda: b.app.service.binder.write_barrier.waits or bind.done())
        patch(b, "p", TAKEN_OVER)
        await b.settled()
        report(b, "p", "Attached")
        assert await bind == "claim default/p was taken over by another process"
        assert (b.node_of("p"), len(b.held())) == ("", 1), "the other process goes on with the allocation"


async def test_drivers_have_the_binding_timeout_of_the_policy() -> None:
    async with waiting_for_driver(Policy(binding_timeout_seconds=1)) as b:
        assert await place(b, "p") == "binding conditions of claim default/p are not met: binding timeout"
        assert b.held() == []


async def test_one_call_waits_for_drivers_as_long_as_the_policy_says() -> None:
    """After that the allocation stays, and the scheduler's next call goes on with it."""
    async with waiting_for_driver(Policy(binding_wait_seconds=1)) as b:
        assert await place(b, "p") == "waiting for binding conditions of claim default/p"
        assert len(b.held()) == 1
        report(b, "p", "Attached")
        assert await place(b, "p") == ""
        assert b.node_of("p") == "n1"


async def test_a_process_that_ends_leaves_the_wait_for_drivers_to_the_next() -> None:
    async with waiting_for_driver(Policy(binding_wait_seconds=600)) as b:
        bind = asyncio.create_task(place(b, "p"))
        await eventually(lambda: b.held() or bind.done())
        await b.app.service.binder.drain(HANG_SECONDS)
        assert await bind == "waiting for binding conditions of claim default/p"
        assert len(b.held()) == 1, "the allocation stays for the scheduler's next try"


# -- how many wait -------------------------------------------------------------------------------------------------


def test_the_places_are_for_all_namespaces() -> None:
    waits = DriverWaits(ClusterCache(), WatchProgress(), utc_now)
    with ExitStack() as stack:
        given = [stack.enter_context(waits.slot(name)) for name in "a" * 33 + "b" * 17 + "c"]
    assert given == [True] * 32 + [False] + [True] * 16 + [False, False]
    with ExitStack() as stack:
        assert all(stack.enter_context(waits.slot("a")) for _ in range(32)), "the slots are free again"


def test_the_places_of_gangs_and_of_pods_that_wait_for_drivers_leave_connections_to_others() -> None:
    assert SlotLimits().total + MAX_WAITING + 16 <= VERBS.connections


@pytest.mark.parametrize("minimum", [0, 2])
async def test_pods_of_one_namespace_that_wait_for_drivers_do_not_take_all_connections(minimum: int) -> None:
    """Also those of a gang beyond its minimum, which has slots for its minimum only."""
    async with berthing({"n1": "t4-4"}) as b:
        notes = {"berth.dev/group": "job", "berth.dev/group-min": str(minimum)} if minimum else {}
        names = await filtered_pods_of_one_claim(b, MAX_WAITING_OF_NAMESPACE + minimum + 5, notes)
        binds = {name: asyncio.create_task(b.bind(name, "n1")) for name in names}
        await eventually(lambda: sum(task.done() for task in binds.values()) == 5, "those without a slot end")
        rejected = [name for name, task in binds.items() if task.done()]
        assert {await binds.pop(name) for name in rejected} == {
            "too many pods wait for binding conditions, as those of claim default/c"
        }
        report(b, "c", "Attached")
        assert set(await asyncio.gather(*binds.values())) == {""}
        assert {await b.bind(name, "n1") for name in rejected} == {""}, "kube-scheduler calls again"


def test_a_bind_whose_allocation_is_released_while_it_waits_for_a_driver_sends_no_binding() -> None:
    """Another allocator takes it back, which marks no claim. The bind is quick, so only the watch shows that."""

    async def released() -> tuple[World, str]:
        world = World(1)
        await world.replicas[0].start()
        service, cluster = world.replicas[0].service, world.cluster
        assert service is not None
        custom(world, [CONDITIONAL])
        cluster.apply(asks("c"))
        made = cluster.apply(pod("p", "c"))
        await eventually(lambda: service.filter(decode_pod(made), ["n1"]).passed)
        bind = asyncio.create_task(service.bind(ObjectKey("default", "p"), made["metadata"]["uid"], "n1"))
        await eventually(lambda: any(one.allocation for one in service.cache.store.claims.values()))
        change = {"status": {"allocation": None, "reservedFor": None}}
        cluster.api.registry.patch(CLAIMS, ("default", "c"), change, "status", strategic=False)
        (error,) = await asyncio.gather(bind, return_exceptions=True)
        await world.replicas[0].stop()
        return world, str(error)

    world, error = in_virtual_time(released())
    assert error == "claim default/c was released in the meantime"
    assert not world.checker.bound
