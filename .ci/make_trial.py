"""Writes manifests/components/trial/fleet.yaml: the sandbox's machines as nodes and slices of a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import Machine, gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS

FILE = Path(__file__).parents[1] / "manifests" / "components" / "trial" / "fleet.yaml"
FLEET = {"hgx-h100-8": 2, "a100-pcie-8-bridged": 2, "dgx1-v100": 1, "l40s-8-pix": 1, "t4-4": 2}
HEAD = (
    "# Made by .ci/make_trial.py: nodes that no machine stands behind, kept ready by KWOK, "
    "with the slices of real machines.\n"
)


def fleet() -> str:
    """The whole file."""
    machines = carried_machines()
    objects: list[dict[str, Any]] = [GPU_CLASS]
    for kind, count in FLEET.items():
        for number in range(1, count + 1):
            objects += _one(f"trial-{kind}-{number}", machines[kind])
    lines = [yaml.safe_dump(obj, default_flow_style=True, sort_keys=False, width=100_000) for obj in objects]
    return HEAD + "---\n".join(lines)


def _one(name: str, machine: Machine) -> list[dict[str, Any]]:
    node = node_object(name, machine, {"type": "kwok"})
    node["metadata"]["annotations"] = {"kwok.x-k8s.io/node": "fake"}
    node["spec"] = {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]}
    room = node["status"]["allocatable"]
    node["status"] = {"allocatable": room, "capacity": dict(room)}  # KWOK writes the conditions
    live = fabric_slice(name, machine)
    for device in live["spec"]["devices"]:
        for taint in device["taints"]:
            taint["timeAdded"] = "2026-01-01T00:00:00Z"  # else the server's own would always differ from this file
    slices = [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **one} for one in (gpu_slice(name, machine), live)
    ]
    return [{"apiVersion": "v1", "kind": "Node", **node}, *slices]


if __name__ == "__main__":
    FILE.write_text(fleet())
