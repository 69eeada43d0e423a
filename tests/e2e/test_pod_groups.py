"""Claims of a PodGroup on a real control plane with the alpha gates on."""

from __future__ import annotations

import functools
import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.sandbox import carried_machines
from tests.e2e.control_plane import (
    ROOT,
    ControlPlane,
    kubectl_error,
    make_classes,
    make_node,
    minor_version,
    on_real_server,
)

pytestmark = on_real_server("kubectl", seconds=600)

Json = dict
NODES = ("n1", "n2", "n3")
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
GATES = "GenericWorkload=true,GangScheduling=true,DRAWorkloadResourceClaims=true"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if minor_version() != 36:
        pytest.skip("scheduling.k8s.io/v1alpha2 is served by 1.36 alone")
    served = "--runtime-config=scheduling.k8s.io/v1alpha2=true"
    with ControlPlane(tmp_path_factory.mktemp("plane"), served, gates=GATES) as started:
        machine = carried_machines()["t4-4"]
        make_classes(started)
        for name in NODES:
            make_node(started, name, machine)
        yield started


@functools.cache
def berth_port(plane: ControlPlane) -> int:
    """Berth's port; it is started with the first test."""
    return plane.start_berth(sys.executable)


def pod(name: str, group: str = "g", claim: str = "shared", **spec: object) -> Json:
    spec = {
        "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": "pause"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        "schedulingGroup": {"podGroupName": group},
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class Scheduler:
    """Sends what kube-scheduler sends."""

    def __init__(self, plane: ControlPlane, port: int) -> None:
        self._plane = plane
        self._url = f"http://127.0.0.1:{port}"

    def _post(self, verb: str, body: Json) -> Json:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/{verb}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as response:
            return json.loads(response.read())

    def filter(self, name: str, *nodes: str) -> list[str]:
        """The nodes that pass, once Berth knows the pod's claim."""
        answer: Json = {}

        def answered() -> bool:
            sent = {"Pod": self._plane.get(f"{PODS}/{name}"), "NodeNames": list(nodes)}
            answer.update(self._post("filter", sent))
            return not answer["Error"]

        self._plane.wait(answered, 60)
        return answer["NodeNames"] or []

    def bind(self, name: str, node: str) -> str:
        uid = self._plane.get(f"{PODS}/{name}")["metadata"]["uid"]
        return self._post("bind", {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node})["Error"]


def claim(name: str) -> Json:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


def pod_group(name: str, claim: str, policy: Json) -> Json:
    entry = {"name": "gpu", "resourceClaimName": claim}
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": policy, "resourceClaims": [entry]},
    }


def test_a_groups_claim_is_freed_only_while_no_member_is_bound(plane: ControlPlane) -> None:
    """g-1 cannot go to the node of the claim: while g-0 is bound there the claim stays, afterwards it is freed."""
    uid = plane.create(pod_group("g", "shared", {"basic": {}}))["metadata"]["uid"]
    plane.create(claim("shared"))
    for name in ("g-0", "g-1"):
        plane.create(pod(name))
    scheduler = Scheduler(plane, berth_port(plane))

    (node,) = scheduler.filter("g-0", *NODES)
    assert scheduler.bind("g-0", node) == ""
    before = plane.get(f"{CLAIMS}/shared")
    assert [(entry["resource"], entry["uid"]) for entry in before["status"]["reservedFor"]] == [("podgroups", uid)]

    others = [other for other in NODES if other != node]
    plane.wait(lambda: not scheduler.filter("g-1", *others), 60)
    assert scheduler.filter("g-1", *NODES) == [node]
    assert plane.get(f"{CLAIMS}/shared")["status"] == before["status"]

    plane.request("DELETE", f"{PODS}/g-0", {"gracePeriodSeconds": 0})

    def freed() -> bool:
        scheduler.filter("g-1", *others)
        return "allocation" not in plane.get(f"{CLAIMS}/shared").get("status", {})

    plane.wait(freed, 60)
    elsewhere = scheduler.filter("g-1", *others)[0]
    assert scheduler.bind("g-1", elsewhere) == ""
    results = plane.get(f"{CLAIMS}/shared")["status"]["allocation"]["devices"]["results"]
    assert [result["pool"] for result in results] == [elsewhere]


def test_a_gang_that_shares_a_claim_is_bound_at_once(plane: ControlPlane) -> None:
    """kube-scheduler filters all members before it binds any. No bind fails because the first member went elsewhere."""
    names = [f"gang-{i}" for i in range(5)]
    uid = plane.create(pod_group("gang", "of-gang", {"gang": {"minCount": len(names)}}))["metadata"]["uid"]
    plane.create(claim("of-gang"))
    for name in names:
        plane.create(pod(name, "gang", "of-gang", schedulerName="berth-scheduler"))
    plane.start_scheduler(berth_port(plane))

    def nodes() -> list[str]:
        return [plane.get(f"{PODS}/{name}")["spec"].get("nodeName", "") for name in names]

    plane.wait(lambda: all(nodes()), 120)
    assert len(set(nodes())) == 1
    entries = plane.get(f"{CLAIMS}/of-gang")["status"]["reservedFor"]
    assert [(entry["resource"], entry["uid"]) for entry in entries] == [("podgroups", uid)]
    events = plane.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    failed = [event["note"] for event in events if event["reason"] == "FailedScheduling"]
    assert not [note for note in failed if "other nodes" in note or "berth failed" in note], failed


def test_a_group_in_use_keeps_the_finalizer_that_keeps_its_claims(plane: ControlPlane, tmp_path: Path) -> None:
    """Without it, the group is gone while its pods run, and the next pod gets the devices of its claims."""
    plane.create(pod_group("kept", "of-kept", {"basic": {}}))
    plane.create(claim("of-kept"))
    plane.create(pod("kept-0", "kept", "of-kept"))
    scheduler = Scheduler(plane, berth_port(plane))
    assert scheduler.bind("kept-0", scheduler.filter("kept-0", *NODES)[0]) == ""
    before = plane.get(f"{CLAIMS}/of-kept")["status"]
    assert before["reservedFor"][0]["resource"] == "podgroups"
    for words in (
        ("create", "rolebinding", "tenant", "--clusterrole=edit", "--user=tenant", "--namespace=default"),
        ("create", "-f", str(ROOT / "manifests/base/claims-in-use.yaml")),
        ("delete", "podgroup", "kept", "--as=tenant", "--wait=false"),
    ):
        plane.wait(lambda words=words: not kubectl_error(plane, *words), 30)
    change = ("patch", "podgroup", "kept", "--type=merge", "-p", '{"metadata": {"finalizers": []}}')
    # A policy is in force some seconds after its creation: a dry run tells.
    plane.wait(lambda: "keeps the devices" in kubectl_error(plane, *change, "--as=tenant", "--dry-run=server"), 60)
    assert kubectl_error(plane, *change, "--as=tenant")
    assert plane.get(f"{CLAIMS}/of-kept")["status"] == before
    group = plane.get("/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups/kept")
    assert group["metadata"].pop("finalizers")
    path = tmp_path / "group.json"
    path.write_text(json.dumps(group))
    replace = ("replace", "-f", str(path), "--dry-run=server")
    assert kubectl_error(plane, *replace, "--as=tenant")
    assert kubectl_error(plane, *replace, "--as=system:serviceaccount:kube-system:podgroup-protection-controller") == ""
