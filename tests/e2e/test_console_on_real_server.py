"""The console with the account and the rights of its manifest, beside a real API server and scheduler."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.control_plane import Console, ControlPlane, make_classes, make_fleet, make_template, on_real_server, pod

pytestmark = on_real_server("kubectl", seconds=300)
Json = dict
ACCOUNT = "system:serviceaccount:berth-system:berth-console"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane")) as started:
        make_classes(started)
        make_fleet(started, 4)
        for name, count in (("pair", 2), ("never", 20)):
            make_template(started, name, count)
        yield started


@pytest.fixture(scope="module")
def console(plane: ControlPlane) -> Console:
    started = plane.start_console(sys.executable)
    plane.start_scheduler(plane.start_berth(sys.executable))
    return started


def explained(console: Console, name: str) -> Json:
    with urllib.request.urlopen(f"{console.pages}/v1/explain/default/{name}") as response:
        return json.loads(response.read())


def fleet(console: Console) -> Json:
    with urllib.request.urlopen(f"{console.pages}/v1/fleet") as response:
        return json.loads(response.read())


def bound(plane: ControlPlane, name: str) -> bool:
    return bool(plane.get(f"/api/v1/namespaces/default/pods/{name}")["spec"].get("nodeName"))


def test_decisions_and_waiting_pods_are_shown_and_explained(plane: ControlPlane, console: Console) -> None:
    """From the API server alone: the decision with its parts, and what kube-scheduler wrote about a pod that waits."""
    for name, template in (("placed", "pair"), ("waits", "never")):
        plane.create(pod(name, template))
    plane.wait(lambda: bound(plane, "placed"), 60)
    plane.wait(lambda: (explained(console, "placed").get("decision") or {}).get("chosen", {}).get("parts"), 30)
    assert explained(console, "waits")["outcome"] == "refused"
    plane.wait(lambda: [one["pod"] for one in fleet(console)["decisions"]] == ["default/placed"], 30)
    plane.wait(lambda: "too few" in fleet(console)["pending"][0]["sentence"], 30)

    def events() -> list[Json]:
        found = plane.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return [
            e for e in found if e.get("reportingController") == "berth.dev/berth" and e["regarding"]["name"] == "waits"
        ]

    plane.wait(lambda: len(events()) == 1, 30)


@pytest.mark.parametrize(("verb", "resource", "allowed"), [
    ("patch", "resourceclaims", False), ("patch", "resourceclaims/status", False), ("delete", "resourceclaims", False),
    ("create", "pods/binding", False), ("patch", "deviceclasses", False), ("get", "secrets", False),
    ("update", "nodes", False), ("get", "pods", True), ("watch", "resourceclaims", True),
    ("create", "tokenreviews.authentication.k8s.io", False),
])  # fmt: skip
def test_the_account_reads_and_changes_nothing(
    plane: ControlPlane, console: Console, verb: str, resource: str, allowed: bool
) -> None:
    resource, _, sub = resource.partition("/")
    plural, _, api = resource.partition(".")
    if plural in ("resourceclaims", "deviceclasses"):
        api = "resource.k8s.io"
    attributes = {"verb": verb, "resource": plural, "group": api, "subresource": sub, "namespace": "default"}
    review = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": ACCOUNT, "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": attributes,
        },
    })  # fmt: skip
    assert review["status"]["allowed"] is allowed, review


def test_a_claim_cannot_be_patched_with_the_console_s_token(plane: ControlPlane, console: Console) -> None:
    token = yaml.safe_load(plane.kubeconfig_of("berth-console").read_text())["users"][0]["user"]["token"]
    (claim, *_) = plane.get("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims")["items"]
    path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim['metadata']['name']}"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        plane.request("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, "application/merge-patch+json", token)


def test_binds_continue_without_the_console_and_a_new_one_knows_them(plane: ControlPlane, console: Console) -> None:
    """After the tests above, since this one ends the console that they ask."""
    console.process.kill()
    console.process.wait()
    plane.processes.remove(console.process)
    plane.create(pod("alone", "pair"))
    plane.wait(lambda: bound(plane, "alone"), 60)
    log = (plane.folder / "berth.log").read_text()
    assert '"level": "error"' not in log
    assert "Traceback" not in log
    again = plane.start_console(sys.executable, console)
    assert explained(again, "placed")["outcome"] == "bound", "the console reads the annotations of the Binding"
