"""Berth beside a real API server, controller manager and scheduler."""

from __future__ import annotations

import concurrent.futures
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from tests.e2e.control_plane import ROOT, ControlPlane, make_classes, make_fleet, on_real_server, pod

pytestmark = on_real_server(seconds=900)

NODES = int(os.environ.get("BERTH_E2E_NODES", "100"))
PODS = int(os.environ.get("BERTH_E2E_PODS", "100"))


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane")) as started:
        make_classes(started)
        yield started


def unbound(plane: ControlPlane, prefix: str) -> list[str]:
    """Pods without a node whose names begin so."""
    found = plane.get("/api/v1/namespaces/default/pods?fieldSelector=spec.nodeName%3D")["items"]
    return [name for name in (one["metadata"]["name"] for one in found) if name.startswith(prefix)]


def conditions(plane: ControlPlane, name: str) -> str:
    """The messages of a pod's conditions."""
    found = plane.get(f"/api/v1/namespaces/default/pods/{name}")
    return "".join(one.get("message", "") for one in found.get("status", {}).get("conditions", []))


def test_every_pod_is_bound_once_and_no_device_twice(plane: ControlPlane) -> None:
    """A fleet, one pod per claim template, all at once: all bound, all claims reserved, no device held twice."""
    make_fleet(plane, NODES)
    plane.start_console(sys.executable)
    port = plane.start_berth(sys.executable)
    plane.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "pair"},
            "spec": {
                "spec": {
                    "devices": {
                        "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]
                    }
                }
            },
        }
    )
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: plane.create(pod(f"job-{i:04}", "pair")), range(PODS)))
    plane.start_scheduler(port)
    start = time.monotonic()

    plane.wait(lambda: not unbound(plane, "job-"), 60 + PODS / 5)
    print(f"\n{PODS} pods on {NODES} nodes bound in {time.monotonic() - start:.1f} s")
    claims = plane.get("/apis/resource.k8s.io/v1/resourceclaims")["items"]
    pods = {p["metadata"]["uid"]: p for p in plane.get("/api/v1/pods")["items"]}
    held: dict[tuple, str] = {}
    for claim in claims:
        status = claim["status"]
        assert len(status["reservedFor"]) == 1
        owner = pods[status["reservedFor"][0]["uid"]]
        results = status["allocation"]["devices"]["results"]
        assert len(results) == 2
        for result in results:
            key = (result["driver"], result["pool"], result["device"])
            assert key not in held, f"{key} is held by {held[key]} and {claim['metadata']['name']}"
            held[key] = claim["metadata"]["name"]
            assert result["pool"] == owner["spec"]["nodeName"]
    assert len(claims) == PODS


def test_device_becomes_free_and_wakes_a_waiting_pod(plane: ControlPlane) -> None:
    """A pod that waits for devices is bound soon after a node brings them, although slices wake no pod."""
    plane.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "t4"},
            "spec": {
                "spec": {
                    "devices": {
                        "requests": [
                            {
                                "name": "gpu",
                                "exactly": {
                                    "deviceClassName": "gpu.nvidia.com",
                                    "selectors": [
                                        {
                                            "cel": {
                                                "expression": (
                                                    "device.attributes['gpu.nvidia.com'].productName == 'Tesla T4'"
                                                )
                                            }
                                        }
                                    ],
                                },
                            }
                        ]
                    }
                }
            },
        }
    )
    machine = carried_machines()["t4-4"]
    node = node_object("late-node", machine, {})
    node["status"]["capacity"] = node["status"]["allocatable"]
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    plane.create(node)
    plane.create(pod("waits", "t4"))

    plane.wait(lambda: "no device matches request gpu" in conditions(plane, "waits"), 30)

    def condition_texts() -> list[str]:
        events = plane.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return [
            e["note"]
            for e in events
            if e.get("reportingController") == "berth.dev/berth" and e["regarding"]["name"] == "waits"
        ]

    plane.wait(lambda: len(condition_texts()) == 1 and "Tesla T4" in condition_texts()[0], 30)
    slice_ = gpu_slice("late-node", machine)
    plane.create(slice_)
    start = time.monotonic()
    plane.wait(lambda: plane.get("/api/v1/namespaces/default/pods/waits")["spec"].get("nodeName") == "late-node", 30)
    print(f"\nbound {time.monotonic() - start:.1f} s after the slice appeared")


def test_examples_are_accepted_by_the_real_server(plane: ControlPlane) -> None:
    """Every example and manifest parses as an object the real API server stores (dry run)."""
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        for obj in yaml.safe_load_all(Path(path).read_text()):
            group = obj["apiVersion"]
            base = "/api/v1" if group == "v1" else f"/apis/{group}"
            plural = obj["kind"].lower() + "s"
            plane.request("POST", f"{base}/namespaces/default/{plural}?dryRun=All", obj)


def test_manifest_of_device_plugin_days_runs_unchanged(plane: ControlPlane) -> None:
    """nvidia.com/gpu: 2 on nodes without the device plugin: the special claim is accepted by the real server (1.36
    on)."""
    minor = int(plane.get("/version")["minor"].rstrip("+"))
    if minor < 36:
        pytest.skip("DRAExtendedResource is alpha and off before 1.36")
    limits = {"nvidia.com/gpu": "2"}
    obj = pod("legacy", "none")
    obj["spec"]["resourceClaims"] = []
    obj["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
    plane.create(obj)
    plane.wait(lambda: plane.get("/api/v1/namespaces/default/pods/legacy")["spec"].get("nodeName"), 30)
    found = plane.get("/api/v1/namespaces/default/pods/legacy")
    status = found["status"]["extendedResourceClaimStatus"]
    assert status["requestMappings"] == [
        {"containerName": "c", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}
    ]
    claim = plane.get(f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{status['resourceClaimName']}")
    assert len(claim["status"]["allocation"]["devices"]["results"]) == 2
    assert claim["status"]["reservedFor"][0]["uid"] == found["metadata"]["uid"]


def shared_device() -> list[dict]:
    """A device of 80Gi with its class, and a claim template for a share of 30Gi."""
    device = {"name": "shared", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    pool = {"name": "node-0000", "generation": 1, "resourceSliceCount": 1}
    share = {"deviceClassName": "shared", "capacity": {"requests": {"memory": "30Gi"}}}
    specs: dict[tuple[str, str], dict] = {
        ("DeviceClass", "shared"): {
            "selectors": [{"cel": {"expression": "device.driver == 'shared.example.com'"}}],
        },
        ("ResourceSlice", "shared"): {
            "driver": "shared.example.com", "nodeName": "node-0000", "pool": pool, "devices": [device]
        },
        ("ResourceClaimTemplate", "share"): {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": share}]}}},
    }  # fmt: skip
    return [
        {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        for (kind, name), spec in specs.items()
    ]


def test_shares_are_stored_as_sent(plane: ControlPlane) -> None:
    """Consumable capacity against the real server (1.36 on): two pods share one device within its memory."""
    minor = int(plane.get("/version")["minor"].rstrip("+"))
    if minor < 36:
        pytest.skip("DRAConsumableCapacity is alpha and off before 1.36")
    for obj in shared_device():
        plane.create(obj)
    for i in range(3):
        plane.create(pod(f"share-{i}", "share"))

    plane.wait(lambda: len(unbound(plane, "share-")) == 1, 30)
    (third,) = unbound(plane, "share-")
    plane.wait(lambda: "not enough capacity left for request gpu" in conditions(plane, third), 30)
    assert unbound(plane, "share-") == [third]
    results = [
        r
        for c in plane.get("/apis/resource.k8s.io/v1/resourceclaims")["items"]
        for r in c["status"].get("allocation", {}).get("devices", {}).get("results", [])
        if r["device"] == "shared"
    ]
    assert len(results) == 2
    assert all(r["shareID"] and r["consumedCapacity"] == {"memory": "30Gi"} for r in results)


def test_berth_could_do_all_it_wanted(plane: ControlPlane) -> None:
    """After the tests above: no write that the real server rejected, and no object that was not understood."""
    lines = "".join((plane.folder / f"{name}.log").read_text() for name in ("berth", "console")).splitlines()
    said = [line for line in lines if '"level": "warning"' in line or '"level": "error"' in line]
    assert not said, said[:3]
