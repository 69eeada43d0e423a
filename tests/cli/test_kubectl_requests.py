"""The sandbox answers the requests that kubectl 1.36 makes, with its headers (recorded with -v=9)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from extender.sandbox import Cluster, carried_machines
from extender.sandbox.apiserver.kubectl_documents import duration_text
from tests.worlds.eventually import HANG_SECONDS
from tests.worlds.running_berth import claim, pod

Json = dict[str, Any]
DISCOVERY = {
    "Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
}
TABLE = {
    "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,"
    "application/json"
}
TYPED = {"Accept": "application/vnd.kubernetes.protobuf,application/json"}  # describe
JSON = {"Accept": "application/json", "Content-Type": "application/json"}
MERGE = {**JSON, "Content-Type": "application/merge-patch+json"}
STRATEGIC = {**JSON, "Content-Type": "application/strategic-merge-patch+json"}
PODS = "/api/v1/namespaces/default/pods"
STRICT = {"fieldManager": "kubectl-client-side-apply", "fieldValidation": "Strict"}


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster(bookmark_seconds=0.05)
    found.add_node("n1", carried_machines()["t4-4"])
    return found


@pytest.fixture
async def kubectl(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with cluster.serving() as url, httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=False) as client:
        yield client


async def test_discovery_leads_to_every_kind(kubectl: httpx.AsyncClient) -> None:
    assert (await kubectl.get("/api", headers=DISCOVERY)).json()["versions"] == ["v1"]
    groups = (await kubectl.get("/apis", headers=DISCOVERY)).json()["groups"]
    dra = next(group for group in groups if group["name"] == "resource.k8s.io")
    assert dra["preferredVersion"]["groupVersion"] == "resource.k8s.io/v1"
    kinds: dict[str, tuple[str, bool]] = {}
    for version in ["/api/v1", *(f"/apis/{v['groupVersion']}" for group in groups for v in group["versions"])]:
        found = (await kubectl.get(version, headers={"Accept": "application/json, */*"})).json()
        kinds |= {resource["name"]: (resource["kind"], resource["namespaced"]) for resource in found["resources"]}
    assert kinds["pods"] == ("Pod", True)
    assert kinds["resourceslices"] == ("ResourceSlice", False)


async def test_openapi_leaves_the_validation_to_the_server(kubectl: httpx.AsyncClient) -> None:
    paths = (await kubectl.get("/openapi/v3")).json()["paths"]
    document = (await kubectl.get(paths["apis/resource.k8s.io/v1"]["serverRelativeURL"])).json()
    patches = [path["patch"] for path in document["paths"].values()]
    assert "ResourceClaim" in {patch["x-kubernetes-group-version-kind"]["kind"] for patch in patches}
    assert all({"name": "fieldValidation", "in": "query"} in patch["parameters"] for patch in patches)


async def test_a_list_is_validated_by_an_openapi_document_without_schemas(kubectl: httpx.AsyncClient) -> None:
    protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    found = await kubectl.get("/openapi/v2", headers={"Accept": protobuf})
    assert (found.status_code, found.headers["Content-Type"]) == (200, protobuf.replace("@", "."))
    assert found.content == b"\n\x032.0", "field 1, a text of three bytes: the version"


def rows_of(table: Json) -> list[dict[str, str]]:
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    names = [column["name"] for column in table["columnDefinitions"]]
    return [dict(zip(names, row["cells"], strict=True)) for row in table["rows"]]


EVENT = {
    "kind": "Event",
    "apiVersion": "events.k8s.io/v1",
    "metadata": {"name": "e"},
    "type": "Warning",
    "reason": "NotPlaced",
    "note": "no room",
    "regarding": {"kind": "Pod", "name": "p", "uid": "u"},
}


@pytest.mark.parametrize(
    ("path", "cells"),
    [
        (PODS, {"Name": "p", "Ready": "0/1", "Status": "Pending", "Restarts": "0", "Node": "<none>"}),
        ("/api/v1/nodes", {"Name": "n1", "Status": "Ready", "Machine": "t4-4"}),
        ("/api/v1/namespaces", {"Name": "default", "Status": "Active"}),
        ("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", {"Name": "c", "State": "pending"}),
        ("/apis/resource.k8s.io/v1/resourceslices", {"Driver": "gpu.nvidia.com", "Node": "n1", "Pool": "n1"}),
        ("/apis/resource.k8s.io/v1/deviceclasses", {"Name": "berth.dev", "Age": "0s"}),
        ("/api/v1/namespaces/default/events", {"Reason": "NotPlaced", "Object": "pod/p", "Message": "no room"}),
        ("/apis/events.k8s.io/v1/namespaces/default/events", {"Object": "pod/p", "Message": "no room"}),
    ],
)
async def test_get_prints_columns(
    cluster: Cluster, kubectl: httpx.AsyncClient, path: str, cells: dict[str, str]
) -> None:
    cluster.apply(claim("c"))
    cluster.apply(pod("p", "c"))
    await kubectl.post("/apis/events.k8s.io/v1/namespaces/default/events", json=EVENT)
    found = (await kubectl.get(path, params={"limit": 500}, headers=TABLE)).json()
    first = rows_of(found)[0]
    first["Age"] = "0s"  # the machine may be slow
    assert first | cells == first
    assert found["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


async def test_one_object_is_a_table_of_one_row(cluster: Cluster, kubectl: httpx.AsyncClient) -> None:
    cluster.apply(pod("p"))
    found = (await kubectl.get(f"{PODS}/p", params={"includeObject": "Object"}, headers=TABLE)).json()
    assert [row["object"]["metadata"]["name"] for row in found["rows"]] == ["p"]


async def test_describe_finds_the_events_of_a_pod(cluster: Cluster, kubectl: httpx.AsyncClient) -> None:
    """Berth writes events.k8s.io/v1; describe reads v1."""
    cluster.apply(EVENT)
    for uid, count in (("u", 1), ("other", 0)):
        selector = f"involvedObject.uid={uid},involvedObject.name=p"
        params = {"fieldSelector": selector, "limit": "500"}
        found = (await kubectl.get("/api/v1/namespaces/default/events", params=params, headers=TYPED)).json()
        assert [(e["apiVersion"], e["message"]) for e in found["items"]] == [("v1", "no room")] * count


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"labelSelector": "a=b"}, ["one"]),
        ({"labelSelector": "a!=b"}, ["three", "two"]),
        ({"labelSelector": "a in (b,c),!z"}, ["one", "two"]),
        ({"labelSelector": "a notin (b)"}, ["three", "two"]),
        ({"labelSelector": "a"}, ["one", "two"]),
        ({"fieldSelector": "metadata.name=one"}, ["one"]),
        ({"fieldSelector": "spec.nodeName=,status.phase!=Failed", "labelSelector": "a==c"}, ["two"]),
    ],
)
async def test_selectors(
    cluster: Cluster, kubectl: httpx.AsyncClient, params: dict[str, str], names: list[str]
) -> None:
    for name, labels in (("one", {"a": "b"}), ("two", {"a": "c"}), ("three", {})):
        cluster.apply({**pod(name), "metadata": {"name": name, "labels": labels}})
    found = (await kubectl.get(PODS, params=params)).json()["items"]
    assert [item["metadata"]["name"] for item in found] == names


async def test_a_selector_that_cannot_be_read_is_an_error(kubectl: httpx.AsyncClient) -> None:
    reply = await kubectl.get(PODS, params={"fieldSelector": "spec.nodeName"})
    assert reply.status_code == 400
    assert "spec.nodeName" in reply.json()["message"]


async def test_get_watch_streams_rows(cluster: Cluster, kubectl: httpx.AsyncClient) -> None:
    version = (await kubectl.get(PODS, headers=TABLE)).json()["metadata"]["resourceVersion"]
    cluster.apply(pod("p"))
    params = {"watch": "true", "resourceVersion": version}
    async with kubectl.stream("GET", PODS, params=params, headers=TABLE) as reply:
        event = json.loads(await anext(reply.aiter_lines()))
    assert (event["type"], rows_of(event["object"])[0]["Name"]) == ("ADDED", "p")


async def test_a_watch_without_a_version_begins_with_the_existing_objects(
    cluster: Cluster, kubectl: httpx.AsyncClient
) -> None:
    cluster.apply(pod("p"))
    async with kubectl.stream("GET", PODS, params={"watch": "true"}) as reply:
        event = json.loads(await anext(reply.aiter_lines()))
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "p")


async def test_wait_falls_back_from_a_streamed_list(kubectl: httpx.AsyncClient) -> None:
    params = {"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    assert (await kubectl.get(PODS, params=params)).status_code == 422


async def test_bookmarks_come_only_if_asked_for(cluster: Cluster, kubectl: httpx.AsyncClient) -> None:
    for asked in ("true", "false"):
        version = str(cluster.store.version)
        params = {"watch": "true", "allowWatchBookmarks": asked, "resourceVersion": version, "timeoutSeconds": "0.3"}
        async with kubectl.stream("GET", PODS, params=params) as reply:
            seen = [json.loads(line)["type"] async for line in reply.aiter_lines()]
        assert ("BOOKMARK" in seen) == (asked == "true")


async def test_apply_creates_and_then_patches(cluster: Cluster, kubectl: httpx.AsyncClient) -> None:
    assert (await kubectl.get(f"{PODS}/p", headers=JSON)).status_code == 404
    reply = await kubectl.post(PODS, params=STRICT, content=orjson.dumps(pod("p")), headers=JSON)
    assert reply.status_code == 201
    change = {
        "metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}},
        "spec": {"$setElementOrder/containers": [{"name": "main"}], "containers": [{"name": "main", "image": "new"}]},
    }
    reply = await kubectl.patch(f"{PODS}/p", params=STRICT, content=orjson.dumps(change), headers=STRATEGIC)
    assert reply.status_code == 200
    assert [(c["name"], c["image"]) for c in reply.json()["spec"]["containers"]] == [("main", "new")]
    assert "$setElementOrder/containers" not in reply.json()["spec"]


async def test_a_dry_run_changes_nothing(cluster: Cluster, kubectl: httpx.AsyncClient) -> None:
    before = cluster.store.version
    reply = await kubectl.post(PODS, params={"dryRun": "All"}, content=orjson.dumps(pod("p")), headers=JSON)
    assert (reply.status_code, reply.json()["metadata"]["name"]) == (201, "p")
    cluster.apply(pod("q"))
    for method, body in (("PATCH", {"metadata": {"labels": {"a": "b"}}}), ("DELETE", {"dryRun": ["All"]})):
        params = {"dryRun": "All"} if method == "PATCH" else {}
        reply = await kubectl.request(method, f"{PODS}/q", params=params, content=orjson.dumps(body), headers=MERGE)
        assert reply.status_code == 200
    assert cluster.store.version == before + 1
    assert "labels" not in cluster.store["pods", ("default", "q")]["metadata"]


async def test_the_sandbox_rejects_unreadable_objects_with_the_field(kubectl: httpx.AsyncClient) -> None:
    body, path = claim("c"), "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    body["spec"]["devices"]["requests"][0]["exactly"]["count"] = "two"
    reply = await kubectl.post(path, params=STRICT, content=orjson.dumps(body), headers=JSON)
    assert reply.status_code == 400
    assert "spec.devices.requests[0].exactly.count: must be an integer, is 'two'" in reply.json()["message"]


MISSPELT = {**pod("p"), "spec": {"containers": [{"name": "c", "image": "i", "comand": ["a"]}], "nodeNam": "n"}}
IN_ORDER = ['unknown field "spec.containers[0].comand"', 'unknown field "spec.nodeNam"']


async def test_unknown_fields_are_refused_as_by_a_real_server(kubectl: httpx.AsyncClient) -> None:
    reply = await kubectl.post(PODS, params=STRICT, content=orjson.dumps(MISSPELT), headers=JSON)
    cannot = 'Pod in version "v1" cannot be handled as a Pod: strict decoding error: '
    assert (reply.status_code, reply.json()["reason"]) == (400, "BadRequest")
    assert reply.json()["message"] == cannot + ", ".join(IN_ORDER)
    assert (await kubectl.get(f"{PODS}/p")).status_code == 404


async def test_unknown_fields_of_a_patch_are_refused(cluster: Cluster, kubectl: httpx.AsyncClient) -> None:
    cluster.apply(pod("p"))
    change = {"spec": {"$setElementOrder/containers": [{"name": "main"}], "nodeNam": "n"}}
    reply = await kubectl.patch(f"{PODS}/p", params=STRICT, content=orjson.dumps(change), headers=STRATEGIC)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert 'patch: Invalid value: strict decoding error: unknown field "spec.nodeNam"' in reply.json()["message"]


@pytest.mark.parametrize(("directive", "warned"), [("Warn", True), ("Ignore", False)])
async def test_unknown_fields_are_warned_about_or_ignored(
    kubectl: httpx.AsyncClient, directive: str, warned: bool
) -> None:
    params = {"fieldValidation": directive}
    reply = await kubectl.post(PODS, params=params, content=orjson.dumps(MISSPELT), headers=JSON)
    assert reply.status_code == 201
    quoted = [f"299 - {json.dumps(text)}" for text in IN_ORDER]
    assert reply.headers.get_list("Warning") == (quoted if warned else [])


async def test_a_kind_without_schema_may_have_any_field(kubectl: httpx.AsyncClient) -> None:
    path = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
    reply = await kubectl.post(path, params=STRICT, json={"metadata": {"name": "g"}, "spec": {"any": 1}})
    assert reply.status_code == 201


async def test_label_and_annotate_patch_by_merge(cluster: Cluster, kubectl: httpx.AsyncClient) -> None:
    cluster.apply(pod("p"))
    for value, expected in (("b", {"a": "b"}), (None, {})):
        change = orjson.dumps({"metadata": {"labels": {"a": value}}})
        reply = await kubectl.patch(
            f"{PODS}/p", params={"fieldManager": "kubectl-label"}, content=change, headers=MERGE
        )
        assert reply.json()["metadata"]["labels"] == expected


@pytest.mark.parametrize(
    ("method", "path", "kind", "code", "words"),
    [
        ("GET", f"{PODS}/p/log", "", 405, "runs no containers, so a pod has no logs"),
        ("POST", f"{PODS}/p/exec", "", 405, "no process to run a command in"),
        ("POST", f"{PODS}/p/portforward", "", 405, "runs no containers"),
        ("POST", f"{PODS}/p/eviction", "application/json", 404, "does not serve pods/eviction"),
        ("PATCH", f"{PODS}/p", "application/apply-patch+yaml", 415, "use kubectl apply without --server-side"),
        ("PATCH", f"{PODS}/p", "application/json-patch+json", 400, "the body is not JSON"),
        (
            "DELETE",
            f"{PODS}/p",
            "application/vnd.kubernetes.protobuf",
            415,
            "use kubectl cordon NODE, and kubectl delete",
        ),
        ("POST", "/api/v1/namespaces", "application/vnd.kubernetes.protobuf", 415, "write the object as YAML"),
        ("POST", "/apis/apps/v1/namespaces/default/deployments", "application/json", 404, "is not served"),
    ],
)
async def test_a_missing_object_gets_a_sentence(
    cluster: Cluster, kubectl: httpx.AsyncClient, method: str, path: str, kind: str, code: int, words: str
) -> None:
    cluster.apply(pod("p"))
    reply = await kubectl.request(method, path, headers={"Content-Type": kind}, content=b"k8s\x00")
    assert (reply.status_code, reply.json()["kind"]) == (code, "Status")
    assert words in reply.json()["message"]


async def test_delete_returns_the_object_that_kubectl_waits_for(cluster: Cluster, kubectl: httpx.AsyncClient) -> None:
    uid = cluster.apply(pod("p"))["metadata"]["uid"]
    body = orjson.dumps({"propagationPolicy": "Background"})
    reply = await kubectl.request("DELETE", f"{PODS}/p", content=body, headers=JSON)
    assert (reply.status_code, reply.json()["metadata"]["uid"]) == (200, uid)
    assert (await kubectl.get(f"{PODS}/p")).status_code == 404


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (119, "119s"), (120, "2m"), (200, "3m20s"), (600, "10m"), (3 * 3600, "3h"), (5 * 3600 + 60, "5h1m"),
     (86_400, "24h"), (3 * 86_400 + 4 * 3600, "3d4h"), (9 * 86_400, "9d")],
)  # fmt: skip
def test_ages_are_those_of_kubectl(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
