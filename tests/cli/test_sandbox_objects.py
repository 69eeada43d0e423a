"""The sandbox refuses what a real API server refuses, and runs Jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import orjson
import pytest

from extender.sandbox import Cluster
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import HANG_SECONDS
from tests.worlds.refused_objects import RefusedObject, refused_objects

STRICT = {"fieldValidation": "Strict"}
RESOURCE_OF = {(resource.api_version, resource.kind): resource for resource in RESOURCES.values()}
PODS, MERGE = "/api/v1/namespaces/default/pods", {"Content-Type": "application/merge-patch+json"}
JOBS = "/apis/batch/v1/namespaces/default/jobs"
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one"},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}},
}


def job(**spec: object) -> dict:
    container = {"name": "main", "image": "pause", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    pod = {"restartPolicy": "Never", "containers": [container], "resourceClaims": claims}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod}
    metadata = {"name": "train", "namespace": "default"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {**spec, "template": template}}


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster()
    found.apply(TEMPLATE)
    return found


@pytest.fixture
async def kubectl(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with cluster.serving() as url, httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=False) as client:
        yield client


def pods(cluster: Cluster) -> list[dict]:
    return cluster.store.all("pods", "default")


def status(cluster: Cluster) -> dict:
    found = cluster.store.get("jobs", ("default", "train"))
    assert found is not None
    return found["status"]


def end(cluster: Cluster, pod: dict, phase: str) -> None:
    key, change = ("default", pod["metadata"]["name"]), {"status": {"phase": phase}}
    cluster.api.registry.patch(RESOURCES["", "pods"], key, change, "status", strategic=False)


def indexes(cluster: Cluster) -> list[str]:
    return [pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for pod in pods(cluster)]


@pytest.mark.parametrize("case", refused_objects(), ids=lambda case: case.name)
async def test_an_object_is_refused_as_by_a_real_server(kubectl: httpx.AsyncClient, case: RefusedObject) -> None:
    resource = RESOURCE_OF[case.obj["apiVersion"], case.obj["kind"]]
    within = f"namespaces/{case.obj['metadata'].get('namespace', 'default')}/" if resource.namespaced else ""
    url = f"{resource.root}/{within}{resource.name}"
    reply = await kubectl.post(url, params=STRICT, json=case.obj)
    if case.change is not None:
        assert reply.status_code == 201
        url, change = f"{url}/{case.obj['metadata']['name']}", orjson.dumps(case.change)
        reply = await kubectl.patch(url, params=STRICT, content=change, headers=MERGE)
    assert case.words in reply.json().get("message", "")
    assert reply.is_success == (not case.words)


async def test_a_pod_gets_the_priority_of_its_class(kubectl: httpx.AsyncClient) -> None:
    root = "/apis/scheduling.k8s.io/v1/priorityclasses"
    made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 7}
    assert (await kubectl.post(root, params=STRICT, json=made)).status_code == 201
    for name, priority in (("urgent", 7), ("system-node-critical", 2_000_001_000)):
        spec = {"containers": [{"name": "a", "image": "b"}], "priorityClassName": name}
        reply = await kubectl.post(PODS, params=STRICT, json={"metadata": {"name": name}, "spec": spec})
        assert (reply.status_code, reply.json()["spec"]["priority"]) == (201, priority)


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
async def test_an_old_fault_of_an_object_does_not_hinder_other_changes(
    cluster: Cluster, kubectl: httpx.AsyncClient, method: str
) -> None:
    made = cluster.apply({"kind": "Pod", "metadata": {"name": "p", "labels": {"a b": "c"}}, "spec": {}})
    made["metadata"]["labels"]["more"] = "d"
    reply = await kubectl.request(method, f"{PODS}/p", content=orjson.dumps(made), headers=MERGE)
    assert reply.json()["metadata"]["labels"] == {"a b": "c", "more": "d"}


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        ({"kind": "Deployment", "metadata": {"name": "p"}}, "this path takes kind Pod of version v1"),
        ({"metadata": {"name": "p", "namespace": "other"}}, "does not match the namespace sent on the request"),
    ],
)
async def test_an_object_of_another_path_is_refused(kubectl: httpx.AsyncClient, obj: dict, words: str) -> None:
    reply = await kubectl.post(PODS, json=obj)
    assert (reply.status_code, reply.json()["reason"]) == (400, "BadRequest")
    assert words in reply.json()["message"]


async def test_a_job_makes_its_pods_with_claims_and_takes_them_with_it(
    cluster: Cluster, kubectl: httpx.AsyncClient
) -> None:
    made = job(parallelism=2, completions=3, completionMode="Indexed")
    assert (await kubectl.post(JOBS, params=STRICT, json=made)).status_code == 201
    assert sorted(indexes(cluster)) == ["0", "1"]
    first, second = pods(cluster)
    assert first["metadata"]["labels"] | {"a": "b", "job-name": "train"} == first["metadata"]["labels"]
    assert first["spec"]["containers"][0]["env"] == [{"name": "JOB_COMPLETION_INDEX", "value": "0"}]
    assert len(cluster.store.all("resourceclaims", "default")) == 2
    assert status(cluster)["active"] == 2
    end(cluster, first, "Succeeded")
    assert sorted(indexes(cluster)) == ["0", "1", "2"]
    end(cluster, second, "Failed")  # its index is tried again
    assert sorted(indexes(cluster)) == ["0", "1", "1", "2"]
    for pod in pods(cluster):
        if (pod.get("status") or {}).get("phase") == "Pending":
            end(cluster, pod, "Succeeded")
    assert status(cluster)["conditions"][0]["type"] == "Complete"
    assert {key: status(cluster)[key] for key in ("active", "succeeded", "failed")} == {
        "active": 0, "succeeded": 3, "failed": 1,
    }  # fmt: skip
    reply = await kubectl.request("DELETE", f"{JOBS}/train", json={"propagationPolicy": "Background"})
    assert reply.status_code == 200
    assert pods(cluster) == cluster.store.all("resourceclaims", "default") == []


@pytest.mark.parametrize("change", [{"parallelism": 1}, {"suspend": True}, {"parallelism": 4}])
async def test_a_changed_job_changes_its_pods(cluster: Cluster, change: dict) -> None:
    cluster.apply(job(parallelism=3, completions=9))
    assert len(pods(cluster)) == 3
    key = ("default", "train")
    cluster.api.registry.patch(RESOURCES["batch", "jobs"], key, {"spec": change}, "", strategic=False)
    assert len(pods(cluster)) == status(cluster)["active"] == change.get("parallelism", 0)


async def test_a_deleted_pod_comes_again_and_too_many_failures_end_the_job(cluster: Cluster) -> None:
    cluster.apply(job(backoffLimit=1))
    (only,) = pods(cluster)
    cluster.api.registry.delete(RESOURCES["", "pods"], ("default", only["metadata"]["name"]))
    (again,) = pods(cluster)
    assert again["metadata"]["uid"] != only["metadata"]["uid"]
    for _ in range(2):
        end(cluster, next(pod for pod in pods(cluster) if pod["status"]["phase"] == "Pending"), "Failed")
    assert [pod["status"]["phase"] for pod in pods(cluster)] == ["Failed", "Failed"]
    assert status(cluster)["conditions"][0]["type"] == "Failed"
