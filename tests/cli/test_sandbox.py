"""The sandbox's API server keeps the rules that Berth relies on."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import ExitStack
from typing import Any

import orjson
import pytest

from extender.api.resource_claims import FINALIZER
from extender.sandbox import ApiError, Cluster, carried_machines, listening
from extender.sandbox.apiserver.registry import RESOURCES, strategic_patch
from tests.worlds.http_worlds import HEAD, connected, left
from tests.worlds.running_berth import claim, pod
from tests.worlds.skipping_loop import in_virtual_time

CLAIMS = RESOURCES["resource.k8s.io", "resourceclaims"]
PODS = RESOURCES["", "pods"]
RESULT = {"request": "gpu", "driver": "d.example.com", "pool": "p", "device": "dev-0"}


def allocation(**result: object) -> dict:
    return {"devices": {"results": [{**RESULT, **result}]}}


def patch(cluster: Cluster, change: dict, sub: str = "status") -> dict:
    return cluster.api.registry.patch(CLAIMS, ("default", "c"), change, sub, strategic=False)


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster()
    found.apply(claim("c"))
    return found


def refused(cluster: Cluster, change: dict, code: int, words: str, sub: str = "status") -> None:
    with pytest.raises(ApiError) as caught:
        patch(cluster, change, sub)
    assert caught.value.code == code
    assert words in caught.value.message


def test_versions_guard_writes(cluster: Cluster) -> None:
    refused(cluster, {"metadata": {"resourceVersion": "1"}}, 409, "modified", "")
    refused(cluster, {"metadata": {"uid": "other"}}, 422, "metadata.uid", "")


def test_an_allocation_is_immutable(cluster: Cluster) -> None:
    patch(cluster, {"status": {"allocation": allocation()}})
    refused(cluster, {"status": {"allocation": allocation(device="dev-1")}}, 422, "field is immutable")
    patch(cluster, {"status": {"allocation": None}})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reservedFor": [{"uid": "u", "name": "p", "resource": "pods"}]}, "may not be specified when"),
        ({"allocation": allocation(request="other")}, "must be a request"),
        ({"allocation": allocation(shareID="ABC")}, "lowercase UUID"),
        ({"allocation": allocation(device="UPPER")}, "device"),
        ({"allocation": allocation(bindingConditions=["a"])}, "come together"),
        ({"allocation": allocation(), "reservedFor": [{"uid": "u", "name": "p"}]}, "resource"),
        ({"allocation": {"devices": {"results": [RESULT] * 33}}}, "at most 32"),
    ],
)
def test_status_is_validated(cluster: Cluster, change: dict, words: str) -> None:
    refused(cluster, {"status": change}, 422, words)


def test_new_claims_and_templates_are_validated() -> None:
    """tests/cases/refused_values.yaml has all rules."""
    found = claim("c")
    found["spec"]["devices"]["constraints"] = [{"matchAttribute": "a/b", "requests": ["gpus"]}]
    template = {**found, "kind": "ResourceClaimTemplate", "spec": {"spec": found["spec"]}}
    for obj, path in ((found, "spec"), (template, "spec.spec")):
        with pytest.raises(ApiError, match=rf"{path}.devices.constraints\[0\].requests\[0\]: Invalid value: 'gpus'"):
            Cluster().apply(obj)


def test_status_writes_leave_the_rest(cluster: Cluster) -> None:
    """Finalizers cannot be set through /status, status not through the object."""
    patch(cluster, {"metadata": {"finalizers": ["x"]}, "status": {"allocation": allocation()}})
    found = patch(cluster, {"metadata": {"labels": {"a": "b"}}, "status": {}}, "")
    assert "finalizers" not in found["metadata"]
    assert found["status"]["allocation"] == allocation()


def test_admin_access_needs_the_namespace_label(cluster: Cluster) -> None:
    refused(cluster, {"status": {"allocation": allocation(adminAccess=True)}}, 403, "admin-access")


def test_reservation_is_removed_by_uid(cluster: Cluster) -> None:
    reserved = [{"uid": u, "name": u, "resource": "pods"} for u in ("u1", "u2")]
    patch(cluster, {"status": {"allocation": allocation(), "reservedFor": reserved}})
    change = {"status": {"reservedFor": [{"$patch": "delete", "uid": "u1"}]}}
    found = cluster.api.registry.patch(CLAIMS, ("default", "c"), change, "status", strategic=True)
    assert [r["uid"] for r in found["status"]["reservedFor"]] == ["u2"]


@pytest.mark.parametrize("deleted", [False, True])
def test_template_becomes_a_claim_and_goes_with_the_pod(deleted: bool) -> None:
    """Also if a user has deleted the claim: it stays until its finalizer goes."""
    cluster = Cluster()
    cluster.apply(
        {
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "t", "namespace": "default"},
            "spec": {"spec": claim("x")["spec"]},
        }
    )
    made = cluster.apply(pod("p", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}]))
    status = cluster.store["pods", ("default", "p")]["status"]
    name = status["resourceClaimStatuses"][0]["resourceClaimName"]
    found = cluster.store["resourceclaims", ("default", name)]
    assert name.startswith("p-gpu-")
    assert found["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    change = {"metadata": {"finalizers": [FINALIZER]}}
    cluster.api.registry.patch(CLAIMS, ("default", name), change, "", strategic=False)
    if deleted:
        cluster.api.registry.delete(CLAIMS, ("default", name))
    cluster.api.registry.delete(PODS, ("default", "p"))
    assert cluster.store.get("resourceclaims", ("default", name)) is None


def test_binding_once_and_for_the_right_uid() -> None:
    cluster = Cluster()
    uid = cluster.apply(pod("p"))["metadata"]["uid"]
    bind = cluster.api.registry.bind
    with pytest.raises(ApiError, match="UID"):
        bind(("default", "p"), {"metadata": {"uid": "other"}, "target": {"name": "n"}})
    bind(("default", "p"), {"metadata": {"uid": uid, "annotations": {"a": "b"}}, "target": {"name": "n"}})
    assert cluster.store["pods", ("default", "p")]["metadata"]["annotations"] == {"a": "b"}
    with pytest.raises(ApiError, match="already assigned"):
        bind(("default", "p"), {"metadata": {"uid": uid}, "target": {"name": "n"}})


POD_SPEC = {"containers": [{"name": "a", "image": "x"}, {"name": "b"}], "nodeSelector": {"k": "v", "l": "w"}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"containers": [{"name": "a", "image": "y"}]}, {"containers": [{"name": "a", "image": "y"}, {"name": "b"}]}),
        ({"containers": [{"name": "c"}]}, {"containers": [*POD_SPEC["containers"], {"name": "c"}]}),
        ({"containers": [{"name": "a", "$patch": "delete"}]}, {"containers": [{"name": "b"}]}),
        ({"containers": [{"$patch": "replace"}, {"name": "c"}]}, {"containers": [{"name": "c"}]}),
        ({"$setElementOrder/containers": [{"name": "a"}]}, {}),
        ({"nodeSelector": {"k": None}}, {"nodeSelector": {"l": "w"}}),
        ({"nodeSelector": {"$patch": "replace", "m": "x"}}, {"nodeSelector": {"m": "x"}}),
        ({"nodeSelector": {"$retainKeys": ["k"]}}, {"nodeSelector": {"k": "v"}}),
        ({"finalizers": ["b", "c"]}, {"finalizers": ["a", "b", "c"]}),
        ({"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
        ({"args": ["x"]}, {"args": ["x"]}),
    ],
    ids=str,
)
def test_a_strategic_merge_patch_follows_its_directives(change: dict, expected: dict) -> None:
    target = {**POD_SPEC, "finalizers": ["a", "b"], "args": ["old"]}
    assert strategic_patch(target, change) == {**target, **expected}


def test_busy_gpus_belong_to_a_running_pod() -> None:
    cluster = Cluster()
    cluster.add_node("n", carried_machines()["t4-4"])
    cluster.occupy("n", (1, 3))
    claim_of = cluster.store["resourceclaims", ("default", "running-n")]["status"]
    assert [result["device"] for result in claim_of["allocation"]["devices"]["results"]] == ["gpu-1", "gpu-3"]
    running = cluster.store["pods", ("default", "running-n")]
    assert claim_of["reservedFor"][0]["uid"] == running["metadata"]["uid"]
    assert (running["spec"]["nodeName"], running["status"]["phase"]) == ("n", "Running")


def test_a_bound_pod_says_that_no_container_starts() -> None:
    cluster = Cluster()
    cluster.apply(pod("p"))
    cluster.api.registry.bind(("default", "p"), {"target": {"name": "n"}})
    status = cluster.store["pods", ("default", "p")]["status"]
    assert (status["reason"], status["conditions"][0]["status"]) == ("Scheduled", "True")
    assert "no kubelet" in status["message"]


def test_the_two_kinds_of_pod_groups_are_apart(cluster: Cluster) -> None:
    core, plugins = (RESOURCES[group, "podgroups"] for group in ("scheduling.k8s.io", "scheduling.x-k8s.io"))
    for resource, spec in ((core, {"a": 1}), (plugins, {"b": 1})):
        api = {"apiVersion": resource.api_version, "kind": "PodGroup"}
        cluster.apply({**api, "metadata": {"name": "g"}, "spec": spec})
    registry, key = cluster.api.registry, ("default", "g")
    assert [registry.get(resource, key)["spec"] for resource in (core, plugins)] == [{"a": 1}, {"b": 1}]
    registry.delete(core, key)
    assert registry.get(plugins, key)["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    with pytest.raises(ApiError, match="not found"):
        registry.get(core, key)


def test_a_pod_group_without_version_is_the_built_in_one(cluster: Cluster) -> None:
    made = cluster.apply({"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {}})
    assert made["apiVersion"] == "scheduling.k8s.io/v1beta1"


async def test_a_server_ends_quietly_though_a_stream_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    """An open page once made `berth run` wait for a second at its end, and print a traceback."""

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await asyncio.Event().wait()

    async with listening(endless, "127.0.0.1", 0) as url:
        reader, writer = await connected(int(url.rpartition(":")[2]), HEAD + b"\r\n")
        await reader.readuntil(b"begun")
    await left((reader, writer))
    assert not capsys.readouterr().err


@pytest.mark.parametrize("turns", range(5))
async def test_a_server_that_ends_closes_the_connections_that_it_has_just_accepted(turns: int) -> None:
    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        """An application without answers."""

    with ExitStack() as stack:
        async with listening(nothing, "127.0.0.1", 0) as url:
            for _ in range(20):
                stack.enter_context(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))))
            for _ in range(turns):
                await asyncio.sleep(0)
    gc.collect()  # warns of a connection that is open


def test_a_bookmark_never_overtakes_a_change() -> None:
    """A client that reads a bookmark has seen all changes up to its version, also one of the same moment."""
    seen: list[dict[str, Any]] = []

    async def watch() -> None:
        cluster = Cluster(bookmark_seconds=5.0)
        query = b"watch=1&allowWatchBookmarks=1&timeoutSeconds=12"
        scope = {"type": "http", "method": "GET", "path": "/api/v1/nodes", "query_string": query, "headers": []}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: dict[str, Any]) -> None:
            if message.get("body"):
                seen.append(orjson.loads(message["body"]))

        at_once = 5.0 + 5e-10  # the loop runs this timer right after that of the bookmark
        asyncio.get_running_loop().call_later(at_once, cluster.add_node, "n1", carried_machines()["t4-4"])
        await cluster.api(scope, receive, send)

    in_virtual_time(watch())
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
    assert {event["type"] for event in seen} == {"ADDED", "BOOKMARK"}
    assert versions == sorted(versions), seen
