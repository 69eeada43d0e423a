"""Pods that Berth schedules run on a real kubelet, with the allocated devices inside of their containers."""

from __future__ import annotations

import signal
import socket
import sys
import urllib.error
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import yaml

from extender.sandbox.sandbox_cluster import MARKER_CLASS
from tests.e2e.control_plane import NODE_NAME, ControlPlane
from tests.e2e.real_node import DEVICES, DRIVER, IMAGE, METADATA, RealNode, needs_a_node
from tests.worlds.process_worlds import free_port

pytestmark = [
    needs_a_node(),
    pytest.mark.timeout(900),
    # urllib leaves closed sockets to the garbage collector if a connection is refused.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

ALL = {f"{NODE_NAME}/device-{index:02}" for index in range(DEVICES)}
RESOURCE = "e2e.berth.dev/device"
PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
PATIENCE = 240  # seconds; after a crash the claim of extended resources is released after a minute
RULES_ON = ("--runtime-config=resource.k8s.io/v1beta2=true",)  # DeviceTaintRules in 1.36


class World(NamedTuple):
    """A cluster of one real node, and the port of Berth."""

    plane: ControlPlane
    node: RealNode
    port: int


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, port = tmp_path_factory.mktemp, free_port()
    with (
        ControlPlane(folder("plane"), *RULES_ON, gates="DRADeviceTaintRules=true", strict=True) as plane,
        RealNode(plane, folder("node")) as node,
    ):
        plane.create(MARKER_CLASS)
        selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
        spec = {"selectors": selectors, "extendedResourceName": RESOURCE}
        plane.create({**resource("DeviceClass", "tree"), "spec": spec})
        for count in range(1, DEVICES + 1):
            plane.create({**resource("ResourceClaimTemplate", f"take-{count}"), "spec": {"spec": request(count)}})
        plane.start_scheduler(plane.start_berth(sys.executable, port=port))
        yield World(plane, node, port)


@pytest.fixture(autouse=True)
def empty(world: World) -> Iterator[None]:
    """Each test leaves nothing: what kubelet does not end fails the test."""
    yield
    for path in (RULES, JOBS, PODS, CLAIMS):
        world.plane.request("DELETE", f"{path}?propagationPolicy=Background", {})
    world.plane.wait(lambda: not any(world.plane.get(path)["items"] for path in (JOBS, PODS, CLAIMS)), PATIENCE)


def resource(kind: str, name: str, version: str = "v1") -> dict:
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": {"name": name}}


def request(count: int) -> dict:
    return {"devices": {"requests": [{"name": "devices", "exactly": {"deviceClassName": "tree", "count": count}}]}}


def spec_of(claim: dict | None, *, then: str = "exec /bin/busybox sleep 2147483647", limits: int = 0) -> dict:
    """A pod spec; its container writes what it sees. `claim` is the source of its claim."""
    resources: dict = {"limits": {RESOURCE: str(limits)}} if limits else {"claims": [{"name": "c"}]}
    shown = f"for file in {METADATA}; do echo ---; /bin/busybox cat $file; done; echo end"
    command = ["/bin/busybox", "sh", "-c", f"{shown}; {then}"]
    container = {"name": "c", "image": IMAGE, "imagePullPolicy": "Never", "command": command, "resources": resources}
    return {
        "schedulerName": "berth-scheduler",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "resourceClaims": [{"name": "c", **claim}] if claim else [],
        "containers": [container],
    }


def take(count: int) -> dict:
    return {"resourceClaimTemplateName": f"take-{count}"}


def create(world: World, name: str, spec: dict, annotations: dict[str, str] | None = None) -> None:
    metadata = {"name": name, "annotations": annotations or {}}
    world.plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def create_job(world: World, spec: dict, pods: int) -> None:
    job = {"parallelism": pods, "completions": pods, "template": {"spec": {**spec, "restartPolicy": "Never"}}}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": job}
    world.plane.request("POST", JOBS, body)


def pods_of_job(world: World) -> list[dict]:
    found: list[dict] = world.plane.get(f"{PODS}?labelSelector=batch.kubernetes.io/job-name%3Djob")["items"]
    return found


def inside(world: World, pod: dict) -> set[str]:
    """The devices that a container has written, as "pool/device"; empty before it has written all."""
    lines = world.node.said(pod)
    if "end" not in lines:
        return set()
    objects = yaml.safe_load_all("\n".join(lines[: lines.index("end")]))
    devices = [device for one in objects for part in one["requests"] for device in part["devices"]]
    assert all(device["driver"] == DRIVER for device in devices)
    return {f"{device['pool']}/{device['name']}" for device in devices}


def allocated(world: World, pod: dict) -> set[str]:
    """The devices that the pod's claim has, whichever way it got the claim."""
    status = pod["status"]
    special = status.get("extendedResourceClaimStatus")
    named = pod["spec"].get("resourceClaims", [{}])[0].get("resourceClaimName")
    name = special["resourceClaimName"] if special else named or status["resourceClaimStatuses"][0]["resourceClaimName"]
    claim = world.plane.get(f"{CLAIMS}/{name}")
    assert pod["metadata"]["uid"] in [user["uid"] for user in claim["status"]["reservedFor"]]
    return devices_of(claim)


def devices_of(claim: dict) -> set[str]:
    return {f"{one['pool']}/{one['device']}" for one in claim["status"]["allocation"]["devices"]["results"]}


def runs(world: World, name: str, count: int) -> set[str]:
    """Wait until a pod runs. Its devices, which are those of its claim and those inside of its container."""
    url = f"{PODS}/{name}"
    world.plane.wait(lambda: world.plane.get(url)["status"]["phase"] == "Running", PATIENCE)
    pod = world.plane.get(url)
    world.plane.wait(lambda: inside(world, pod), PATIENCE)
    assert inside(world, pod) == allocated(world, pod)
    assert pod["spec"]["nodeName"] == NODE_NAME
    assert len(inside(world, pod)) == count
    return inside(world, pod)


@pytest.mark.parametrize("count", [1, 2])
def test_a_pod_gets_its_devices(world: World, count: int) -> None:
    create(world, "a", spec_of(take(count)))
    runs(world, "a", count)


def test_two_pods_share_a_claim(world: World) -> None:
    world.plane.create({**resource("ResourceClaim", "shared"), "spec": request(1)})
    for name in ("a", "b"):
        create(world, name, spec_of({"resourceClaimName": "shared"}))
    assert runs(world, "a", 1) == runs(world, "b", 1)


def test_a_pod_asks_by_an_extended_resource(world: World) -> None:
    create(world, "a", spec_of(None, limits=2))
    runs(world, "a", 2)


def test_a_gang_runs_whole(world: World) -> None:
    names = [f"member-{index}" for index in range(DEVICES)]
    group = {"berth.dev/group": "gang", "berth.dev/group-min": str(DEVICES)}
    for name in names:
        create(world, name, spec_of(take(1)), group)
    assert set().union(*(runs(world, name, 1) for name in names)) == ALL


def test_devices_are_handed_over_after_a_deletion(world: World) -> None:
    create(world, "a", spec_of(take(DEVICES)))
    runs(world, "a", DEVICES)
    create(world, "b", spec_of(take(DEVICES)))
    world.plane.wait(lambda: "PodScheduled" in states(world, "b"), PATIENCE)
    assert states(world, "b")["PodScheduled"] == "False"
    world.plane.request("DELETE", f"{PODS}/a", {})
    assert runs(world, "b", DEVICES) == ALL


def states(world: World, name: str) -> dict[str, str]:
    return {one["type"]: one["status"] for one in world.plane.get(f"{PODS}/{name}")["status"].get("conditions", [])}


def test_the_pods_of_a_job_run_one_after_the_other(world: World) -> None:
    """Each needs all devices. The second gets them when the first has succeeded."""
    create_job(world, spec_of(take(DEVICES), then="exit 0"), 2)
    world.plane.wait(lambda: world.plane.get(f"{JOBS}/job")["status"].get("succeeded") == 2, PATIENCE)
    assert [inside(world, pod) for pod in pods_of_job(world)] == [ALL, ALL]


def test_pods_run_through_a_kill_of_kubelet(world: World) -> None:
    """kubelet removes the node's ResourceSlices when it starts; the driver writes them again."""
    create(world, "a", spec_of(take(2)))
    before = runs(world, "a", 2)
    world.node.stop("kubelet", signal.SIGKILL)
    create(world, "b", spec_of(take(2)))
    world.node.start_kubelet()
    assert runs(world, "b", 2) == ALL - before
    assert runs(world, "a", 2) == before
    assert world.plane.get(f"{PODS}/a")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_pod_waits_for_a_driver_that_restarts(world: World) -> None:
    create(world, "a", spec_of(take(2)))
    before = runs(world, "a", 2)
    world.node.stop("test-driver")
    create(world, "b", spec_of(take(2)))
    world.plane.wait(lambda: world.plane.get(f"{PODS}/b")["spec"].get("nodeName"), PATIENCE)
    world.node.start_driver()
    assert runs(world, "b", 2) == ALL - before
    assert runs(world, "a", 2) == before


def test_a_pod_is_replaced_where_its_device_is_tainted(world: World) -> None:
    create_job(world, spec_of(take(1)), 1)
    world.plane.wait(lambda: pods_of_job(world), PATIENCE)
    (evicted,) = (pod["metadata"]["name"] for pod in pods_of_job(world))
    (tainted,) = runs(world, evicted, 1)
    selector = {"driver": DRIVER, "pool": NODE_NAME, "device": tainted.partition("/")[2]}
    taint = {"key": "e2e.berth.dev/broken", "effect": "NoExecute"}
    rule = {**resource("DeviceTaintRule", "broken", "v1beta2"), "spec": {"deviceSelector": selector, "taint": taint}}
    world.plane.request("POST", RULES, rule)

    def replacements() -> list[str]:
        return [pod["metadata"]["name"] for pod in pods_of_job(world) if pod["metadata"]["name"] != evicted]

    world.plane.wait(replacements, PATIENCE)
    (name,) = replacements()
    assert runs(world, name, 1) <= ALL - {tainted}


@pytest.mark.parametrize("spec", [spec_of(take(2)), spec_of(None, limits=2)], ids=["claim", "extended-resource"])
def test_a_pod_runs_though_berth_was_killed_before_its_binding(world: World, spec: dict) -> None:
    """SIGKILL comes while the API server asks a webhook about the Binding: only the claim is written."""
    with socket.create_server(("127.0.0.1", 0)) as webhook:
        webhook.settimeout(PATIENCE)
        world.plane.request("POST", WEBHOOKS, asking(webhook.getsockname()[1]))
        world.plane.wait(lambda: asks(world), PATIENCE)
        with webhook.accept()[0]:  # of the Binding by which `asks` knows
            pass
        create(world, "a", spec)
        with webhook.accept()[0]:
            world.plane.kill("extender")
        (claim,) = world.plane.get(CLAIMS)["items"]
        assert claim["status"]["reservedFor"]
        assert "nodeName" not in world.plane.get(f"{PODS}/a")["spec"]
        world.plane.request("DELETE", f"{WEBHOOKS}/bindings.e2e.berth.dev", {})
    world.plane.start_berth(sys.executable, port=world.port)
    assert runs(world, "a", 2) == devices_of(claim)


def asking(port: int) -> dict:
    """Have the API server ask about Bindings at a port where nothing answers; it refuses them after 10 s."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    webhook = {
        "name": "bindings.e2e.berth.dev", "clientConfig": {"url": f"https://127.0.0.1:{port}/"}, "rules": [rule],
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "timeoutSeconds": 10,
    }  # fmt: skip
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    return {**head, "metadata": {"name": webhook["name"]}, "webhooks": [webhook]}


def asks(world: World) -> bool:
    """Whether the API server asks about Bindings already; otherwise it says at once that there is no such pod."""
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "none"}, "target": {"name": NODE_NAME}}
    try:
        world.plane.request("POST", f"{PODS}/none/binding", binding)
    except urllib.error.HTTPError as error:
        return error.code != 404
    return False
