"""The console with the account and the rights of its manifest, beside a real API server and scheduler."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import yaml
from extender.records.encoding import encode

from extender.sandbox.sandbox_cluster import GPU_CLASS, MARKER_CLASS
from tests.e2e.control_plane import Console, ControlPlane, needs
from tests.e2e.test_real_control_plane import make_fleet, pod
from tests.test_records import batch

pytestmark = [
    needs("kubectl"),
    pytest.mark.timeout(300),
    # urllib leaves closed sockets to the garbage collector if a connection is refused.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
Json = dict
ACCOUNT = "system:serviceaccount:berth-system:berth-console"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane")) as started:
        for obj in (GPU_CLASS, MARKER_CLASS):
            started.create(obj)
        make_fleet(started, 4)
        for name, count in (("pair", 2), ("never", 20)):
            request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": count}}
            started.create({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
                "spec": {"spec": {"devices": {"requests": [request]}}},
            })  # fmt: skip
        yield started


@pytest.fixture(scope="module")
def console(plane: ControlPlane) -> Console:
    started = plane.start_console(sys.executable)
    plane.start_scheduler(plane.start_berth(sys.executable, started.records))
    return started


def explained(console: Console, name: str) -> Json:
    with urllib.request.urlopen(f"{console.pages}/v1/explain/default/{name}") as response:
        return json.loads(response.read())


def metric(console: Console, name: str) -> float:
    with urllib.request.urlopen(f"{console.pages}/metrics") as response:
        lines = response.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), 0.0)


def bound(plane: ControlPlane, name: str) -> bool:
    return bool(plane.get(f"/api/v1/namespaces/default/pods/{name}")["spec"].get("nodeName"))


def sent(console: Console, token: str) -> int:
    """The status of the answer to a batch with this token."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{console.records}/v1/records", encode(batch()), headers)
    try:
        with urllib.request.urlopen(request) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_records_arrive_and_are_explained(plane: ControlPlane, console: Console) -> None:
    """By TokenReview of the token that serve sends: the decision with its parts, the attempts of a pod that waits."""
    for name, template in (("placed", "pair"), ("waits", "never")):
        plane.create(pod(name, template))
    plane.wait(lambda: bound(plane, "placed"), 60)
    plane.wait(lambda: (explained(console, "placed").get("decision") or {}).get("chosen", {}).get("parts"), 30)
    plane.wait(lambda: explained(console, "waits").get("attempts"), 30)
    assert explained(console, "waits")["outcome"] == "refused"
    plane.wait(lambda: metric(console, "berth_records_taken_total") >= 3, 30)
    assert metric(console, "berth_serve_processes") == 1
    assert {metric(console, f'berth_records_requests_total{{answer="{answer}"}}') for answer in (401, 403, 503)} == {0}

    def events() -> list[Json]:
        found = plane.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return [
            e for e in found if e.get("reportingController") == "berth.dev/berth" and e["regarding"]["name"] == "waits"
        ]

    plane.wait(lambda: len(events()) == 1, 30)


def test_the_console_rejects_records_of_other_accounts(plane: ControlPlane, console: Console) -> None:
    """A token for another audience, one of another account, and none at all."""
    assert sent(console, plane.token_of("berth")) == 401
    assert sent(console, plane.records_token("berth-scheduler").read_text()) == 403
    assert sent(console, "made-up") == 401
    plane.wait(lambda: metric(console, 'berth_records_requests_total{answer="401"}') == 2, 30)  # scrapes get a copy
    assert metric(console, "berth_serve_processes") == 1


@pytest.mark.parametrize(("verb", "resource", "allowed"), [
    ("patch", "resourceclaims", False), ("patch", "resourceclaims/status", False), ("delete", "resourceclaims", False),
    ("create", "pods/binding", False), ("patch", "deviceclasses", False), ("get", "secrets", False),
    ("update", "nodes", False), ("get", "pods", True), ("watch", "resourceclaims", True),
    ("create", "tokenreviews.authentication.k8s.io", True),
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


def test_binds_continue_without_the_console_and_a_new_one_gets_records(plane: ControlPlane, console: Console) -> None:
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
    plane.wait(lambda: metric(again, "berth_serve_processes") == 1, 60)
    assert explained(again, "placed")["outcome"] == "bound", "the console reads the annotations of the Binding"
