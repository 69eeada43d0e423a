"""What Berth leaves to kube-controller-manager: a bound pod that has lost its entry in `reservedFor` gets it again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from extender.cluster.client import MERGE_PATCH
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS
from tests.e2e.control_plane import ControlPlane, on_real_server
from tests.worlds.running_berth import claim, pod

pytestmark = on_real_server(seconds=600)
CLAIM = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"
FINALIZERS = ["resource.kubernetes.io/delete-protection"]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane")) as started:
        machine = carried_machines()["t4-4"]
        for obj in (GPU_CLASS, node_object("n1", machine, {}), gpu_slice("n1", machine)):
            started.create(obj)
        yield started


def test_the_claim_controller_reserves_an_allocated_claim_again_for_a_bound_pod(plane: ControlPlane) -> None:
    """So nothing is lost where an undo removed the entry and could not add it again."""
    plane.create(claim("c"))
    made = plane.create(pod("p", "c", nodeName="n1", containers=[{"name": "main", "image": "pause"}]))
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [result]}}}
    plane.request("PATCH", CLAIM, {"metadata": {"finalizers": FINALIZERS}}, MERGE_PATCH)
    plane.request("PATCH", f"{CLAIM}/status", {"status": status}, MERGE_PATCH)
    plane.wait(lambda: reserved(plane) == [made["metadata"]["uid"]], 60)
    removed = {"status": {"reservedFor": None}}
    plane.request("PATCH", f"{CLAIM}/status", removed, MERGE_PATCH)
    plane.wait(lambda: reserved(plane) == [made["metadata"]["uid"]], 60)
    assert plane.get(CLAIM)["status"]["allocation"]["devices"]["results"] == [result]


def reserved(plane: ControlPlane) -> list[str]:
    return [entry["uid"] for entry in plane.get(CLAIM)["status"].get("reservedFor") or ()]
