"""Gangs beside a real kube-scheduler: two jobs compete for GPUs or for CPU, and none ever runs in halves."""

from __future__ import annotations

import concurrent.futures
import os
import random
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from extender.sandbox import carried_machines
from tests.e2e.control_plane import ControlPlane, make_classes, make_node, make_template, on_real_server
from tests.worlds.process_worlds import free_port

pytestmark = on_real_server(seconds=1800)

Json = dict
NODES, SIZE = 5, 3  # each gang needs 3 of 5 nodes: two gangs fit one after the other only
ROUNDS = int(os.environ.get("BERTH_E2E_ROUNDS", "3"))
WATCHED_SECONDS = 20  # a hot loop would cause hundreds of requests meanwhile
PORT = free_port()
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane")) as started:
        machine = carried_machines()["t4-4"]
        make_classes(started)
        for i in range(NODES):
            make_node(started, f"n{i}", machine, cpu="4")
        for name, count in (("all", 4), ("one", 1)):
            make_template(started, name, count)
        started.start_scheduler(started.start_berth(sys.executable, port=PORT))
        yield started


def pod(group: str, index: int, template: str, cpu: str, minimum: int = SIZE) -> Json:
    notes = {"berth.dev/group": group, "berth.dev/group-min": str(minimum)}
    container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu}, "claims": [{"name": "gpu"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{group}-{index}", "annotations": notes},
        "spec": {
            "schedulerName": "berth-scheduler",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
            "containers": [container],
        },
    }


def bound(plane: ControlPlane) -> Counter[str]:
    """Number of bound pods by group."""
    return Counter(
        p["metadata"]["annotations"]["berth.dev/group"]
        for p in plane.get(PODS)["items"]
        if p["spec"].get("nodeName") and "deletionTimestamp" not in p["metadata"]
    )


def one_runs(plane: ControlPlane) -> bool:
    counts = bound(plane)
    assert len(counts) <= 1, f"pods of both gangs are bound: {counts}"
    return SIZE in counts.values()


def delete(plane: ControlPlane, group: str, size: int = SIZE) -> None:
    for i in range(size):
        plane.request("DELETE", f"{PODS}/{group}-{i}?gracePeriodSeconds=0", {}, "application/json")


def run_both(plane: ControlPlane, template: str, cpu: str, disturb: Callable[[], None] = lambda: None) -> None:
    """Create two gangs with their pods interleaved; one runs, and the other runs after it has ended."""
    with concurrent.futures.ThreadPoolExecutor(2 * SIZE) as pool:
        made = [pool.submit(plane.create, pod(group, i, template, cpu)) for i in range(SIZE) for group in ("a", "b")]
        for one in made:
            one.result()
    disturb()
    plane.wait(lambda: one_runs(plane), 120)
    (first,) = (group for group, count in bound(plane).items() if count == SIZE)
    second = "b" if first == "a" else "a"
    assert not bound(plane)[second], "the other gang has nothing while there is no room for all of it"
    delete(plane, first)
    plane.wait(lambda: bound(plane)[second] == SIZE, 120)
    delete(plane, second)
    plane.wait(lambda: nothing_left(plane), 60)


def nothing_left(plane: ControlPlane) -> bool:
    return not plane.get(PODS)["items"] and not plane.get(CLAIMS)["items"]


def metric(name: str, label: str = "") -> float:
    """The sum of a metric over all its samples with this label; 0 if Berth has none."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics") as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and label in line)


def waiting_costs() -> tuple[float, float, float]:
    """Filter requests, attempts to plan that failed, and wakes, since Berth started."""
    requests = metric("berth_call_seconds_count", 'verb="filter"')
    return requests, metric("berth_gangs_not_planned_total"), metric("berth_wakes_total")


def test_gangs_that_wait_cost_few_filter_requests(plane: ControlPlane) -> None:
    """An incomplete gang and one without room: kube-scheduler must not retry their pods again and again."""
    large = NODES + 1
    for i in range(large):
        plane.create(pod("large", i, "all", "100m", large))
    for i in range(SIZE - 1):
        plane.create(pod("few", i, "one", "100m"))
    for code in ("GANG_NO_ROOM", "GANG_INCOMPLETE"):
        plane.wait(lambda code=code: metric("berth_gangs_waiting", code) == 1, 60)
    time.sleep(3)  # kube-scheduler retries waiting pods at every new claim
    before, pods = waiting_costs(), large + SIZE - 1
    time.sleep(WATCHED_SECONDS)
    requests, plans, wakes = (after - cost for after, cost in zip(waiting_costs(), before, strict=True))
    print(f"{requests:g} filter requests, {plans:g} plans and {wakes:g} wakes in {WATCHED_SECONDS} s for {pods} pods")
    assert requests <= pods
    assert (plans <= 1, wakes <= 1) == (True, True)
    plane.create(pod("few", SIZE - 1, "one", "100m"))
    plane.wait(lambda: bound(plane)["few"] == SIZE, 60)
    delete(plane, "few")
    delete(plane, "large", large)
    plane.wait(lambda: nothing_left(plane), 60)


@pytest.mark.parametrize(("template", "cpu"), [("all", "100m"), ("one", "3")], ids=["gpu-scarce", "cpu-scarce"])
def test_two_gangs_that_do_not_fit_together_run_one_after_the_other(
    plane: ControlPlane, template: str, cpu: str
) -> None:
    for _ in range(ROUNDS):
        run_both(plane, template, cpu)


KILLED = (("extender",), ("kube-scheduler",), ("extender", "kube-scheduler"))


@pytest.mark.parametrize("programs", KILLED, ids=["berth", "kube-scheduler", "both"])
def test_gangs_run_whole_after_kills(plane: ControlPlane, programs: tuple[str, ...]) -> None:
    """SIGKILL at a random moment while two gangs are being bound."""
    moments = random.Random(len(programs[0]) + len(programs))

    def kill() -> None:
        time.sleep(moments.uniform(0.0, 0.6))
        plane.kill(*programs)
        if "extender" in programs:
            plane.start_berth(sys.executable, port=PORT)
        if "kube-scheduler" in programs:
            plane.start_scheduler(PORT)

    for _ in range(ROUNDS):
        run_both(plane, "all", "100m", kill)


def test_a_gang_that_is_created_again_while_its_pods_terminate(plane: ControlPlane) -> None:
    """One old pod is gone and two terminate. The first new pod is no replacement of the one that is gone."""

    def end(*names: int, grace: int = 0) -> None:
        for i in names:
            plane.request("DELETE", f"{PODS}/a-{i}", {"gracePeriodSeconds": grace}, "application/json")

    for i in range(SIZE):
        plane.create(pod("a", i, "all", "100m"))
    plane.wait(lambda: bound(plane)["a"] == SIZE, 120)
    end(0)
    plane.wait(lambda: len(plane.get(CLAIMS)["items"]) == SIZE - 1, 60)
    plane.create(pod("b", 0, "all", "100m", 1))  # takes the place, so that two nodes are free
    plane.wait(lambda: bound(plane)["b"] == 1, 60)
    end(1, 2, grace=600)  # no kubelet ends them
    plane.create(pod("a", 3, "all", "100m"))
    plane.wait(lambda: metric("berth_gangs_waiting", "GANG_INCOMPLETE") == 1, 60)
    for i in (4, 5):
        plane.create(pod("a", i, "all", "100m"))
    plane.wait(lambda: metric("berth_gangs_waiting", "GANG_NO_ROOM") == 1, 60)
    assert not bound(plane)["a"]
    end(1, 2)
    plane.wait(lambda: bound(plane)["a"] == SIZE, 120)
    end(3, 4, 5)
    plane.request("DELETE", f"{PODS}/b-0", {"gracePeriodSeconds": 0}, "application/json")
    plane.wait(lambda: nothing_left(plane), 60)
