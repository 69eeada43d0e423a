"""Demands of links and memory hold for MIG devices, partitions and VFIO devices, too. No link joins these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.worlds.commands import berth
from tests.worlds.vendor_worlds import ADDRESS, cpx, device, mi300x, node_and_slice

Json = dict[str, Any]
NVIDIA, AMD = "gpu.nvidia.com", "gpu.amd.com"
REQUIRED, BANDWIDTH = {"topology": "required"}, {"min-bandwidth-gbps": "20"}
NO_LINKS = "no free device set has the required topology"


def mig(number: int) -> Json:
    return device(f"gpu-0-mig-{number}", "20Gi", type="mig", parentUUID="GPU-0", productName="NVIDIA A100-SXM4-80GB")


def h100(number: int) -> Json:
    return device(f"gpu-{number}", "80Gi", type="gpu", uuid=f"GPU-{number}", productName="NVIDIA H100 80GB HBM3")


def vfio(number: int) -> Json:
    return device(f"gpu-vfio-{number}", type="amdgpu-vfio", address=f"0000:0{number}:00.0")


def nic(number: int) -> Json:
    return device(f"nic-{number}")


def partitioned(number: int) -> Json:
    """A partition whose name sorts before the whole GPUs, as the search takes devices in their order."""
    found = cpx(number)
    found["attributes"][ADDRESS] = {"string": "0000:f5:00.0"}
    return found


NODES: dict[str, dict[str, list[Json]]] = {
    "MIG": {NVIDIA: [mig(i) for i in range(4)]},
    "partitions": {AMD: [cpx(i) for i in range(4)]},
    "VFIO": {AMD: [vfio(i) for i in range(4)]},
    "two partitions, then eight whole": {AMD: [*map(partitioned, range(2)), *map(mi300x, range(8))]},
    "one partition, then eight whole": {AMD: [partitioned(0), *map(mi300x, range(8))]},
    "eight H100, then MIG": {NVIDIA: [*map(h100, range(8)), *map(mig, range(4))]},
    "NICs": {"dra.net": [nic(i) for i in range(4)]},
    "parts like NICs": {NVIDIA: [nic(i) for i in range(4)]},
    "MIG and NICs": {NVIDIA: [mig(i) for i in range(4)], "dra.net": [nic(i) for i in range(4)]},
}


def explained(folder: Path, nodes: list[str], notes: dict[str, str], requests: dict[str, Json]) -> Json:
    """What explain says of a pod with a request per driver."""
    dra = {"apiVersion": "resource.k8s.io/v1"}
    drivers = {driver for name in nodes for driver in NODES[name]}
    fleet: list[Json] = [
        {
            **dra,
            "kind": "DeviceClass",
            "metadata": {"name": driver or "any"},
            "spec": {"selectors": [{"cel": {"expression": f'"{driver}" in ["", device.driver]'}}]},
        }
        for driver in (*drivers, "")
    ]
    for number, name in enumerate(nodes):
        fleet += node_and_slice(f"n{number}", **NODES[name])
    asked = [{"name": f"r{i}", "exactly": {"deviceClassName": d, **one}} for i, (d, one) in enumerate(requests.items())]
    claim = {**dra, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": {"requests": asked}}}
    container = {"name": "main", "image": "i", "resources": {"claims": [{"name": "g"}]}}
    annotations = {f"berth.dev/{name}": value for name, value in notes.items()}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {
            "schedulerName": "berth-scheduler",
            "containers": [container],
            "resourceClaims": [{"name": "g", "resourceClaimName": "c"}],
        },
    }
    for file, items in (("fleet.json", fleet), ("pod.json", [claim, pod])):
        (folder / file).write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    words = ["--snapshot", str(folder / "fleet.json"), "-f", str(folder / "pod.json"), "--output", "json"]
    _, shown, errors = berth(["explain", *words])
    assert errors == ""
    found: Json = orjson.loads(shown)
    return found


def names(found: Json) -> list[str]:
    return [name.rpartition("/")[2] for name in found["best"][0]["devices"]]


@pytest.mark.parametrize("notes", [REQUIRED, BANDWIDTH], ids=str)
@pytest.mark.parametrize(
    ("node", "requests"),
    [
        ("MIG", {NVIDIA: {"count": 2}}),
        ("partitions", {AMD: {"count": 2}}),
        ("VFIO", {AMD: {"count": 2}}),
        ("one partition, then eight whole", {AMD: {"count": 9}}),
        ("one partition, then eight whole", {AMD: {"allocationMode": "All"}}),
        ("MIG and NICs", {NVIDIA: {"count": 2}, "dra.net": {"count": 1}}),
    ],
)
def test_parts_are_not_joined(tmp_path: Path, node: str, requests: dict[str, Json], notes: dict[str, str]) -> None:
    found = explained(tmp_path, [node], notes, requests)
    assert found["outcome"] == "refused"
    assert found["unschedulable"][0]["code"] == ("TOPOLOGY" if notes is REQUIRED else "BANDWIDTH")


@pytest.mark.parametrize(
    ("nodes", "requests", "devices"),
    [
        (["MIG"], {NVIDIA: {"count": 1}}, ["gpu-0-mig-0"]),
        (["MIG and NICs"], {NVIDIA: {"count": 1}, "dra.net": {"count": 2}}, ["gpu-0-mig-0", "nic-0", "nic-1"]),
        (["partitions", "two partitions, then eight whole"], {AMD: {"count": 2}}, ["gpu-0-128", "gpu-1-129"]),
        (["one partition, then eight whole"], {AMD: {"count": 2}}, ["gpu-0-128", "gpu-1-129"]),
        (["eight H100, then MIG"], {NVIDIA: {"count": 3}}, ["gpu-0", "gpu-1", "gpu-2"]),
    ],
)
def test_one_device_needs_no_link_and_whole_ones_are_found(
    tmp_path: Path, nodes: list[str], requests: dict[str, Json], devices: list[str]
) -> None:
    for notes in (REQUIRED, BANDWIDTH):
        assert names(explained(tmp_path, nodes, notes, requests)) == devices


def test_nics_and_parts_with_equal_facts_share_no_answer(tmp_path: Path) -> None:
    """Nodes whose devices have equal facts share an answer; but NICs need no link, and no link joins two parts."""
    found = explained(tmp_path, ["NICs", "parts like NICs"], REQUIRED, {"any": {"count": 2}})
    assert [one["node"] for one in found["best"]] == ["n0"]


@pytest.mark.parametrize(
    ("node", "driver", "largest"),
    [("MIG", NVIDIA, "20Gi"), ("partitions", AMD, "24Gi"), ("eight H100, then MIG", NVIDIA, "80Gi")],
)
def test_expected_memory_leaves_out_parts(tmp_path: Path, node: str, driver: str, largest: str) -> None:
    found = explained(tmp_path, [node], {"expected-memory": "100Gi"}, {driver: {"count": 1}})
    assert found["outcome"] == "refused"
    (reason,) = found["unschedulable"]
    assert reason["reason"] == f"100Gi of memory asked for, the largest matching device has {largest}"


def test_a_device_that_no_request_matches_is_not_the_largest(tmp_path: Path) -> None:
    mine = {"count": 1, "selectors": [{"cel": {"expression": f'device.attributes["{NVIDIA}"].type == "mig"'}}]}
    found = explained(tmp_path, ["eight H100, then MIG"], {"expected-memory": "60Gi"}, {NVIDIA: mine})
    assert "the largest matching device has 20Gi" in found["sentence"]


def test_memory_that_is_not_known_leaves_nothing_out(tmp_path: Path) -> None:
    assert explained(tmp_path, ["VFIO"], {"expected-memory": "100Gi"}, {AMD: {"count": 1}})["outcome"] == "fits"


def test_the_headline_names_the_largest_device_that_matches(tmp_path: Path) -> None:
    """Nodes without a matching device are more, and those with a smaller one; neither is what the user has to know."""
    nodes = ["eight H100, then MIG", "MIG", "MIG", "partitions", "partitions", "partitions"]
    found = explained(tmp_path, nodes, {"expected-memory": "100Gi"}, {NVIDIA: {"count": 1}})
    wanted = "100Gi of memory asked for, the largest matching device has 80Gi"
    assert found["sentence"].startswith(
        f"pod default/p fits nowhere: {wanted} on the only NVIDIA H100 80GB HBM3 node; "
    )
    assert [(one["code"], one["nodes"]) for one in found["unschedulable"]] == [
        ("TOO_SMALL", 1),
        ("TOO_SMALL", 2),
        ("NO_MATCH", 3),
    ]
    words = ["--snapshot", str(tmp_path / "fleet.json"), str(tmp_path / "pod.json")]
    assert f"even with all devices free: {wanted} on 1 node" in berth(["lint", *words])[1]
