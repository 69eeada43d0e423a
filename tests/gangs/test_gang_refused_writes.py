"""What the API server would refuse at bind is refused at filter, by name: otherwise a gang is tried for ever."""

from __future__ import annotations

import pytest

from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.gang_pods import NO_ROOM, bind_all, planned, reasons
from tests.worlds.running_berth import Berthing, Json, berthing, claim, pod

pytestmark = pytest.mark.loopback

MEMBERS = ("p0", "p1", "p2")
FULL = "claim default/shared has 2 of 256 reservations left, too few for group job"
SHARED = {"name": "c0", "resourceClaimName": "shared"}  # the entry of the pods


def pod_group(b: Berthing, **spec: object) -> None:
    b.cluster.apply({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "job"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": len(MEMBERS)}}, **spec},
    })  # fmt: skip


def used_by(b: Berthing, others: int) -> None:
    """The claim `shared`, allocated on n1 and reserved for so many other pods."""
    b.cluster.apply(claim("shared"))
    device = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    allocation = {"devices": {"results": [device]}, "nodeSelector": {"nodeSelectorTerms": [only]}}
    users = [{"resource": "pods", "name": f"u{i}", "uid": f"u{i}"} for i in range(others)]
    kind, status = RESOURCES["resource.k8s.io", "resourceclaims"], {"allocation": allocation, "reservedFor": users}
    b.cluster.api.registry.patch(kind, ("default", "shared"), {"status": status}, "status", strategic=False)


@pytest.mark.parametrize("is_listed", [False, True], ids=["a claim of the pods", "a claim of the PodGroup"])
async def test_the_pods_of_a_pod_group_count_the_reservations_of_a_shared_claim(is_listed: bool) -> None:
    """A claim that the PodGroup lists is reserved once for all its pods; any other one for each pod."""
    async with berthing({"n1": "hgx-h100-8"}) as b:
        pod_group(b, **({"resourceClaims": [SHARED]} if is_listed else {}))
        await eventually(lambda: b.app.service.cache.store.group_policies, "the PodGroup is known")
        used_by(b, 254)
        for name in MEMBERS:
            b.cluster.apply(claim(f"{name}-gpus"))
            b.cluster.apply(pod(name, "shared", f"{name}-gpus", schedulingGroup={"podGroupName": "job"}))
        await b.settled()
        if not is_listed:
            assert [await reasons(b, name) for name in MEMBERS] == [{FULL}] * 3
            return
        assert await bind_all(b, await planned(b, *MEMBERS)) == ["", "", ""]
        stored = b.cluster.store["resourceclaims", ("default", "shared")]["status"]["reservedFor"]
        assert [one["resource"] for one in stored[254:]] == ["podgroups"]


def large_config(b: Berthing, name: str) -> None:
    """A claim whose allocation would have 65 config entries: 32 of each of two classes, and one of its own."""
    entry = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"k": 1}}}
    expression = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
    asked: list[Json] = []
    for one in (f"{name}-a", f"{name}-b"):
        spec = {"selectors": [expression], "config": [entry] * 32}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
        b.cluster.apply({**kind, "metadata": {"name": one}, "spec": spec})
        asked.append({"name": one, "exactly": {"deviceClassName": one, "allocationMode": "ExactCount", "count": 1}})
    made = claim(name)
    made["spec"]["devices"] = {"requests": asked, "config": [entry]}
    b.cluster.apply(made)


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_claim_with_too_much_config_is_named_by_each_member(is_busy: bool) -> None:
    """No wait helps, so 'no domain has room' was not true. Where devices are in use, only their end can tell."""
    async with berthing({"n1": "hgx-h100-8", "n2": "hgx-h100-8"} if is_busy else {"n1": "hgx-h100-8"}) as b:
        b.cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "cpu"}})
        if is_busy:
            await b.create(claim("other", 8), pod("q", "other"))
            assert await b.bind("q", (await b.filter("q"))["NodeNames"][0]) == ""
        for name in MEMBERS[:2]:
            large_config(b, f"{name}-gpus")
            notes = {"berth.dev/group": "job", "berth.dev/group-min": "2"}
            b.cluster.apply(pod(name, f"{name}-gpus", annotations=notes))
        await b.settled()
        (text,) = await reasons(b, "p0")
        assert await reasons(b, "p1") == {text}
        (found,) = (await b.client.get("/v1/explain/group/default/job")).json()
        why = "claim default/p0-gpus: its allocation would have 65 config entries"
        assert found["outcome"] == "blocked", "explain sees that also where devices are in use"
        assert found["sentence"].startswith(f"group default/job fits nowhere: pod default/p0: {why}")
        assert text == NO_ROOM if is_busy else text.startswith(f"pod default/p0 of the group: {why}")
