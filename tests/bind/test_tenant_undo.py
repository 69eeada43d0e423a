"""A tenant, or another process, changes a claim while a bind fails: the undo releases only what the bind wrote."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from extender.sandbox import ApiError
from tests.worlds.dra_worlds import extended, place
from tests.worlds.interceptions import CUT, NO, Once
from tests.worlds.running_berth import Serving, berthing, claim, one_node, pod
from tests.worlds.tenant_worlds import ALLOCATOR, PODS, allocated, allocated_twice, intercept, patch, stored, uid_of

pytestmark = pytest.mark.loopback


def made_claim(b: Serving) -> str:
    """The name of the only claim."""
    (made,) = b.claims()
    return str(made["metadata"]["name"])


@pytest.mark.parametrize("used", [True, False])
async def test_undo_leaves_a_claim_that_has_the_name_of_the_special_claim(*, used: bool) -> None:
    """While p1 is bound, the tenant replaces its special claim by another of the same name, which p2 may use."""
    async with one_node(extended("p1"), pod("p2")) as b:

        def swap() -> None:
            name = made_claim(b)
            b.cluster.store.remove("resourceclaims", ("default", name))
            b.cluster.apply(claim(name))
            if used:
                allocated(b, name, "gpu-3", "p2")

        b.cluster.api.intercept = Once("POST", "/p1/binding", swap, NO)
        assert "no" in await place(b, "p1")
        (kept,) = b.claims()
        assert kept["metadata"].get("deletionTimestamp") is None
        assert b.held() == [("n1", "gpu-3")] * used
        assert [entry["name"] for entry in kept["status"].get("reservedFor") or ()] == ["p2"] * used


async def test_undo_of_a_special_claim_that_another_pod_uses_ends_the_own_reservation_only() -> None:
    """p2 names the special claim of p1 in its spec and gets it while p1 is bound."""
    async with one_node(extended("p1"), pod("p2")) as b:

        def share() -> None:
            name, entry = made_claim(b), {"resource": "pods", "name": "p2", "uid": uid_of(b, "p2")}
            status = {"reservedFor": [*stored(b, name)["status"]["reservedFor"], entry]}
            patch(b, name, {"status": status}, "status")

        b.cluster.api.intercept = Once("POST", "/p1/binding", share, NO)
        assert "no" in await place(b, "p1")
        (kept,) = b.claims()
        assert kept["metadata"].get("deletionTimestamp") is None
        assert len(b.held()) == 1
        assert [entry["name"] for entry in kept["status"]["reservedFor"]] == ["p2"]
        assert await place(b, "p1") == ""
        assert len(set(b.held())) == 2


@pytest.mark.parametrize("kind", ["ordinary", "shared", "special"])
async def test_undo_takes_nothing_from_a_pod_that_another_process_has_bound(kind: str) -> None:
    """The tenant writes this process as the allocator again after another process took it over and bound the pod."""
    async with one_node(extended("p1") if kind == "special" else pod("p1", "c")) as b:
        if kind != "special":
            b.cluster.apply(claim("c"))
        if kind == "shared":
            b.cluster.apply(pod("p2", "c"))
            assert await place(b, "p2") == ""
        writes = list[str]()

        def bind_first(method: str, path: str) -> ApiError | None:
            if method != "GET" and b.node_of("p1"):
                writes.append(path)
            if path.endswith("/p1/binding"):
                patch(b, made_claim(b), {"metadata": {"annotations": {"tenant": "touched it"}}})
                b.cluster.api.registry.bind(("default", "p1"), {"target": {"name": "n1"}})
                return NO
            return None

        intercept(b, bind_first)
        assert "no" in await place(b, "p1")
        (kept,) = b.claims()
        assert kept["metadata"].get("deletionTimestamp") is None
        assert len(b.held()) == 1
        assert "p1" in [entry["name"] for entry in kept["status"]["reservedFor"]]
        assert not writes


async def test_undo_leaves_an_allocation_that_another_process_has_taken_over() -> None:
    """That process may be about to bind the pod."""
    async with one_node(claim("c"), pod("p1", "c")) as b:
        other = {"metadata": {"annotations": {ALLOCATOR: "berth-other"}}}
        b.cluster.api.intercept = Once("POST", "/p1/binding", lambda: patch(b, "c", other), NO)
        assert "no" in await place(b, "p1")
        assert len(b.held()) == 1
        assert stored(b, "c")["metadata"]["annotations"][ALLOCATOR] == "berth-other"


async def test_undo_deletes_a_special_claim_that_the_bound_pods_status_does_not_name() -> None:
    """Another process has bound the pod with a special claim of its own."""
    async with one_node(extended("p1")) as b:
        theirs = {"extendedResourceClaimStatus": {"resourceClaimName": "theirs", "requestMappings": []}}

        def bind_first() -> None:
            b.cluster.api.registry.patch(PODS, ("default", "p1"), {"status": theirs}, "status", strategic=False)
            b.cluster.api.registry.bind(("default", "p1"), {"target": {"name": "n1"}})

        b.cluster.api.intercept = Once("POST", "/p1/binding", bind_first, NO)
        assert "no" in await place(b, "p1")
        assert b.claims() == []


@pytest.mark.parametrize("times", [1, 3])
async def test_a_lost_device_is_released_though_the_tenant_changes_the_mark(times: int) -> None:
    """An earlier write has the device of the claim. Were the claim left with it, a pod that names its node itself could
    use the device. Another replica that takes the same claim back changes the allocator as well."""
    async with berthing({"n1": "t4-4"}) as b:
        await allocated_twice(b, "first", "mine")
        marks = [f"berth-tenant-{i}" for i in range(times)]

        def mark(method: str, path: str) -> ApiError | None:
            if method == "PATCH" and path.endswith("/mine/status") and marks:
                patch(b, "mine", {"metadata": {"annotations": {ALLOCATOR: marks.pop()}}})
            return None

        intercept(b, mark)
        assert "was allocated to another claim first" in await b.bind("p-mine", "n1")
        assert not marks
        assert b.held() == [("n1", "gpu-0")]
        assert stored(b, "first")["status"]["allocation"]
        assert not stored(b, "mine")["status"].get("reservedFor")


async def test_a_binding_is_sent_again_only_with_the_allocation_that_was_decided_on() -> None:
    """The answer to the Binding is lost, another process takes the allocation back, and the tenant keeps our mark."""
    async with one_node(claim("c"), pod("p1", "c")) as b:
        released = {"status": {"allocation": None, "reservedFor": None}}
        lose = Once("POST", "/p1/binding", lambda: patch(b, "c", released, "status"), CUT)
        b.cluster.api.intercept = lose
        assert "was released" in await place(b, "p1")
        assert lose.done
        assert not b.node_of("p1")


@pytest.mark.parametrize("reserved", [True, False], ids=["reserved", "not reserved"])
async def test_an_allocation_of_another_allocator_that_lost_its_device_stays(reserved: bool) -> None:
    """Its claim has no mark of Berth: nothing proves that Berth may end it. The pod is not bound."""
    async with berthing({"n1": "t4-4"}) as b:
        await allocated_twice(b, "first", "theirs", writer="", reserved=reserved)
        before = stored(b, "theirs")["status"]
        assert "was allocated to another claim first" in await b.bind("p-theirs", "n1")
        assert not b.node_of("p-theirs")
        after = stored(b, "theirs")
        assert after["status"]["allocation"] == before["allocation"]
        assert bool(after["status"].get("reservedFor")) == reserved
        assert not after["metadata"]["annotations"].get(ALLOCATOR)


async def test_a_reservation_that_cannot_be_removed_is_told_in_the_log() -> None:
    """The tenant writes the claim before each write of the undo. The orphan collector has no part in it."""
    async with one_node(claim("c"), pod("p1", "c"), pod("p2", "c")) as b:
        assert await place(b, "p1") == ""
        refused = 0

        def outdate(method: str, path: str) -> ApiError | None:
            nonlocal refused
            if path.endswith("/p2/binding"):
                refused = 1
                return NO
            if refused and method == "PATCH" and path.endswith("/c/status"):
                refused += 1
                patch(b, "c", {"metadata": {"annotations": {"tenant": str(refused)}}})
            return None

        intercept(b, outdate)
        with capture_logs() as log:
            assert "no" in await place(b, "p2")
        assert [(line["pod"], line["because"]) for line in log if line["event"] == "could not undo"] == [
            ("default/p2", "no")
        ]
        assert len(b.held()) == 1
