"""Gangs whose pods constrain each other, beside a real kube-scheduler: it accepts the nodes of their first plan."""

from __future__ import annotations

import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator

import pytest

from extender.sandbox import carried_machines
from tests.e2e.control_plane import ControlPlane, make_classes, make_node, make_template, needs
from tests.worlds.constrained_gangs import HOSTNAME, required, spread, term
from tests.worlds.process_worlds import free_port
from tests.worlds.running_berth import Json

pytestmark = [needs(), pytest.mark.timeout(900)]

NODES, SIZE = 8, 8
ZONE = "topology.kubernetes.io/zone"
PORT = free_port()
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane")) as started:
        machine = carried_machines()["t4-4"]
        make_classes(started)
        for i in range(NODES):
            labels = {HOSTNAME: f"n{i}", ZONE: "a" if i < NODES // 2 else "b"}
            make_node(started, f"n{i}", machine, labels, cpu="8")
        make_template(started, "one", 1)
        started.start_scheduler(started.start_berth(sys.executable, port=PORT))
        yield started


def pod(group: str, index: int, spec: Json) -> Json:
    notes = {"berth.dev/group": group, "berth.dev/group-min": str(SIZE)}
    container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": "10m"}, "claims": [{"name": "gpu"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{group}-{index}", "annotations": notes, "labels": {"job": group}},
        "spec": {
            "schedulerName": "berth-scheduler",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
            "containers": [container],
            **spec,
        },
    }


def plans() -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics") as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("berth_gang_plans_total"))


def nodes(plane: ControlPlane) -> list[str]:
    return [found["spec"]["nodeName"] for found in plane.get(PODS)["items"] if found["spec"].get("nodeName")]


JOB = {"job": "g"}
CASES = {
    "apart": (required("podAntiAffinity", term(HOSTNAME, JOB)), [1] * 8),
    "even": (spread(ZONE, JOB), None),
    "even-on-hosts": (spread(HOSTNAME, JOB), [1] * 8),
    "together": (required("podAffinity", term(ZONE, JOB)), [4, 4]),
}


@pytest.mark.parametrize(("spec", "numbers"), CASES.values(), ids=CASES)
def test_kube_scheduler_accepts_the_first_plan(plane: ControlPlane, spec: Json, numbers: list[int] | None) -> None:
    before = plans()
    for i in range(SIZE):
        plane.create(pod("g", i, spec))
    plane.wait(lambda: len(nodes(plane)) == SIZE, 120)
    found, made = Counter(nodes(plane)), plans() - before
    print(f"{made:g} plans: {dict(found)}")
    for i in range(SIZE):
        plane.request("DELETE", f"{PODS}/g-{i}?gracePeriodSeconds=0", {}, "application/json")
    plane.wait(lambda: not plane.get(PODS)["items"], 60)
    if numbers is not None:
        assert sorted(found.values()) == numbers
    else:
        zones = Counter("a" if int(name[1:]) < NODES // 2 else "b" for name in found.elements())
        assert zones == {"a": SIZE // 2, "b": SIZE // 2}
    assert made == 1
