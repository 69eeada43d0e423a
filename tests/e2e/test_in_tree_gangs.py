"""Berth beside the in-tree gang scheduling of 1.36 (alpha gates on): its group cycle asks about each member, for each
placement, without saying that the answer may be dropped."""

from __future__ import annotations

import concurrent.futures
import os
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from extender.sandbox import carried_machines
from tests.e2e.control_plane import ControlPlane, make_classes, make_node, make_template, minor_version, on_real_server
from tests.worlds.process_worlds import free_port

pytestmark = on_real_server(seconds=1800)

Json = dict
RACKS, TRAYS, SIZE = ("r1", "r2"), 3, 3  # a gang of three whole nodes fits into one rack
ROUNDS = int(os.environ.get("BERTH_E2E_ROUNDS", "2"))
RACK = "topology.kubernetes.io/rack"
GATES = ",".join(
    f"{gate}=true"
    for gate in (
        "GenericWorkload",
        "GangScheduling",
        "TopologyAwareWorkloadScheduling",
        "WorkloadAwarePreemption",
        "DRAWorkloadResourceClaims",
    )
)
PORT = free_port()
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if minor_version() != 36:
        pytest.skip("scheduling.k8s.io/v1alpha2 is served by 1.36 alone")
    served = "--runtime-config=scheduling.k8s.io/v1alpha2=true"
    with ControlPlane(tmp_path_factory.mktemp("plane"), served, gates=GATES) as started:
        machine = carried_machines()["t4-4"]
        make_classes(started)
        for rack in RACKS:
            for i in range(TRAYS):
                make_node(started, f"{rack}-{i}", machine, {RACK: rack}, cpu="8")
        make_template(started, "all", 4)
        for name, value in (("low", 10), ("high", 1000)):
            started.request("POST", PRIORITIES, {"metadata": {"name": name}, "value": value})
        started.start_scheduler(started.start_berth(sys.executable, port=PORT))
        yield started


def create_gang(
    plane: ControlPlane, group: str, minimum: int = SIZE, *, rack: bool = False, cpu: str = "100m", priority: str = ""
) -> None:
    spec: Json = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    if priority:
        spec["priorityClassName"] = priority
    if rack:
        spec["schedulingConstraints"] = {"topology": [{"key": RACK}]}
    plane.create({
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": group}, "spec": spec,
    })  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(minimum) as pool:
        for one in [pool.submit(plane.create, pod(group, i, cpu, priority)) for i in range(minimum)]:
            one.result()


def pod(group: str, index: int, cpu: str, priority: str) -> Json:
    resources = {"requests": {"cpu": cpu}, "claims": [{"name": "gpu"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{group}-{index}"},
        "spec": {
            "schedulerName": "berth-scheduler",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "schedulingGroup": {"podGroupName": group},
            "priorityClassName": priority,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "all"}],
            "containers": [{"name": "c", "image": "pause", "resources": resources}],
        },
    }


def nodes(plane: ControlPlane, group: str) -> list[str]:
    """The nodes of the bound pods of a group."""
    pods = [p for p in plane.get(PODS)["items"] if "deletionTimestamp" not in p["metadata"]]
    return [
        p["spec"]["nodeName"] for p in pods if p["metadata"]["name"].startswith(group) and p["spec"].get("nodeName")
    ]


def delete(plane: ControlPlane, group: str, size: int = SIZE) -> None:
    for i in range(size):
        plane.request("DELETE", f"{PODS}/{group}-{i}?gracePeriodSeconds=0", {})
    plane.request("DELETE", f"{GROUPS}/{group}", {})


def nothing_left(plane: ControlPlane) -> bool:
    return not plane.get(PODS)["items"] and not plane.get(CLAIMS)["items"]


def test_a_gang_is_bound_whole(plane: ControlPlane) -> None:
    create_gang(plane, "one")
    plane.wait(lambda: len(nodes(plane, "one")) == SIZE, 120)
    delete(plane, "one")
    plane.wait(lambda: nothing_left(plane), 60)


def test_a_gang_with_a_topology_constraint_gets_one_rack(plane: ControlPlane) -> None:
    """kube-scheduler tries one rack after the other. A blocked rack must not leave holds behind."""
    create_gang(plane, "blocker", 1)
    plane.wait(lambda: len(nodes(plane, "blocker")) == 1, 120)
    (blocked,) = nodes(plane, "blocker")
    create_gang(plane, "tas", rack=True)
    plane.wait(lambda: len(nodes(plane, "tas")) == SIZE, 120)
    racks = {node.partition("-")[0] for node in nodes(plane, "tas")}
    assert len(racks) == 1
    assert blocked.partition("-")[0] not in racks
    delete(plane, "tas")
    delete(plane, "blocker", 1)
    plane.wait(lambda: nothing_left(plane), 60)


def test_a_gang_is_bound_in_either_rack_if_both_have_room(plane: ControlPlane) -> None:
    """kube-scheduler asks Berth about both racks, and then binds in one of them by chance."""
    for turn in range(2 * ROUNDS):
        group = f"either{turn}"
        create_gang(plane, group, rack=True)
        plane.wait(lambda group=group: len(nodes(plane, group)) == SIZE, 120)
        assert len({node.partition("-")[0] for node in nodes(plane, group)}) == 1
        delete(plane, group)
        plane.wait(lambda: nothing_left(plane), 60)
    assert "is planned with pod" not in (plane.folder / "berth.log").read_text(), "no bind was refused for its node"
    plane.wait(lambda: holds() == 0, 60)


def test_gangs_that_do_not_fit_together_run_one_after_the_other(plane: ControlPlane) -> None:
    size = len(RACKS) * TRAYS - 2  # 4 of 6 nodes
    for turn in range(ROUNDS):
        groups = [f"a{turn}", f"b{turn}"]
        for group in groups:
            create_gang(plane, group, size)
        plane.wait(lambda groups=groups: size in Counter(len(nodes(plane, g)) for g in groups), 120)
        first = next(g for g in groups if len(nodes(plane, g)) == size)
        second = next(g for g in groups if g != first)
        assert not nodes(plane, second)
        delete(plane, first, size)
        plane.wait(lambda second=second: len(nodes(plane, second)) == size, 180)
        delete(plane, second, size)
        plane.wait(lambda: nothing_left(plane), 60)


def test_preemption_for_a_gang_leaks_no_hold(plane: ControlPlane) -> None:
    """Workload-aware preemption asks Berth about nodes whose victims are gone in the scheduler's mind only."""
    victims = [f"{rack}-{tray}" for rack in RACKS for tray in range(TRAYS)]
    for node in victims:  # 6 of 8 CPUs of each node, no device
        container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": "6"}}}
        plane.create({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"victim-{node}"},
            "spec": {
                "nodeName": node, "priorityClassName": "low", "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": False, "containers": [container],
            },
        })  # fmt: skip
    create_gang(plane, "urgent", cpu="4", priority="high")
    plane.wait(lambda: len(nodes(plane, "urgent")) == SIZE, 180)
    assert len(nodes(plane, "victim")) < len(victims), "victims made room"
    plane.wait(lambda: holds() == 0, 60)
    delete(plane, "urgent")
    for node in victims:
        with suppress(OSError):  # a victim is gone
            plane.request("DELETE", f"{PODS}/victim-{node}?gracePeriodSeconds=0", {})
    plane.wait(lambda: nothing_left(plane), 60)


def holds() -> int:
    """Pods for which Berth holds devices, by its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics") as response:
        (line,) = (line for line in response.read().decode().splitlines() if line.startswith("berth_holds "))
    return int(float(line.split()[1]))
