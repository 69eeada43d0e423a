"""docs/kind.md on a real API server: its kubectl commands in their order, with a slice like the example driver's."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.install import Installation
from extender.sandbox import carried_machines
from extender.sandbox.machines import node_object
from tests.e2e.control_plane import DOCS, ControlPlane, commands, needs, run_documented
from tests.worlds.filled_caches import class_of_driver, device_slice

pytestmark = [needs("kubectl"), pytest.mark.timeout(300)]
DRIVER = "gpu.example.com"


def example_slice(node: str) -> dict:
    """A slice with the attributes and capacities that the example driver's v0.4.0 publishes."""
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {
                "index": {"int": index},
                "uuid": {"string": f"gpu-{index:08x}-0000-0000-0000-000000000000"},
                "model": {"string": "LATEST-GPU-MODEL"},
                "driverVersion": {"version": "1.0.0"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for index in range(8)
    ]
    return device_slice(node, DRIVER, devices)


def test_the_page_in_its_order(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as plane:
        node = node_object("kind-worker", carried_machines()["t4-4"], {})
        node["status"] |= {
            "capacity": node["status"]["allocatable"],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        for obj in (class_of_driver(DRIVER), node, example_slice("kind-worker")):
            plane.create(obj)
        shown = commands(DOCS / "kind.md")
        removal = next(position for position, command in enumerate(shown) if "kubectl delete" in command)
        run_documented(plane, shown[:removal])
        Installation(plane, tmp_path).start_pods()
        found = "/api/v1/namespaces/default/pods/two-gpus"
        plane.wait(lambda: plane.get(found)["spec"].get("nodeName"), 120)
        assert plane.get(found)["metadata"]["annotations"]["berth.dev/decision"].startswith("score ")
        (claim,) = plane.get("/apis/resource.k8s.io/v1/resourceclaims")["items"]
        assert len(claim["status"]["allocation"]["devices"]["results"]) == 2
        run_documented(plane, shown[removal:])
