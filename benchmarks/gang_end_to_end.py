"""Seconds from a gang's last pod to its last Binding on a real control plane: Berth beside the in-tree gang scheduling.

`make bench-gangs-e2e` needs BERTH_KUBE_BIN with Kubernetes 1.36. The alpha gates of the in-tree gang scheduling are on
for both. Both place the same gang on the same empty fleet, in turn. Prints the medians and the ratio, and keeps all
times as JSON under bench-results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks.end_to_end import IN_TREE, Watch, clear, in_parallel, make_fleet, scheduler
from extender.sandbox.sandbox_cluster import GPU_CLASS, MARKER_CLASS
from tests.e2e.control_plane import ROOT, ControlPlane, missing

GATES = "GenericWorkload=true,GangScheduling=true"
SERVED = "--runtime-config=scheduling.k8s.io/v1alpha2=true"
PATIENCE_SECONDS = 240
Json = dict


def gang_pod(name: str, system: str, gang: str, size: int) -> Json:
    notes = {"berth.dev/group": gang, "berth.dev/group-min": str(size)} if system == "berth-scheduler" else {}
    group = {"schedulingGroup": {"podGroupName": gang}} if system == "in-tree" else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes if size > 1 else {}},
        "spec": {
            "schedulerName": system,
            "automountServiceAccountToken": False,
            **(group if size > 1 else {}),
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
            "containers": [{"name": "c", "image": "pause", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }


def make_objects(plane: ControlPlane, system: str, gang: str, size: int) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "gpus"}}
    plane.create({**meta, "spec": spec})
    if system == "in-tree":
        policy = {"schedulingPolicy": {"gang": {"minCount": size}}}
        kind = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": gang}}
        plane.create({**kind, "spec": policy})


def one_gang(plane: ControlPlane, config: Json, gang: str, size: int, folder: Path) -> float:
    """Seconds from the reply to the creation of the last pod until the last pod had its node."""
    system = config["profiles"][0]["schedulerName"]
    make_objects(plane, system, gang, size)
    with scheduler(plane, config, folder):
        watch = Watch(plane)
        plane.create(gang_pod("warm-up", system, gang, 1))
        plane.wait(lambda: "warm-up" in watch.bound, PATIENCE_SECONDS)
        in_parallel(lambda i: plane.create(gang_pod(f"job-{i:05}", system, gang, size)), size)
        created = time.monotonic()
        plane.wait(lambda: len(watch.bound) > size, PATIENCE_SECONDS)
        took = max(watch.bound.values()) - created
        watch.end(plane)
    clear(plane)
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    if missing():
        raise SystemExit(missing())
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    found: dict[str, list[float]] = {"in-tree": [], "berth": []}
    with tempfile.TemporaryDirectory() as text, ControlPlane(Path(text), SERVED, gates=GATES) as plane:
        for obj in (GPU_CLASS, MARKER_CLASS):
            plane.create(obj)
        make_fleet(plane, args.nodes, mig=False)
        port = plane.start_berth(sys.executable)
        config = yaml.safe_load((ROOT / "scheduler-config" / "berth-scheduler.yaml").read_text())
        for extender in config["extenders"]:
            extender["urlPrefix"] = f"http://127.0.0.1:{port}"
        for turn in range(args.pairs):
            for name, one in (("in-tree", IN_TREE), ("berth", config)):
                found[name].append(one_gang(plane, one, f"gang-{turn}", args.pods, Path(text)))
                print(f"{name:8} {found[name][-1]:6.2f} s", flush=True)
    medians = {name: statistics.median(times) for name, times in found.items()}
    ratio = medians["berth"] / medians["in-tree"]
    print(
        f"{args.pods} pods on {args.nodes} nodes: in-tree {medians['in-tree']:.2f} s, Berth {medians['berth']:.2f} s, "
        f"ratio {ratio:.2f}"
    )
    folder = ROOT / "bench-results"
    folder.mkdir(exist_ok=True)
    (folder / "gang-end-to-end.json").write_text(json.dumps({**vars(args), **found, "ratio": ratio}, indent=1))


if __name__ == "__main__":
    main()
