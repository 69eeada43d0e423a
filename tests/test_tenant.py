"""What a tenant can write and what it leads to: everything in claims and pods of the own namespaces but their status.

SECURITY.md names these tests beside the writes that they are about. `tenant` writes as ClusterRole `edit` allows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.cluster import Writer
from extender.extension.orphans import OrphanCollector
from extender.model import ObjectKey
from extender.sandbox.apiserver.registry import RESOURCES
from extender.sandbox.apiserver.status_errors import ApiError
from tests.eventually import eventually
from tests.replicas import replicas
from tests.running_berth import Berthing, Json, Serving, berthing, claim, pod

CLAIMS, PODS = RESOURCES["resource.k8s.io", "resourceclaims"], RESOURCES["", "pods"]
SPECIAL = "resource.kubernetes.io/extended-resource-claim"
PROTECTION = "resource.kubernetes.io/delete-protection"
MARK = "berth.dev/allocator"
Intercept = Callable[[str, str], "ApiError | None"]


def extended(name: str, **spec: Any) -> Json:
    """A pod that asks for one GPU as an extended resource."""
    resources = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    return pod(name, containers=[{"name": "main", "image": "pause", "resources": resources}], **spec)


def uid_of(b: Serving, name: str) -> str:
    return str(b.pod(name)["metadata"]["uid"])


def stored(b: Serving, name: str, namespace: str = "default") -> Any:
    """The claim as JSON, None where it is gone."""
    return b.cluster.store.get("resourceclaims", (namespace, name))


def patch(b: Serving, name: str, change: Json, sub: str = "", namespace: str = "default") -> None:
    b.cluster.api.registry.patch(CLAIMS, (namespace, name), change, sub, strategic=False)


def forged(owner: str, owner_uid: str, *finalizers: str) -> Json:
    """Metadata that makes a claim look like the special claim of a pod."""
    reference = {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner_uid, "controller": True}
    notes = {SPECIAL: "true", MARK: "berth-forged", "berth.dev/group": "g"}
    return {"annotations": notes, "ownerReferences": [reference], "finalizers": [PROTECTION, *finalizers]}


def allocated(b: Serving, name: str, device: str, *pods: str, writer: str = "berth-of-before") -> None:
    """The claim has a device of n1, reserved for the pods: a status that only schedulers write."""
    patch(b, name, {"metadata": {"annotations": {MARK: writer}, "finalizers": [PROTECTION]}})
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": device}
    pinned = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}
    entries = [{"resource": "pods", "name": one, "uid": uid_of(b, one)} for one in pods]
    status = {"allocation": {"devices": {"results": [result]}, "nodeSelector": pinned}, "reservedFor": entries}
    patch(b, name, {"status": status}, "status")


async def place(b: Serving, name: str) -> str:
    """'' when the pod is bound, else the reason or error."""
    await b.settled()
    answer = await b.filter(name)
    if not answer["NodeNames"]:
        return str(next(iter((answer["FailedAndUnresolvableNodes"] or {}).values()), answer["Error"]))
    return await b.bind(name, answer["NodeNames"][0])


def intercept(b: Serving, act: Intercept) -> None:
    async def hook(method: str, path: str) -> ApiError | None:
        return act(method, path)

    b.cluster.api.intercept = hook


def collector_without_grace(b: Serving) -> OrphanCollector:
    service = b.app.service
    return OrphanCollector(service.cache, Writer(service.client), service.clock, service.supervisor, grace_seconds=0.0)


@asynccontextmanager
async def in_use(name: str) -> AsyncIterator[Berthing]:
    """p2 runs on n1 with the devices of claim `name`; p1 waits for an extended resource."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(claim(name))
        b.cluster.apply(pod("p2", name))
        b.cluster.apply(extended("p1"))
        assert await place(b, "p2") == ""
        yield b


# -- the special claims of extended resources -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loot", "p1-extended-resources-abcde"])
async def test_a_claim_in_use_that_is_marked_as_special_stays(name: str) -> None:
    """C1: the annotation and the owner are the tenant's to write, and so is the name."""
    async with in_use(name) as b:
        before = stored(b, name)["status"]
        patch(b, name, {"metadata": forged("p1", uid_of(b, "p1"))})
        assert await place(b, "p1") == ""
        assert stored(b, name)["status"] == before
        assert len(b.held()) == len(set(b.held())) == 2
        assert b.app.service.orphans.removed == 0


async def test_a_claim_of_another_namespace_with_the_pods_uid_has_no_effect() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply({"kind": "Namespace", "metadata": {"name": "evil"}})
        b.cluster.apply(extended("victim"))
        made = claim("victim-extended-resources-abcde")
        made["metadata"] |= {"namespace": "evil", **forged("victim", uid_of(b, "victim"), "evil.example/keep")}
        b.cluster.apply(made)
        assert await place(b, "victim") == ""
        assert stored(b, made["metadata"]["name"], "evil")["metadata"].get("deletionTimestamp") is None


@pytest.mark.parametrize("allocation", ["none", "unreserved", "of p2 and p1"])
async def test_what_only_looks_like_a_leftover_does_not_stop_the_pod(allocation: str) -> None:
    """Name, namespace, owner and annotation fit, but no scheduler has reserved it for the pod alone."""
    async with berthing({"n1": "t4-4"}) as b:
        for one in (extended("p1"), pod("p2")):
            b.cluster.apply(one)
        name = "p1-extended-resources-abcde"
        b.cluster.apply(claim(name))
        if allocation != "none":
            allocated(b, name, "gpu-0", *(("p2", "p1") if allocation != "unreserved" else ()))
        patch(b, name, {"metadata": forged("p1", uid_of(b, "p1"))})
        before = stored(b, name)
        assert await place(b, "p1") == ""
        assert stored(b, name) == before


async def test_a_claim_that_the_pod_names_itself_is_no_leftover() -> None:
    """It is reserved for p1 alone by right: p1 waits for its drivers or its Binding failed."""
    name = "p1-extended-resources-abcde"
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(claim(name))
        b.cluster.apply(extended("p1", resourceClaims=[{"name": "c", "resourceClaimName": name}]))
        allocated(b, name, "gpu-0", "p1")
        patch(b, name, {"metadata": forged("p1", uid_of(b, "p1"))})
        before = stored(b, name)["status"]
        assert await place(b, "p1") == ""
        assert stored(b, name)["status"] == before
        assert b.app.service.orphans.removed == 0


async def leftover(b: Serving, *finalizers: str, writer: str = "") -> str:
    """The special claim of p1 as a process that died after the allocation leaves it; the answer is its name. Without a
    writer it is kube-scheduler's, for whose bind Berth does not wait."""
    name = "p1-extended-resources-abcde"
    b.cluster.apply(claim(name))
    allocated(b, name, "gpu-0", "p1", writer=writer)
    notes = {SPECIAL: "true", MARK: writer or None}
    patch(b, name, {"metadata": forged("p1", uid_of(b, "p1"), *finalizers) | {"annotations": notes}})
    await b.settled()
    return name


async def test_a_leftover_is_deleted_and_a_finalizer_that_keeps_it_stops_nothing() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(extended("p1"))
        name = await leftover(b, "tenant.example/keep")
        assert await place(b, "p1") == "the extended-resource claim of an earlier attempt is being removed"
        await eventually(lambda: b.app.service.orphans.removed == 1)
        kept = stored(b, name)
        assert kept["metadata"]["finalizers"] == ["tenant.example/keep"]
        assert kept["metadata"]["deletionTimestamp"]
        assert not kept["status"].get("allocation")
        assert not kept["status"].get("reservedFor")
        assert await place(b, "p1") == ""
        assert len(b.held()) == 1


async def test_a_leftover_of_a_pod_that_is_bound_by_now_stays() -> None:
    """The scheduler asks about an old picture of the pod; by now it runs with the devices of the claim."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(extended("p1"))
        await b.settled()
        old = {"Pod": b.pod("p1"), "Nodes": None, "NodeNames": ["n1"]}
        name = await leftover(b)
        mapped = {"extendedResourceClaimStatus": {"resourceClaimName": name, "requestMappings": []}}
        b.cluster.api.registry.patch(PODS, ("default", "p1"), {"status": mapped}, "status", strategic=False)
        b.cluster.api.registry.bind(("default", "p1"), {"target": {"name": "n1"}})
        await b.client.post("/filter", json=old)
        orphans = b.app.service.orphans
        await eventually(lambda: orphans.skipped == 1)
        assert stored(b, name)["status"]["reservedFor"]
        assert orphans.removed == 0


async def test_a_claim_that_took_the_name_of_a_leftover_stays() -> None:
    """Another process made the leftover, so it waits for the grace period. Meanwhile the tenant deletes it and gives
    its name, and the looks of a special claim, to a claim that p3 asks for and runs with."""
    async with berthing({"n1": "t4-4"}) as b:
        name = "p1-extended-resources-abcde"
        for one in (extended("p1"), pod("p3", name)):
            b.cluster.apply(one)
        assert await leftover(b, writer="berth-of-before") == name
        patch(b, name, {"metadata": {"annotations": {MARK: "berth-of-before"}}})
        assert "earlier attempt" in await place(b, "p1")
        b.cluster.store.remove("resourceclaims", ("default", name))
        b.cluster.apply(claim(name))
        assert await place(b, "p3") == ""
        patch(b, name, {"metadata": forged("p3", uid_of(b, "p3"))})
        await b.settled()
        before, eager = stored(b, name), collector_without_grace(b)
        eager.remove_stale_special(ObjectKey("default", name))
        eager.sweep()
        assert await place(b, "p1") == ""
        assert stored(b, name) == before
        assert eager.removed == 0


@pytest.mark.parametrize("length", [1, 35, 36, 37, 57, 58, 63])
async def test_leftovers_are_known_by_the_name_that_the_server_generates(length: int) -> None:
    """The server cuts generateName to 58 characters and puts five behind."""
    async with berthing({"n1": "t4-4"}) as b:
        name = "p" * length
        b.cluster.apply(extended(name))
        owner = b.cluster.store["pods", ("default", name)]
        made = claim("")
        made["metadata"] = {"generateName": f"{name}-extended-resources-", **forged(name, owner["metadata"]["uid"])}
        made = b.cluster.apply(made)
        allocated(b, made["metadata"]["name"], "gpu-0", name, writer="")
        assert await place(b, name) == "the extended-resource claim of an earlier attempt is being removed"
        await eventually(lambda: not b.claims())


# -- what a failed bind takes back ----------------------------------------------------------------------------------


async def test_undo_leaves_a_claim_that_has_the_name_of_the_special_claim() -> None:
    """While p1 is bound, the tenant replaces its special claim by another of the same name, which p2 uses."""
    async with berthing({"n1": "t4-4"}) as b:
        for one in (extended("p1"), pod("p2")):
            b.cluster.apply(one)

        def swap(_: str, path: str) -> ApiError | None:
            if not path.endswith("/p1/binding"):
                return None
            (made,) = b.claims()
            name = made["metadata"]["name"]
            b.cluster.store.remove("resourceclaims", ("default", name))
            b.cluster.apply(claim(name))
            allocated(b, name, "gpu-3", "p2")
            return ApiError(403, "Forbidden", "no")

        intercept(b, swap)
        assert "no" in await place(b, "p1")
        (kept,) = b.claims()
        assert kept["metadata"].get("deletionTimestamp") is None
        assert b.held() == [("n1", "gpu-3")]
        assert kept["status"]["reservedFor"][0]["name"] == "p2"


async def test_undo_of_a_special_claim_that_another_pod_uses_ends_the_own_reservation_only() -> None:
    """p2 names the special claim of p1 in its spec and gets it while p1 is bound."""
    async with berthing({"n1": "t4-4"}) as b:
        for one in (extended("p1"), pod("p2")):
            b.cluster.apply(one)

        def share(_: str, path: str) -> ApiError | None:
            if not path.endswith("/p1/binding"):
                return None
            (made,) = b.claims()
            entry = {"resource": "pods", "name": "p2", "uid": uid_of(b, "p2")}
            status = {"reservedFor": [*made["status"]["reservedFor"], entry]}
            patch(b, made["metadata"]["name"], {"status": status}, "status")
            return ApiError(403, "Forbidden", "no")

        intercept(b, share)
        assert "no" in await place(b, "p1")
        (kept,) = b.claims()
        assert kept["metadata"].get("deletionTimestamp") is None
        assert len(b.held()) == 1
        assert [entry["name"] for entry in kept["status"]["reservedFor"]] == ["p2"]
        b.cluster.api.intercept = None
        assert await place(b, "p1") == ""
        assert len(set(b.held())) == 2


@pytest.mark.parametrize("kind", ["ordinary", "shared", "special"])
async def test_undo_takes_nothing_from_a_pod_that_another_process_has_bound(kind: str) -> None:
    """The tenant gives the claim the mark of this process again after another process took it over and bound the
    pod."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(extended("p1") if kind == "special" else pod("p1", "c"))
        if kind != "special":
            b.cluster.apply(claim("c"))
        if kind == "shared":
            b.cluster.apply(pod("p2", "c"))
            assert await place(b, "p2") == ""

        def bind_first(_: str, path: str) -> ApiError | None:
            if path.endswith("/p1/binding"):
                (made,) = b.claims()
                patch(b, made["metadata"]["name"], {"metadata": {"annotations": {"tenant": "touched it"}}})
                b.cluster.api.registry.bind(("default", "p1"), {"target": {"name": "n1"}})
                return ApiError(403, "Forbidden", "no")
            return None

        intercept(b, bind_first)
        assert "no" in await place(b, "p1")
        (kept,) = b.claims()
        assert kept["metadata"].get("deletionTimestamp") is None
        assert len(b.held()) == 1
        assert "p1" in [entry["name"] for entry in kept["status"]["reservedFor"]]


async def test_undo_deletes_a_special_claim_that_the_bound_pods_status_does_not_name() -> None:
    """Another process has bound the pod with a special claim of its own."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(extended("p1"))
        theirs = {"extendedResourceClaimStatus": {"resourceClaimName": "theirs", "requestMappings": []}}

        def bind_first(_: str, path: str) -> ApiError | None:
            if path.endswith("/p1/binding"):
                b.cluster.api.registry.patch(PODS, ("default", "p1"), {"status": theirs}, "status", strategic=False)
                b.cluster.api.registry.bind(("default", "p1"), {"target": {"name": "n1"}})
                return ApiError(403, "Forbidden", "no")
            return None

        intercept(b, bind_first)
        assert "no" in await place(b, "p1")
        assert b.claims() == []


async def test_the_mapping_of_a_pod_that_is_bound_by_now_is_not_overwritten() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(extended("p1"))
        theirs = {"resourceClaimName": "theirs", "requestMappings": []}

        def bind_first(_: str, path: str) -> ApiError | None:
            if path.endswith("/pods/p1/status") and not b.node_of("p1"):
                change = {"status": {"extendedResourceClaimStatus": theirs}}
                b.cluster.api.registry.patch(PODS, ("default", "p1"), change, "status", strategic=False)
                b.cluster.api.registry.bind(("default", "p1"), {"target": {"name": "n1"}})
            return None

        intercept(b, bind_first)
        assert "was bound, deleted or recreated" in await place(b, "p1")
        assert b.pod("p1")["status"]["extendedResourceClaimStatus"] == theirs
        assert b.claims() == []


async def test_a_claim_with_the_name_of_the_last_attempts_special_claim_does_not_stop_the_mapping() -> None:
    """The pod's status still names the special claim of an attempt that failed; the tenant makes a claim of that
    name."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(extended("p1"))
        name = "p1-extended-resources-abcde"
        mapped = {"status": {"extendedResourceClaimStatus": {"resourceClaimName": name, "requestMappings": []}}}
        b.cluster.api.registry.patch(PODS, ("default", "p1"), mapped, "status", strategic=False)
        b.cluster.apply(claim(name))
        patch(b, name, {"metadata": forged("p1", uid_of(b, "p1"))})
        assert await place(b, "p1") == ""
        assert b.pod("p1")["status"]["extendedResourceClaimStatus"]["resourceClaimName"] != name


async def test_a_conflict_with_the_scheduler_does_not_stop_the_mapping() -> None:
    """kube-scheduler writes a condition into the pod's status while its bind runs."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(extended("p1"))
        touched: list[Any] = []

        def touch(_: str, path: str) -> ApiError | None:
            if path.endswith("/pods/p1/status") and not touched:
                touched.append(path)
                change = {"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}
                b.cluster.api.registry.patch(PODS, ("default", "p1"), change, "status", strategic=False)
            return None

        intercept(b, touch)
        assert await place(b, "p1") == ""
        status = b.pod("p1")["status"]
        assert touched
        assert status["extendedResourceClaimStatus"]["requestMappings"]
        assert status["conditions"]


@pytest.mark.parametrize("times", [1, 3])
async def test_a_lost_device_is_taken_back_though_the_tenant_changes_the_mark(times: int) -> None:
    """An earlier write has the device of the claim. Were the claim left with it, a pod that names its node itself could
    use the device. Another replica that takes the same claim back changes the mark as well."""
    async with berthing({"n1": "t4-4"}) as b:
        for name in ("first", "mine"):
            b.cluster.apply(claim(name))
            b.cluster.apply(pod(f"p-{name}", name))
        allocated(b, "first", "gpu-0", "p-first")
        await b.settled()
        allocated(b, "mine", "gpu-0", "p-mine")
        await b.settled()
        marks = [f"berth-tenant-{i}" for i in range(times)]

        def mark(method: str, path: str) -> ApiError | None:
            if method == "PATCH" and path.endswith("/mine/status") and marks:
                patch(b, "mine", {"metadata": {"annotations": {MARK: marks.pop()}}})
            return None

        intercept(b, mark)
        assert "was allocated to another claim first" in await b.bind("p-mine", "n1")
        assert not marks
        assert b.held() == [("n1", "gpu-0")]
        assert stored(b, "first")["status"]["allocation"]
        assert not stored(b, "mine")["status"].get("reservedFor")


async def test_a_binding_is_sent_again_only_with_the_allocation_that_was_decided_on() -> None:
    """The answer to the Binding is lost, another process takes the allocation back, and the tenant keeps our mark."""
    async with berthing({"n1": "t4-4"}) as b:
        b.cluster.apply(claim("c"))
        b.cluster.apply(pod("p1", "c"))
        sent = []

        def lose(_: str, path: str) -> ApiError | None:
            if not path.endswith("/p1/binding"):
                return None
            sent.append(path)
            patch(b, "c", {"status": {"allocation": None, "reservedFor": None}}, "status")
            return ApiError(503, "ServiceUnavailable", "no")

        intercept(b, lose)
        assert "was taken back" in await place(b, "p1")
        assert len(sent) == 1
        assert not b.node_of("p1")


# -- what the orphan collector takes back -------------------------------------------------------------------------


async def test_an_unsuitable_allocation_of_a_pod_that_is_bound_by_now_stays() -> None:
    async with berthing({"n1": "t4-4", "n2": "t4-4", "n3": "t4-4"}) as b:
        b.cluster.apply(claim("c"))
        b.cluster.apply(pod("p1", "c"))
        await b.settled()
        old = {"Pod": b.pod("p1"), "Nodes": None, "NodeNames": ["n2", "n3"]}
        allocated(b, "c", "gpu-0", "p1")
        b.cluster.api.registry.bind(("default", "p1"), {"target": {"name": "n1"}})
        await b.settled()
        await b.client.post("/filter", json=old)
        await eventually(lambda: b.app.service.orphans.skipped == 1)
        assert len(b.held()) == 1
        assert b.app.service.orphans.deallocated == 0


@pytest.mark.parametrize("path", ["unsuitable", "unreserved", "leftover"])
async def test_a_reservation_that_the_watch_has_not_shown_counts(path: str) -> None:
    """The claim is read again before anything is taken back."""
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
            orphans.sweep()
        else:
            await b.filter("p1", ["n2", "n3"])
        await eventually(lambda: orphans.skipped == 1)
        assert stored(b, name) == before


# -- groups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["uid", "missing"])
async def test_a_claim_is_reserved_only_for_a_pod_group_that_exists(wrong: str) -> None:
    """The claim controller would end a reservation for a PodGroup that it does not find, while the pod runs."""
    async with berthing({"n1": "t4-4"}) as b:
        if wrong == "uid":
            b.cluster.apply({"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {}})
        made = claim("c")
        owner = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": "g", "uid": "forged"}
        made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        b.cluster.apply(made)
        b.cluster.apply(pod("p1", "c", schedulingGroup={"podGroupName": "g"}))
        assert "PodGroup g with UID forged does not exist" in await place(b, "p1")
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
        b.cluster.apply(claim("mine"))
        b.cluster.apply(pod("p1", "mine", annotations={"berth.dev/group": "g"}))
        await b.settled()
        assert set(b.app.service.cache.store.groups) == {("evil", "g")}
        assert (await b.filter("p1"))["NodeNames"]
        parts = (await b.client.get("/v1/explain/default/p1")).text
        assert "of group g" not in parts
