"""The commands of berth defrag, run in a shell beside a real control plane: the pods go where the proof said.

Without a kubelet, a thread plays its part: bound pods become ready, and pods that are deleted are gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS, MARKER_CLASS
from tests.e2e.control_plane import Console, ControlPlane, on_real_server
from tests.worlds.manifests import KUBECTL

pytestmark = on_real_server("kubectl", seconds=300)
Json = dict
NODES = ("a", "b", "c", "d")
MERGE = "application/strategic-merge-patch+json"
PODS = "/api/v1/namespaces/default/pods"


def template_of(gpus: int) -> Json:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": gpus}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"gpus-{gpus}"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def spec_of(gpus: int) -> Json:
    return {
        "schedulerName": "berth-scheduler",
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": f"gpus-{gpus}"}],
        "containers": [{"name": "main", "image": "pause", "resources": {"claims": [{"name": "gpus"}]}}],
    }


def bare(name: str, gpus: int) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec_of(gpus)}


def deployment(name: str, gpus: int) -> Json:
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": spec_of(gpus)}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def budget(name: str, unavailable: int) -> Json:
    spec = {"maxUnavailable": unavailable, "selector": {"matchLabels": {"app": name}}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}


def place_of(plane: ControlPlane, name: str) -> str:
    """The node of the pod of this name or of this app that is not deleted; '' if it has none."""
    for one in plane.get(PODS)["items"]:
        metadata = one["metadata"]
        if name in (metadata["name"], metadata.get("labels", {}).get("app")) and "deletionTimestamp" not in metadata:
            return str(one["spec"].get("nodeName", ""))
    return ""


def cordon(plane: ControlPlane, name: str, value: bool | None) -> None:
    plane.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": value}}, MERGE)


def uid_of(plane: ControlPlane, app: str) -> str:
    """The UID of the only pod of an app."""
    (found,) = plane.get(f"{PODS}?labelSelector=app%3D{app}")["items"]
    return str(found["metadata"]["uid"])


def advised(console: Console) -> Json:
    """The same advice by the console, with the rights of its account."""
    with urllib.request.urlopen(f"{console.pages}/v1/restarts/default/large", timeout=60) as response:
        return json.loads(response.read())


@contextmanager
def kubelets(plane: ControlPlane) -> Iterator[None]:
    """Bound pods become ready; deleted pods are gone."""
    ended = threading.Event()

    def play() -> None:
        while not ended.wait(0.2):
            for one in plane.get(PODS)["items"]:
                path = f"{PODS}/{one['metadata']['name']}"
                with suppress(urllib.error.HTTPError):
                    if "deletionTimestamp" in one["metadata"]:
                        plane.request("DELETE", path, {"gracePeriodSeconds": 0})
                    elif one["spec"].get("nodeName") and one["status"]["phase"] == "Pending":
                        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                        plane.request("PATCH", f"{path}/status", {"status": ready}, MERGE)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Node a has `four`, b has `fixed` and `one`, c has `full`, and d has `fill` and `guarded`."""
    machine = carried_machines()["hgx-h100-8"]
    with ControlPlane(tmp_path_factory.mktemp("plane")) as started, kubelets(started):
        for obj in (GPU_CLASS, MARKER_CLASS, *map(template_of, (1, 4, 7, 8))):
            started.create(obj)
        started.start_scheduler(started.start_berth(sys.executable))
        pods = {
            "a": [deployment("four", 4)],
            "b": [bare("fixed", 4), deployment("one", 1)],
            "c": [bare("full", 7)],
            "d": [bare("fill", 4), deployment("guarded", 1)],
        }
        for name in NODES:  # one node after the other, so that its pods can be nowhere else
            started.create(node_object(name, machine, {"kubernetes.io/hostname": name}))
            for one in (gpu_slice(name, machine), fabric_slice(name, machine)):
                started.create(one)
            for obj in pods[name]:
                started.create(obj)
                started.wait(lambda obj=obj, name=name: place_of(started, obj["metadata"]["name"]) == name, 60)
            cordon(started, name, True)
        for name in NODES:
            cordon(started, name, None)
        for name, unavailable in (("guarded", 0), ("four", 1)):
            started.create(budget(name, unavailable))
        path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/four"
        started.wait(lambda: started.get(path)["status"].get("disruptionsAllowed") == 1, 60)
        yield started


def test_the_printed_commands_give_what_the_proof_says(plane: ControlPlane) -> None:
    """`four` moves into the place of another pod: of `one`, as the budget of `guarded` allows no disruption."""
    plane.create(bare("large", 8))
    guarded = uid_of(plane, "guarded")
    words = [sys.executable, "-m", "extender", "defrag", "pod", "large", "--kubeconfig", str(plane.kubeconfig)]
    done = subprocess.run([*words, "-o", "json"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["advice"]
    assert {move["owner"].partition("-")[0]: move["goes_to"] for move in found["moves"]} == {
        "ReplicaSet four": ["b"],
        "ReplicaSet one": ["c"],
    }
    assert (found["placed_on"], found["is_proved"], found["waiting_gpus"]) == (["a"], True, 0)
    assert advised(plane.start_console(sys.executable)) == {"advice": [found], "not_known": []}
    script = "\n".join(["set -e", *found["commands"]])
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "PATH": f"{KUBECTL.parent}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert place_of(plane, "large") == "a"
    plane.wait(lambda: place_of(plane, "one") and place_of(plane, "four"), 60)
    assert (place_of(plane, "four"), place_of(plane, "one")) == ("b", "c")
    assert guarded == uid_of(plane, "guarded")
    assert not any(one["spec"].get("taints") for one in plane.get("/api/v1/nodes")["items"])
