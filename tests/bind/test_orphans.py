"""The collector of orphans releases what no pod can use, leaves a claim alone that is no longer Berth's, and forgets
the claims that are gone."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from functools import partial
from typing import cast

import pytest

from extender.api.object_meta import ObjectKey
from extender.api.resource_claims import Claim, Consumer
from extender.cache import ClusterCache
from extender.cluster import ApiClient, NotFound, Writer
from extender.runtime.supervisor import Supervisor
from extender.sandbox import ApiError
from extender.serve.orphans import OrphanCollector, Releases
from tests.worlds.dra_worlds import CLAIMS
from tests.worlds.eventually import eventually
from tests.worlds.interceptions import Once
from tests.worlds.running_berth import Berthing, berthing, claim, one_node, pod
from tests.worlds.tenant_worlds import ALLOCATOR, allocated, collector_without_grace, intercept, patch, stored, swept

pytestmark = pytest.mark.loopback


async def test_an_allocation_that_lost_its_allocator_is_not_released() -> None:
    """The watch has not shown yet that another writer has the claim now."""
    async with one_node(claim("c")) as b:
        allocated(b, "c", "gpu-0")
        await b.settled()
        lost = {"metadata": {"annotations": {ALLOCATOR: None}}}
        b.cluster.api.intercept = Once("GET", "/resourceclaims/c", lambda: patch(b, "c", lost))
        orphans = await swept(b)
        assert (orphans.skipped, orphans.without_consumer) == (1, 0)
        assert stored(b, "c")["status"]["allocation"]


async def fail_to_undo(b: Berthing, *finalizers: str) -> None:
    """The claim `other` of a pod is deleted during its bind, and the undo cannot release the allocation of `c`."""
    other = claim("other")
    other["metadata"]["finalizers"] = list(finalizers)
    await b.create(claim("c"), other, pod("p", "c", "other"))

    def fail(method: str, path: str) -> ApiError | None:
        if method == "PATCH" and path.endswith("/other"):
            b.cluster.api.registry.delete(CLAIMS, ("default", "other"))
        undoes = method == "PATCH" and path.endswith("/c/status") and has_devices(b)
        return ApiError(403, "Forbidden", "no") if undoes else None

    intercept(b, fail)
    assert "other" in await b.bind("p", "n1")
    assert has_devices(b)
    b.cluster.api.intercept = None
    await b.settled()


def has_devices(b: Berthing) -> bool:
    return bool(stored(b, "c")["status"].get("allocation"))


@pytest.mark.parametrize("finalizers", [(), ("example.org/keeps-it",)], ids=["gone", "terminates"])
async def test_the_allocation_of_a_pod_that_lacks_another_claim_is_released(finalizers: tuple[str, ...]) -> None:
    """kube-scheduler does not try such a pod, so no filter request comes."""
    async with berthing({"n1": "t4-4"}) as b:
        await fail_to_undo(b, *finalizers)
        collector_with_grace = b.app.service.orphans
        await collector_with_grace.sweep()
        assert not collector_with_grace.busy
        orphans = await swept(b)
        assert not has_devices(b)
        assert not stored(b, "c")["status"].get("reservedFor")
        assert (orphans.unsuitable, orphans.skipped) == (1, 0)


async def test_the_allocation_of_a_pod_that_lacks_another_claim_stays_if_the_pod_is_bound_by_now() -> None:
    """Another scheduler did so, and the watch has not shown that yet."""
    async with berthing({"n1": "t4-4"}) as b:
        await fail_to_undo(b)
        b.cluster.api.registry.bind(("default", "p"), {"target": {"name": "n1"}})
        orphans = await swept(b)
        assert has_devices(b)
        assert (orphans.unsuitable, orphans.skipped) == (0, 1)


async def test_the_allocation_of_another_allocator_stays_though_its_pod_lacks_another_claim() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await fail_to_undo(b)
        patch(b, "c", {"metadata": {"annotations": {ALLOCATOR: None}}})
        await b.settled()
        orphans = collector_without_grace(b)
        await orphans.sweep()
        assert not orphans.busy
        assert has_devices(b)


async def test_the_allocation_of_a_waiting_pod_with_all_its_claims_stays() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        await fail_to_undo(b)
        await b.create(claim("other"))
        orphans = collector_without_grace(b)
        await orphans.sweep()
        assert not orphans.busy


async def test_special_claims_that_are_gone_take_no_memory() -> None:
    """A filter request met each one, and then the claim was deleted."""

    class Gone(Writer):
        async def read_claim(self, key: ObjectKey) -> Claim:
            raise NotFound(str(key))

    cache = ClusterCache()
    writer = Gone(cast("ApiClient", None), "test")
    orphans = OrphanCollector(cache, writer, lambda: 0.0, Supervisor(), lambda _: False)

    def meet(numbers: range) -> None:
        for number in numbers:
            key = ObjectKey("default", f"p{number}-extended-resources-abcde")
            pod = Consumer(f"uid-of-p{number}", f"p{number}")
            made = Claim(
                key, f"u{number}", reserved_for=(pod,), owner_pod_uid=pod.uid, allocator="other", extended=True
            )
            cache.apply_claim(key, made)
            orphans.remove_stale_special(key)
            cache.apply_claim(key, None)

    async def forget() -> None:
        await eventually(lambda: not orphans.busy)
        await orphans.sweep()
        gc.collect()

    tracemalloc.start()
    try:
        meet(range(1000))
        await forget()
        before, _ = tracemalloc.get_traced_memory()  # with tables that stay, and are bounded
        meet(range(1000, 2000))
        gc.collect()
        known, _ = tracemalloc.get_traced_memory()
        await forget()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert known - before > 200_000, "until the next sweep, the collector knows all"
    assert left - before < 50_000


async def test_releases_of_one_namespace_leave_connections_and_turns_to_others() -> None:
    """A filter request for a pod starts up to 64: 100 pods had thousands of requests under way at a time."""
    began, go_on, supervisor = list[str](), asyncio.Event(), Supervisor()

    class Reads(Writer):
        async def read_claim(self, key: ObjectKey) -> Claim:
            began.append(key.namespace)
            await go_on.wait()
            raise NotFound("gone")

    writer = Reads(cast("ApiClient", None), "test")
    orphans = OrphanCollector(ClusterCache(), writer, lambda: 0.0, supervisor, lambda _: False)
    hostile = [Claim(ObjectKey("hostile", f"c{number}"), f"u{number}") for number in range(200)]
    for one in [*hostile, *hostile, Claim(ObjectKey("honest", "c"), "u")]:
        orphans.deallocate_unsuitable(one)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(began) == 32
    assert orphans.busy == 201, "one for each claim"
    go_on.set()
    await eventually(lambda: not orphans.busy)
    assert len(began) == 201
    assert "honest" in began[32:34]
    await supervisor.stop()


async def test_a_release_that_waits_releases_the_claim_as_it_is_asked_for_last() -> None:
    """The claim changed while other releases ran. The first operation would find that out, and do nothing."""
    done, go_on, supervisor = list[str](), asyncio.Event(), Supervisor()

    async def other() -> None:
        await go_on.wait()

    async def release(version: str) -> None:
        done.append(version)

    releases, key = Releases(supervisor), ObjectKey("default", "c")
    for number in range(32):  # so many run at a time
        releases.start(ObjectKey("hostile", f"c{number}"), other)
    for version in ("1", "2"):
        releases.start(key, partial(release, version))
    assert len(releases) == 33
    go_on.set()
    await eventually(lambda: not len(releases))
    assert done == ["2"]
    await supervisor.stop()
