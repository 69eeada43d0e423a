"""Pods per second and the cost of one pod: Berth over all nodes against the in-tree plugin at its default sample.

`make bench-e2e` needs BERTH_KUBE_BIN. Pods and their claims exist before the scheduler starts (drain mode), and both
systems drain the same pods on the same empty fleet in turn, `--pairs` times.
Time, CPU and API requests are those from the first Binding to the last in a watch. Prints medians and keeps them as
JSON under bench-results/. `--candidates 1 8 32` compares these values of the policy instead, with one table of the
time of kube-scheduler's plugins.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.allocation import mig_slices
from benchmarks.pod_cost import Usage, lines, median, medians, plugins_in, table, usage
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from extender.sandbox.sandbox_cluster import GPU_CLASS, MARKER_CLASS
from tests.e2e.control_plane import ROOT, TOKEN, ControlPlane, missing, unverified
from tests.worlds.process_worlds import free_port

MACHINE = "hgx-h100-8"
Policies = Mapping[str, dict]  # by the name of the system
POLICIES: Policies = {"berth": {"candidates": 32}}
MEMORY = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0'
PATIENCE_SECONDS = 240  # for one drain; the slow side may not finish, and its rate counts all the same
IN_TREE = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"schedulerName": "in-tree"}],
}


@dataclass(frozen=True)
class Shape:
    """The devices that every pod of a drain requests."""

    name: str
    class_name: str
    request: dict
    mig: bool = False


SHAPES = (
    Shape("1 GPU", "gpu.nvidia.com", {}),
    Shape("4 GPUs + memory selector", "gpu.nvidia.com", {"count": 4, "selectors": [{"cel": {"expression": MEMORY}}]}),
)
COUNTERS = Shape(
    "shared counters",
    "mig.example.com",
    {"selectors": [{"cel": {"expression": 'device.attributes["mig.example.com"].profile == "1g"'}}]},
    mig=True,
)


@dataclass(frozen=True)
class Drain:
    """Bindings of one drain in seconds since the scheduler started, what one pod used, and the milliseconds of
    kube-scheduler's plugins for one pod."""

    times: list[float]
    used: Usage
    plugins: Mapping[str, float]

    def rate(self) -> float:
        """Pods per second from the first Binding to the last."""
        return (len(self.times) - 1) / (self.times[-1] - self.times[0]) if len(self.times) > 1 else 0.0


class Watch:
    """Notes when each pod gets its node. The API server ends a watch whose reader is slow; then this lists again."""

    def __init__(self, plane: ControlPlane) -> None:
        self.bound: dict[str, float] = {}
        self._plane = plane
        self._ended = False
        version = self._list()
        self._thread = threading.Thread(target=self._run, args=(version,), daemon=True)
        self._thread.start()

    def _run(self, version: str) -> None:
        while not self._ended:
            url = f"{self._plane.url}/api/v1/namespaces/default/pods?watch=1&resourceVersion={version}"
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
            with urllib.request.urlopen(request, context=unverified()) as lines:
                for line in lines:
                    self._note(json.loads(line)["object"])
                    if self._ended:
                        return
            version = self._list()

    def _list(self) -> str:
        found = self._plane.get("/api/v1/namespaces/default/pods")
        for pod in found["items"]:
            self._note(pod)
        return found["metadata"]["resourceVersion"]

    def _note(self, pod: dict) -> None:
        if pod.get("spec", {}).get("nodeName"):
            self.bound.setdefault(pod["metadata"]["name"], time.monotonic())
        self._ended |= pod.get("metadata", {}).get("name") == "end-of-watch"

    def end(self, plane: ControlPlane) -> None:
        """The watch ends by an event of its own: closing a socket that another thread reads would block."""
        plane.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "end-of-watch"},
                "spec": {
                    "schedulerName": "no-such-scheduler",
                    "containers": [{"name": "c", "image": "pause"}],
                    "automountServiceAccountToken": False,
                },
            }
        )
        self._thread.join(20)
        plane.request("DELETE", "/api/v1/namespaces/default/pods/end-of-watch?gracePeriodSeconds=0")


def in_parallel(work: Callable[[int], object], count: int) -> None:
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(count)))


def make_fleet(plane: ControlPlane, count: int, *, mig: bool) -> None:
    machine = carried_machines()[MACHINE]

    def one(i: int) -> None:
        name = f"node-{i:05}"
        node = node_object(name, machine, {})
        node["status"]["capacity"] = node["status"]["allocatable"]
        node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        plane.create(node)
        for slice_ in mig_slices(name) if mig else [gpu_slice(name, machine)]:
            plane.create({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **slice_})

    in_parallel(one, count)


def make_pods(plane: ControlPlane, shape: Shape, scheduler: str, count: int) -> None:
    """Pods by template, and wait until every claim exists."""
    plane.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "gpus"},
            "spec": {
                "spec": {
                    "devices": {
                        "requests": [{"name": "gpu", "exactly": {"deviceClassName": shape.class_name, **shape.request}}]
                    }
                }
            },
        }
    )
    in_parallel(
        lambda i: plane.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"job-{i:05}"},
                "spec": {
                    "schedulerName": scheduler,
                    "automountServiceAccountToken": False,
                    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
                    "containers": [{"name": "c", "image": "pause", "resources": {"claims": [{"name": "gpu"}]}}],
                },
            }
        ),
        count,
    )
    plane.wait(lambda: len(plane.get("/apis/resource.k8s.io/v1/resourceclaims")["items"]) >= count, 120)


def clear(plane: ControlPlane) -> None:
    """Delete pods, wait until the claims are gone, and delete the template."""
    names = [p["metadata"]["name"] for p in plane.get("/api/v1/namespaces/default/pods")["items"]]
    in_parallel(
        lambda i: plane.request("DELETE", f"/api/v1/namespaces/default/pods/{names[i]}?gracePeriodSeconds=0"),
        len(names),
    )
    plane.request("DELETE", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates/gpus")
    plane.wait(lambda: not plane.get("/apis/resource.k8s.io/v1/resourceclaims")["items"], 300)


@contextmanager
def scheduler(plane: ControlPlane, config: dict, folder: Path) -> Iterator[Callable[[], str]]:
    """Run a kube-scheduler without client-side limits while the block runs. Yields a function that reads its
    metrics."""
    port = free_port()
    path = folder / "bench-scheduler.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                **config,
                "leaderElection": {"leaderElect": False},
                "clientConnection": {"kubeconfig": str(plane.kubeconfig), "qps": 5000, "burst": 5000},
            }
        )
    )
    serving = ("--bind-address=127.0.0.1", f"--secure-port={port}", "--authorization-always-allow-paths=/metrics")
    process = plane.start("kube-scheduler", f"--config={path}", *serving, *plane.gates)

    def metrics() -> str:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=unverified()) as response:
            return response.read().decode()

    try:
        yield metrics
    finally:
        plane.end(process)


def drain(plane: ControlPlane, config: dict, shape: Shape, count: int, folder: Path) -> Drain:
    make_pods(plane, shape, config["profiles"][0]["schedulerName"], count)
    watch, start = Watch(plane), time.monotonic()

    def until_bound(pods: int) -> tuple[int, Usage]:
        while len(watch.bound) < pods and time.monotonic() - start < PATIENCE_SECONDS:
            time.sleep(0.02)
        return len(watch.bound), usage(plane)

    with scheduler(plane, config, folder) as metrics:
        (first, before), (last, after) = until_bound(1), until_bound(count)
        plugins = plugins_in(metrics(), max(last, 1))
    watch.end(plane)
    times = sorted(at - start for name, at in watch.bound.items() if name.startswith("job-"))
    clear(plane)
    return Drain(times, after.per_pod(before, max(last - first, 1)), plugins)


def one_fleet(nodes: int, shapes: tuple[Shape, ...], policies: Policies, pods: int, pairs: int) -> list[dict]:
    """All systems on one fleet, shape by shape, in turn."""
    with tempfile.TemporaryDirectory() as text, ControlPlane(Path(text)) as plane:
        mig_class = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "mig.example.com"},
            "spec": {"selectors": [{"cel": {"expression": 'device.driver == "mig.example.com"'}}]},
        }
        for obj in (GPU_CLASS, MARKER_CLASS, mig_class):
            plane.create(obj)
        make_fleet(plane, nodes, mig=shapes[0].mig)
        return [one_shape(plane, nodes, shape, policies, pods, pairs) for shape in shapes]


def one_shape(plane: ControlPlane, nodes: int, shape: Shape, policies: Policies, pods: int, pairs: int) -> dict:
    drains: dict[str, list[Drain]] = {"in-tree": [], **{name: [] for name in policies}}
    for _ in range(pairs):
        drains["in-tree"].append(drain(plane, IN_TREE, shape, pods, plane.folder))
        for name, policy in policies.items():
            with berth_config(plane, policy) as config:
                drains[name].append(drain(plane, config, shape, pods, plane.folder))
    row = {"nodes": nodes, "shape": shape.name, "pods": pods}
    for name, found in drains.items():
        used = median(one.used for one in found)
        row[name] = {
            "bound": [len(one.times) for one in found],
            "pods_per_s": [round(one.rate(), 1) for one in found],
            "cpu_ms": used.cpu,
            "requests": used.requests,
            "plugin_ms": medians([one.plugins for one in found]),
        }
    show(row, list(drains))
    return row


@contextmanager
def berth_config(plane: ControlPlane, policy: dict) -> Iterator[dict]:
    """Run `berth serve` with a policy while the block runs. Yields the scheduler configuration that calls it."""
    path = plane.folder / "bench-policy.yaml"
    path.write_text(yaml.safe_dump(policy))
    port = plane.start_berth(sys.executable, policy=path)
    config = yaml.safe_load((ROOT / "scheduler-config" / "berth-scheduler.yaml").read_text())
    for extender in config["extenders"]:
        extender["urlPrefix"] = f"http://127.0.0.1:{port}"
    try:
        yield config
    finally:
        plane.end(plane.processes[-1])


def show(row: dict, systems: list[str]) -> None:
    rates = {name: statistics.median(row[name]["pods_per_s"]) for name in systems}
    ratios = [f"{rates[name] / rates['in-tree']:.2f}" if rates["in-tree"] else "none" for name in systems[1:]]
    print(f"{row['nodes']} nodes, {row['shape']}: {' and '.join(ratios)} times the pods per second", flush=True)
    for name, rate in rates.items():
        unfinished = [bound for bound in row[name]["bound"] if bound < row["pods"]]
        of = f"; bound only {unfinished} of {row['pods']}" if unfinished else ""
        print(f"  {name:17} {rate:.1f} pods per second of {row[name]['pods_per_s']}{of}")
        for line in lines(Usage(row[name]["cpu_ms"], row[name]["requests"])):
            print(f"           {line}", flush=True)


def compared(row: dict, systems: list[str]) -> list[str]:
    """The table of one shape: pods per second, CPU of the two schedulers, and kube-scheduler's plugins."""
    columns = {
        name: {
            "pods/s": statistics.median(row[name]["pods_per_s"]),
            **{f"CPU {process}": row[name]["cpu_ms"].get(process, 0.0) for process in ("berth", "kube-scheduler")},
            **row[name]["plugin_ms"],
        }
        for name in systems
    }
    return [f"{row['nodes']} nodes, {row['shape']}, ms per pod; only CPU is CPU time", *table(columns)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="*", default=[1000, 5000])
    parser.add_argument("--pods", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=3, help="how often all systems drain, in turn")
    parser.add_argument(
        "--counter-nodes", type=int, default=400, help="nodes of the fleet with shared counters; 0 leaves it out"
    )
    parser.add_argument(
        "--candidates", type=int, nargs="*", default=[], help="compare these values of the policy, plugin by plugin"
    )
    args = parser.parse_args()
    policies = {f"candidates {count}": {"candidates": count} for count in args.candidates} or POLICIES
    if missing():
        raise SystemExit(missing())
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    rows = [row for nodes in args.nodes for row in one_fleet(nodes, SHAPES, policies, args.pods, args.pairs)]
    if args.counter_nodes:
        rows += one_fleet(args.counter_nodes, (COUNTERS,), policies, args.pods, 1)
    for row in rows if args.candidates else ():
        print("\n".join(["", *compared(row, ["in-tree", *policies])]), flush=True)
    folder = ROOT / "bench-results"
    folder.mkdir(exist_ok=True)
    (folder / "end-to-end.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
