"""A tenant makes a claim look like the special claim of a pod with extended resources."""

from __future__ import annotations

import pytest

from extender.api.object_meta import ObjectKey
from tests.worlds.dra_worlds import extended, place
from tests.worlds.eventually import eventually
from tests.worlds.faulty_api import Answer
from tests.worlds.interceptions import Once, Refusing
from tests.worlds.running_berth import Json, Serving, berthing, claim, one_node, pod
from tests.worlds.tenant_worlds import (
    ALLOCATOR,
    PODS,
    SPECIAL,
    allocated,
    collector_without_grace,
    forged,
    in_use,
    leftover,
    patch,
    stored,
    uid_of,
)

pytestmark = pytest.mark.loopback


def patch_pod(b: Serving, change: Json) -> None:
    b.cluster.api.registry.patch(PODS, ("default", "p1"), change, "status", strategic=False)


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
    """Attack: stop a pod of another namespace with a claim that bears its UID."""
    async with one_node({"kind": "Namespace", "metadata": {"name": "evil"}}, extended("victim")) as b:
        made = claim("victim-extended-resources-abcde")
        made["metadata"] |= {"namespace": "evil", **forged("victim", uid_of(b, "victim"), "evil.example/keep")}
        b.cluster.apply(made)
        entry = {"resource": "pods", "name": "victim", "uid": uid_of(b, "victim")}
        status = {"allocation": {"devices": {"results": []}}, "reservedFor": [entry]}
        patch(b, made["metadata"]["name"], {"status": status}, "status", "evil")
        assert await place(b, "victim") == ""
        assert stored(b, made["metadata"]["name"], "evil")["metadata"].get("deletionTimestamp") is None


SPECIAL_OF_P1 = "p1-extended-resources-abcde"
# The name of the claim, the pods for which it is reserved (None: it is not allocated), and its owner.
NO_LEFTOVERS: dict[str, tuple[str, tuple[str, ...] | None, str]] = {
    "not allocated": (SPECIAL_OF_P1, None, "p1"),
    "not reserved": (SPECIAL_OF_P1, (), "p1"),
    "reserved for another pod, too": (SPECIAL_OF_P1, ("p2", "p1"), "p1"),
    "named by the pod": (SPECIAL_OF_P1, ("p1",), "p1"),  # by right: p1 waits for its drivers or its Binding failed
    "of another owner": (SPECIAL_OF_P1, ("p1",), "p2"),
    "of another name": ("loot", ("p1",), "p1"),
    "of the name of another pod": ("p2-extended-resources-abcde", ("p1",), "p1"),
}


@pytest.mark.parametrize("case", NO_LEFTOVERS)
async def test_a_claim_that_only_looks_like_a_leftover_stays_and_does_not_stop_the_pod(case: str) -> None:
    name, reserved, owner = NO_LEFTOVERS[case]
    named = [{"name": "c", "resourceClaimName": name}] if case == "named by the pod" else []
    async with one_node(extended("p1", resourceClaims=named), pod("p2"), claim(name)) as b:
        if reserved is not None:
            allocated(b, name, "gpu-0", *reserved)
        patch(b, name, {"metadata": forged(owner, uid_of(b, owner))})
        before = stored(b, name)
        assert await place(b, "p1") == ""
        after = stored(b, name)
        assert after["status"] == before["status"] if named else after == before
        assert b.app.service.orphans.removed == 0


async def test_a_pod_gets_the_devices_of_its_own_claim_though_that_is_marked_as_special() -> None:
    """Berth once made another claim for it, and a real API server rejected the status of the pod."""
    async with berthing({"n1": "t4-4"}) as b:
        marked = claim("c")
        marked["metadata"]["annotations"] = {SPECIAL: "true"}
        b.cluster.apply(marked)
        b.cluster.apply(pod("p", "c"))
        assert await place(b, "p") == ""
        assert [one["metadata"]["name"] for one in b.claims()] == ["c"]
        assert [one["name"] for one in stored(b, "c")["status"]["reservedFor"]] == ["p"]


async def test_a_claim_that_the_pod_names_by_now_is_no_leftover() -> None:
    """A tenant annotates it as made from the pod's template, and the claim controller writes that into the pod's
    status. The watch has not shown that yet."""
    async with one_node(extended("p1", resourceClaims=[{"name": "c", "resourceClaimTemplateName": "t"}])) as b:
        name = await leftover(b)

        change = {"status": {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": name}]}}
        b.cluster.api.intercept = Once("GET", "/pods/p1", lambda: patch_pod(b, change))
        assert "earlier attempt" in await place(b, "p1")
        orphans = b.app.service.orphans
        await eventually(lambda: orphans.skipped == 1)
        assert stored(b, name)["status"]["reservedFor"]
        assert orphans.removed == 0


async def test_a_leftover_is_deleted_and_a_finalizer_that_keeps_it_stops_nothing() -> None:
    async with one_node(extended("p1")) as b:
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


async def test_an_unreadable_pod_does_not_stop_the_collector() -> None:
    async with one_node(extended("p1")) as b:
        await leftover(b)
        answer = Answer({**b.pod("p1"), "spec": {"resourceClaims": 7}})
        b.cluster.api.intercept = unreadable = Refusing("/pods/p1", answer, 1, method="GET")
        assert "earlier attempt" in await place(b, "p1")
        await eventually(lambda: unreadable.count and not b.app.service.orphans.busy)
        assert b.app.service.supervisor.failures["release"] == 0
        await b.app.service.orphans.sweep()
        await eventually(lambda: b.app.service.orphans.removed == 1)


async def test_two_leftovers_of_a_pod_are_both_deleted() -> None:
    """Two processes that bound the pod have ended. Found by `tests/worlds/two_replicas.py`, seed 1012."""
    async with one_node(extended("p1")) as b:
        await leftover(b)
        await leftover(b, suffix="fghij", device="gpu-1")
        assert not (await b.filter("p1"))["NodeNames"]
        await eventually(lambda: b.app.service.orphans.removed == 2)
        assert await place(b, "p1") == ""
        assert len(b.held()) == len(b.claims()) == 1


async def test_a_leftover_of_a_pod_that_is_bound_by_now_stays() -> None:
    """A filter request met the claim as a leftover. The pod now runs with its devices."""
    async with one_node(extended("p1")) as b:
        name = await leftover(b)
        mapped = {"extendedResourceClaimStatus": {"resourceClaimName": name, "requestMappings": []}}
        patch_pod(b, {"status": mapped})
        b.cluster.api.registry.bind(("default", "p1"), {"target": {"name": "n1"}})
        orphans = b.app.service.orphans
        orphans.remove_stale_special(ObjectKey("default", name))
        await eventually(lambda: orphans.skipped == 1)
        assert stored(b, name)["status"]["reservedFor"]
        assert orphans.removed == 0


async def test_a_claim_that_took_the_name_of_a_leftover_stays() -> None:
    """Another process made the leftover. During its release the tenant deletes it, and gives its name, and the looks
    of a special claim, to a claim that p3 asks for and runs with."""
    async with berthing({"n1": "t4-4"}) as b:
        name = "p1-extended-resources-abcde"
        await b.create(extended("p1"), pod("p3", name))
        assert await leftover(b, writer="berth-of-before") == name
        patch(b, name, {"metadata": {"annotations": {ALLOCATOR: "berth-of-before"}}})
        assert "earlier attempt" in await place(b, "p1")
        b.cluster.store.remove("resourceclaims", ("default", name))
        b.cluster.apply(claim(name))
        assert await place(b, "p3") == ""
        patch(b, name, {"metadata": forged("p3", uid_of(b, "p3"))})
        await b.settled()
        before, eager = stored(b, name), collector_without_grace(b)
        eager.remove_stale_special(ObjectKey("default", name))
        await eager.sweep()
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


async def test_the_mapping_of_a_pod_that_is_bound_by_now_is_not_overwritten() -> None:
    async with one_node(extended("p1")) as b:
        theirs = {"resourceClaimName": "theirs", "requestMappings": []}

        def bind_first() -> None:
            patch_pod(b, {"status": {"extendedResourceClaimStatus": theirs}})
            b.cluster.api.registry.bind(("default", "p1"), {"target": {"name": "n1"}})

        b.cluster.api.intercept = Once("PATCH", "/pods/p1/status", bind_first)
        assert "was bound, deleted or recreated" in await place(b, "p1")
        assert b.pod("p1")["status"]["extendedResourceClaimStatus"] == theirs
        assert b.claims() == []


async def test_a_claim_with_the_name_of_the_last_attempts_special_claim_does_not_stop_the_mapping() -> None:
    """The pod's status still names the special claim of an attempt that failed; the tenant makes a claim of that
    name."""
    async with one_node(extended("p1")) as b:
        name = "p1-extended-resources-abcde"
        mapped = {"status": {"extendedResourceClaimStatus": {"resourceClaimName": name, "requestMappings": []}}}
        patch_pod(b, mapped)
        b.cluster.apply(claim(name))
        patch(b, name, {"metadata": forged("p1", uid_of(b, "p1"))})
        assert await place(b, "p1") == ""
        assert b.pod("p1")["status"]["extendedResourceClaimStatus"]["resourceClaimName"] != name


async def test_a_conflict_with_the_scheduler_does_not_stop_the_mapping() -> None:
    """kube-scheduler writes a condition into the pod's status while its bind runs."""
    async with one_node(extended("p1")) as b:
        change = {"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}
        b.cluster.api.intercept = touch = Once("PATCH", "/pods/p1/status", lambda: patch_pod(b, change))
        assert await place(b, "p1") == ""
        status = b.pod("p1")["status"]
        assert touch.done
        assert status["extendedResourceClaimStatus"]["requestMappings"]
        assert status["conditions"]
