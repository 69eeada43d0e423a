"""A tenant changes claims that the orphan collector looks at, and names groups of others."""

from __future__ import annotations

import pytest

from extender.api.resource_claims import decode_claim
from extender.cluster import Writer
from extender.sandbox import ApiError
from extender.serve.undo import deallocate_unused
from tests.worlds.applications import replicas
from tests.worlds.dra_worlds import extended, place
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import berthing, claim, one_node, pod
from tests.worlds.tenant_worlds import allocated, collector_without_grace, leftover, patch, stored, uid_of

pytestmark = pytest.mark.loopback

# -- what the orphan collector releases -------------------------------------------------------------------------


async def test_an_unsuitable_allocation_of_a_pod_that_is_bound_by_now_stays() -> None:
    async with berthing({"n1": "t4-4", "n2": "t4-4", "n3": "t4-4"}) as b:
        await b.create(claim("c"), pod("p1", "c"))
        allocated(b, "c", "gpu-0", "p1")
        b.cluster.api.registry.bind(("default", "p1"), {"target": {"name": "n1"}})
        b.app.service.orphans.deallocate_unsuitable(decode_claim(stored(b, "c")))  # as after an earlier filter request
        await eventually(lambda: b.app.service.orphans.skipped == 1)
        assert len(b.held()) == 1
        assert b.app.service.orphans.unsuitable == 0


async def test_an_allocation_reserved_for_an_object_of_an_unknown_kind_stays() -> None:
    """Berth cannot know whether such an object uses the devices."""
    async with one_node(claim("c")) as b:
        allocated(b, "c", "gpu-0")
        consumer = {"resource": "jobs", "apiGroup": "batch", "name": "j", "uid": "j"}
        patch(b, "c", {"status": {"reservedFor": [consumer]}}, "status")
        before = stored(b, "c")
        assert not await deallocate_unused(Writer(b.app.service.client), decode_claim(before))
        assert stored(b, "c") == before


@pytest.mark.parametrize("case", ["of Berth", "of another allocator", "the pod is bound by now"])
async def test_an_allocation_that_a_gang_does_not_use_is_freed_only_if_it_is_of_berth_and_no_pod_has_it(
    case: str,
) -> None:
    """One of two members exists, and an earlier attempt has left its allocation."""
    async with berthing({"n1": "t4-4"}) as b:
        for name in ("c", "probe"):
            b.cluster.apply(claim(name))
        b.cluster.apply(pod("p1", "c", annotations={"berth.dev/group": "g", "berth.dev/group-min": "2"}))
        allocated(b, "c", "gpu-0", "p1", writer="" if case == "of another allocator" else "berth-of-before")
        await b.settled()
        old = {"Pod": b.pod("p1"), "Nodes": None, "NodeNames": ["n1"]}
        orphans = b.app.service.orphans
        reply = await b.client.post("/filter", json=old)
        assert "waits until at least 2 pods of group g" in reply.text
        if case == "the pod is bound by now":
            b.cluster.api.registry.bind(("default", "p1"), {"target": {"name": "n1"}})
        if case == "of another allocator":
            b.cluster.apply(pod("p2", "probe"))
            assert await place(b, "p2") == "", "the release would have begun before this bind"
            assert (orphans.busy, orphans.unsuitable, len(b.held())) == (0, 0, 2)
        else:
            await eventually(lambda: orphans.skipped + orphans.unsuitable == 1)
            assert len(b.held()) == orphans.skipped == (case == "the pod is bound by now")


@pytest.mark.parametrize("path", ["unsuitable", "unreserved", "leftover"])
async def test_a_reservation_that_the_watch_has_not_shown_counts(path: str) -> None:
    """Berth reads the claim again before it deallocates it."""
    async with replicas({"n1": "t4-4", "n2": "t4-4", "n3": "t4-4"}) as ((b, _), (gate, _)):
        b.cluster.apply(pod("p2", "c"))
        name = "c"
        if path == "leftover":
            b.cluster.apply(extended("p1"))
            name = await leftover(b)
        else:
            b.cluster.apply(claim("c"))
            b.cluster.apply(pod("p1", "c"))
            allocated(b, "c", "gpu-0")
        await b.settled()
        gate.close()
        entry = {"resource": "pods", "name": "p2", "uid": uid_of(b, "p2")}
        entries = [*stored(b, name)["status"]["reservedFor"], entry]
        patch(b, name, {"status": {"reservedFor": entries}}, "status")
        before, orphans = stored(b, name), b.app.service.orphans
        if path == "unreserved":
            orphans = collector_without_grace(b)
            await orphans.sweep()
        else:
            await b.filter("p1", ["n2", "n3"])
        await eventually(lambda: orphans.skipped == 1)
        assert stored(b, name) == before


# -- groups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["uid", "missing"])
async def test_a_claim_is_reserved_only_for_a_pod_group_that_exists(wrong: str) -> None:
    """The claim controller would end a reservation for a PodGroup that it does not find, while the pod runs."""
    async with one_node({"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {}}) as b:
        made = claim("c")
        owner = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": "g", "uid": "forged"}
        made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        await b.create(made, pod("p1", "c", schedulingGroup={"podGroupName": "g"}))

        async def missing(method: str, path: str) -> ApiError | None:
            """The watch has not shown yet that the PodGroup was deleted."""
            is_gone = wrong == "missing" and method == "GET" and path.endswith("podgroups/g")
            return ApiError(404, "NotFound", "") if is_gone else None

        b.cluster.api.intercept = missing
        assert "PodGroup g with UID forged does not exist" in await b.bind("p1", "n1")
        assert not b.held()
        assert not b.node_of("p1")


async def test_groups_end_at_the_namespace() -> None:
    """The annotation `berth.dev/group` on a claim of one's own moves no pod of another namespace."""
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        made = claim("c")
        made["metadata"] |= {"namespace": "evil", "annotations": {"berth.dev/group": "g"}}
        b.cluster.apply({"kind": "Namespace", "metadata": {"name": "evil"}})
        b.cluster.apply(made)
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n2", "device": "gpu-0"}
        patch(b, "c", {"status": {"allocation": {"devices": {"results": [result]}}}}, "status", "evil")
        await b.create(claim("mine"), pod("p1", "mine", annotations={"berth.dev/group": "g"}))
        assert set(b.app.service.cache.store.of_groups.claims) == {("evil", "g")}
        assert (await b.filter("p1"))["NodeNames"]
        parts = (await b.client.get("/v1/explain/default/p1")).text
        assert "of group g" not in parts
