"""berth assess: what it says of clusters that Berth did not schedule, in each form, and of unusable input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.assess import pod as pod_objects
from extender.assess import reading_of, unread_of
from extender.cli import cluster_objects
from extender.cli.snapshot_command import list_kind
from extender.cluster import ApiClient, Forbidden, WatchedResource
from extender.sandbox import Cluster, write_kubeconfig
from tests.worlds.assessed_clusters import CASES, GPU_CLASS, assessed, objects_of, snapshot_file
from tests.worlds.commands import berth, berth_beside
from tests.worlds.dra_worlds import use_memory
from tests.worlds.running_berth import berthing
from tests.worlds.vendor_worlds import AMD, GAUDI, INTEL, cpx, flex, gaudi, mi300x, node_and_slice

pytestmark = pytest.mark.usefixtures("replays_in_turn")

Json = dict[str, Any]
NIC_CLASS: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "dranet.net"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'dra.net'"}}]},
}
PLUGIN_NODE = {"machine": "hgx-h100-8", "plugin": {"nvidia.com/gpu": "8"}}
NOT_JOINED = next(case for case in CASES if case["name"].startswith("four GPUs of a DGX-1V that no ring"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: Json, tmp_path: Path) -> None:
    path = snapshot_file(tmp_path, objects_of(case))
    found = assessed(path)
    for name in ("sets", "gangs"):
        if name in case:
            expected = sorted(case[name], key=lambda row: row.get("pod", ""))
            rows = sorted(found[name], key=lambda row: row.get("pod", ""))
            assert len(rows) == len(expected)
            assert [{key: row[key] for key in wanted} for row, wanted in zip(rows, expected, strict=True)] == expected
    for name in ("boards", "domains", "products"):
        if name in case:
            rows = found["fleet"]["sets" if name == "boards" else name]
            assert [{key: row[key] for key in wanted} for row, wanted in zip(rows, case[name], strict=True)] == case[
                name
            ]
    if "share" in case:
        assert found["bandwidth"]["share"] == case["share"]
    code, out, _ = berth(["assess", str(path), "--no-replay"])
    words = " ".join(out.split())
    assert code == 0
    assert [text for text in case.get("says", ()) if text not in out and text not in words] == []
    assert [text for text in case.get("says_not", ()) if text in words] == []


def test_a_pod_has_the_nic_beside_its_gpu_or_not(tmp_path: Path) -> None:
    case: Json = {"nodes": {"a": "hgx-h100-8"}}
    objects = objects_of(case)
    nics = next(one for one in objects if one["kind"] == "ResourceSlice" and one["spec"]["driver"] == "dra.net")
    names = [one["name"] for one in nics["spec"]["devices"]]
    pods = [
        {"name": "near", "node": "a", "gpus": [0, 1], "nics": names[:2]},
        {"name": "far", "node": "a", "gpus": [2, 3], "nics": names[6:8]},
    ]
    found = assessed(snapshot_file(tmp_path, objects_of({**case, "pods": pods})))
    assert {row["pod"]: (row["near"], row["pairs"]) for row in found["sets"]} == {
        "default/near": (2, 2),
        "default/far": (0, 2),
    }
    assert (found["near"], found["pairs"]) == (2, 4)


def test_a_nic_that_the_claim_cannot_have_sets_no_standard(tmp_path: Path) -> None:
    """An Ethernet adapter is on the PCIe root of a GPU, those with RDMA are on the same NUMA node at best."""
    case: Json = {"nodes": {"a": "hgx-h100-8"}}
    slice_ = next(one for one in objects_of(case) if one["metadata"]["name"] == "dra.net-a")
    nics = slice_["spec"]["devices"]
    ethernet = json.loads(json.dumps({**nics[0], "name": "ethernet"}))
    ethernet["attributes"]["dra.net/rdma"] = {"bool": False}
    for number, nic in enumerate(nics):
        nic["attributes"]["resource.kubernetes.io/pcieRoot"] = {"string": f"pci0000:f{number}"}
    names = [one["name"] for one in nics]
    nics.append(ethernet)
    pods = [
        {"name": "near", "node": "a", "gpus": [0, 1], "nics": names[:2]},
        {"name": "half", "node": "a", "gpus": [2, 3], "nics": names[2:7:4]},
    ]
    rdma = "device.driver == 'dra.net' && device.attributes['dra.net'].rdma"
    class_ = {**NIC_CLASS, "spec": {"selectors": [{"cel": {"expression": rdma}}]}}
    objects = [one for one in objects_of({**case, "pods": pods}) if one["metadata"]["name"] != "dra.net-a"]
    code, out, err = berth(["assess", str(snapshot_file(tmp_path, [*objects, slice_, class_])), "--output", "json"])
    assert code == 0, err
    found = json.loads(out)
    assert {row["pod"]: (row["near"], row["pairs"]) for row in found["sets"]} == {
        "default/near": (2, 2),
        "default/half": (1, 2),
    }
    assert [row["nics"] for row in found["replay"]["rows"][:2]] == [0.75, 1.0]


def test_all_gpus_with_one_nic_are_as_near_as_they_can_be(tmp_path: Path) -> None:
    case: Json = {"nodes": {"a": "hgx-h100-8"}}
    nics = next(one for one in objects_of(case) if one["metadata"]["name"] == "dra.net-a")["spec"]["devices"]
    pods = [{"name": "p", "node": "a", "gpus": list(range(8)), "nics": [nics[0]["name"]]}]
    objects = [*objects_of({**case, "pods": pods}), NIC_CLASS]
    code, out, err = berth(["assess", str(snapshot_file(tmp_path, objects)), "--output", "json"])
    assert code == 0, err
    found = json.loads(out)
    assert (found["near"], found["pairs"]) == (1, 1)
    assert [row["nics"] for row in found["replay"]["rows"]] == [1.0] * 4


def test_the_same_pods_once_more_are_better_with_berth(tmp_path: Path) -> None:
    """First fit gives the second pod of each board four GPUs without a ring, after a pod that has three."""
    pods = [{"name": f"a{i}", "node": f"n{i}", "gpus": [0]} for i in range(3)]
    pods += [{"name": f"b{i}", "node": f"n{i}", "gpus": [1, 2, 3, 4]} for i in range(3)]
    path = snapshot_file(
        tmp_path, objects_of({"agent": True, "nodes": {f"n{i}": "dgx1-v100" for i in range(3)}, "pods": pods})
    )
    code, out, err = berth(["assess", str(path), "--output", "json"])
    assert code == 0, err
    rows = {row["placement"]: row for row in json.loads(out)["replay"]["rows"]}
    assert rows["today"]["joined"] == 0.0
    assert rows["Berth"]["joined"] == 1.0
    assert rows["Berth"]["gbps"] > rows["first fit"]["gbps"]
    assert {row["started"] for row in rows.values()} == {6}


def test_a_pod_that_watches_devices_with_admin_access_is_not_replayed(tmp_path: Path) -> None:
    """Its namespace has the label that admin access needs, that of the jobs of a replay has not."""
    pods = [{"name": "p", "node": "a", "gpus": [0, 1]}, {"name": "watch", "node": "a", "gpus": [0]}]
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": pods})
    changed(objects, "ResourceClaim", "watch", "spec.devices.requests.0.exactly.adminAccess", True)
    changed(objects, "ResourceClaim", "watch", f"{RESULT}.adminAccess", True)
    code, out, err = berth(["assess", str(snapshot_file(tmp_path, objects)), "--output", "json"])
    assert code == 0, err
    found = json.loads(out)
    assert [row["started"] for row in found["replay"]["rows"]] == [1, 1, 1, 1]
    assert "1 claim has admin access: pods that watch devices are not replayed." in found["unknown"]


def test_a_pod_keeps_its_product_in_a_replay(tmp_path: Path) -> None:
    """A node selector chose the cards: boards of a better product are no merit of Berth."""
    nodes = {"a": "a100-pcie-8-bridged", "h": "hgx-h100-8"}
    case: Json = {"nodes": nodes, "pods": [{"name": "p", "node": "a", "gpus": [0, 2]}]}
    for agent, expected in ((True, [20.0, 240.0, 240.0, 240.0]), (False, [None] * 4)):  # without the agent: not known
        path = snapshot_file(tmp_path, objects_of({**case, "agent": agent}))
        code, out, err = berth(["assess", str(path), "--output", "json"])
        assert code == 0, err
        rows = json.loads(out)["replay"]["rows"]
        assert [(row["started"], row["gbps"]) for row in rows] == [(1, gbps) for gbps in expected]


def test_claims_of_one_pod_are_replayed_together(tmp_path: Path) -> None:
    """A pod has a claim for GPUs and one for a NIC, each with a request of the same name."""
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": [{"name": "p", "node": "a", "gpus": [0, 1]}]})
    slices = [one["spec"] for one in objects if one["kind"] == "ResourceSlice"]
    pod, claim = objects[-2:]
    nic = next(spec for spec in slices if spec["driver"] == "dra.net")["devices"][-1]["name"]
    second = json.loads(json.dumps(claim))
    second["metadata"] |= {"name": "nic", "uid": "claim-nic"}
    request = {"name": "gpu", "exactly": {"deviceClassName": "dranet.net"}}
    second["spec"]["devices"] = {"requests": [request], "constraints": [{"distinctAttribute": "dra.net/rdmaDevice"}]}
    result = {"request": "gpu", "driver": "dra.net", "pool": "a", "device": nic}
    second["status"]["allocation"]["devices"]["results"] = [result]
    pod["spec"]["resourceClaims"].append({"name": "nic", "resourceClaimName": "nic"})
    code, out, err = berth(["assess", str(snapshot_file(tmp_path, [*objects, second, NIC_CLASS])), "--output", "json"])
    assert code == 0, err
    replay = json.loads(out)["replay"]
    assert (replay["pods"], replay["left_out"]) == (1, 0)
    rows = {row["placement"]: row for row in replay["rows"]}
    assert [row["started"] for row in rows.values()] == [1, 1, 1, 1]
    assert rows["today"]["nics"] == 0.0
    assert rows["Berth"]["nics"] > 0.0


@pytest.mark.parametrize(
    ("driver", "devices", "links", "joined"),
    [
        (AMD, [mi300x(i) for i in range(8)], "the usual board of the product", True),
        (GAUDI, [gaudi(i) for i in range(8)], "the usual board of the product", True),
        (INTEL, [flex(i) for i in range(4)], "the product has no links", False),
    ],
)
def test_other_vendors(driver: str, devices: list[Json], links: str, joined: bool, tmp_path: Path) -> None:
    objects = [*node_and_slice("a", **{driver.replace(".", "_"): devices}), *objects_of({"nodes": {}})]
    pod, claim = pod_objects("p", 2, "a", (0, 1))
    claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = driver
    for result, device in zip(claim["status"]["allocation"]["devices"]["results"], devices, strict=False):
        result |= {"driver": driver, "device": device["name"]}
    class_ = json.loads(json.dumps(GPU_CLASS).replace("gpu.nvidia.com", driver))
    path = snapshot_file(tmp_path, [*objects, class_, pod, claim])
    code, out, err = berth(["assess", str(path), "--output", "json"])
    assert code == 0, err
    found = json.loads(out)
    assert [(row["links"], row["joined"], len(row["gpus"])) for row in found["sets"]] == [(links, joined, 2)]
    assert [row["started"] for row in found["replay"]["rows"]] == [1, 1, 1, 1]
    assert [row["joined"] for row in found["replay"]["rows"]] == [float(joined)] * 4


def test_parts_of_gpus_are_no_gpus(tmp_path: Path) -> None:
    """Eight partitions of one MI300X were eight GPUs, and a pod with two of them a pod with several GPUs."""
    objects = [
        *node_and_slice("a", gpu_amd_com=[cpx(i) for i in range(8)]),
        *node_and_slice("b", gpu_amd_com=[mi300x(i) for i in range(8)]),
        *objects_of({"nodes": {}}),
    ]
    pod, claim = pod_objects("p", 2, "a", (0, 1))
    for number, result in enumerate(claim["status"]["allocation"]["devices"]["results"]):
        result |= {"driver": AMD, "device": f"gpu-0-{number}"}
    path = snapshot_file(tmp_path, [*objects, pod, claim])
    found = assessed(path)
    assert [(row["product"], row["gpus"], row["free"], row["parts"]) for row in found["fleet"]["products"]] == [
        ("AMD_Instinct_MI300X_OAM", 8, 8, False),
        ("AMD_Instinct_MI300X_OAM (parts)", 8, 6, True),
    ]
    assert found["sets"] == []
    _, out, _ = berth(["assess", str(path), "--no-replay"])
    assert "2 nodes, 8 GPUs and 8 parts of GPUs: 8 free, 0 of them of no use" in out
    assert "6 parts of GPUs free" in " ".join(out.split())


def test_a_pod_with_gpus_that_nothing_tells_apart_is_left_out_by_name(tmp_path: Path) -> None:
    devices = [gaudi(i) for i in range(8)]
    for one in devices:
        one["attributes"]["serial"] = {"string": ""}
    pod, claim = pod_objects("p", 4, "a", range(4))
    for number, result in enumerate(claim["status"]["allocation"]["devices"]["results"]):
        result |= {"driver": GAUDI, "device": f"accel{number}"}
    objects = [*node_and_slice("a", gaudi_intel_com=devices), *objects_of({"nodes": {}}), pod, claim]
    found = assessed(snapshot_file(tmp_path, objects))
    assert [(row["pod"], len(row["gpus"]), row["links"]) for row in found["sets"]] == [("default/p", 4, "not known")]
    assert found["bandwidth"]["pods"] == 1


def test_links_that_no_agent_can_read_are_not_promised(tmp_path: Path) -> None:
    devices = json.loads(json.dumps([mi300x(i) for i in range(8)]).replace("MI300X", "MI250X"))
    path = snapshot_file(tmp_path, node_and_slice("a", gpu_amd_com=devices))
    (told,) = (line for line in assessed(path)["unknown"] if "MI250X" in line)
    assert "Berth's agent cannot read it for this driver" in told


@pytest.mark.parametrize(
    ("case", "least", "code"),
    [
        (NOT_JOINED, 0.1, 0),
        (NOT_JOINED, 0.2, 1),
        (next(case for case in CASES if case["name"] == "bridged cards without the agent"), 0.0, 1),
        (next(case for case in CASES if case["name"] == "pods of a device plugin"), 0.0, 1),
        (next(case for case in CASES if case["name"].startswith("a small pod")), 1.0, 0),
    ],
    ids=["above", "below", "not known", "a device plugin", "no such pods"],
)
def test_the_exit_code_is_for_ci(case: Json, least: float, code: int, tmp_path: Path) -> None:
    path = snapshot_file(tmp_path, objects_of(case))
    found, _, err = berth(["assess", str(path), "--no-replay", "--fail-below", str(least)])
    assert found == code
    assert ("--fail-below" in err) == bool(code)


@pytest.mark.parametrize("labels", [{}, {"nvidia.com/gpu.replicas": "4"}], ids=["whole", "shared"])
def test_ci_fails_if_a_pod_has_gpus_of_a_device_plugin(labels: Json, tmp_path: Path) -> None:
    """Which ones only the kubelet knows, also of a pod with one GPU, and where the share of the others is good."""
    nodes = {"dra": "hgx-h100-8", "plugin": {**PLUGIN_NODE, "labels": labels}}
    pods = [
        {"name": "p", "node": "dra", "gpus": [0, 1]},
        {"name": "q", "node": "plugin", "plugin": {"nvidia.com/gpu": "1"}},
    ]
    path = snapshot_file(tmp_path, objects_of({"nodes": nodes, "pods": pods}))
    code, _, err = berth(["assess", str(path), "--no-replay", "--fail-below", "0.1"])
    assert code == 1
    assert "--fail-below: 1 pod has GPUs of a device plugin: which ones only the kubelet knows" in err


def test_the_page_is_one_file_with_pictures_and_without_markup_of_users(tmp_path: Path) -> None:
    objects = objects_of(NOT_JOINED)
    for obj in objects:
        if obj["kind"] == "ResourceClaim":
            obj["status"]["reservedFor"][0]["name"] = "<script>alert(1)</script>"
    page = tmp_path / "page.html"
    assessed(snapshot_file(tmp_path, objects), "--html", str(page))
    text = page.read_text()
    assert text.count("<circle") == 8
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "http" not in text


# -- half a cluster --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Node", "there is no Node: their labels"),
        ("Pod", "there is no Pod: gangs, waiting pods"),
        ("ResourceSlice", "there is no ResourceSlice: no GPU of a DRA driver is known"),
        ("DeviceClass", "there is no DeviceClass: why pods with claims wait"),
        ("ResourceClaim", "there is no ResourceClaim, but 1 running pod names claims: which pods have which GPUs"),
    ],
)
def test_half_a_snapshot_says_what_lacks(kind: str, words: str, tmp_path: Path) -> None:
    objects = [obj for obj in objects_of(NOT_JOINED) if obj["kind"] != kind]
    found = assessed(snapshot_file(tmp_path, objects))
    assert any(line.startswith(words) for line in found["lacking"])
    assert len(found["sets"]) == (0 if kind in ("ResourceSlice", "ResourceClaim") else 1)


@pytest.mark.parametrize(
    ("kind", "says", "says_not"),
    [
        (
            "Node",
            [
                "Which GPUs are free, and how gangs spread, is not known: no Nodes were read. 3 nodes, 24 GPUs.",
                "not explained, no Nodes were read",
            ],
            ["Gangs that spread", "15 free", "fits on"],
        ),
        (
            "ResourceSlice",
            ["without those of DRA drivers", "not explained, no ResourceSlices were read"],
            ["fits nowhere"],
        ),
        ("DeviceClass", ["24 GPUs: 15 free", "not explained, no DeviceClasses were read"], ["does not exist", "Worse"]),
        ("Pod", ["24 GPUs: 15 free", "there is no Pod: gangs, waiting pods"], ["topology.kubernetes.io/rack"]),
    ],
)
def test_what_follows_from_a_kind_that_lacks_is_not_stated(
    kind: str, says: list[str], says_not: list[str], tmp_path: Path
) -> None:
    """Without nodes each could have any taint and rack; without pods a gang over two nodes seems to be small pods."""
    racks: Json = {
        name: {"topology.kubernetes.io/rack": rack} for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2"))
    }
    nodes = {name: {"machine": "hgx-h100-8", "labels": labels} for name, labels in racks.items()}
    pods: list[Json] = [
        {"name": f"g{i}", "node": node, "gpus": [0, 1, 2], "group": "g"} for i, node in enumerate("abc")
    ]
    objects = objects_of({"nodes": nodes, "pods": [*pods, {"name": "w", "count": 2}]})
    path = snapshot_file(tmp_path, [one for one in objects if one["kind"] != kind])
    code, out, _ = berth(["assess", str(path)])
    words = " ".join(out.split())
    assert code == 0
    assert [text for text in says if text not in words] == []
    assert [text for text in says_not if text in words] == []
    assert f"not computed: no {kind}{'es' * kind.endswith('s') or 's'} were read" in words


@pytest.mark.parametrize("kinds", [{"ResourceClaim"}, {"ResourceClaim", "Pod"}], ids=["no claims", "no pods either"])
def test_without_claims_no_gpu_is_said_to_be_free(kinds: set[str], tmp_path: Path) -> None:
    described = {**NOT_JOINED, "pods": [*NOT_JOINED["pods"], {"name": "waits", "count": 8}]}
    objects = [obj for obj in objects_of(described) if obj["kind"] not in kinds]
    path, page = snapshot_file(tmp_path, objects), tmp_path / "page.html"
    code, out, err = berth(["assess", str(path), "--fail-below", "0.1", "--html", str(page)])
    assert code == 1
    assert "--fail-below: no ResourceClaims were read" in err
    first = "Which GPUs are in use is not known: no ResourceClaims were read. 1 node, 8 GPUs."
    assert first in out.splitlines()
    assert "replay: not computed: no ResourceClaims were read" in out
    assert " free," not in out
    assert first in page.read_text()
    assert "free: 8" not in page.read_text()
    found = assessed(path)
    assert {found["fleet"]["products"][0][name] for name in ("free", "allocated", "stranded", "largest_set")} == {None}
    assert (found["fleet"]["sets"], found["fleet"]["domains"]) == ([], [])
    assert [one["reason"] for one in found["waiting"]] == (
        [] if "Pod" in kinds else ["not explained, which devices are free is not known"]
    )


def test_a_cluster_of_a_device_plugin_has_no_claims_and_all_is_known(tmp_path: Path) -> None:
    node = {"machine": "hgx-h100-8", "plugin": {"nvidia.com/gpu": "8"}}
    pods = [{"name": "p", "node": "a", "count": 4, "plugin": {"nvidia.com/gpu": "4"}}]
    path = snapshot_file(tmp_path, objects_of({"nodes": {"a": node}, "pods": pods}))
    _, out, _ = berth(["assess", str(path)])
    assert "1 node, 8 GPUs: 4 free" in out


def test_without_pods_no_gpu_of_a_device_plugin_is_said_to_be_free(tmp_path: Path) -> None:
    """The claims say which GPUs of a DRA driver are in use, and pods alone which of a device plugin."""
    pods = [
        {"name": "p", "node": "plugin", "plugin": {"nvidia.com/gpu": "6"}},
        {"name": "q", "node": "dra", "gpus": [0, 1, 2]},
    ]
    objects = objects_of({"nodes": {"plugin": PLUGIN_NODE, "dra": "hgx-h100-8"}, "pods": pods})
    path = snapshot_file(tmp_path, [one for one in objects if one["kind"] != "Pod"])
    rows = {row["counted"]: (row["free"], row["unknown"]) for row in assessed(path)["fleet"]["products"]}
    assert rows == {False: (5, 0), True: (0, 8)}
    code, out, err = berth(["assess", str(path), "--fail-below", "0.1"])
    assert code == 1
    assert "--fail-below: no Pods were read" in err
    assert "2 nodes, 16 GPUs: 5 free" in out
    assert "8 free or not, which is not known" in " ".join(out.split())
    nodes = snapshot_file(tmp_path, [one for one in objects if one["kind"] == "Node"], "nodes.json")
    (row,) = assessed(nodes)["fleet"]["products"]
    assert (row["free"], row["unknown"]) == (0, 8)


def test_a_gpu_that_a_process_uses_without_a_claim_is_not_free(tmp_path: Path) -> None:
    """An H200 whose 40 GB a process outside of DRA used was «0 free, 1 of them of no use»."""
    pods = [{"name": "p", "node": "b", "gpus": [0]}]
    objects = objects_of({"nodes": {"a": "hgx-h100-8", "b": "dgx1-v100"}, "agent": True, "pods": pods})
    slices = [one["spec"] for one in objects if one["kind"] == "ResourceSlice" and one["spec"]["nodeName"] == "a"]
    (agent,) = (one for one in slices if one["driver"] == "fabric.berth.dev")
    use_memory(*range(8), mib=40_000)(agent["devices"])
    path = snapshot_file(tmp_path, objects)
    _, out, _ = berth(["assess", str(path), "--no-replay"])
    words = " ".join(out.split())
    assert "2 nodes, 16 GPUs: 7 free," in words
    assert "8 in use by processes without a claim" in words
    row = next(one for one in assessed(path)["fleet"]["products"] if "H100" in one["product"])
    assert (row["free"], row["drifting"], row["stranded"]) == (0, 8, 0)


def test_items_of_a_pod_list_need_no_kind(tmp_path: Path) -> None:
    """`kubectl get --raw` writes what the API server sends: the kind is that of the list."""
    pods = [{"name": "p", "node": "a", "plugin": {"nvidia.com/gpu": "6"}}]
    objects = objects_of({"nodes": {"a": PLUGIN_NODE}, "pods": pods})
    items = [{name: value for name, value in one.items() if name not in ("kind", "apiVersion")} for one in objects[-1:]]
    path = tmp_path / "pods.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "PodList", "items": items}))
    code, out, _ = berth(["assess", str(snapshot_file(tmp_path, objects[:-1])), str(path), "--no-replay"])
    assert code == 0
    assert "1 node, 8 GPUs: 2 free" in out


def test_the_pods_of_a_device_plugin_are_replayed_where_none_has_claims(tmp_path: Path) -> None:
    """A node of MIG devices has no whole GPUs. The links are those of the usual board."""
    product = "nvidia.com/gpu.product"
    nodes: Json = {
        "a": {"machine": "hgx-h100-8", "labels": {product: "NVIDIA-H100-80GB-HBM3"}},
        "b": {"machine": "t4-4", "labels": {product: "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb"}},
    }
    nodes = {name: {**one, "plugin": {"nvidia.com/gpu": "8"}} for name, one in nodes.items()}
    pods = [{"name": f"p{i}", "node": "a", "plugin": {"nvidia.com/gpu": "2"}} for i in range(2)]
    pods.append({"name": "mig", "node": "b", "plugin": {"nvidia.com/gpu": "1"}})
    case: Json = {"nodes": nodes, "pods": pods}
    code, out, err = berth(["assess", str(snapshot_file(tmp_path, objects_of(case))), "--output", "json"])
    assert code == 0, err
    found = json.loads(out)
    assert [(row["placement"], row["started"], row["joined"]) for row in found["replay"]["rows"]] == [
        ("today", 2, None),
        ("Berth", 2, 1.0),
        ("first fit", 2, 1.0),
        ("emptiest node", 2, 1.0),
    ]
    assert "The GPUs of the device plugin are replayed on the usual boards of their products." in found["unknown"]
    case["pods"].append({"name": "claims", "node": "b", "gpus": [0]})
    case["nodes"]["b"] = "t4-4"
    _, out, _ = berth(["assess", str(snapshot_file(tmp_path, objects_of(case))), "--output", "json"])
    assert json.loads(out)["replay"]["jobs"] == 1


def two_nodes() -> list[Json]:
    """Two pods on a, one on b, each with two GPUs that a switch joins."""
    nodes = {"a": "hgx-h100-8", "b": "hgx-h100-8"}
    pods = [{"name": f"p{i}", "node": node, "gpus": [2 * i, 2 * i + 1]} for i, node in enumerate("aab")]
    return objects_of({"nodes": nodes, "pods": pods})


def without_claim(objects: list[Json]) -> None:
    objects[:] = [one for one in objects if (one["kind"], one["metadata"]["name"]) != ("ResourceClaim", "p0")]


def changed(objects: list[Json], kind: str, name: str, path: str, value: object) -> None:
    """Set a field of an object; a number in the path is a position."""
    at: Any = next(one for one in objects if one["kind"] == kind and one["metadata"]["name"].startswith(name))
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in parents:
        at = at[part]
    at[last] = value


RESULT = "status.allocation.devices.results.0"
LACKING = [  # what lacks, whether GPUs beside known ones are unknown, and words of the note
    (without_claim, 6, "1 running pod has claims that were not read (default/p0 on a: claim default/p0"),
    (lambda of: changed(of, "ResourceClaim", "p0", f"{RESULT}.device", 7), 5, "results[0].device"),
    (lambda of: changed(of, "ResourceClaim", "p0", "status.allocation", 7), 6, "status.allocation"),
    (
        lambda of: changed(of, "ResourceSlice", "00000-gpu.nvidia.com-a", "spec.pool.resourceSliceCount", 2),
        0,
        "pool a are missing",
    ),
    (lambda of: changed(of, "ResourceSlice", "00000-gpu.nvidia.com-a", "spec.devices.0.name", 5), 0, "devices[0].name"),
    (
        lambda of: changed(
            of, "ResourceSlice", "00000-gpu.nvidia.com-a", "spec.devices.0.capacity.memory.value", "80GiB"
        ),
        0,
        "devices[0].capacity",
    ),
    (
        lambda of: changed(of, "ResourceSlice", "00000-gpu.nvidia.com-a", "spec.nodeName", "gone"),
        0,
        "node of slices is not known",
    ),
]
LACKING_IDS = ["no claim", "a result", "an allocation", "a slice", "a device", "an amount", "another node"]


@pytest.mark.parametrize(("lacks", "unknown", "words"), LACKING, ids=LACKING_IDS)
def test_a_part_that_lacks_is_named_and_nothing_is_stated_of_it(
    lacks: Callable[[list[Json]], None], unknown: int, words: str, tmp_path: Path
) -> None:
    objects = two_nodes()
    lacks(objects)
    path = snapshot_file(tmp_path, objects)
    found = assessed(path)
    (row,) = found["fleet"]["products"]
    assert any(words in line for line in found["lacking"])
    assert found["unread_pods"] == (1 if unknown else 2)
    assert (row["free"], row["unknown"]) == (6, unknown)
    code, out, err = berth(["assess", str(path), "--no-replay", "--fail-below", "0.1"])
    assert code == 1
    assert "GPUs that are not known" in err
    assert ("free or not, which is not known" if unknown else "1 node that cannot be counted") in out


@pytest.mark.parametrize(("lacks", "unknown", "words"), LACKING, ids=LACKING_IDS)
def test_no_room_is_found_where_it_is_not_known(
    lacks: Callable[[list[Json]], None], unknown: int, words: str, tmp_path: Path
) -> None:
    """Without the claims no device is free for certain; without a slice only the devices of other nodes count."""
    objects = two_nodes()
    lacks(objects)
    code, out, err = berth(["defrag", "--gpus", "6", "--snapshot", str(snapshot_file(tmp_path, objects))])
    assert words in err + out
    assert (code, "so it is not known which devices are in use" in err) == ((2, True) if unknown else (0, False))
    assert unknown or "there is room now on b" in out


def test_the_pods_of_a_node_with_an_unreadable_pod_may_use_more(tmp_path: Path) -> None:
    node = {"machine": "hgx-h100-8", "plugin": {"nvidia.com/gpu": "8"}}
    pods = [{"name": name, "node": "a", "count": 4, "plugin": {"nvidia.com/gpu": "2"}} for name in "pq"]
    objects = objects_of({"nodes": {"a": node}, "pods": pods})
    changed(objects, "Pod", "p", "spec.containers", 7)
    (row,) = assessed(snapshot_file(tmp_path, objects))["fleet"]["products"]
    assert (row["free"], row["unknown"], row["allocated"]) == (0, 6, 2)


def test_what_is_not_there_in_a_cluster_does_not_exist() -> None:
    objects = two_nodes()
    without_claim(objects)
    reading = reading_of(objects, {}, "the cluster", is_live=True)
    assert not unread_of(reading, reading.cache.snapshot()).notes


def test_overlapping_files_count_once(tmp_path: Path) -> None:
    node = {"machine": "hgx-h100-8", "plugin": {"nvidia.com/gpu": "8"}}
    pods = [{"name": "p", "node": "a", "count": 4, "plugin": {"nvidia.com/gpu": "2"}}]
    objects = objects_of({"nodes": {"a": node}, "pods": pods})
    paths = [str(snapshot_file(tmp_path, objects, name)) for name in ("one.json", "two.json")]
    code, out, err = berth(["assess", *paths, "--no-replay", "--output", "json"])
    assert code == 0, err
    found = json.loads(out)
    (row,) = found["fleet"]["products"]
    assert (row["free"], row["allocated"], found["unreadable"]) == (6, 2, [])
    changed(objects, "Pod", "p", "metadata.labels", {"newer": "yes"})
    snapshot_file(tmp_path, objects, "two.json")
    _, out, _ = berth(["assess", *paths, "--no-replay"])
    assert "Pod p: is there twice, and differs: the first one counts" in out


def test_one_object_that_cannot_be_read_is_told_and_the_others_count(tmp_path: Path) -> None:
    objects = objects_of(NOT_JOINED)
    objects.insert(1, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "odd"}, "spec": {"taints": 7}})
    found = assessed(snapshot_file(tmp_path, objects))
    assert ["object 2, Node odd" in line for line in found["unreadable"]] == [True]
    assert len(found["sets"]) == 1


def test_an_amount_that_cannot_be_read_ends_only_the_replay(tmp_path: Path) -> None:
    objects = objects_of(NOT_JOINED)
    objects[-2]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "odd"
    code, out, err = berth(["assess", str(snapshot_file(tmp_path, objects)), "--output", "json"])
    assert code == 0, err
    found = json.loads(out)
    assert "odd" in found["replay"]["problem"]
    assert len(found["sets"]) == 1


def test_a_claim_that_cannot_be_read_is_named_and_the_others_are_replayed(tmp_path: Path) -> None:
    objects = two_nodes()
    changed(objects, "ResourceClaim", "p0", "spec.devices.requests.0.exactly.count", "two")
    code, out, err = berth(["assess", str(snapshot_file(tmp_path, objects)), "--output", "json"])
    assert code == 0, err
    found = json.loads(out)
    assert ["ResourceClaim p0: spec.devices.requests[0].exactly.count: " in line for line in found["unreadable"]] == [
        True
    ]
    assert (found["replay"]["pods"], found["replay"]["left_out"]) == (2, 1)


OLD = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not"),
        ("", "is empty"),
        (json.dumps(GPU_CLASS), "has no Node and no ResourceSlice"),
        (
            json.dumps(OLD),
            "json, object 1, ResourceSlice s: has version 'v1beta1', Berth reads v1: kubectl get resourceslices.v1",
        ),
    ],
    ids=["no JSON", "empty", "no fleet", "another version"],
)
def test_unusable_files_are_one_sentence(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text(content)
    code, out, err = berth(["assess", str(path)])
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 0


@pytest.mark.parametrize("command", [["assess"], ["defrag", "--gpus", "1", "--snapshot"]], ids=["assess", "defrag"])
def test_of_several_files_a_fault_names_the_one_that_has_it(command: list[str], tmp_path: Path) -> None:
    good = snapshot_file(tmp_path, objects_of({"nodes": {"a": "t4-4", "b": "t4-4"}}), "good.json")
    old = snapshot_file(tmp_path, [GPU_CLASS, OLD], "old.json")
    between = ["--snapshot"] if command[0] == "defrag" else []
    code, out, err = berth([*command, str(good), *between, str(old)])
    assert (code, out) == (2, "")
    assert err.startswith(f"berth: {old}, object 2, ResourceSlice s: has version 'v1beta1'")


def test_of_several_files_a_note_names_the_one_that_has_the_object(tmp_path: Path) -> None:
    odd = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "odd"}, "spec": {"taints": 7}}
    good = snapshot_file(tmp_path, objects_of({"nodes": {"a": "t4-4"}}), "good.json")
    bad = snapshot_file(tmp_path, [odd], "bad.json")
    code, out, err = berth(["assess", str(good), str(bad), "--no-replay", "--output", "json"])
    assert code == 0, err
    (note,) = json.loads(out)["unreadable"]
    assert note.startswith(f"{bad}, object 1, Node odd: ")


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        ("pods", "Pods could not be listed (list pods: 403 Forbidden): gangs, waiting pods"),
        (
            "deviceclasses",
            "DeviceClasses could not be listed (list deviceclasses: 403 Forbidden): why pods with claims",
        ),
        ("resourceclaims", "Which GPUs are in use is not known: no ResourceClaims were read. 1 node, 8 GPUs."),
        ("nodes", "is not known: no Nodes were read. 1 node, 8 GPUs."),
    ],
)
async def test_a_kind_that_may_not_be_listed_is_named(
    refused: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(client: ApiClient, kind: WatchedResource) -> list[Json]:
        if kind.name in (refused, "devicetaintrules"):
            raise Forbidden(f"list {kind.name}: 403 Forbidden")
        return await list_kind(client, kind)

    monkeypatch.setattr(cluster_objects, "list_kind", listed)
    async with berthing({"n1": "dgx1-v100"}) as b:
        await b.settled()
        write_kubeconfig(tmp_path, b.api)
        code, out, err = await berth_beside(["assess", "--kubeconfig", str(tmp_path / "kubeconfig")])
    assert code == 0, err
    assert says in out
    assert "DeviceTaintRules could not be listed" in out
    assert "8 GPUs" in out


@pytest.mark.parametrize("is_up", [True, False], ids=["a bad token", "down"])
async def test_a_cluster_that_answers_nothing_is_one_short_sentence(
    is_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(_: ApiClient, kind: WatchedResource) -> list[Json]:
        raise Forbidden(f"list {kind.name}: Unauthorized")

    async with berthing({"n1": "dgx1-v100"}) as b:
        write_kubeconfig(tmp_path, b.api)
        server = b.api
        if is_up:
            monkeypatch.setattr(cluster_objects, "list_kind", listed)
            code, _, err = await berth_beside(["assess", "--kubeconfig", str(tmp_path / "kubeconfig")])
    if not is_up:
        code, _, err = await berth_beside(["assess", "--kubeconfig", str(tmp_path / "kubeconfig")])
    assert code == 2
    assert err.startswith(f"berth: API server {server}: lists nothing: ")
    assert err.count("Unauthorized" if is_up else "Cannot connect") == 1


async def test_a_cluster_is_read_and_saved(tmp_path: Path) -> None:
    async with berthing({"n1": "dgx1-v100"}) as b:
        await b.settled()
        write_kubeconfig(tmp_path, b.api)
        words = [
            "assess",
            "--kubeconfig",
            str(tmp_path / "kubeconfig"),
            "--context",
            "berth-sandbox",
            "--save",
            str(tmp_path / "saved.json"),
            "--anonymise",
        ]
        code, out, err = await berth_beside(words)
        assert code == 0, err
        assert "1 node, 8 GPUs: 8 free" in out
        assert "This is the cluster of context berth-sandbox." in out
        code, _, err = await berth_beside([*words[:3], "--context", "other"])
        assert (code, "other" in err) == (2, True)
    assert assessed(tmp_path / "saved.json")["nodes"] == 1
    assert '"n1"' not in (tmp_path / "saved.json").read_text()


# -- the policy ------------------------------------------------------------------------------------------------------


LEVEL = "example.com/block"
OF_A_BLOCK = {"berth.dev/group": "w", "berth.dev/group-min": "2", "berth.dev/group-required": LEVEL}
BLOCKS: Json = {
    "nodes": {name: {"machine": "hgx-h100-8", "labels": {LEVEL: f"block-{name}"}} for name in "abc"},
    "pods": [
        *({"name": f"g{i}", "node": node, "gpus": [0, 1, 2, 3], "group": "g"} for i, node in enumerate("ab")),
        *({"name": f"w{i}", "count": 4, "annotations": OF_A_BLOCK} for i in range(2)),
    ],
}


def test_the_policy_says_which_labels_are_levels(tmp_path: Path) -> None:
    path, policy = snapshot_file(tmp_path, objects_of(BLOCKS)), tmp_path / "policy.yaml"
    policy.write_text(f"group_levels: [{LEVEL}]")
    plain = assessed(path)
    assert [(row["level"], row["domains"]) for row in plain["gangs"]] == [("node", 2)]
    assert (plain["policy"], plain["fleet"]["domains"]) == ("", [])
    assert "is no level" in plain["waiting"][0]["reason"]
    code, out, err = berth(["assess", str(path), "--policy", str(policy), "--output", "json"])
    assert code == 0, err
    found = json.loads(out)
    assert found["policy"] == str(policy)
    assert [(row["level"], row["domains"], row["fewest"]) for row in found["gangs"]] == [(LEVEL, 2, 1)]
    assert [(row["label"], row["whole"]) for row in found["fleet"]["domains"]] == [(LEVEL, 1)]
    rows = {row["placement"]: row["domains"] for row in found["replay"]["rows"]}
    assert (rows["today"], rows["Berth"]) == (2.0, 1.0)
    assert found["waiting"][0]["reason"].startswith("group default/w fits: 2 pods")
    _, out, _ = berth(["assess", str(path), "--policy", str(policy), "--no-replay"])
    assert "Berth's decisions are those of the policy of" in out


def test_an_anonymous_snapshot_keeps_the_levels_of_the_policy(tmp_path: Path) -> None:
    path, policy, saved = snapshot_file(tmp_path, objects_of(BLOCKS)), tmp_path / "policy.yaml", tmp_path / "saved.json"
    policy.write_text(f"group_levels: [topology.kubernetes.io/rack, {LEVEL}]")
    words = ["--no-replay", "--policy", str(policy)]
    code, _, err = berth(["assess", str(path), *words, "--save", str(saved), "--anonymise"])
    assert code == 0
    assert LEVEL not in saved.read_text()
    named = "group_levels: [topology.kubernetes.io/rack, label-1]"
    assert named in err
    policy.write_text(named)
    found = assessed(saved, "--policy", str(policy))
    assert [(row["level"], row["domains"], row["fewest"]) for row in found["gangs"]] == [("label-1", 2, 1)]
    assert found["waiting"][0]["fits"]


async def test_the_policy_of_the_berth_that_is_installed_decides(tmp_path: Path) -> None:
    cluster = Cluster()
    config_map: Json = {"metadata": {"namespace": "berth-system", "name": "berth-policy"}}
    async with cluster.serving() as api:
        cluster.store.put("nodes", ("", "a"), objects_of(BLOCKS)[1])
        words = ["assess", "--kubeconfig", str(write_kubeconfig(tmp_path, api))]
        _, without, _ = await berth_beside(words)
        assert "policy" not in without
        for text, says in (
            ("candidates: 32", ""),
            (f"group_levels: [{LEVEL}]", "those of the policy of ConfigMap berth-system/berth-policy."),
            ("candidates: 0", "berth-policy: candidates: must be at least 1"),
        ):
            cluster.store.put(
                "configmaps", ("berth-system", "berth-policy"), {**config_map, "data": {"policy.yaml": text}}
            )
            code, out, err = await berth_beside(words)
            assert code == 0, err
            assert says in " ".join(out.split())
            assert says or "policy" not in out
        _, out, _ = await berth_beside([*words, "--berth-namespace", "gpu"])
        assert out == without
