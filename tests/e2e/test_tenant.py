"""Attacks of tests/bind/test_tenant*.py on a real control plane, with ClusterRole `edit` in one namespace."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest
import yaml

from extender.sandbox import carried_machines, fabric_slice
from tests.e2e.control_plane import ControlPlane, kubectl_error, make_classes, make_node, on_real_server
from tests.e2e.control_plane import kubectl as try_kubectl
from tests.worlds.fuzzing import CASES, unfolded

pytestmark = on_real_server("kubectl", seconds=600)

Json = dict
ROOT = Path(__file__).resolve().parents[2]
OURS, VICTIMS = "team-a", "team-b"
SPECIAL = "resource.kubernetes.io/extended-resource-claim"
PROTECTION = "resource.kubernetes.io/delete-protection"
TOO_LARGE = b'{"a": 1%b}' % (b"0" * 400)  # beyond a double: kube-apiserver 1.36 panics and hangs up, and stores nothing
UNREADABLE = yaml.safe_load((CASES / "unreadable.yaml").read_text())
ODD = (  # more of what JSON lets a tenant write: integers, numbers, keys
    TOO_LARGE, b'{"a": 1%b}' % (b"0" * 300), b'{"a": 9223372036854775808}', b'{"a": -1e-400, "b": 1e308}',
    b'{"a": 1, "a": {"b": 2}}', b'{"%b": 1}' % (b"k" * 9000), b'{"": {"": {}}}', b'{"a": "%b"}' % (b"\\u0000" * 1000),
    b"{%b}" % b",".join(b'"%d": []' % i for i in range(900)),
)  # fmt: skip
GATE = [{"name": "tests.example/wait"}]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane")) as started:
        if int(started.get("/version")["minor"].rstrip("+")) < 36:
            pytest.skip("DRAExtendedResource is alpha and off before 1.36")
        make_classes(started)
        for name in (OURS, VICTIMS):
            started.create(namespace(name))
        machine = carried_machines()["t4-4"]
        for name in ("n1", "n2"):
            make_node(started, name, machine)
            started.create(fabric_slice(name, machine))
        binding = ("rolebinding", "tenant", "--clusterrole=edit", "--user=tenant", f"--namespace={OURS}")
        kubectl(started, "create", *binding)
        started.wait(lambda: may(started, "create", "resourceclaims"), 30)
        kubectl(started, "create", "-f", str(ROOT / "manifests/base/claims-in-use.yaml"))
        started.start_scheduler(started.start_berth(sys.executable))
        yield started


def namespace(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def kubectl(plane: ControlPlane, *args: str, body: object = None) -> str:
    done = try_kubectl(plane, *args, body=body)
    assert done.returncode == 0, f"{args}: {done.stderr}"
    return done.stdout


def may(plane: ControlPlane, verb: str, resource: str, subresource: str = "", where: str = OURS) -> bool:
    as_tenant = f"--subresource={subresource}", "--as=tenant", f"--namespace={where}"
    done = try_kubectl(plane, "auth", "can-i", verb, resource, *as_tenant)
    return done.stdout.strip() == "yes"


def create(plane: ControlPlane, obj: Json) -> Json:
    """As the tenant."""
    made = kubectl(plane, "create", "--as=tenant", f"--namespace={OURS}", "-f", "-", "-o", "json", body=obj)
    return json.loads(made)


def patch(plane: ControlPlane, kind: str, name: str, change: Json) -> None:
    """As the tenant."""
    kubectl(plane, "patch", kind, name, "--as=tenant", f"--namespace={OURS}", "--type=merge", "-p", json.dumps(change))


def ungate(plane: ControlPlane, name: str, where: str = OURS) -> None:
    change = json.dumps({"spec": {"schedulingGates": []}})
    kubectl(plane, "patch", "pod", name, f"--namespace={where}", "--type=merge", "-p", change)


def pod(name: str, *claims: str, gates: list = []) -> Json:  # noqa: B006 - never changed
    """With claims by name; without any, one GPU as an extended resource."""
    gpu = {} if claims else {"nvidia.com/gpu": "1"}
    container = {"name": "c", "image": "pause", "resources": {"limits": gpu, "requests": gpu}}
    spec = {
        "schedulerName": "berth-scheduler",
        "automountServiceAccountToken": False,
        "containers": [container],
        "resourceClaims": [{"name": f"c{i}", "resourceClaimName": one} for i, one in enumerate(claims)],
        "schedulingGates": gates,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def claim(name: str, **metadata: object) -> Json:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, **metadata},
        "spec": {"devices": {"requests": [request]}},
    }


def forged(owner: Json, *finalizers: str) -> Json:
    """Metadata that makes a claim look like the special claim of a pod."""
    name, uid = owner["metadata"]["name"], owner["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
    notes = {SPECIAL: "true", "berth.dev/allocator": "berth-forged"}
    return {"annotations": notes, "ownerReferences": [reference], "finalizers": [PROTECTION, *finalizers]}


def read(plane: ControlPlane, kind: str, name: str, where: str = OURS) -> Json:
    base = "/api/v1" if kind == "pods" else "/apis/resource.k8s.io/v1"
    return plane.get(f"{base}/namespaces/{where}/{kind}/{name}")


def exists(plane: ControlPlane, name: str) -> bool:
    return not kubectl_error(plane, "get", "resourceclaim", name, f"--namespace={OURS}")


def bound(plane: ControlPlane, name: str, where: str = OURS) -> None:
    plane.wait(lambda: read(plane, "pods", name, where)["spec"].get("nodeName"), 60)


def held(plane: ControlPlane) -> list[tuple[str, str]]:
    claims = plane.get("/apis/resource.k8s.io/v1/resourceclaims")["items"]
    results = [r for c in claims for r in c["status"].get("allocation", {}).get("devices", {}).get("results", [])]
    return [(r["pool"], r["device"]) for r in results]


def test_writes_of_a_tenant(plane: ControlPlane) -> None:
    """A tenant may write everything but the status of claims and pods, and bindings. SECURITY.md relies on this."""
    assert all(may(plane, verb, kind) for verb in ("create", "patch", "delete") for kind in ("resourceclaims", "pods"))
    for kind, sub in (("resourceclaims", "status"), ("resourceclaims", "binding"), ("pods", "status")):
        assert not may(plane, "update", kind, sub), (kind, sub)
        assert not may(plane, "patch", kind, sub), (kind, sub)
    assert not may(plane, "create", "pods", "binding")
    assert not may(plane, "create", "bindings")
    assert not may(plane, "get", "pods", where=VICTIMS)


@pytest.mark.parametrize("name", ["loot", "waits-2-extended-resources-abcde"])
def test_a_claim_in_use_that_is_marked_as_special_stays(plane: ControlPlane, name: str) -> None:
    """Attack: have another pod's devices freed by marking a claim as made for extended resources."""
    number = "1" if name == "loot" else "2"
    create(plane, claim(name))
    create(plane, pod(f"runs-{number}", name))
    bound(plane, f"runs-{number}")
    before = read(plane, "resourceclaims", name)
    waits = create(plane, pod(f"waits-{number}", gates=GATE))
    patch(plane, "resourceclaim", name, {"metadata": forged(waits)})
    ungate(plane, f"waits-{number}")
    bound(plane, f"waits-{number}")
    after = read(plane, "resourceclaims", name)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert "deletionTimestamp" not in after["metadata"]
    assert after["status"] == before["status"]
    assert len(held(plane)) == len(set(held(plane)))


def test_a_claim_in_use_keeps_the_finalizer_that_keeps_its_devices(plane: ControlPlane) -> None:
    """Without it, a delete takes the claim away at once, and the next pod gets the devices of a pod that runs."""
    create(plane, claim("kept"))
    patch(plane, "resourceclaim", "kept", {"metadata": {"finalizers": [PROTECTION]}})
    patch(plane, "resourceclaim", "kept", {"metadata": {"finalizers": []}})  # nothing is allocated yet
    create(plane, pod("runs", "kept"))
    bound(plane, "runs")
    words = ("patch", "resourceclaim", "kept", "--as=tenant", f"--namespace={OURS}", "--type=merge", "-p")

    def refused() -> bool:  # a policy is in force some seconds after its creation
        change = json.dumps({"metadata": {"finalizers": ["tests.example/mine"]}})
        answer = kubectl_error(plane, *words, change)
        if answer:
            assert "keeps its devices from other pods" in answer
            return True
        patch(plane, "resourceclaim", "kept", {"metadata": {"finalizers": [PROTECTION]}})
        return False

    plane.wait(refused, 60)
    patch(plane, "resourceclaim", "kept", {"metadata": {"finalizers": [PROTECTION, "tests.example/mine"]}})
    patch(plane, "resourceclaim", "kept", {"metadata": {"finalizers": [PROTECTION]}})
    kubectl(plane, "delete", "resourceclaim", "kept", "--as=tenant", f"--namespace={OURS}", "--wait=false")
    assert read(plane, "resourceclaims", "kept")["status"]["allocation"]
    kubectl(plane, "delete", "pod", "runs", "--as=tenant", f"--namespace={OURS}", "--grace-period=0", "--force")
    plane.wait(lambda: not exists(plane, "kept"), 60)  # the claim controller may remove it


def test_no_pod_of_a_tenant_gets_a_claim_without_a_scheduler(plane: ControlPlane) -> None:
    """The claim controller reserves an allocation for such a pod before the other replica of Berth can take it back."""
    create(plane, claim("raced"))
    chosen = pod("chosen", "raced")
    chosen["spec"]["nodeName"] = "n1"
    command = [str(plane.bin / "kubectl"), f"--kubeconfig={plane.kubeconfig}", "create", "--dry-run=server", "-f", "-"]

    def answer(body: Json, *words: str) -> str:
        sent = [*command, f"--namespace={OURS}", *words]
        done = subprocess.run(sent, input=json.dumps(body), capture_output=True, text=True, timeout=60, check=False)
        return done.stderr if done.returncode else ""

    refusal = "a scheduler chooses the node of a pod with claims"
    plane.wait(lambda: refusal in answer(chosen, "--as=tenant"), 60)  # a policy is in force some seconds after it
    assert answer(pod("waits", "raced"), "--as=tenant") == ""
    without = {**chosen, "spec": {**chosen["spec"], "resourceClaims": []}}
    assert answer(without, "--as=tenant") == ""
    assert answer(chosen) == "", "an account that may bind pods may also create them with a node"
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    copied = {**chosen, "metadata": {**chosen["metadata"], "ownerReferences": [owner]}}
    assert refusal in answer(copied), "the DaemonSet controller may bind pods, and copies the node of a template"


def test_a_claim_of_another_namespace_with_the_pods_uid_has_no_effect(plane: ControlPlane) -> None:
    victim = plane.create(pod("victim", gates=GATE), VICTIMS)
    name = "victim-extended-resources-abcde"
    create(plane, claim(name, **forged(victim, "tests.example/keep")))
    ungate(plane, "victim", VICTIMS)
    bound(plane, "victim", VICTIMS)
    patch(plane, "resourceclaim", name, {"metadata": {"finalizers": []}})


def test_a_leftover_with_a_finalizer_of_the_tenants_stops_nothing(plane: ControlPlane) -> None:
    """A process died between the allocation of the special claim and the Binding; the tenant keeps the claim from being
    deleted. Its devices are free again, and the pod is bound with a new claim."""
    owner = create(plane, pod("crashed", gates=GATE))
    name = "crashed-extended-resources-abcde"
    metadata = forged(owner, "tests.example/keep") | {"annotations": {SPECIAL: "true"}}
    create(plane, claim(name, **metadata))
    free = min({(node, f"gpu-{i}") for node in ("n1", "n2") for i in range(4)} - set(held(plane)))
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": free[0], "device": free[1]}
    entry = {"resource": "pods", "name": "crashed", "uid": owner["metadata"]["uid"]}
    status = {"status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [entry]}}
    path = f"/apis/resource.k8s.io/v1/namespaces/{OURS}/resourceclaims/{name}/status"
    plane.request("PATCH", path, status, "application/merge-patch+json")
    ungate(plane, "crashed")
    bound(plane, "crashed")
    kept = read(plane, "resourceclaims", name)
    assert kept["metadata"]["deletionTimestamp"]
    assert kept["metadata"]["finalizers"] == ["tests.example/keep"]
    assert "allocation" not in kept.get("status", {})
    mapped = read(plane, "pods", "crashed")["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    assert mapped != name
    assert read(plane, "resourceclaims", mapped)["status"]["allocation"]
    patch(plane, "resourceclaim", name, {"metadata": {"finalizers": []}})


def test_the_content_of_a_claim_stops_no_other_claim(plane: ControlPlane) -> None:
    """Odd JSON in opaque parameters: another claim is read and bound, by the Berth that saw it in its watch and by one
    that finds it in its list. The server may reject some of it; most it stores."""
    path = f"/apis/resource.k8s.io/v1/namespaces/{OURS}/resourceclaims"
    stored: list[int] = []
    refused: list[tuple[int, int]] = []
    for number, text in enumerate([*(unfolded(case) for case in UNREADABLE.values()), *ODD]):
        odd = claim(f"odd-{number}")
        odd["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": "HERE"}}]
        try:
            plane.request("POST", path, json.dumps(odd).encode().replace(b'"HERE"', text))
            stored.append(number)
        except HTTPError as error:
            refused.append((number, error.code))
        except ConnectionError:
            assert text == TOO_LARGE, number
    assert {code for _, code in refused} <= {400, 422}, refused
    assert len(stored) >= len(UNREADABLE) + len(ODD) - 2, "the server takes nearly all of it"
    for name in ("other", "later"):
        create(plane, claim(name))
        create(plane, pod(f"uses-{name}", name))
        bound(plane, f"uses-{name}")
        if name == "other":
            test_berth_could_do_all_it_wanted(plane)  # its log is not kept
            plane.end(plane.processes[-1])
            plane.end(plane.processes[-1])
            plane.start_scheduler(plane.start_berth(sys.executable))
    assert len(held(plane)) == len(set(held(plane)))


def test_berth_could_do_all_it_wanted(plane: ControlPlane) -> None:
    """After the tests above: no write that the server rejected."""
    lines = (plane.folder / "berth.log").read_text().splitlines()
    said = [line for line in lines if '"level": "warning"' in line or '"level": "error"' in line]
    assert not said, said[:3]
