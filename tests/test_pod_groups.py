"""Claims of a PodGroup (KEP-5729): allocated once, reserved once for the group, and the members go where they are."""

from __future__ import annotations

import asyncio

import pytest

from extender.sandbox.apiserver.errors import ApiError
from extender.sandbox.apiserver.resources import RESOURCES
from tests.berthing import Berthing, Json, berthing, claim, pod

NODES = {"n1": "t4-4", "n2": "t4-4"}
PODS = RESOURCES["", "pods"]


def group(b: Berthing, name: str, *claims: Json) -> str:
    """Create a PodGroup with these claims; the answer is its UID."""
    made = {"kind": "PodGroup", "metadata": {"name": name}, "spec": {"resourceClaims": list(claims)}}
    return str(b.cluster.apply(made)["metadata"]["uid"])


def made_for_group(b: Berthing, name: str, uid: str, group_name: str = "g") -> None:
    """A claim as the claim controller makes it from a template of the PodGroup."""
    made = claim(name)
    owner = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": group_name, "uid": uid}
    made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    b.cluster.apply(made)


def member(b: Berthing, name: str, entry: Json, made: str = "", group_name: str = "g") -> None:
    """A pod of the group with one claim; `made` is the claim that its status names."""
    b.cluster.apply(pod(name, resourceClaims=[entry], schedulingGroup={"podGroupName": group_name}))
    if made:
        status = {"status": {"resourceClaimStatuses": [{"name": entry["name"], "resourceClaimName": made}]}}
        b.cluster.api.registry.patch(PODS, ("default", name), status, "status", strategic=False)


def reserved(b: Berthing, name: str) -> list[Json]:
    found = b.cluster.store.get("resourceclaims", ("default", name))
    return list(found["status"].get("reservedFor") or ())


async def bound_together(b: Berthing, *names: str) -> list[str]:
    """Filter all pods, then bind them at once; the answers of the binds."""
    await b.settled()
    nodes = [(await b.filter(name))["NodeNames"][0] for name in names]
    assert len(set(nodes)) == 1
    return list(await asyncio.gather(*(b.bind(name, nodes[0]) for name in names)))


async def test_a_claim_made_for_the_group_is_reserved_once_for_it() -> None:
    async with berthing(NODES) as b:
        uid, entry = group(b, "g"), {"name": "gpu", "resourceClaimTemplateName": "t"}
        made_for_group(b, "made", uid)
        for name in ("g-0", "g-1", "g-2"):
            member(b, name, entry, "made")
        assert await bound_together(b, "g-0", "g-1", "g-2") == ["", "", ""]
        entry_of_group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": uid}
        assert reserved(b, "made") == [entry_of_group]
        assert len(b.held()) == 1 and len({b.node_of(name) for name in ("g-0", "g-1", "g-2")}) == 1


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


async def test_a_pod_of_a_group_that_the_server_does_not_know_uses_its_claim_itself() -> None:
    async with berthing(NODES) as b:
        b.cluster.apply(claim("c"))
        member(b, "p", {"name": "gpu", "resourceClaimName": "c"}, group_name="missing")
        assert await bound_together(b, "p") == [""]
        assert [entry["resource"] for entry in reserved(b, "c")] == ["pods"]


@pytest.mark.parametrize(("group_name", "words"), [("other", "not owned by the pod or its PodGroup other"), ("g", "")])
async def test_a_claim_of_another_group_is_not_ready(group_name: str, words: str) -> None:
    async with berthing(NODES) as b:
        made_for_group(b, "made", group(b, "g"))
        member(b, "p", {"name": "gpu", "resourceClaimTemplateName": "t"}, "made", group_name)
        await b.settled()
        assert (await b.filter("p"))["Error"].endswith(words)


async def test_a_failed_bind_leaves_the_groups_claim_to_the_other_members() -> None:
    async with berthing(NODES) as b:
        uid, entry = group(b, "g"), {"name": "gpu", "resourceClaimTemplateName": "t"}
        made_for_group(b, "made", uid)
        for name in ("g-0", "g-1"):
            member(b, name, entry, "made")

        async def refuse(method: str, path: str) -> ApiError | None:
            return ApiError(403, "Forbidden", "no") if path.endswith("/pods/g-0/binding") else None

        b.cluster.api.intercept = refuse
        assert "no" in (await bound_together(b, "g-0"))[0]
        held = b.held()
        assert await bound_together(b, "g-1") == [""]
        assert b.held() == held and [entry["uid"] for entry in reserved(b, "made")] == [uid]
