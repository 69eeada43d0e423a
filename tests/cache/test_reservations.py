"""Every end of a hold frees its devices and wakes the pods that were rejected because of it."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.fleet import Fleet
from extender.api.object_meta import ObjectKey
from extender.api.resource_claims import Allocation, Claim, Result
from extender.api.resource_slices import DeviceId
from extender.cache import ClusterCache
from extender.policy import Policy
from extender.sandbox import ApiError
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.cache_worlds import Freed
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Berthing, berthing, claim, pod

pytestmark = pytest.mark.loopback


async def refused(b: Berthing, name: str, count: int) -> str:
    """Filter a new pod for which no device is left; returns the reason."""
    await b.create(claim(name, count), pod(name, name))
    answer = await b.filter(name)
    assert not answer["NodeNames"]
    return answer["FailedAndUnresolvableNodes"]["n1"]


async def held(b: Berthing, name: str, count: int) -> None:
    await b.create(claim(name, count), pod(name, name))
    assert (await b.filter(name))["NodeNames"] == ["n1"]


async def woken(b: Berthing, name: str) -> None:
    """Berth touches the marker class without a request, and the pod then fits."""
    await eventually(lambda: b.app.service.requeuer.touches > 0)
    assert (await b.filter(name))["NodeNames"] == ["n1"]


async def test_a_deadline_ends_holds_and_wakes() -> None:
    """A gang of three that cannot fit holds what there is; a single pod is rejected once and woken when the holds
    end."""
    now = [0.0]
    async with berthing({"n1": "t4-4"}, Policy(hold_seconds=1), clock=lambda: now[0]) as b:
        await held(b, "gang-0", 2)
        await held(b, "gang-1", 2)
        await refused(b, "gang-2", 2)
        assert "held by a pod being scheduled" in await refused(b, "single", 1)
        now[0] = 1.0
        await eventually(lambda: b.app.service.cache.reservations.holds == 0)
        await woken(b, "single")


async def test_the_end_of_the_holding_pod_wakes() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await held(b, "p", 4)
        assert "held by a pod being scheduled" in await refused(b, "q", 4)
        b.cluster.api.registry.delete(RESOURCES["", "pods"], ("default", "p"))
        await woken(b, "q")


async def test_a_hold_that_a_refused_pod_had_wakes() -> None:
    """The pod is filtered again without the node that is held for it."""
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        await b.create(claim("p", 4), pod("p", "p"))
        assert (await b.filter("p", ["n1"]))["NodeNames"] == ["n1"]
        await b.create(claim("q", 4), pod("q", "q"))
        assert not (await b.filter("q", ["n1"]))["NodeNames"]
        assert not (await b.filter("p", ["elsewhere"]))["NodeNames"]
        await eventually(lambda: b.app.service.requeuer.touches > 0)
        assert (await b.filter("q", ["n1"]))["NodeNames"] == ["n1"]


async def test_a_failed_bind_wakes() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await held(b, "p", 4)
        writing = asyncio.Event()

        async def refuse(method: str, path: str) -> ApiError | None:
            if method == "PATCH" and path.endswith("/resourceclaims/p"):
                await writing.wait()
                return ApiError(403, "Forbidden", "no")
            return None

        b.cluster.api.intercept = refuse
        bind = asyncio.create_task(b.bind("p", "n1"))
        await eventually(lambda: bool(b.app.service.cache.reservations.in_flight))
        await refused(b, "q", 4)
        writing.set()
        assert "no" in await bind
        await woken(b, "q")


@pytest.mark.parametrize(
    ("reserved", "allocated", "frees"),
    [("c", "gpu-0", 0), ("c", "gpu-1", 1), ("extended/p", "gpu-0", 1)],
    ids=["the devices of the bind", "those of another process", "a share of the pod's special claim"],
)
def test_the_end_of_a_bind_wakes_if_the_claim_lacks_its_devices(reserved: str, allocated: str, frees: int) -> None:
    """A special claim gets its own UID when the bind creates it, so until the bind ends its share counts twice."""
    listener, device = Freed(), DeviceId("gpu.nvidia.com", "n1", "gpu-0")
    cache = ClusterCache()
    cache.listeners.append(listener)
    cache.assume(reserved, "p", "n1", (Result("gpu", device),))
    allocation = Allocation((Result("gpu", device._replace(device=allocated)),))
    key = ObjectKey("default", "c")
    cache.apply_claim(key, Claim(key, "c", "5", allocation=allocation))
    cache.confirm(reserved)
    assert not cache.reservations.by_claim
    assert listener.count == frees


def test_waking_does_not_feed_itself() -> None:
    """A pod that is rejected again after it was woken frees nothing, so nothing wakes it a second time."""
    listener = Freed()
    fleet = Fleet("mixed")
    fleet.cache.listeners.append(listener)
    fleet.fill(1, 0.0)
    assert fleet.filter(fleet.pod("p", 1, 8)).passed
    waits = fleet.pod("q", 1, 8)
    assert not fleet.filter(waits).passed
    fleet.now += Policy().hold_seconds
    fleet.cache.expire(fleet.now)
    assert listener.count == 1
    for _ in range(3):
        assert not fleet.filter(waits, ["elsewhere"]).passed
    assert listener.count == 1
