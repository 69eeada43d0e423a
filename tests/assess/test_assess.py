"""berth assess: what it says of clusters that Berth did not schedule, in each form, and of unusable input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks.assess import pod as pod_objects
from extender.cli import assess_command
from extender.cli.assess_command import told_apart
from extender.cli.output import Screen
from extender.sandbox import Cluster, write_kubeconfig
from tests.worlds.assessed_clusters import CASES, GPU_CLASS, RESULT, assessed, changed, objects_of, snapshot_file
from tests.worlds.commands import berth, berth_beside
from tests.worlds.vendor_worlds import AMD, GAUDI, INTEL, cpx, device, flex, gaudi, mi300x, node_and_slice

pytestmark = pytest.mark.usefixtures("replays_in_turn")

Json = dict[str, Any]
NIC_CLASS: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "dranet.net"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'dra.net'"}}]},
}
PLUGIN_NODE = {"machine": "hgx-h100-8", "plugin": {"nvidia.com/gpu": "8"}}


def named(beginning: str) -> Json:
    """The first case with such a name."""
    return next(case for case in CASES if case["name"].startswith(beginning))


NOT_JOINED = named("four GPUs of a DGX-1V that no ring")


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
    code, out, _ = berth(["assess", str(path), "--no-replay", "--all"])
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
        {"name": "remote", "node": "a", "gpus": [2, 3], "nics": names[6:8]},
    ]
    found = assessed(snapshot_file(tmp_path, objects_of({**case, "pods": pods})))
    assert {row["pod"]: (row["near"], row["pairs"]) for row in found["sets"]} == {
        "default/near": (2, 2),
        "default/remote": (0, 2),
    }
    assert (found["near"], found["pairs"]) == (2, 4)
    assert [row["pod"] for row in found["sets"]] == ["default/remote", "default/near"], (
        "the worst first, by its NICs, too"
    )


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
    found = assessed(snapshot_file(tmp_path, [*objects, slice_, class_]), replays=True)
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
    found = assessed(snapshot_file(tmp_path, objects), replays=True)
    assert (found["near"], found["pairs"]) == (1, 1)
    assert [row["nics"] for row in found["replay"]["rows"]] == [1.0] * 4


def test_the_same_pods_once_more_are_better_with_berth(tmp_path: Path) -> None:
    """First fit gives the second pod of each board four GPUs without a ring, after a pod that has three."""
    pods = [{"name": f"a{i}", "node": f"n{i}", "gpus": [0]} for i in range(3)]
    pods += [{"name": f"b{i}", "node": f"n{i}", "gpus": [1, 2, 3, 4]} for i in range(3)]
    path = snapshot_file(
        tmp_path, objects_of({"agent": True, "nodes": {f"n{i}": "dgx1-v100" for i in range(3)}, "pods": pods})
    )
    rows = {row["placement"]: row for row in assessed(path, replays=True)["replay"]["rows"]}
    assert rows["today"]["joined"] == 0.0
    assert rows["Berth"]["joined"] == 1.0
    assert rows["Berth"]["gbps"] > rows["first fit"]["gbps"]
    assert {row["started"] for row in rows.values()} == {6}


def test_pods_with_scheduling_gates_are_counted_by_their_gates(tmp_path: Path) -> None:
    objects = objects_of({"nodes": {"a": "t4-4"}, "pods": [{"name": f"p{i}", "count": 1} for i in range(4)]})
    kueue = "kueue.x-k8s.io/admission"
    for name, gates in (("p0", [kueue]), ("p1", [kueue]), ("p2", ["own/a", "b"])):
        changed(objects, "Pod", name, "spec.schedulingGates", [{"name": gate} for gate in gates])
    path, saved = snapshot_file(tmp_path, objects), tmp_path / "saved.json"
    assert assessed(path, "--save", str(saved), "--anonymise")["gated"] == {kueue: 2, "own/a, b": 1}
    told = f"2 more pods have a scheduling gate ({kueue}): no scheduler tries such pods."
    for file in (path, saved):
        code, out, err = berth(["assess", str(file), "--no-replay"])
        assert code == 0, err
        assert told in out
        assert "Waiting pods that would fit now, each alone or with its gang: 1 of 1." in out
    assert "own/a" not in saved.read_text()


def test_a_pod_that_watches_devices_with_admin_access_is_not_replayed(tmp_path: Path) -> None:
    """Its namespace has the label that admin access needs, that of the jobs of a replay has not."""
    pods = [{"name": "p", "node": "a", "gpus": [0, 1]}, {"name": "watch", "node": "a", "gpus": [0]}]
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": pods})
    changed(objects, "ResourceClaim", "watch", "spec.devices.requests.0.exactly.adminAccess", True)
    changed(objects, "ResourceClaim", "watch", f"{RESULT}.adminAccess", True)
    found = assessed(snapshot_file(tmp_path, objects), replays=True)
    assert [row["started"] for row in found["replay"]["rows"]] == [1, 1, 1, 1]
    told = "1 claim is shared by several pods, or has admin access: such pods are not replayed."
    assert told in found["unknown"]


def test_a_pod_keeps_its_product_in_a_replay(tmp_path: Path) -> None:
    """A node selector chose the cards: boards of a better product are no merit of Berth."""
    nodes = {"a": "a100-pcie-8-bridged", "h": "hgx-h100-8"}
    case: Json = {"nodes": nodes, "pods": [{"name": "p", "node": "a", "gpus": [0, 2]}]}
    for agent, expected in ((True, [20.0, 240.0, 240.0, 240.0]), (False, [None] * 4)):  # without the agent: not known
        path = snapshot_file(tmp_path, objects_of({**case, "agent": agent}))
        rows = assessed(path, replays=True)["replay"]["rows"]
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
    replay = assessed(snapshot_file(tmp_path, [*objects, second, NIC_CLASS]), replays=True)["replay"]
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
    for result, one in zip(claim["status"]["allocation"]["devices"]["results"], devices, strict=False):
        result |= {"driver": driver, "device": one["name"]}
    class_ = json.loads(json.dumps(GPU_CLASS).replace("gpu.nvidia.com", driver))
    path = snapshot_file(tmp_path, [*objects, class_, pod, claim])
    found = assessed(path, replays=True)
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


@pytest.mark.parametrize(
    ("parents", "told", "cell"),
    [
        (["GPU-1", "GPU-1", "GPU-2"], "1 node, 0 GPUs and 2 GPUs in 3 MIG devices or partitions", "3 of 2 GPUs"),
        (["GPU-1", "GPU-1", ""], "1 node, 0 GPUs and 3 parts of GPUs", "3"),
    ],
    ids=["all name their GPU", "one does not"],
)
def test_the_cards_of_mig_devices_are_counted(parents: list[str], told: str, cell: str, tmp_path: Path) -> None:
    devices = [
        device(f"gpu-{number}-mig", "9Gi", type="mig", productName="A100", uuid=f"MIG-{number}", parentUUID=parent)
        for number, parent in enumerate(parents)
    ]
    objects = [*node_and_slice("a", gpu_nvidia_com=devices), *objects_of({"nodes": {}})]
    _, out, _ = berth(["assess", str(snapshot_file(tmp_path, objects)), "--no-replay"])
    assert told in " ".join(out.split())
    row = next(line for line in out.splitlines() if line.startswith("A100 (parts)"))
    assert re.split(" {2,}", row)[2] == cell


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


HALF_KNOWN: Json = {  # a switch joins the GPUs of one node; no agent has read the links of the other one
    "nodes": {"h": "hgx-h100-8", "v": "dgx1-v100"},
    "pods": [{"name": name, "node": name, "gpus": [0, 1]} for name in "hv"],
}


def beside_a_plugin(gpus: int, labels: Json) -> Json:
    """A pod with joined GPUs, and one with GPUs of a device plugin: which ones only the kubelet knows."""
    nodes = {"dra": "hgx-h100-8", "plugin": {**PLUGIN_NODE, "labels": labels}}
    of_plugin = {"name": "q", "node": "plugin", "plugin": {"nvidia.com/gpu": str(gpus)}}
    return {"nodes": nodes, "pods": [{"name": "p", "node": "dra", "gpus": [0, 1]}, of_plugin]}


OF_CI: dict[str, tuple[Json, float, str]] = {  # the least share, and why it fails; '' if it does not
    "one of two not known": (HALF_KNOWN, 0.1, "the links of 1 of 2 pods with several GPUs are not known"),
    "above": (NOT_JOINED, 0.1, ""),
    "below": (NOT_JOINED, 0.2, "the share of the best bandwidth is 0.125, below 0.2"),
    "not known": (named("bridged cards without the agent"), 0.0, "the links of 1 of 1 pod"),
    "a device plugin": (named("pods of a device plugin"), 0.0, "of a device plugin"),
    "no such pods": (named("a small pod"), 1.0, ""),
    "one GPU alone of a device plugin is no set": (beside_a_plugin(1, {}), 0.1, ""),
    "a shared GPU alone, too": (beside_a_plugin(1, {"nvidia.com/gpu.replicas": "4"}), 0.1, ""),
    "several beside joined ones": (
        beside_a_plugin(2, {}),
        0.1,
        "1 pod has several GPUs of a device plugin: which ones",
    ),
    "several shared ones": (beside_a_plugin(2, {"nvidia.com/gpu.replicas": "4"}), 0.1, "1 pod has several GPUs of a"),
}


@pytest.mark.parametrize("name", OF_CI)
def test_the_exit_code_is_for_ci(name: str, tmp_path: Path) -> None:
    case, least, why = OF_CI[name]
    path = snapshot_file(tmp_path, objects_of(case))
    code, _, err = berth(["assess", str(path), "--no-replay", "--fail-below", str(least)])
    assert (code, "--fail-below: " in err) == (int(bool(why)), bool(why))
    assert why in err


@pytest.mark.parametrize("width", [80, 120])
def test_a_large_bad_cluster_is_one_screen(width: int, tmp_path: Path) -> None:
    """A terminal of 50 lines. Texts are cut, numbers are not, and --all has every row."""
    machines = ("t4-4", "l40s-8-pix", "hgx-h100-8", "a100-pcie-8-bridged", "dgx1-v100", "a40-8-bridged", "dgx1-p100")
    nodes = {f"ip-192-168-{number}.eu-central-1.compute.internal": machines[number % 7] for number in range(42)}
    pods: list[Json] = [{"name": f"large-{number}", "node": one, "gpus": [0, 3]} for number, one in enumerate(nodes)]
    pods += [{"name": f"small-{number}", "node": one, "gpus": [2]} for number, one in enumerate(nodes)]
    pods += [{"name": f"waiting-{number}", "count": 4} for number in range(9)]
    file = snapshot_file(tmp_path, objects_of({"nodes": nodes, "pods": pods, "agent": True}))
    with patch.object(assess_command, "table_screen", lambda: Screen(width=width)):
        code, out, err = berth(["assess", str(file)])
    assert code == 0, err
    _, every, _ = berth(["assess", str(file), "--all"])
    assert len(out.splitlines()) <= 50
    assert max(map(len, out.splitlines())) <= width
    shown = re.findall(r"^default/large-.*$", out, re.MULTILINE)
    assert len(shown) == 3
    assert all(re.search(r" (yes|no) +\d+ +\d+ +\d+ ", line) for line in shown)
    assert len(set(re.findall(r"large-\d+", every))) == 42


@pytest.mark.parametrize(
    "names",
    [
        ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB (parts)", "Tesla T4"],
        ["ip-192-168-151-11.ec2.internal", "ip-192-168-152-12.ec2.internal"],
        ["ml/experiments-of-the-whole-department-3", "ml/experiments-of-the-whole-department-4"],
    ],
)
@pytest.mark.parametrize("width", [18, 25])
def test_names_are_cut_where_they_still_differ(names: list[str], width: int) -> None:
    """At 80 columns three rows were 'NVIDIA A100-SXM4-…'."""
    cut = told_apart(names, width)
    assert len(set(cut)) == len(names)
    assert max(map(len, cut)) <= width
    assert [one for one in cut if one in names] == [one for one in names if len(one) <= width]


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


def test_a_gpu_of_which_a_pod_has_a_partition_is_in_use(tmp_path: Path) -> None:
    """The driver offers the whole GPU, too. No claim can get it while another one has a partition."""
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": [{"name": "p", "node": "a", "gpus": [0]}]})
    changed(objects, "ResourceClaim", "p", f"{RESULT}.device", "gpu-0-mig")
    gpus = next(one for one in objects if one["kind"] == "ResourceSlice" and one["spec"]["driver"] == "gpu.nvidia.com")
    whole = gpus["spec"]["devices"][0]
    uuid = whole["attributes"]["uuid"]
    part: Json = {
        "name": "gpu-0-mig",
        "attributes": {**whole["attributes"], "type": {"string": "mig"}, "parentUUID": uuid},
    }
    part["attributes"]["uuid"] = {"string": "MIG-0"}
    for one, slices in ((whole, "7"), (part, "1")):
        one["consumesCounters"] = [{"counterSet": "c", "counters": {"slices": {"value": slices}}}]
    gpus["spec"]["devices"].append(part)
    gpus["spec"]["pool"]["resourceSliceCount"] = 2
    counters = {"name": "c", "counters": {"slices": {"value": "7"}}}
    names = {name: gpus["spec"][name] for name in ("driver", "nodeName", "pool")}
    objects.append({**gpus, "metadata": {"name": "counters"}, "spec": {**names, "sharedCounters": [counters]}})
    found = assessed(snapshot_file(tmp_path, objects))["fleet"]
    (row,) = found["products"]
    assert (row["gpus"], row["free"], row["allocated"], row["largest_set"]) == (8, 7, 1, 7)
    assert [one["whole"] for one in found["sets"]] == [0]


def test_the_policy_says_which_labels_are_levels(tmp_path: Path) -> None:
    path, policy = snapshot_file(tmp_path, objects_of(BLOCKS)), tmp_path / "policy.yaml"
    policy.write_text(f"group_levels: [{LEVEL}]")
    plain = assessed(path)
    assert [(row["level"], row["domains"]) for row in plain["gangs"]] == [("node", 2)]
    assert (plain["policy"], plain["fleet"]["domains"]) == ("", [])
    assert "is no level" in plain["waiting"][0]["reason"]
    found = assessed(path, "--policy", str(policy), replays=True)
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
