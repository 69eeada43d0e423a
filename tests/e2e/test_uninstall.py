"""Allocations of Berth stay usable after Berth is removed: the in-tree plugin continues with them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.control_plane import ControlPlane, make_classes, make_fleet, needs
from tests.worlds.running_berth import claim

pytestmark = [needs(), pytest.mark.timeout(300)]
CLAIM = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/shared"


def pod(name: str, scheduler: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": scheduler,
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}],
            "containers": [{"name": "c", "image": "pause", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }


def node_of(plane: ControlPlane, name: str) -> str:
    return plane.get(f"/api/v1/namespaces/default/pods/{name}")["spec"].get("nodeName", "")


def remove(plane: ControlPlane, *names: str) -> None:
    for name in names:
        plane.request("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")


def test_the_in_tree_plugin_goes_on_with_the_claims(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as plane:
        make_classes(plane)
        make_fleet(plane, 4)
        plane.create(claim("shared", 2))
        plane.create(pod("by-berth", "berth-scheduler"))
        port = plane.start_berth(sys.executable)
        plane.start_scheduler(port)
        plane.wait(lambda: node_of(plane, "by-berth"), 60)
        written = plane.get(CLAIM)["status"]["allocation"]
        if int(plane.get("/version")["minor"].rstrip("+")) >= 36:  # before, the server drops it with its gate
            assert written["allocationTimestamp"], "the in-tree plugin reads it for binding time-outs"
        for process in plane.processes[-2:]:
            plane.end(process)

        config = tmp_path / "in-tree.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "leaderElection": {"leaderElect": False},
                    "clientConnection": {"kubeconfig": str(plane.kubeconfig)},
                }
            )
        )
        plane.start("kube-scheduler", f"--config={config}", "--secure-port=0")
        plane.create(pod("in-tree", "default-scheduler"))
        plane.wait(lambda: node_of(plane, "in-tree"), 60)
        shared = plane.get(CLAIM)["status"]
        assert node_of(plane, "in-tree") == node_of(plane, "by-berth")
        assert shared["allocation"] == written
        assert {consumer["name"] for consumer in shared["reservedFor"]} == {"by-berth", "in-tree"}

        remove(plane, "by-berth", "in-tree")
        plane.wait(lambda: not plane.get(CLAIM)["status"].get("allocation"), 60)
        plane.create(pod("later", "default-scheduler"))
        plane.wait(lambda: node_of(plane, "later"), 60)
        assert len(plane.get(CLAIM)["status"]["allocation"]["devices"]["results"]) == 2
