"""A real kube-scheduler takes the nodes that Berth nominates, also after Berth was killed and where it rejects some."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS, MARKER_CLASS
from tests.e2e.control_plane import ControlPlane, minor_version, needs
from tests.process_worlds import free_port

pytestmark = [
    needs(),
    pytest.mark.timeout(600),
    # urllib leaves closed sockets to the orphan collector when a poll is refused.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

Json = dict
FULL = "n0"  # kube-scheduler rejects it: it has no CPU
NODES = (FULL, *(f"n{i}" for i in range(1, 6)))
COUNT = 20  # pods, one for each GPU of the other nodes
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path) as started:
        machine = carried_machines()["t4-4"]
        for obj in (GPU_CLASS, MARKER_CLASS):
            started.create(obj)
        for name in NODES:
            node = node_object(name, machine, {})
            cpu = "0" if name == FULL else "4"
            node["status"]["allocatable"] = node["status"]["capacity"] = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
            node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            started.create(node)
            started.create(gpu_slice(name, machine))
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        spec = {"spec": {"devices": {"requests": [request]}}}
        template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one"}}
        started.create({**template, "spec": spec})
        yield started


def pod(name: str) -> Json:
    resources = {"requests": {"cpu": "100m"}, "claims": [{"name": "gpu"}]}
    spec = {
        "schedulerName": "berth-scheduler",
        "automountServiceAccountToken": False,
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
        "containers": [{"name": "c", "image": "pause", "resources": resources}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def ask(plane: ControlPlane, port: int, name: str) -> bool:
    """Whether Berth answers a filter request of a pod, sent as kube-scheduler does."""
    body = json.dumps({"Pod": plane.get(f"{PODS}/{name}"), "NodeNames": list(NODES)}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/filter", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return not json.loads(response.read())["Error"]


def nominated(plane: ControlPlane) -> dict[str, str]:
    found = {p["metadata"]["name"]: p["status"].get("nominatedNodeName") for p in plane.get(PODS)["items"]}
    return {name: node for name, node in found.items() if node}


@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed"])
def test_a_queue_of_nominated_pods_is_bound(plane: ControlPlane, killed: bool) -> None:
    port, policy = free_port(), plane.folder / "policy.yaml"
    policy.write_text("nominate: 64\n")
    plane.start_berth(sys.executable, port=port, policy=policy)
    for i in range(COUNT):
        plane.create(pod(f"job-{i:02}"))
    plane.wait(lambda: len(plane.get(CLAIMS)["items"]) == COUNT, 60)
    plane.wait(lambda: ask(plane, port, "job-00"), 60)
    plane.wait(lambda: len(nominated(plane)) == COUNT - 5, 60)  # the one that was asked about, and the next four
    assert FULL in nominated(plane).values()
    if killed:
        plane.kill("extender")
        plane.start_berth(sys.executable, port=port, policy=policy)
    plane.start_scheduler(port)
    plane.wait(lambda: all(p["spec"].get("nodeName") for p in plane.get(PODS)["items"]), 120)
    if minor_version() >= 35:
        assert not nominated(plane), "the API server clears the field when it binds a pod"
    assert FULL not in {p["spec"]["nodeName"] for p in plane.get(PODS)["items"]}
    results = [c["status"]["allocation"]["devices"]["results"] for c in plane.get(CLAIMS)["items"]]
    assert len({(r["pool"], r["device"]) for found in results for r in found}) == COUNT
