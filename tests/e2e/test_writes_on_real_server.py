"""Berth's writes to an API server that asks for more rights than usual, and whose claims Python and Java wrote."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice
from tests.e2e.control_plane import (
    TOKEN,
    ControlPlane,
    make_classes,
    make_node,
    minor_version,
    on_real_server,
    unverified,
)

pytestmark = on_real_server(seconds=300)

CLAIMS, PODS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", "/api/v1/namespaces/default/pods"
# As the official Python client and Ansible send them, and as clients in Java and JavaScript do.
TEXTS = {
    "blanks": b'{"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}',
    "unescaped": b'{"kind":"GpuConfig","filter":"a<b && b>c"}',
    "words": b'{"kind": "GpuConfig", "say": "x: Forbidden: y"}',
    "numbers": b'{"z": 1.0, "a": [1e3, {"b": null}], "forbidden": "caf\\u00e9"}',
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane"), strict=True) as started:
        machine = carried_machines()["t4-4"]
        make_classes(started)
        for name in ("n1", "n2", "n3", "n4"):
            make_node(started, name, machine)
        yield started


@pytest.fixture(scope="module")
def console(plane: ControlPlane) -> str:
    """The URL of the console's pages, once Berth and its kube-scheduler have been started, too."""
    found = plane.start_console(sys.executable)
    plane.start_scheduler(plane.start_berth(sys.executable))
    return found.pages


def pod(name: str, **spec: object) -> dict:
    container = {"name": "c", "image": "pause"}
    spec = {"schedulerName": "berth-scheduler", "automountServiceAccountToken": False, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def spec_with(parameters: object) -> dict:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    config = {"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
    return {"devices": {"requests": [request], "config": [config]}}


def create(plane: ControlPlane, path: str, kind: str, name: str, spec: dict, text: bytes) -> None:
    obj = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    plane.request("POST", path, json.dumps(obj).encode().replace(b'"HERE"', text))


def as_protobuf(plane: ControlPlane, claim: str) -> bytes:
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/vnd.kubernetes.protobuf"}
    request = urllib.request.Request(f"{plane.url}{CLAIMS}/{claim}", headers=headers)
    with urllib.request.urlopen(request, context=unverified()) as response:
        return bytes(response.read())


def wait_bound(plane: ControlPlane, *names: str) -> None:
    def bound() -> bool:
        return all(plane.get(f"{PODS}/{name}")["spec"].get("nodeName") for name in names)

    plane.wait(bound, 60)


@pytest.mark.usefixtures("console")
@pytest.mark.parametrize("form", TEXTS)
def test_a_claim_is_bound_whatever_the_form_of_its_parameters(plane: ControlPlane, form: str) -> None:
    """A claim, and one of a template; then a second pod uses the first claim."""
    text = TEXTS[form]
    create(plane, CLAIMS, "ResourceClaim", form, spec_with("HERE"), text)
    with pytest.raises(urllib.error.HTTPError, match="422"):
        plane.request("PATCH", f"{CLAIMS}/{form}", {"metadata": {"labels": {"a": "b"}}}, "application/merge-patch+json")
    templates = CLAIMS.replace("claims", "claimtemplates")
    create(plane, templates, "ResourceClaimTemplate", form, {"spec": spec_with("HERE")}, text)
    plane.create(pod(f"{form}-1", resourceClaims=[{"name": "gpu", "resourceClaimName": form}]))
    plane.create(pod(f"{form}-t", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": form}]))
    wait_bound(plane, f"{form}-1", f"{form}-t")
    plane.create(pod(f"{form}-2", resourceClaims=[{"name": "gpu", "resourceClaimName": form}]))
    wait_bound(plane, f"{form}-2")
    assert text in as_protobuf(plane, form)
    claim = plane.get(f"{CLAIMS}/{form}")
    assert {entry["name"] for entry in claim["status"]["reservedFor"]} == {f"{form}-1", f"{form}-2"}
    assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    (config,) = claim["status"]["allocation"]["devices"]["config"]
    assert config["opaque"]["parameters"] == json.loads(text)


@pytest.mark.usefixtures("console")
@pytest.mark.parametrize("form", TEXTS)
def test_a_pod_shares_an_allocation_that_kube_scheduler_wrote(plane: ControlPlane, form: str) -> None:
    """kube-scheduler copies the bytes of the parameters into the allocation, which is immutable.

    Only its driver may change a device's data.
    """
    name = f"in-tree-{form}"
    create(plane, CLAIMS, "ResourceClaim", name, spec_with("HERE"), TEXTS[form])
    claim = plane.get(f"{CLAIMS}/{name}")
    config = [{"source": "FromClaim", **spec_with("HERE")["devices"]["config"][0]}]
    devices = gpu_slice("n3", carried_machines()["t4-4"])["spec"]["devices"]
    used = {"pool": "n3", "device": devices[list(TEXTS).index(form)]["name"]}
    results = [{"request": "gpu", "driver": "gpu.nvidia.com", **used}]
    on_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n3"]}]}
    allocation = {"devices": {"results": results, "config": config}, "nodeSelector": {"nodeSelectorTerms": [on_node]}}
    status = {"allocation": allocation, "devices": [{"driver": "gpu.nvidia.com", **used, "data": "HERE"}]}
    sent = json.dumps({**claim, "status": status}).encode()
    plane.request("PUT", f"{CLAIMS}/{name}/status", sent.replace(b'"HERE"', TEXTS[form]))
    plane.create(pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": name}]))
    wait_bound(plane, name)
    assert as_protobuf(plane, name).count(TEXTS[form]) == 3  # in the spec, the allocation and the status of the device


@pytest.mark.usefixtures("console")
def test_a_pod_with_extended_resources_is_bound_without_a_right_on_its_finalizers(plane: ControlPlane) -> None:
    if minor_version() < 36:
        pytest.skip("DRAExtendedResource is alpha and off before 1.36")
    limits = {"nvidia.com/gpu": "1"}
    container = {"name": "c", "image": "pause", "resources": {"limits": limits, "requests": limits}}
    plane.create(pod("legacy", containers=[container]))
    wait_bound(plane, "legacy")


def test_explain_tells_why_each_bind_fails(plane: ControlPlane, console: str) -> None:
    """kube-scheduler writes the answer of the bind into the pod's condition."""
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"], "operations": ["CREATE"]}]
    denial = {
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": "object.metadata.name != 'denied'", "message": "not this pod"}],
    }
    kinds = {
        "ValidatingAdmissionPolicy": denial,
        "ValidatingAdmissionPolicyBinding": {"policyName": "deny", "validationActions": ["Deny"]},
    }
    version = "admissionregistration.k8s.io/v1"
    for kind, spec in kinds.items():
        plural = "validatingadmissionpolicies" if kind.endswith("y") else "validatingadmissionpolicybindings"
        obj = {"apiVersion": version, "kind": kind, "metadata": {"name": "deny"}, "spec": spec}
        plane.request("POST", f"/apis/{version}/{plural}", obj)
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "denied"}, "target": {"name": "n1"}}
    plane.create(pod("denied", schedulerName="nobody"))
    plane.wait(lambda: status_of(plane, f"{PODS}/denied/binding?dryRun=All", binding) == 422, 30)  # it is in force
    plane.request("DELETE", f"{PODS}/denied?gracePeriodSeconds=0")
    create(plane, CLAIMS, "ResourceClaim", "denied", spec_with("HERE"), TEXTS["blanks"])
    plane.create(pod("denied", resourceClaims=[{"name": "gpu", "resourceClaimName": "denied"}]))

    def told() -> bool:
        with urllib.request.urlopen(f"{console}/v1/explain/default/denied") as response:
            found = json.loads(response.read())
        return found["outcome"] == "fits" and "its last attempt ended with an error: " in found["sentence"]

    plane.wait(told, 60)


def status_of(plane: ControlPlane, path: str, body: dict) -> int:
    try:
        plane.request("POST", path, body)
    except urllib.error.HTTPError as error:
        return error.code
    return 200
