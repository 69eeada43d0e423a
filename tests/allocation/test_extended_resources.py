"""Pods with extended resources, over real HTTP: Berth makes the special claim and removes it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from extender.api.object_meta import ObjectKey
from extender.api.pods import Container
from extender.base.berth_errors import BerthError
from extender.sandbox import Cluster, carried_machines, listening
from extender.sandbox.apiserver.registry import RESOURCES
from extender.scheduling.requirements import special_claim
from tests.worlds.applications import serve_application
from tests.worlds.dra_worlds import extended, place
from tests.worlds.eventually import eventually
from tests.worlds.interceptions import Refusing
from tests.worlds.running_berth import berthing, claim, one_node, patient, pod
from tests.worlds.tenant_worlds import SPECIAL, forged, uid_of


async def test_device_plugin_manifest_gets_a_claim() -> None:
    """nvidia.com/gpu: 2 on a node without the device plugin: claim, mapping in the pod's status, devices, Binding."""
    async with berthing({"n1": "a100-pcie-8-bridged"}) as b:
        await b.create(extended("old", 2))
        assert await place(b, "old") == ""
        (made,) = b.claims()
        assert made["metadata"]["name"].startswith("old-extended-resources-")
        assert made["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] == "true"
        (owner,) = made["metadata"]["ownerReferences"]
        assert owner["uid"] == b.pod("old")["metadata"]["uid"]
        assert owner["controller"]
        assert "blockOwnerDeletion" not in owner, "OpenShift wants the right to update pods/finalizers for it"
        assert made["spec"]["devices"]["requests"][0]["name"] == "container-0-request-1"
        status = b.pod("old")["status"]["extendedResourceClaimStatus"]
        assert status == {
            "resourceClaimName": made["metadata"]["name"],
            "requestMappings": [
                {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-1"}
            ],
        }
        assert sorted(b.held()) in ([("n1", f"gpu-{i}"), ("n1", f"gpu-{i + 1}")] for i in (0, 2, 4, 6)), (
            "a bridged pair"
        )


@pytest.mark.parametrize("length", [38, 39, 63, 233])
async def test_a_pod_with_a_long_name_gets_its_claim(length: int) -> None:
    """The API server cuts metadata.generateName; as a whole it has at most 253 characters."""
    async with berthing({"n1": "t4-4"}) as b:
        name = "p" * length
        await b.create(extended(name))
        assert await b.bind(name, "n1") == ""
        (made,) = b.claims()
        assert b.pod(name)["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == made["metadata"]["name"]


async def test_node_with_device_plugin_needs_no_claim() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        node = b.cluster.store["nodes", ("", "n1")]
        b.cluster.store.put("nodes", ("", "n1"), {**node, "status": {"allocatable": {"nvidia.com/gpu": "4"}}})
        await b.create(extended("old"))
        assert await place(b, "old") == ""
        assert b.claims() == []


async def test_failed_bind_removes_the_special_claim() -> None:
    async with one_node(extended("old")) as b:
        await b.filter("old")
        b.cluster.api.intercept = Refusing("/binding")
        assert "no" in await b.bind("old", "n1")
        assert b.claims() == []
        b.cluster.api.intercept = None
        assert await place(b, "old") == ""


async def test_a_process_that_has_just_started_binds_no_pod_before_it_knows_the_classes() -> None:
    """The process before it answered the filter request. Without the classes the pod seems to need no devices."""
    cluster, listing = Cluster(), asyncio.Event()
    cluster.add_node("n1", carried_machines()["t4-4"])

    async def hold_back(method: str, path: str) -> None:
        if method == "GET" and path.endswith("/deviceclasses"):
            await listing.wait()

    cluster.api.intercept = hold_back
    uids = {one["metadata"]["name"]: one["metadata"]["uid"] for one in map(cluster.apply, (extended("p"), pod("q")))}
    async with cluster.serving() as api, serve_application(api, patient()) as app:
        missing = "not listed yet: deviceclasses"
        await eventually(lambda: app.service.informers.not_ready == missing)
        with pytest.raises(BerthError, match=f"berth is not ready, {missing}"):
            await app.service.bind(ObjectKey("default", "p"), uids["p"], "n1")
        await app.service.bind(ObjectKey("default", "q"), uids["q"], "n1")  # it needs no devices
        listing.set()
        await eventually(lambda: not app.service.informers.not_ready)
        await app.service.bind(ObjectKey("default", "p"), uids["p"], "n1")
        (made,) = cluster.store.all("resourceclaims")
        assert made["status"]["allocation"]
        assert all(one["spec"]["nodeName"] == "n1" for one in cluster.store.all("pods"))


async def test_a_class_that_the_watch_has_not_shown_yet_lets_no_pod_start_without_devices() -> None:
    """kube-scheduler has its own watch, and may know the class before Berth does."""
    cluster, shown, lists = Cluster(), asyncio.Event(), Counter[str]()
    for name in ("n1", "n2"):
        cluster.add_node(name, carried_machines()["t4-4"])

    async def late(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path", "").endswith("/deviceclasses"):
            is_watch = b"watch=1" in scope["query_string"]
            lists["watch" if is_watch else "list"] += 1
            if is_watch:
                await shown.wait()
        await cluster.api(scope, receive, send)

    async with listening(late, "127.0.0.1", 0) as api, serve_application(api, patient()) as app:
        await eventually(lambda: not app.service.informers.not_ready and lists["watch"])
        cluster.apply(
            {"kind": "DeviceClass", "metadata": {"name": "late"}, "spec": {"extendedResourceName": "x.dev/late"}}
        )
        for node in ("n1", "n2"):
            offers = {"status": {"allocatable": {"x.dev/plugin": "1"}}}
            cluster.api.registry.patch(RESOURCES["", "nodes"], ("", node), offers, "status", strategic=False)
        await eventually(lambda: "x.dev/plugin" in app.service.cache.store.nodes["n2"].allocatable)

        def asks(name: str, resource: str) -> str:
            """A pod that asks for a resource; returns its UID."""
            resources = {"limits": {resource: "1"}, "requests": {resource: "1"}}
            made = cluster.apply(pod(name, containers=[{"name": "main", "image": "pause", "resources": resources}]))
            return str(made["metadata"]["uid"])

        for resource in ("x.dev/late", "deviceclass.resource.kubernetes.io/late"):
            name = resource.replace("/", "-")
            with pytest.raises(BerthError, match=f"a DeviceClass that provides {resource} is not known yet"):
                await app.service.bind(ObjectKey("default", name), asks(name, resource), "n1")
        before = lists["list"]
        await app.service.bind(ObjectKey("default", "p"), asks("p", "x.dev/plugin"), "n1")
        assert lists["list"] == before, "the node offers the resource"
        await app.service.bind(ObjectKey("default", "q"), asks("q", "x.dev/of-another-extender"), "n1")
        assert {one["metadata"]["name"] for one in cluster.store.all("pods") if one["spec"].get("nodeName")} == {
            "p",
            "q",
        }
        shown.set()
        cluster.store.cut_watches()


async def test_empty_special_claim_of_an_earlier_attempt_stops_nothing() -> None:
    """A crash after the claim was created and before it was allocated: it holds nothing and goes with its pod. An
    allocated one is removed first (tests/bind/test_tenant_special_claims.py)."""
    async with one_node(extended("old")) as b:
        left = claim("old-extended-resources-abcde")
        left["metadata"] |= {**forged("old", uid_of(b, "old")), "annotations": {SPECIAL: "true"}}
        await b.create(left)
        assert await place(b, "old") == ""
        assert len(b.held()) == 1
        assert len(b.claims()) == 2


async def test_implicit_name() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        resources = {"requests": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}}
        await b.create(pod("p", containers=[{"name": "m", "image": "pause", "resources": resources}]))
        assert await place(b, "p") == ""
        assert len(b.held()) == 1


def test_init_containers_reuse_later_devices() -> None:
    """Each sidecar and regular container has its own request.

    Init containers share one request for the largest missing amount.
    """
    gpu = "nvidia.com/gpu"
    containers = (
        Container("init-1", ((gpu, 3),), init=True),
        Container("side", ((gpu, 1),), init=True, sidecar=True),
        Container("init-2", ((gpu, 4),), init=True),
        Container("main", (("cpu", 0), (gpu, 1))),
    )
    spec, mappings = special_claim(containers, {gpu: "gpus"})
    assert [(r.name, r.alternatives[0].count) for r in spec.requests] == [
        ("container-1-request-0", 1),
        ("container-2-request-0", 3),
        ("container-3-request-1", 1),
    ]
    assert [(m.container, m.request) for m in mappings] == [
        ("side", "container-1-request-0"),
        ("main", "container-3-request-1"),
        ("init-1", "container-1-request-0"),
        ("init-1", "container-3-request-1"),
        ("init-1", "container-2-request-0"),
        ("init-2", "container-3-request-1"),
        ("init-2", "container-2-request-0"),
    ]


async def test_a_pod_with_very_many_extended_resources_is_refused_at_once() -> None:
    """Each of many short init containers may use each of many long-lived ones: that is a product."""
    async with berthing({"n1": "t4-4"}) as b:
        many = {"limits": {"nvidia.com/gpu": "1000000000"}, "requests": {"nvidia.com/gpu": "1000000000"}}
        one = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
        spec: dict[str, Any] = {
            "initContainers": [{"name": f"i{i}", "image": "pause", "resources": many} for i in range(40)],
            "containers": [{"name": f"c{i}", "image": "pause", "resources": one} for i in range(40)],
        }
        await b.create(pod("p", **spec))
        reply = await b.filter("p")
        assert "80 requests for extended resources, more than 64" in next(
            iter(reply["FailedAndUnresolvableNodes"].values())
        )
