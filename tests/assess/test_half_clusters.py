"""berth assess: what it says of half a cluster, and of unusable input, and what it does not state of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.assess import pod as pod_objects
from extender.api.pod_groups import LWS_NAME, GroupSource
from extender.assess import assess, reading_of, unread_of
from extender.cli import cluster_objects
from extender.cli.cluster_objects import list_kind
from extender.cluster import ApiClient, Forbidden, WatchedResource
from extender.policy import Policy
from extender.sandbox import write_kubeconfig
from tests.worlds.assessed_clusters import CASES, GPU_CLASS, RESULT, assessed, changed, objects_of, snapshot_file
from tests.worlds.commands import berth, berth_beside
from tests.worlds.dra_worlds import use_memory
from tests.worlds.running_berth import berthing

pytestmark = pytest.mark.usefixtures("replays_in_turn")

Json = dict[str, Any]
PLUGIN_NODE = {"machine": "hgx-h100-8", "plugin": {"nvidia.com/gpu": "8"}}
NOT_JOINED = next(case for case in CASES if case["name"].startswith("four GPUs of a DGX-1V that no ring"))


@pytest.mark.parametrize(
    ("kind", "lacks", "says", "says_not"),
    [
        (
            "Node",
            "their labels",
            [
                "Which GPUs are free, and how gangs spread, is not known: no Nodes were read. 3 nodes, 24 GPUs.",
                "not explained, no Nodes were read",
            ],
            ["Gangs that spread", "15 free", "fits on"],
        ),
        (
            "ResourceSlice",
            "no GPU of a DRA driver is known",
            ["without those of DRA drivers", "not explained, no ResourceSlices were read"],
            ["fits nowhere"],
        ),
        (
            "DeviceClass",
            "why pods with claims wait",
            ["24 GPUs: 15 free", "not explained, no DeviceClasses were read"],
            ["does not exist", "Worse"],
        ),
        ("Pod", "gangs, waiting pods", ["24 GPUs: 15 free"], ["topology.kubernetes.io/rack"]),
    ],
)
def test_what_follows_from_a_kind_that_lacks_is_not_stated(
    kind: str, lacks: str, says: list[str], says_not: list[str], tmp_path: Path
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
    assert [line for line in assessed(path)["lacking"] if line.startswith(f"there is no {kind}: {lacks}")]


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
    why = "and no Pod that shows" if "Pod" in kinds else "but 1 running pod names claims: which pods have which GPUs"
    assert found["lacking"][0].startswith(f"there is no ResourceClaim, {why}")
    assert {found["fleet"]["products"][0][name] for name in ("free", "allocated", "stranded", "largest_set")} == {None}
    assert (found["fleet"]["sets"], found["fleet"]["domains"]) == ([], [])
    assert [one["reason"] for one in found["waiting"]] == (
        [] if "Pod" in kinds else ["not explained, which devices are free is not known"]
    )


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
    found = assessed(snapshot_file(tmp_path, objects_of(case)), replays=True)
    assert [(row["placement"], row["started"], row["joined"]) for row in found["replay"]["rows"]] == [
        ("today", 2, None),
        ("Berth", 2, 1.0),
        ("first fit", 2, 1.0),
        ("emptiest node", 2, 1.0),
    ]
    assert "The GPUs of the device plugin are replayed on the usual boards of their products." in found["unknown"]
    case["pods"].append({"name": "claims", "node": "b", "gpus": [0]})
    case["nodes"]["b"] = "t4-4"
    assert assessed(snapshot_file(tmp_path, objects_of(case)), replays=True)["replay"]["jobs"] == 1


def test_gangs_of_a_device_plugin_of_gke_keep_their_product(tmp_path: Path) -> None:
    """Its L4s are in one rack, and free. The gang's H100s are in two."""
    products = {"a": "nvidia-h100-mega-80gb", "b": "nvidia-h100-mega-80gb", "c": "nvidia-l4", "d": "nvidia-l4"}
    racks = {"a": "1", "b": "2", "c": "3", "d": "3"}
    nodes = {
        name: {
            "machine": "hgx-h100-8",
            "labels": {"cloud.google.com/gke-accelerator": product, "topology.kubernetes.io/rack": racks[name]},
            "plugin": {"nvidia.com/gpu": "8"},
        }
        for name, product in products.items()
    }
    pods = [{"name": f"p-{node}", "node": node, "plugin": {"nvidia.com/gpu": "8"}, "group": "g"} for node in "ab"]
    path = snapshot_file(tmp_path, objects_of({"nodes": nodes, "pods": pods}))
    rows = assessed(path, replays=True)["replay"]["rows"]
    assert {row["placement"]: (row["joined"], row["domains"]) for row in rows if row["placement"] != "today"} == {
        "Berth": (1.0, 2.0),
        "first fit": (1.0, 2.0),
        "emptiest node": (1.0, 2.0),
    }


def two_nodes() -> list[Json]:
    """Two pods on a, one on b, each with two GPUs that a switch joins."""
    nodes = {"a": "hgx-h100-8", "b": "hgx-h100-8"}
    pods = [{"name": f"p{i}", "node": node, "gpus": [2 * i, 2 * i + 1]} for i, node in enumerate("aab")]
    return objects_of({"nodes": nodes, "pods": pods})


def without_claim(objects: list[Json]) -> None:
    objects[:] = [one for one in objects if (one["kind"], one["metadata"]["name"]) != ("ResourceClaim", "p0")]


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


@pytest.mark.parametrize(
    ("lacks", "unknown", "words"),
    LACKING,
    ids=["no claim", "a result", "an allocation", "a slice", "a device", "an amount", "another node"],
)
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
    # berth defrag: without the claims no device is free for certain; without a slice only those of other nodes count.
    code, out, err = berth(["defrag", "--gpus", "6", "--snapshot", str(path)])
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


@pytest.mark.parametrize(("refused", "fits"), [({}, True), ({"LeaderWorkerSet": "403 Forbidden"}, None)])
def test_the_object_of_a_group_that_may_not_be_listed_may_exist(refused: dict[str, str], fits: bool | None) -> None:
    names = {f"leaderworkerset.sigs.k8s.io/{name}": name for name in ("name", "group-key")}
    size = {"leaderworkerset.sigs.k8s.io/size": "3"}
    pods = [{"name": "w", "count": 1, "labels": names, "annotations": size}]
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": pods})
    reading = reading_of(objects, refused, "the cluster", is_live=True)
    (found,) = assess(reading, Policy(), replays=False).waiting
    assert found.fits is fits, found.reason


def test_overlapping_files_count_once(tmp_path: Path) -> None:
    node = {"machine": "hgx-h100-8", "plugin": {"nvidia.com/gpu": "8"}}
    pods = [{"name": "p", "node": "a", "count": 4, "plugin": {"nvidia.com/gpu": "2"}}]
    objects = objects_of({"nodes": {"a": node}, "pods": pods})
    paths = [snapshot_file(tmp_path, objects, name) for name in ("one.json", "two.json")]
    found = assessed(paths[0], str(paths[1]))
    (row,) = found["fleet"]["products"]
    assert (row["free"], row["allocated"], found["unreadable"]) == (6, 2, [])
    changed(objects, "Pod", "p", "metadata.labels", {"newer": "yes"})
    snapshot_file(tmp_path, objects, "two.json")
    _, out, _ = berth(["assess", *map(str, paths), "--no-replay"])
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
    found = assessed(snapshot_file(tmp_path, objects), replays=True)
    assert found["replay"]["problem"].startswith("Pod p: cpu: 'odd' is not a quantity")
    assert len(found["sets"]) == 1


def test_an_amount_that_cannot_be_read_is_told_with_its_file_and_its_pod(tmp_path: Path) -> None:
    """Its pod is not in the file of jobs, the others are. Pods without devices need CPU, too."""
    other: Json = {"name": "cpu", "node": "a", "plugin": {}}
    objects = objects_of({**NOT_JOINED, "pods": [*NOT_JOINED["pods"], {"name": "q", "count": 1}, other]})
    for name in ("q", "cpu"):
        changed(objects, "Pod", name, "spec.containers.0.resources.requests.cpu", "odd")
    path, jobs = snapshot_file(tmp_path, objects), tmp_path / "jobs.jsonl"
    code, out, err = berth(["assess", str(path), "--no-replay", "--all", "--jobs", str(jobs)])
    assert code == 0, err
    for name in ("q", "cpu"):
        assert re.search(rf"snapshot.json, object [0-9]+, Pod {name}: cpu: 'odd' is not a quantity", out)
    assert "jobs.jsonl: a replay would refuse the file: Pod q: cpu: 'odd' is not a quantity" in err
    assert len(jobs.read_text().splitlines()) == len(NOT_JOINED["pods"])


def test_a_claim_that_cannot_be_read_is_named_and_the_others_are_replayed(tmp_path: Path) -> None:
    objects = two_nodes()
    changed(objects, "ResourceClaim", "p0", "spec.devices.requests.0.exactly.count", "two")
    found = assessed(snapshot_file(tmp_path, objects), replays=True)
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
    (note,) = assessed(good, str(bad))["unreadable"]
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


SIX = {"nodes", "pods", "resourceslices", "resourceclaims", "deviceclasses", "devicetaintrules"}


@pytest.mark.parametrize("group", [None, {"schedulingGroup": {"podGroupName": "g"}}], ids=["no group", "a PodGroup"])
async def test_with_the_six_rights_only_what_matters_is_not_known(
    group: Json | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(client: ApiClient, kind: WatchedResource) -> list[Json]:
        if kind.name not in SIX:
            raise Forbidden(f"list {kind.name}: 403 Forbidden")
        return await list_kind(client, kind)

    async def refused(*_: object) -> Json:
        raise Forbidden("get configmaps: 403 Forbidden")

    monkeypatch.setattr(cluster_objects, "list_kind", listed)
    monkeypatch.setattr(cluster_objects, "_got", refused)
    async with berthing({"n1": "dgx1-v100"}) as b:
        pod, claim = pod_objects("w", 1, "", ())
        b.cluster.store.put("resourceclaims", ("default", "w"), claim)
        labels = {LWS_NAME: "lws", GroupSource.LEADER_WORKER_SET.value: "lws-0"}
        worker = {"metadata": {**pod["metadata"], "name": "r", "uid": "r", "labels": labels}, "status": {}}
        b.cluster.store.put("pods", ("default", "r"), {**pod, **worker, "spec": {**pod["spec"], "nodeName": "n1"}})
        b.cluster.store.put("pods", ("default", "w"), {**pod, "spec": {**pod["spec"], **(group or {})}})
        await b.settled()
        write_kubeconfig(tmp_path, b.api)
        words = ["assess", "--kubeconfig", str(tmp_path / "kubeconfig"), "--output", "json"]
        code, out, err = await berth_beside(words)
    assert code == 0, err
    found = json.loads(out)
    assert [line.partition(" could")[0] for line in found["lacking"]] == (["PodGroups"] if group else [])
    assert found["unknown"][-1].startswith("ConfigMap berth-system/berth-policy: get configmaps: 403 Forbidden: ")


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
        words = ["assess", "--kubeconfig", str(tmp_path / "kubeconfig")]
        saves = f"--context berth-sandbox --save {tmp_path / 'saved.json'} --anonymise".split()
        code, out, err = await berth_beside([*words, *saves])
        assert code == 0, err
        assert "1 node, 8 GPUs: 8 free" in out
        assert "This is the cluster of context berth-sandbox." in out
        code, _, err = await berth_beside([*words, "--context", "other"])
        assert (code, "other" in err) == (2, True)
    assert assessed(tmp_path / "saved.json")["nodes"] == 1
    assert '"n1"' not in (tmp_path / "saved.json").read_text()


def test_pods_that_files_lack_are_named_by_the_claims_that_are_reserved_for_them(tmp_path: Path) -> None:
    """Every second pod was missing in a snapshot, and only the replay had fewer pods."""
    pods = [{"name": name, "node": "a", "gpus": [number]} for number, name in enumerate("pqrst")]
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": pods})
    assert not [one for one in assessed(snapshot_file(tmp_path, objects))["lacking"] if "pod" in one]
    left = [one for one in objects if one["kind"] != "Pod" or one["metadata"]["name"] == "p"]
    found = assessed(snapshot_file(tmp_path, left))
    names = "default/q; default/r; default/s; and 1 more"
    what = "4 pods have claims and were not read: here, gangs, the replay and --jobs lack them"
    assert f"{what} ({names})" in found["lacking"]


TIMES = {  # creation and start of the first of two pods, and what is told of them
    "no time": ("yesterday", None, "metadata.creationTimestamp is no time: 'yesterday'"),
    "future": ("9000-01-01T00:00:00Z", None, "metadata.creationTimestamp is in the future: 9000-01-01T00:00:00Z"),
    "reversed": ("2026-01-01T00:00:00Z", "2019-01-01T00:00:00Z", "status.startTime is before the creation: 2019"),
}


@pytest.mark.parametrize("name", TIMES)
def test_times_of_pods_that_cannot_be_right_are_told(name: str, tmp_path: Path) -> None:
    created, started, told = TIMES[name]
    pods = [{"name": pod, "node": "a", "gpus": [number]} for number, pod in enumerate("pqr")]
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": pods})
    for pod in (one for one in objects if one["kind"] == "Pod"):
        is_right = pod["metadata"]["name"] == "r"
        pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z" if is_right else created
        pod["status"]["startTime"] = "2026-01-01T00:00:00Z" if is_right else started
    (line,) = [one for one in assessed(snapshot_file(tmp_path, objects))["lacking"] if "cannot be right" in one]
    assert line.startswith(f"the times of pod default/p cannot be right: {told}")
    assert "those of 1 other pod cannot" in line


def test_a_saved_file_has_no_environments_and_gives_the_same_assessment(tmp_path: Path) -> None:
    """As `berth snapshot` does, also of files: lists of kubectl have environments, and may have Secrets."""
    pods = [{"name": "p", "node": "a", "gpus": [0, 1]}, {"name": "w", "count": 6}]
    objects = objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": pods})
    for pod in (one for one in objects if one["kind"] == "Pod"):
        pod["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": "hunter2"}]
        pod["metadata"]["annotations"] = {"last-applied": "hunter2"}
        pod["spec"] |= {"overhead": {"cpu": "40"}, "resources": {"requests": {"cpu": "70"}}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": "hunter2"}}
    saved = tmp_path / "saved.json"
    found = assessed(snapshot_file(tmp_path, [*objects, secret]), "--save", str(saved))
    assert "hunter2" not in saved.read_text()
    assert assessed(saved) == found
    assert "it requests 110 CPUs" in found["waiting"][0]["reason"]
