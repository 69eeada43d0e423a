"""berth assess --jobs: the pods of a cluster as a file of jobs, and what its replays keep of their constraints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.api.group_topology import NEARNESS
from extender.api.pod_annotations import WISHES
from tests.worlds.assessed_clusters import assessed, objects_of, snapshot_file
from tests.worlds.commands import berth

pytestmark = pytest.mark.usefixtures("replays_in_turn")

Json = dict[str, Any]
CONSTRAINED: list[Json] = yaml.safe_load((Path(__file__).parents[1] / "cases" / "job_constraints.yaml").read_text())
TIMES = ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z")
LABEL = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
GKE = {"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}


def of_kind(objects: list[Json], kind: str) -> dict[str, Json]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def jobs_of(folder: Path, objects: list[Json]) -> tuple[list[Json], str]:
    path = folder / "jobs.jsonl"
    words = ["assess", str(snapshot_file(folder, objects)), "--no-replay", "--output", "json", "--jobs", str(path)]
    code, _, err = berth(words)
    assert code == 0, err
    return [json.loads(line) for line in path.read_text().splitlines()], err


def replayed(folder: Path, *words: str) -> Json:
    code, out, err = berth(["replay", str(folder / "jobs.jsonl"), *words, "--output", "json"])
    assert code == 0, err
    found: Json = json.loads(out)["outcomes"][0]
    return found


def test_pods_become_jobs_that_are_replayed_on_their_own_nodes(tmp_path: Path) -> None:
    pods = [
        {"name": "one", "node": "a", "gpus": [3, 4]},
        {"name": "g0", "node": "a", "gpus": [0], "group": "g"},
        {"name": "g1", "node": "b", "gpus": [0], "group": "g"},
        {"name": "done", "node": "b", "gpus": [1]},
        {"name": "waits", "count": 8},
    ]
    objects = objects_of({"nodes": {"a": "hgx-h100-8", "b": "hgx-h100-8"}, "pods": pods})
    of, claims = of_kind(objects, "Pod"), of_kind(objects, "ResourceClaim")
    for minute, name in enumerate(("one", "g0", "g1", "done", "waits")):
        of[name]["metadata"]["creationTimestamp"] = f"2026-01-01T00:{minute:02}:00Z"
    terminated = {"terminated": {"finishedAt": "2026-01-01T01:00:00Z"}}
    of["done"]["status"] = {
        "phase": "Succeeded",
        "startTime": "2026-01-01T00:10:00Z",
        "containerStatuses": [{"state": terminated}],
    }
    claims["done"]["status"] = {}
    lines, err = jobs_of(tmp_path, objects)
    assert err == ""
    found = {line["name"]: (line["arrival"], line.get("pods"), line.get("duration")) for line in lines}
    assert found == {
        "default-one-1": (0, 1, None),
        "default-g0-2": (60, 2, None),
        "default-done-3": (180, 1, 3000),
        "default-waits-4": (240, 1, None),
    }
    snapshot = ["--snapshot", str(tmp_path / "snapshot.json")]
    outcome = replayed(tmp_path, *snapshot, "--emptied")
    assert outcome["started"] == 4
    assert replayed(tmp_path, *snapshot)["started"] < 4, "what runs there keeps its devices"


def test_the_running_pods_of_a_job_are_a_gang(tmp_path: Path) -> None:
    """Also in the replay. Those that ended or wait may come one after the other."""
    nodes = {
        name: {"machine": "gb200-nvl72-tray", "labels": {"nvidia.com/gpu.clique": f"c{number // 2}"}}
        for number, name in enumerate("abcd")
    }
    pods = [
        {"name": "p0", "node": "a", "gpus": [0, 1, 2, 3]},
        {"name": "p1", "node": "c", "gpus": [0, 1, 2, 3]},
        {"name": "done", "node": "b", "gpus": [0, 1, 2, 3]},
        {"name": "waits", "count": 4},
    ]
    objects = objects_of({"nodes": nodes, "pods": pods})
    of = of_kind(objects, "Pod")
    for pod in of.values():
        pod["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "train"}
    of["done"]["status"] = {"phase": "Succeeded"}
    of_kind(objects, "ResourceClaim")["done"]["status"] = {}
    lines, _ = jobs_of(tmp_path, objects)
    assert {line["name"]: line["pods"] for line in lines} == {
        "default-done-1": 1,
        "default-p0-2": 2,
        "default-waits-3": 1,
    }
    found = assessed(tmp_path / "snapshot.json", replays=True)
    rows = {row["placement"]: (row["started"], row["domains"]) for row in found["replay"]["rows"]}
    assert (rows["today"], rows["Berth"]) == ((1, 2), (1, 1))
    told = (
        "1 gang is a Job, JobSet or the like without a group: here, in the replay and in --jobs their running pods are"
    )
    assert [line.startswith(told) for line in found["unknown"]].count(True) == 1


def named_gangs(folder: Path, labels: Json, notes: Json | None = None, waits: int = 0) -> list[Json]:
    """The jobs of two pods on nodes of two products, and of some that wait, all with these labels and annotations."""
    pods: list[Json] = [{"name": name, "node": node, "gpus": [0, 1]} for name, node in (("p0", "a"), ("p1", "b"))]
    pods += [{"name": f"w{number}", "count": 2} for number in range(waits)]
    objects = objects_of({"nodes": {"a": "hgx-h100-8", "b": "a100-pcie-8-bridged"}, "pods": pods})
    for pod in of_kind(objects, "Pod").values():
        pod["metadata"] |= {"labels": labels, "annotations": notes or {}}
    return jobs_of(folder, objects)[0]


@pytest.mark.parametrize(
    "label",
    [
        "training.kubeflow.org/job-name",
        "ray.io/cluster",
        "volcano.sh/job-name",
        "kueue.x-k8s.io/pod-group-name",
        "jobset.sigs.k8s.io/jobset-name",
        "batch.kubernetes.io/job-name",
    ],
)
def test_pods_of_one_job_are_one_gang_also_on_two_products(label: str, tmp_path: Path) -> None:
    (line,) = named_gangs(tmp_path, {label: "train", "training.kubeflow.org/replica-type": "worker"})
    (part,) = line["parts"]
    assert (line["name"], line["pods"], part["pods"]) == ("default-p0-1", 1, 1)
    assert ("H100" in str(line["claim"]), "A100" in str(part["claim"])) == (True, True)
    found = replayed(tmp_path, "--snapshot", str(tmp_path / "snapshot.json"), "--emptied")
    assert (found["gangs"], [pod["node"] for pod in found["started_jobs"]["default-p0-1"]["pods"]]) == (1, ["a", "b"])
    rows = assessed(tmp_path / "snapshot.json", replays=True)["replay"]["rows"]
    assert [row["domains"] for row in rows] == [2, 2, 2, 2]


def test_waiting_pods_are_in_the_gang_unless_they_may_come_one_after_the_other(tmp_path: Path) -> None:
    for label, jobs in (("training.kubeflow.org/job-name", 1), ("batch.kubernetes.io/job-name", 3)):
        lines = named_gangs(tmp_path, {label: "train"}, waits=2)
        assert len(lines) == jobs
        assert sum(one["pods"] for line in lines for one in (line, *line.get("parts", ()))) == 4


def test_a_gang_keeps_how_near_its_pods_must_be(tmp_path: Path) -> None:
    notes = {"berth.dev/group": "g", "berth.dev/group-required": "rack", "berth.dev/group-topology": "preferred"}
    (line,) = named_gangs(tmp_path, {}, notes)
    assert (line["group_required"], line["group_topology"]) == ("rack", "preferred")
    assert "group_required" not in line["parts"][0]
    never = replayed(tmp_path, "--nodes", "1xhgx-h100-8/1/1,1xa100-pcie-8-bridged/1/1")["never"]
    assert list(never) == ["default-p0-1"], "the products are in two racks"
    (line,) = named_gangs(tmp_path, {}, notes | {"berth.dev/group-required": "the rack", "berth.dev/topology": "no"})
    assert {"group_required", "topology"} & line.keys() == set(), "what is not valid would make the file unreadable"


@pytest.mark.parametrize("case", CONSTRAINED, ids=lambda case: case["name"])
def test_jobs_keep_what_pods_and_their_pod_group_ask_for(case: Json, tmp_path: Path) -> None:
    """What a job cannot have is told, with the number of pods. In the replay the fleet has two racks of one node."""
    nodes = {name: {"machine": "hgx-h100-8", "labels": {"example.com/rack": name}} for name in "ab"}
    pods = [{"name": name, "node": "a", "gpus": [at, at + 1], "group": "g"} for name, at in (("p0", 0), ("p1", 2))]
    objects = objects_of({"nodes": nodes, "pods": pods})
    for pod in of_kind(objects, "Pod").values():
        pod["metadata"]["annotations"] = {"berth.dev/group": "g", **case.get("annotations", {})}
        if "constraint" in case:
            del pod["metadata"]["annotations"]["berth.dev/group"]
            pod["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    if "constraint" in case:
        spec = {
            "schedulingPolicy": {"gang": {"minCount": 2}},
            "schedulingConstraints": {"topology": [{"key": case["constraint"]}]},
        }
        group = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "spec": spec}
        objects.append({**group, "metadata": {"name": "g", "namespace": "default"}})
    (line,), err = jobs_of(tmp_path, objects)
    kept = {name: line[name] for name in (*WISHES, *NEARNESS) if name in line}
    assert {"topology": None} | kept == {"topology": "preferred"} | case["job"]
    assert case["told"] in err if case.get("told") else err == ""
    line["pods"] = case.get("pods", 2)
    (tmp_path / "jobs.jsonl").write_text(json.dumps(line))
    found = replayed(tmp_path, "--snapshot", str(tmp_path / "snapshot.json"), "--emptied")
    assert found["started"] == (0 if case.get("never") else 1), found


@pytest.mark.parametrize(("time", "arrival"), [("9000-01-01T00:00:00Z", 3600), ("yesterday", 0)])
def test_times_that_cannot_be_right_are_told(time: str, arrival: int, tmp_path: Path) -> None:
    """A pod of the future arrives now. As 1970, a time that is none made all other jobs arrive 56 years later."""
    pods = [{"name": name, "node": "a", "gpus": [number]} for number, name in enumerate(("old", "new", "wrong"))]
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": pods})
    for pod, created in zip(of_kind(objects, "Pod").values(), (*TIMES, time), strict=True):
        pod["metadata"]["creationTimestamp"] = created
    lines, err = jobs_of(tmp_path, objects)
    assert sorted(line["arrival"] for line in lines) == sorted([0, 3600, arrival])
    told = "times that cannot be right: the job arrives now at the latest, without a creation with the first one"
    assert err.strip().endswith(f"jobs.jsonl: 1 pod has {told} (such as default/wrong)")


@pytest.mark.parametrize(
    ("finished", "seconds"),
    [(["2026-01-01T00:30:00Z"], 1200), (["2026-01-01T00:10:00Z"], 1), (["2025-12-31T23:00:00Z"], None), ([], None)],
)
def test_an_ended_pod_without_a_true_end_is_told(finished: list[str], seconds: int | None, tmp_path: Path) -> None:
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": [{"name": "p", "node": "a", "gpus": [0]}]})
    of_kind(objects, "Pod")["p"]["status"] = {
        "phase": "Failed",
        "startTime": "2026-01-01T00:10:00Z",
        "containerStatuses": [{"state": {"terminated": {"finishedAt": time}}} for time in finished],
    }
    of_kind(objects, "ResourceClaim")["p"]["status"] = {}
    (line,), err = jobs_of(tmp_path, objects)
    assert line["duration"] == (seconds or 1)
    assert ("1 pod has no end after the start, so the job counts as 1 s" in err) == (seconds is None)


def test_a_waiting_pod_of_a_device_plugin_tolerates_what_it_says(tmp_path: Path) -> None:
    """Jobs of CSV files tolerate the taint of their nodes; of this pod it is known that it does not."""
    node = {"machine": "hgx-h100-8", "labels": LABEL, "plugin": {"nvidia.com/gpu": "8"}}
    objects = objects_of({"nodes": {"a": node}, "pods": [{"name": "w", "plugin": {"nvidia.com/gpu": "2"}}]})
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    of_kind(objects, "Node")["a"]["spec"] = {"taints": [taint]}
    words = "--snapshot", str(snapshot_file(tmp_path, objects)), "--emptied"
    jobs_of(tmp_path, objects)
    (why,) = replayed(tmp_path, *words)["never"].values()
    assert why.endswith("excludes the node: taint nvidia.com/gpu:NoSchedule is not tolerated")
    (tmp_path / "jobs.jsonl").write_text("arrival,gpus\n0,2\n")
    assert replayed(tmp_path, *words)["started"] == 1


def test_resources_that_a_job_cannot_have_are_named(tmp_path: Path) -> None:
    """Also beside a claim. What the claim of extended resources provides is in the job."""
    rdma = "rdma/hca_shared_devices_a"
    node = {"machine": "hgx-h100-8", "labels": LABEL, "plugin": {"nvidia.com/gpu": "8", rdma: "8"}}
    pods: list[Json] = [{"name": f"p{i}", "node": "a", "plugin": {"nvidia.com/gpu": "4", rdma: "4"}} for i in range(2)]
    pods += [{"name": name, "node": "b", "gpus": [at]} for name, at in (("claim", 0), ("extended", 1))]
    objects = objects_of({"nodes": {"a": node, "b": "hgx-h100-8"}, "pods": pods})
    of = of_kind(objects, "Pod")
    of["claim"]["spec"]["containers"][0]["resources"] = {"limits": {"example.com/nic": "1", "example.com/none": "0"}}
    of["extended"]["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "1"}}
    del of["extended"]["spec"]["resourceClaims"]
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "gpu"}
    of["extended"]["status"]["extendedResourceClaimStatus"] = {
        "resourceClaimName": "extended",
        "requestMappings": [mapping],
    }
    lines, err = jobs_of(tmp_path, objects)
    assert len(lines) == 4
    why = "which is left out: a replay finds a place for the job more easily"
    assert [line.partition("jobs.jsonl: ")[2] for line in err.splitlines()] == [
        f"2 pods have {rdma}, {why} (such as default/p0)",
        f"1 pod has example.com/nic, {why} (such as default/claim)",
    ]
    del of["extended"]["status"]["extendedResourceClaimStatus"]["requestMappings"]  # as anonymised files
    assert jobs_of(tmp_path, objects)[1] == err


@pytest.mark.parametrize(
    ("labels", "product"), [(LABEL, LABEL["nvidia.com/gpu.product"]), (GKE, "NVIDIA H100 80GB HBM3")]
)
def test_pods_of_a_device_plugin_become_jobs_for_any_fleet(
    labels: dict[str, str], product: str, tmp_path: Path
) -> None:
    """The label has dashes where the driver's name of the product has spaces. GKE has names of its own."""
    node = {"machine": "hgx-h100-8", "labels": labels, "plugin": {"nvidia.com/gpu": "8"}}
    pods = [{"name": "p", "node": "a", "count": 4, "plugin": {"nvidia.com/gpu": "4"}}]
    lines, _ = jobs_of(tmp_path, objects_of({"nodes": {"a": node}, "pods": pods}))
    assert [(line["gpus"], line["product"]) for line in lines] == [(4, product)]
    assert replayed(tmp_path, "--nodes", "1xa100-pcie-8-bridged,1xhgx-h100-8")["started"] == 1
    assert replayed(tmp_path, "--nodes", "1xa100-pcie-8-bridged")["started"] == 0


AMD, INTEL = "amd.com/gpu.product-name", "gpu.intel.com/product"
MI300X = {AMD: "AMD_Instinct_MI300X_OAM"}
OTHERS: dict[str, tuple[Json, str, str, str]] = {  # labels, resource, what a node offers, why it is left out
    "AMD": (MI300X, "amd.com/gpu", "8", ""),
    "AMD, whole GPUs": (MI300X | {"amd.com/compute-memory-partition": "spx_nps1"}, "amd.com/gpu", "8", ""),
    "AMD, partitions": (MI300X | {"amd.com/compute-memory-partition": "dpx_nps2"}, "amd.com/gpu", "16", "shared or"),
    "AMD, no label": ({}, "amd.com/gpu", "8", "no label has the product"),
    "Intel": ({INTEL: "Max_1550"}, "gpu.intel.com/xe", "8", ""),
    "Intel, shared": ({INTEL: "Max_1550", "gpu.intel.com/device.count": "4"}, "gpu.intel.com/xe", "8", "shared or"),
    "Gaudi, which has no label": ({}, "habana.ai/gaudi", "8", "no label has the product"),
}


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside GPUs of NVIDIA"])
@pytest.mark.parametrize("name", OTHERS)
def test_pods_of_other_device_plugins_are_replayed_if_a_label_has_their_product(
    name: str, beside: bool, tmp_path: Path
) -> None:
    """Also from an anonymised file."""
    labels, resource, offered, why = OTHERS[name]
    nodes: Json = {"a": {"machine": "hgx-h100-8", "labels": labels, "plugin": {resource: offered}}}
    pods: list[Json] = [{"name": f"p{i}", "node": "a", "count": 1, "plugin": {resource: "2"}} for i in range(2)]
    if beside:
        nodes["b"] = {"machine": "hgx-h100-8", "labels": LABEL, "plugin": {"nvidia.com/gpu": "8"}}
        pods.append({"name": "q", "node": "b", "count": 1, "plugin": {"nvidia.com/gpu": "8"}})
    clear, path = snapshot_file(tmp_path, objects_of({"nodes": nodes, "pods": pods})), tmp_path / "anonymous.json"
    code, out, err = berth(["assess", str(clear), "--save", str(path), "--anonymise", "--output", "json"])
    assert code == 0, err
    expected = 2 * (not why) + beside
    assert json.loads(out)["replay"]["pods"] == expected
    lines, err = jobs_of(tmp_path, json.loads(path.read_text())["items"])
    assert len(lines) == expected
    assert ("2 pods are not in " in err) == bool(why)
    if not lines:
        return
    words = ["replay", str(tmp_path / "jobs.jsonl"), "--snapshot", str(path), "--emptied", "--output", "json"]
    code, out, err = berth(words)
    assert (code, why in err) == (0, True), err
    found = json.loads(out)["outcomes"][0]
    assert (found["started"], found["joined"]) == (
        expected,
        None if resource.startswith("gpu.intel") and not beside and not why else 1.0,
    )
    assert sum(len(pod["devices"]) for job in found["started_jobs"].values() for pod in job["pods"]) == (
        4 * (not why) + 8 * beside
    )


@pytest.mark.parametrize("labels", [LABEL, GKE], ids=["gpu-feature-discovery", "GKE"])
def test_the_recipe_of_the_docs_replays_pods_of_a_device_plugin(
    labels: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/replay.md prints it, for a cluster without any slice. Shared GPUs are left out, and told."""
    node = {"machine": "hgx-h100-8", "labels": labels, "plugin": {"nvidia.com/gpu": "8"}}
    shared = {**node, "labels": {"nvidia.com/gpu.product": "Tesla-T4-SHARED"}}
    pods = [
        {"name": "p", "node": "a", "plugin": {"nvidia.com/gpu": "8"}},
        {"name": "w", "plugin": {"nvidia.com/gpu": "2"}},
    ]
    snapshot_file(tmp_path, objects_of({"nodes": {"a": node, "b": node, "c": shared}, "pods": pods}), "cluster.json")
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()
    (block,) = (one for one in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "--jobs jobs.jsonl" in one)
    for line in block.splitlines():
        code, out, err = berth(shlex.split(line.replace("--kubeconfig ~/.kube/config", "cluster.json"))[1:])
        assert code == 0, err
    assert re.search(r"jobs that started +2 of 2", out)
    assert re.search(r"pods whose GPUs links join +100.0%", out)
    assert "left out, because they are shared or parts: 1" in err
    code, _, err = berth(["replay", "jobs.jsonl", "--snapshot", "cluster.json"])
    assert code == 2
    assert "--emptied adds the GPUs of device plugins" in err


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.replicas": "8", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
        {"nvidia.com/gpu.sharing-strategy": "mps"},
        {"nvidia.com/gpu.replicas": "8"},
        {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED"},
        {"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"},
        {"cloud.google.com/gke-gpu-sharing-strategy": "mps"},
        {"cloud.google.com/gke-max-shared-clients-per-gpu": "4"},
        {"cloud.google.com/gke-gpu-partition-size": "1g.10gb"},
    ],
)
def test_gpus_that_a_device_plugin_shares_are_no_whole_gpus(labels: dict[str, str], tmp_path: Path) -> None:
    """Nor are those that a waiting pod asks for, if the cluster has no others. All are left out and counted."""
    shared = {"machine": "hgx-h100-8", "labels": LABEL | labels, "plugin": {"nvidia.com/gpu": "16"}}
    pods = [
        {"name": "p", "node": "a", "plugin": {"nvidia.com/gpu": "1"}},
        {"name": "w", "plugin": {"nvidia.com/gpu": "40"}},
        {"name": "v", "plugin": {"nvidia.com/gpu": "1"}},
    ]
    objects = objects_of({"nodes": {"a": shared}, "pods": pods})
    lines, err = jobs_of(tmp_path, objects)
    assert lines == []
    assert err.startswith(f"berth: 3 pods are not in {tmp_path / 'jobs.jsonl'}: ")
    found = assessed(tmp_path / "snapshot.json")
    assert found["fleet"]["products"] == []
    assert "1 node offers nvidia.com/gpu of shared GPUs or parts, which are not counted." in found["unknown"]
    whole = {"machine": "hgx-h100-8", "labels": LABEL, "plugin": {"nvidia.com/gpu": "8"}}
    objects += objects_of(
        {"nodes": {"b": whole}, "pods": [{"name": "q", "node": "b", "plugin": {"nvidia.com/gpu": "8"}}]}
    )
    lines, err = jobs_of(tmp_path, objects)
    assert {line["name"] for line in lines} == {"default-q-1", "default-v-2"}
    code, out, err = berth(
        ["replay", str(tmp_path / "jobs.jsonl"), "--snapshot", str(tmp_path / "snapshot.json"), "--emptied"]
    )
    assert code == 0, err
    assert "left out, because they are shared or parts: 1" in err
    assert "Berth: default-v-2 (line 2) never started: matching devices are in use for request gpu" in out
    assert "2 jobs have no duration: what they get is never free again" in out


def test_a_pod_that_shares_its_claim_is_no_job_and_is_told(tmp_path: Path) -> None:
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": [{"name": "p", "node": "a", "gpus": [0]}]})
    other = {"resource": "pods", "name": "q", "uid": "uid-q"}
    of_kind(objects, "ResourceClaim")["p"]["status"]["reservedFor"].append(other)
    lines, err = jobs_of(tmp_path, objects)
    assert lines == []
    assert err.startswith(f"berth: 1 pod is not in {tmp_path / 'jobs.jsonl'}: shared or unknown claims")


def test_a_pod_that_a_replay_would_refuse_is_no_job_and_is_told(tmp_path: Path) -> None:
    """A pod waits for a class that does not exist. berth replay refused the whole file because of its line."""
    pods = [{"name": "p", "node": "a", "gpus": [0]}, *({"name": f"w{i}", "count": 1} for i in range(2))]
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": pods})
    for name in ("w0", "w1"):
        (request,) = of_kind(objects, "ResourceClaim")[name]["spec"]["devices"]["requests"]
        request["exactly"]["deviceClassName"] = "gpu.nope.com"
    lines, err = jobs_of(tmp_path, objects)
    assert [line["name"] for line in lines] == ["default-p-1"]
    why = "a replay would refuse the file: claim, request 'gpu': the fleet has no DeviceClass 'gpu.nope.com'"
    assert f"berth: 2 pods are not in {tmp_path / 'jobs.jsonl'}: {why}\n" in err
    assert replayed(tmp_path, "--snapshot", str(tmp_path / "snapshot.json"), "--emptied")["started"] == 1


def test_waiting_pods_of_a_group_with_too_few_pods_are_no_job_and_are_told(tmp_path: Path) -> None:
    """The cluster waits for the other pods of the group; the replay started those that exist. What runs, runs."""
    pods: list[Json] = [{"name": name, "count": 1} for name in ("alone", "few", "part-0", "all-0")]
    pods += [{"name": "part-1", "node": "a", "gpus": [0]}, {"name": "all-1", "node": "a", "gpus": [1]}]
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": pods})
    of = of_kind(objects, "Pod")
    for name, minimum in (("few", 3), ("part-0", 3), ("part-1", 3), ("all-0", 2), ("all-1", 2)):
        group = {"berth.dev/group": name.partition("-")[0], "berth.dev/group-min": str(minimum)}
        of[name]["metadata"]["annotations"] |= group
    lines, err = jobs_of(tmp_path, objects)
    assert {
        line["name"].rpartition("-")[0]: sum(one["pods"] for one in (line, *line.get("parts", ()))) for line in lines
    } == {
        "default-alone": 1,
        "default-all-0": 2,
        "default-part-1": 1,
    }
    why = "its group has fewer pods than its minimum, and waits for the others (such as default/few: 1 of 3)"
    assert err == f"berth: 2 pods are not in {tmp_path / 'jobs.jsonl'}: {why}\n"


def test_a_replay_keeps_pods_from_nodes_that_their_spec_forbids(tmp_path: Path) -> None:
    """Two of three nodes are for teams: the pods of a team select its node, other pods do not tolerate its taint."""
    nodes = {name: {"machine": "dgx1-v100", "labels": {"team": name}} for name in ("a", "b", "c")}
    pods = [{"name": f"a{i}", "node": "a", "gpus": [i]} for i in range(8)]
    pods += [{"name": f"c{i}", "node": "c", "gpus": [i]} for i in range(8)]
    objects = objects_of({"nodes": nodes, "pods": pods})
    of = of_kind(objects, "Node")
    of["b"]["spec"] = {"taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}
    of["c"]["spec"] = {"unschedulable": True}  # its pods run on
    for name, pod in of_kind(objects, "Pod").items():
        pod["spec"]["nodeSelector"] = {"team": name[0]}
    path = snapshot_file(tmp_path, objects)
    assert [row["started"] for row in assessed(path, replays=True)["replay"]["rows"]] == [16, 16, 16, 16]
    jobs_of(tmp_path, objects)
    jobs = replayed(tmp_path, "--snapshot", str(path), "--emptied")["started_jobs"]
    assert all(job["pods"][0]["node"] == name.removeprefix("default-")[0] for name, job in jobs.items())
