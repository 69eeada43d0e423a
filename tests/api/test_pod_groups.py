"""Claims of a PodGroup (KEP-5729): allocated once, reserved once for the group, and the members go where they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from extender.api.object_meta import ObjectKey
from extender.cluster import Writer
from extender.sandbox import ApiError
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.applications import replicas
from tests.worlds.dra_worlds import CONDITIONAL, asks, custom, report
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Json, Serving, berthing, claim, pod

pytestmark = pytest.mark.loopback

NODES = {"n1": "t4-4", "n2": "t4-4"}
THREE = {**NODES, "n3": "t4-4"}
PODS = RESOURCES["", "pods"]
ENTRY = {"name": "gpu", "resourceClaimTemplateName": "t"}


def group(b: Serving, name: str, *claims: Json) -> str:
    """Create a PodGroup with these claims; returns its UID."""
    made = {"kind": "PodGroup", "metadata": {"name": name}, "spec": {"resourceClaims": list(claims)}}
    return str(b.cluster.apply(made)["metadata"]["uid"])


def made_for_group(b: Serving, name: str, uid: str, like: Callable[[str], Json] = claim) -> None:
    """A claim as the claim controller makes it from a template of the PodGroup."""
    made = like(name)
    owner = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": "g", "uid": uid}
    made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    b.cluster.apply(made)


def member(b: Serving, name: str, entry: Json, made: str = "", group_name: str = "g") -> None:
    """A pod of the group with one claim; `made` is the claim that its status names."""
    b.cluster.apply(pod(name, resourceClaims=[entry], schedulingGroup={"podGroupName": group_name}))
    if made:
        status = {"status": {"resourceClaimStatuses": [{"name": entry["name"], "resourceClaimName": made}]}}
        b.cluster.api.registry.patch(PODS, ("default", name), status, "status", strategic=False)


def members(b: Serving, *names: str, like: Callable[[str], Json] = claim) -> str:
    """A PodGroup, the claim `made` for it, and these pods; returns the UID of the group."""
    uid = group(b, "g")
    made_for_group(b, "made", uid, like=like)
    for name in names:
        member(b, name, ENTRY, "made")
    return uid


async def no_binding(_: str, path: str) -> ApiError | None:
    return ApiError(403, "Forbidden", "no") if path.endswith("/pods/g-0/binding") else None


def reserved(b: Serving, name: str) -> list[Json]:
    found = b.cluster.store["resourceclaims", ("default", name)]
    return list(found["status"].get("reservedFor") or ())


async def bound_together(b: Serving, *names: str) -> list[str]:
    """Filter all pods, then bind them at once; returns the errors of the binds."""
    await b.settled()
    nodes = [(await b.filter(name))["NodeNames"][0] for name in names]
    assert len(set(nodes)) == 1
    return list(await asyncio.gather(*(b.bind(name, nodes[0]) for name in names)))


async def test_a_claim_made_for_the_group_is_reserved_once_for_it() -> None:
    async with berthing(NODES) as b:
        uid = members(b, "g-0", "g-1", "g-2")
        assert await bound_together(b, "g-0", "g-1", "g-2") == ["", "", ""]
        entry_of_group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": uid}
        assert reserved(b, "made") == [entry_of_group]
        assert len(b.held()) == 1
        assert len({b.node_of(name) for name in ("g-0", "g-1", "g-2")}) == 1


async def test_a_named_claim_is_the_groups_where_the_group_lists_it_with_equal_fields() -> None:
    async with berthing(NODES) as b:
        uid = group(b, "g", {"name": "gpu", "resourceClaimName": "listed"})
        for name in ("listed", "other"):
            b.cluster.apply(claim(name))
        member(b, "in", {"name": "gpu", "resourceClaimName": "listed"})
        member(b, "out", {"name": "gpu", "resourceClaimName": "other"})
        assert await bound_together(b, "in") == await bound_together(b, "out") == [""]
        assert [(entry["resource"], entry["uid"]) for entry in reserved(b, "listed")] == [("podgroups", uid)]
        assert [(entry["resource"], entry["name"]) for entry in reserved(b, "other")] == [("pods", "out")]


async def test_a_pod_whose_group_is_gone_at_bind_uses_its_claim_itself() -> None:
    """The watch has not shown yet that the PodGroup was deleted."""
    async with berthing(NODES) as b:
        group(b, "g")
        b.cluster.apply(claim("c"))
        member(b, "p", {"name": "gpu", "resourceClaimName": "c"})
        await b.settled()

        async def gone(method: str, path: str) -> ApiError | None:
            return ApiError(404, "NotFound", "") if method == "GET" and path.endswith("podgroups/g") else None

        b.cluster.api.intercept = gone
        assert await b.bind("p", next(iter(NODES))) == ""
        assert [entry["resource"] for entry in reserved(b, "c")] == ["pods"]


@pytest.mark.parametrize(("group_name", "words"), [("other", "not owned by the pod or its PodGroup other"), ("g", "")])
async def test_a_claim_of_another_group_is_not_ready(group_name: str, words: str) -> None:
    async with berthing(NODES) as b:
        group(b, "other")
        made_for_group(b, "made", group(b, "g"))
        member(b, "p", ENTRY, "made", group_name)
        await b.settled()
        assert (await b.filter("p"))["Error"].endswith(words)


async def test_a_failed_bind_leaves_the_groups_claim_to_the_other_members() -> None:
    async with berthing(NODES) as b:
        uid = members(b, "g-0", "g-1")

        b.cluster.api.intercept = no_binding
        assert "no" in (await bound_together(b, "g-0"))[0]
        held = b.held()
        assert await bound_together(b, "g-1") == [""]
        assert b.held() == held
        assert [entry["uid"] for entry in reserved(b, "made")] == [uid]


async def test_a_claim_that_another_member_begins_to_write_while_the_group_is_read_is_not_written_twice() -> None:
    """Found on a real control plane: the bind of the member that the claim was held for continued with data from before
    it read the PodGroup.
    """
    async with berthing(NODES) as b:
        members(b, "g-0", "g-1")
        await b.settled()
        (node,) = (await b.filter("g-0"))["NodeNames"]
        assert (await b.filter("g-1"))["NodeNames"] == [node]
        reservations, progress = b.app.service.cache.reservations, b.app.service.informers.progress
        reads, writes = 0, 0

        async def slow(method: str, path: str) -> None:
            nonlocal reads, writes
            if method == "GET" and path.endswith("/podgroups/g"):
                reads += 1
                if reads == 1:
                    await eventually(lambda: reservations.in_flight)
            elif path.endswith("/resourceclaims/made"):
                writes += 1
                await eventually(
                    lambda: len(progress) or writes > 1, "the first bind waits for the second, or also writes"
                )

        b.cluster.api.intercept = slow
        first = asyncio.create_task(b.bind("g-0", node))
        await eventually(lambda: reads)
        assert [await b.bind("g-1", node), await first] == ["", ""]
        assert len(b.held()) == 1


async def allocated_without_member(b: Serving) -> str:
    """The claim `made` of a PodGroup is allocated, and no member is bound: the Binding of g-0 was rejected. The answer
    is the node of the claim."""
    members(b, "g-0", "g-1")
    b.cluster.api.intercept = no_binding
    assert "no" in (await bound_together(b, "g-0"))[0]
    b.cluster.api.intercept = None
    assert reserved(b, "made")
    return b.held()[0][0]


async def cannot_go(b: Serving, name: str, node: str) -> None:
    """The scheduler asks about every node but that of the pod's claim."""
    await b.settled()
    others = [other for other in THREE if other != node]
    answer = await b.filter(name, others)
    assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(others, "claim is allocated for other nodes")


async def test_a_groups_claim_is_freed_where_a_member_cannot_go_and_none_is_bound() -> None:
    """The in-tree plugin does this in PostFilter."""
    async with berthing(THREE) as b:
        node = await allocated_without_member(b)
        await cannot_go(b, "g-1", node)
        await eventually(lambda: not b.held() and not reserved(b, "made"))
        await b.settled()
        others = [other for other in THREE if other != node]
        (elsewhere, *_) = (await b.filter("g-1", others))["NodeNames"]
        assert await b.bind("g-1", elsewhere) == ""
        assert b.held()[0][0] == elsewhere


@pytest.mark.parametrize(("phase", "stays"), [("Running", True), ("Succeeded", False)])
async def test_a_groups_claim_stays_while_a_member_runs(phase: str, *, stays: bool) -> None:
    """Attack: take the connections to the API server with claims of which each filter request finds that their pod
    cannot use them."""
    async with berthing(THREE) as b:
        node = await allocated_without_member(b)
        assert await bound_together(b, "g-0") == [""]
        b.cluster.api.registry.patch(PODS, ("default", "g-0"), {"status": {"phase": phase}}, "status", strategic=False)
        await cannot_go(b, "g-1", node)
        orphans = b.app.service.orphans
        await eventually(lambda: orphans.skipped or orphans.unsuitable)
        assert bool(reserved(b, "made")) == stays == (len(b.held()) == 1)
        if stays:
            await eventually(lambda: not orphans.busy)
            await cannot_go(b, "g-1", node)
            assert not orphans.busy, "a check lists pods, so the next one comes some seconds later"


@pytest.mark.parametrize("slow", [False, True])
async def test_a_member_whose_bind_begins_while_the_groups_claim_is_released_keeps_it(*, slow: bool) -> None:
    """The bind marks the claim again. A slow Binding arrives only after the attempt to deallocate the claim."""
    async with berthing(THREE) as b:
        node = await allocated_without_member(b)
        binds: list[asyncio.Task[str]] = []
        deallocating = asyncio.Event()

        async def meanwhile(method: str, path: str) -> None:
            if method == "PATCH" and path.endswith("/resourceclaims/made") and not binds:
                binds.append(asyncio.create_task(b.bind("g-0", node)))
            if method == "PATCH" and path.endswith("/resourceclaims/made/status"):
                deallocating.set()
            if path.endswith("/binding") and slow:
                await deallocating.wait()

        b.cluster.api.intercept = meanwhile
        await cannot_go(b, "g-1", node)
        await eventually(lambda: binds)
        assert await binds[0] == ""
        assert b.node_of("g-0") == node
        orphans = b.app.service.orphans
        await eventually(lambda: not orphans.busy)
        assert reserved(b, "made")
        assert b.held()[0][0] == node
        assert orphans.unsuitable == 0


async def test_a_member_whose_claim_is_about_to_be_released_is_not_bound() -> None:
    """Its bind relies on the claim before the release is announced, and reads the claim before it sends the
    Binding."""
    async with berthing(THREE) as b:
        node = await allocated_without_member(b)
        reads = 0

        def announced() -> bool:
            found = b.cluster.store["resourceclaims", ("default", "made")]
            return found["metadata"]["annotations"]["berth.dev/allocator"].endswith("/release")

        async def hold(method: str, path: str) -> None:
            nonlocal reads
            if method == "GET" and path.endswith("/resourceclaims/made"):
                reads += 1
                if reads == 1:
                    await eventually(announced)

        b.cluster.api.intercept = hold
        bind = asyncio.create_task(b.bind("g-0", node))
        await eventually(lambda: reads)
        await cannot_go(b, "g-1", node)
        assert await bind == "claim default/made was taken over by another process"
        await eventually(lambda: not b.held())
        assert b.node_of("g-0") == ""


async def test_a_member_is_not_bound_where_another_replica_has_taken_the_groups_claim_back() -> None:
    """The watch of the replica that binds does not show the release yet."""
    async with replicas(THREE) as ((a, b), (gate, _)):
        node = await allocated_without_member(a)
        await asyncio.gather(a.settled(), b.settled())
        gate.close()
        await cannot_go(b, "g-1", node)
        await eventually(lambda: not b.held())
        assert await a.bind("g-0", node) == "claim default/made was released in the meantime"
        assert a.node_of("g-0") == ""


async def test_a_member_that_is_bound_before_the_release_is_announced_keeps_the_groups_claim() -> None:
    """The first list shows no bound member, the second does."""
    async with berthing(THREE) as b:
        node = await allocated_without_member(b)
        sent = announced = False

        async def meanwhile(method: str, path: str) -> None:
            nonlocal sent, announced
            if path.endswith("/binding"):
                sent = True
                await eventually(lambda: announced)
            elif sent and method == "PATCH" and path.endswith("/resourceclaims/made"):
                announced = True
                await eventually(lambda: b.node_of("g-0"))

        b.cluster.api.intercept = meanwhile
        bind = asyncio.create_task(b.bind("g-0", node))
        await eventually(lambda: sent)
        await cannot_go(b, "g-1", node)
        assert await bind == ""
        orphans = b.app.service.orphans
        await eventually(lambda: orphans.skipped)
        assert reserved(b, "made")
        assert b.held()[0][0] == node
        assert orphans.unsuitable == 0


@pytest.mark.parametrize(("groups", "bound"), [((["x"], ["", "g"]), True), ((["x"], ["y"]), False), (([], []), False)])
async def test_members_are_looked_for_on_every_page_of_the_list(groups: tuple[list[str], ...], *, bound: bool) -> None:
    class Pages:
        """An API client that lists pods of these groups, a page for each list of groups."""

        async def get(self, path: str, params: dict[str, str], _most: int = 0) -> Json:
            assert path == "/api/v1/namespaces/default/pods"
            assert params["fieldSelector"].startswith("spec.nodeName!=")
            number = int(params.get("continue", "0"))
            items = [{**pod("p", schedulingGroup={"podGroupName": name} if name else {})} for name in groups[number]]
            following = str(number + 1) if number + 1 < len(groups) else ""
            return {"kind": "PodList", "items": items, "metadata": {"resourceVersion": "1", "continue": following}}

    writer = Writer(Pages())  # type: ignore[arg-type]  # a fake
    assert await writer.read_has_bound_member(ObjectKey("default", "g")) == bound


@pytest.mark.parametrize("bound", [False, True])
async def test_a_groups_claim_with_a_failure_condition_is_freed_unless_a_member_is_bound(*, bound: bool) -> None:
    async with berthing({"n1": "t4-4"}) as b:
        custom(b, [CONDITIONAL])
        members(b, "g-0", "g-1", like=asks)
        await b.settled()
        first = asyncio.create_task(bound_together(b, "g-0"))
        await eventually(lambda: b.held() or first.done())
        if bound:
            report(b, "made", "Attached")
            assert await first == [""]
        report(b, "made", "Broken")
        failed = "binding conditions of claim default/made failed"
        assert (await bound_together(b, "g-1") if bound else await first) == [failed]
        assert bool(reserved(b, "made")) == bound == (len(b.held()) == 1)
