"""`berth replay` as a user runs it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from extender.sandbox import MachineNode, carried_machines, machine_objects
from tests.worlds.commands import berth
from tests.worlds.process_starter import ROOT

pytestmark = pytest.mark.usefixtures("replays_in_turn")

Json = dict[str, Any]
EXAMPLE = str(ROOT / "examples" / "replay" / "jobs.csv")
FLEET = "2xa100-pcie-8-bridged,2xhgx-h100-8,8xgb200-nvl72-tray/4"


def test_the_example_prints_a_table_and_draws_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "replay.svg"
    code, out, err = berth(["replay", EXAMPLE, "--nodes", FLEET, "--picture", str(path)])
    assert (code, err) == (0, "")
    rows = {line[:36].strip(): line[36:].split() for line in out.splitlines()}
    assert out.splitlines()[0].split() == ["Berth", "first", "fit", "emptiest", "node"]
    assert rows["gangs in one domain"][0] == "100.0%"
    assert rows["pods whose GPUs links join"][0] == "100.0%"
    assert rows["half placed gangs that gave up"][0] == "0"
    stale = "docs/img/replay.svg is stale: make picture"
    assert path.read_text() == (ROOT / "docs" / "img" / "replay.svg").read_text(), stale
    drawn = ET.parse(path).getroot()
    texts = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Berth", "first fit", "emptiest node", "100%", "GPUs free but stranded"} <= texts
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}polyline"))) == 12


def test_two_policies_are_compared_as_json(tmp_path: Path) -> None:
    jobs, policy = tmp_path / "jobs.jsonl", tmp_path / "policy.yaml"
    jobs.write_text('{"arrival": 0, "gpus": 2, "duration": 60}\n{"arrival": 9, "gpus": 8, "duration": 60}\n')
    policy.write_text((ROOT / "manifests" / "base" / "policy.yaml").read_text())
    words = ["replay", str(jobs), "--nodes", "1xt4-4", "--output", "json"]
    code, out, _ = berth([*words, "--policy", str(policy), "--policy", str(policy)])
    found = json.loads(out)
    assert code == 0
    assert [one["placement"] for one in found["outcomes"]] == [f"Berth, {policy}"] * 2 + ["first fit", "emptiest node"]
    assert found["outcomes"][0]["started_jobs"]["job-1"]["pods"][0]["devices"] == [
        "gpu.nvidia.com/t4-4-00000/gpu-0",
        "gpu.nvidia.com/t4-4-00000/gpu-1",
    ]
    assert found["outcomes"][0]["never"] == {"job-2": "too few devices match request gpu"}


@pytest.mark.parametrize(
    ("text", "default"),
    [
        ("group_levels: [example.com/rack]\nweights: {packing: 9}\n", ["Berth, default policy"]),
        ("group_levels: [example.com/rack]\n", []),
    ],
    ids=["it differs", "only its levels differ"],
)
def test_one_policy_is_compared_with_the_default_one(text: str, default: list[str], tmp_path: Path) -> None:
    """The default one knows the level that the job names."""
    jobs, policy = tmp_path / "jobs.jsonl", tmp_path / "policy.yaml"
    jobs.write_text('{"arrival": 0, "gpus": 2, "pods": 2, "group_required": "rack"}\n')
    policy.write_text(text)
    code, out, _ = berth(["replay", str(jobs), "--nodes", "1xt4-4", "--output", "json", "--policy", str(policy)])
    assert code == 0
    names = [one["placement"] for one in json.loads(out)["outcomes"]]
    assert names == [f"Berth, {policy}", *default, "first fit", "emptiest node"]


def test_all_placements_are_measured_by_the_levels_of_the_policy(tmp_path: Path) -> None:
    """First fit, too: two nodes of one block are one domain, whoever chose them."""
    snapshot, policy = tmp_path / "snapshot.json", tmp_path / "policy.yaml"
    nodes = (MachineNode(name, carried_machines()["t4-4"], {"example.com/block": "b"}) for name in "xy")
    items = [one for node in nodes for one in machine_objects(node)]
    snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    policy.write_text("group_levels: [example.com/block]\n")
    path = jobs_file(tmp_path, {"gpus": 4, "pods": 2, "duration": 9})
    words = ["--snapshot", str(snapshot), "--policy", str(policy), "--output", "json"]
    code, out, err = berth(["replay", path, *words])
    assert code == 0, err
    assert [one["domains"] for one in json.loads(out)["outcomes"]] == [1, 1, 1]


def test_jobs_that_never_start_are_said(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("arrival,gpus\n0,8\n1,8\n")
    code, out, _ = berth(["replay", str(jobs), "--nodes", "1xt4-4"])
    assert code == 0
    assert "Berth: job-2 and 1 more never started: too few devices match request gpu" in out
    jobs.write_text("name,arrival,gpus,cpu\nruns,0,4,\nwaits,1,1,\nbig,2,8,\ncores,3,1,9999\n")
    _, out, _ = berth(["replay", str(jobs), "--nodes", "1xt4-4"])
    assert [line for line in out.splitlines() if line.startswith("Berth: ")] == [
        "Berth: waits (line 3) never started: matching devices are in use for request gpu",
        "Berth: big (line 4) never started: too few devices match request gpu",
        "Berth: cores (line 5) never started: Insufficient cpu, memory or pods",
    ]


def test_the_time_in_which_a_large_job_finds_a_place_is_a_row(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("submitted;hours;n\n2026-01-01T00:00:00Z;0.5;5\n2026-01-01T01:00:00Z;1;1\n")
    words = ["--columns", "arrival=submitted,duration=hours*3600,gpus=n", "--nodes", "1xhgx-h100-8", "--large", "4"]
    code, out, err = berth(["replay", str(jobs), *words])
    assert code == 0, err
    row = next(line for line in out.splitlines() if line.startswith("time in which 1x4 GPUs find a place"))
    assert row.split()[-3:] == ["50.0%", "50.0%", "50.0%"]


def test_a_list_of_nodes_has_the_links_of_the_usual_boards_or_none_are_known(tmp_path: Path) -> None:
    jobs, nodes, drawn = tmp_path / "jobs.csv", tmp_path / "nodes.csv", tmp_path / "out.svg"
    jobs.write_text("arrival,gpus,product\n0,8,A100-SXM4-80GB\n1,8,GPU-series-1\n")
    header, known = "gpu_model,gpu_capacity_num,cpu_num,node_name\n", "A100-SXM4-80GB,8,1,a\n"
    unknown = "GPU-series-1,8,1,b\n"
    words = ["replay", str(jobs), "--nodes", str(nodes), "--large", "2", "--picture", str(drawn)]
    told = "1 node: what joins the GPUs is not known, so the rows of links leave out their pods"
    nodes.write_text(header + known + unknown)
    _, out, _ = berth(words)
    rows = {line[:36].strip(): line[36:].split() for line in out.splitlines()}
    assert rows["pods whose GPUs links join"] == ["100.0%"] * 3
    assert rows["ring bandwidth in the mean"] == ["240.0", "GB/s"] * 3
    assert told in out
    assert "large job" in drawn.read_text()
    for never_joined in ("", "T4,4,1,c\n"):
        nodes.write_text(header + unknown + never_joined)
        _, out, _ = berth(words)
        of_links = ("links join", "ring bandwidth", "against the best", "large job")
        assert [name for name in of_links if name in out] == []
        row = next(line for line in out.splitlines() if line.startswith("time in which"))
        assert row.split()[-3:] == ["-"] * 3
        assert told in out
        assert "large job" not in drawn.read_text()


CLAIM = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
NO_LEVEL = "is no level: write node or example.com/other.rack, or give the --policy that has it"
UNKNOWN: Json = {
    "devices": {"requests": [{"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "nope.com"}]}]}
}


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"claim": UNKNOWN}, "claim, request 'r/a': the fleet has no DeviceClass 'nope.com'"),
        ({"gpus": 1, "parts": [{"claim": UNKNOWN}]}, "claim, request 'r/a': the fleet has no DeviceClass 'nope.com'"),
        ({"gpus": 1, "pods": 2, "group_required": "hall"}, f"group_required: 'hall' {NO_LEVEL}"),
        ({"gpus": 1, "pods": 2, "group_preferred": "hall"}, f"group_preferred: 'hall' {NO_LEVEL}"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "tune --aim utilisation", "run --once --jobs"])
def test_what_the_fleet_or_the_policy_lacks_is_told_with_its_line(
    command: str, job: Json, words: str, tmp_path: Path
) -> None:
    path = jobs_file(tmp_path, {"gpus": 1}, job)
    (tmp_path / "policy.yaml").write_text("group_levels: [example.com/other.rack]\n")
    options = ["--nodes", "1xt4-4", "--policy", str(tmp_path / "policy.yaml")]
    assert berth([*command.split(), path, *options]) == (2, "", f"berth: {path}: line 3: {words}")


@pytest.mark.parametrize("level", ["rack", "node", "example.com/hall"])
def test_a_level_of_the_policy_and_any_label_are_no_fault(level: str, tmp_path: Path) -> None:
    path = jobs_file(tmp_path, {"claim": CLAIM}, {"gpus": 1, "pods": 2, "group_required": level})
    assert berth(["replay", path, "--nodes", "2xt4-4/1/2"])[0] == 0


def jobs_file(folder: Path, *jobs: Json) -> str:
    """A file of jobs whose first line is empty."""
    lines = [json.dumps({"arrival": 0, "duration": 1, **job}) for job in jobs]
    (folder / "jobs.jsonl").write_text("\n".join(["", *lines]))
    return str(folder / "jobs.jsonl")


def test_why_no_node_can_serve_a_job_is_a_sentence_for_each_placement(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.jsonl"
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "adminAccess": True}}
    jobs.write_text(json.dumps({"arrival": 0, "claim": {"devices": {"requests": [request]}}}))
    code, out, _ = berth(["replay", str(jobs), "--nodes", "1xt4-4"])
    assert code == 0
    lines = [line.partition(": job-1 never started: ") for line in out.splitlines() if "never started" in line]
    assert [name for name, _, _ in lines] == ["Berth", "first fit", "emptiest node"]
    assert len({reason for _, _, reason in lines}) == 1
    assert "Reason(" not in out


def test_a_fleet_without_nics_is_the_reason_of_jobs_with_nics(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("arrival,gpus,nics\n0,1,1\n")
    why = "job-2 never started: the fleet has no NICs in ResourceSlices, and the job asks for some (nics)"
    out = berth(["replay", str(jobs), "--nodes", "1xt4-4"])[1]
    assert [line for line in out.splitlines() if why in line][:1] == [f"Berth: {why}"]
    jobs.write_text("arrival,gpus,nics\n0,1,30\n")
    out = berth(["replay", str(jobs), "--nodes", "1xhgx-h100-8"])[1]
    assert "Berth: job-2 never started: too few devices match request nic" in out


def test_jobs_that_only_berth_leaves_waiting_are_told_with_one_reason(tmp_path: Path) -> None:
    """No node has the label. The two rules do not know it, so their columns are of other jobs."""
    jobs = tmp_path / "jobs.jsonl"
    gang = '{"name": "%s", "arrival": 0, "pods": 2, "gpus": 1, "group_required": "rack", "duration": 9}\n'
    jobs.write_text(gang % "a" + gang % "b1" + gang % "b")
    code, out, _ = berth(["replay", str(jobs), "--nodes", "1xt4-4"])
    assert code == 0
    last = out.splitlines()[-2:]
    assert last[0].endswith("so the columns are of different jobs; only Berth keeps group_required and its like")
    why = "no node with devices has the label topology.kubernetes.io/rack that its group needs"
    assert last[1] == f"Berth: a (line 1) and 2 more never started: {why}"


def test_a_fleet_is_needed() -> None:
    code, _, err = berth(["replay", EXAMPLE])
    assert (code, err) == (2, "berth: --nodes: is missing: give --nodes, --snapshot, or both")


@pytest.mark.parametrize(
    ("version", "words"),
    [("v1", ""), ("v1beta1", "has version 'v1beta1', Berth reads v1: kubectl get resourceslices.v1.")],
)
def test_a_fault_in_a_process_is_one_sentence(version: str, words: str, tmp_path: Path) -> None:
    objects = tmp_path / "snapshot.json"
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}}
    broken = {"kind": "ResourceSlice", "apiVersion": f"resource.k8s.io/{version}", "metadata": {"name": "s"}}
    objects.write_text(json.dumps({"kind": "List", "items": [node, {**broken, "spec": {}}]}))
    code, _, err = berth(["replay", EXAMPLE, "--snapshot", str(objects)])
    assert code == 2
    assert err.startswith(f"berth: ResourceSlice s: {words}")


def test_slices_whose_devices_cannot_be_read_are_counted(tmp_path: Path) -> None:
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": {"name": "n", "generation": 1}, "devices": "x"}
    broken = {"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": "s"}, "spec": spec}
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(broken))
    code, _, err = berth(["replay", EXAMPLE, "--nodes", "1xt4-4", "--snapshot", str(path)])
    why = "ResourceSlices left out that cannot be read, the first is s: spec.devices: must be a list, is 'x': 1"
    assert (code, err) == (0, f"berth: {path}: {why}\n")


def test_pools_and_slices_whose_devices_no_node_can_use_are_counted(tmp_path: Path) -> None:
    """Of the pools of the nodes a and b a slice is missing; that of node c says that node d has a newer one."""
    slices = [("a", "a", 1, 2), ("b", "b", 1, 2), ("c", "shared", 1, 1), ("d", "shared", 2, 1), ("e", "e", 1, 1)]
    objects: list[dict[str, object]] = []
    for name, pool, generation, count in slices:
        spec = {
            "driver": "gpu.nvidia.com",
            "nodeName": name,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "devices": [{"name": "gpu-0"}],
        }
        given = {"metadata": {"name": name}, "spec": spec}
        objects.append({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}})
        objects.append({"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", **given})
    # An older generation whose node has the newer one, too, is nothing that lacks.
    old = json.loads(json.dumps(objects[-1]))
    old["metadata"]["name"], old["spec"]["pool"]["generation"] = "old", 0
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps({"kind": "List", "items": [*objects, old]}))
    code, _, err = berth(["replay", EXAMPLE, "--nodes", "1xt4-4", "--snapshot", str(path)])
    assert code == 0
    assert [line.removeprefix(f"berth: {path}: ") for line in err.splitlines()] == [
        "pools left out that offer no devices, the first is gpu.nvidia.com/a: ResourceSlices of pool a are missing: 2",
        "ResourceSlices left out, because their pool has a newer generation elsewhere, the first is c: 1",
    ]


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("Node", {"status": {"allocatable": {"cpu": "NaN"}}}, "Node n: cpu: 'NaN' is not a quantity"),
        ("Node", {"status": {"allocatable": {"cpu": "-5"}}}, "Node n: cpu: must not be negative, is -5"),
        ("Pod", {"spec": {"nodeName": "n", "containers": 7}}, "Pod n: spec.containers: must be "),
    ],
)
def test_an_object_that_cannot_be_read_is_named(
    kind: str, fields: dict[str, object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps({"kind": kind, "apiVersion": "v1", "metadata": {"name": "n"}, **fields}))
    code, _, err = berth(["replay", EXAMPLE, "--nodes", "1xt4-4", "--snapshot", str(path)])
    assert code == 2
    assert err.startswith(f"berth: {words}")
