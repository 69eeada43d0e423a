"""berth assess: what it says of clusters that Berth did not schedule, in each form, and of unusable input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.sandbox import write_kubeconfig
from tests.worlds.assessed_clusters import GPU_CLASS, objects_of, snapshot_file
from tests.worlds.commands import berth, berth_beside
from tests.worlds.running_berth import berthing

Json = dict[str, Any]
CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "assess.yaml").read_text())
SHARED_BOX = next(case for case in CASES if case["name"].startswith("four GPUs of a DGX-1V that no ring"))


def assessed(path: Path, *words: str) -> Json:
    code, out, err = berth(["assess", str(path), "--no-replay", "--output", "json", *words])
    assert code == 0, err
    found: Json = json.loads(out)
    return found


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
    if "share" in case:
        assert found["bandwidth"]["share"] == case["share"]
    code, out, _ = berth(["assess", str(path), "--no-replay"])
    words = " ".join(line.strip() for line in out.splitlines())
    assert code == 0
    assert [text for text in case.get("says", ()) if text not in out and text not in words] == []


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


def test_the_same_pods_once_more_are_better_with_berth(tmp_path: Path) -> None:
    """First fit gives the second pod of each board four GPUs without a ring, after a pod that has three."""
    pods = [{"name": f"a{i}", "node": f"n{i}", "gpus": [0]} for i in range(3)]
    pods += [{"name": f"b{i}", "node": f"n{i}", "gpus": [1, 2, 3, 4]} for i in range(3)]
    path = snapshot_file(tmp_path, objects_of({"nodes": {f"n{i}": "dgx1-v100" for i in range(3)}, "pods": pods}))
    code, out, err = berth(["assess", str(path), "--output", "json"])
    assert code == 0, err
    rows = {row["placement"]: row for row in json.loads(out)["replay"]["rows"]}
    assert rows["today"]["joined"] == 0.0
    assert rows["Berth"]["joined"] == 1.0
    assert rows["Berth"]["gbps"] > rows["first fit"]["gbps"]
    assert {row["started"] for row in rows.values()} == {6}


@pytest.mark.parametrize(
    ("case", "least", "code"),
    [
        (SHARED_BOX, 0.1, 0),
        (SHARED_BOX, 0.2, 1),
        (next(case for case in CASES if case["name"] == "bridged cards without the agent"), 0.0, 1),
        (next(case for case in CASES if case["name"].startswith("a small pod")), 1.0, 0),
    ],
    ids=["above", "below", "not known", "no such pods"],
)
def test_the_exit_code_is_for_ci(case: Json, least: float, code: int, tmp_path: Path) -> None:
    path = snapshot_file(tmp_path, objects_of(case))
    found, _, err = berth(["assess", str(path), "--no-replay", "--fail-below", str(least)])
    assert found == code
    assert ("--fail-below" in err) == bool(code)


def test_the_page_is_one_file_with_pictures_and_without_markup_of_users(tmp_path: Path) -> None:
    objects = objects_of(SHARED_BOX)
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
        ("DeviceClass", "there is no DeviceClass: why pods wait cannot be told"),
    ],
)
def test_half_a_snapshot_says_what_lacks(kind: str, words: str, tmp_path: Path) -> None:
    objects = [obj for obj in objects_of(SHARED_BOX) if obj["kind"] != kind]
    found = assessed(snapshot_file(tmp_path, objects))
    assert any(line.startswith(words) for line in found["lacking"])
    assert len(found["sets"]) == (0 if kind == "ResourceSlice" else 1)


def test_one_object_that_cannot_be_read_is_told_and_the_others_count(tmp_path: Path) -> None:
    objects = objects_of(SHARED_BOX)
    objects.insert(1, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "odd"}, "spec": {"taints": 7}})
    found = assessed(snapshot_file(tmp_path, objects))
    assert ["object 2, Node odd" in line for line in found["unreadable"]] == [True]
    assert len(found["sets"]) == 1


OLD = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not"),
        ("", "is empty"),
        (json.dumps(GPU_CLASS), "has no Node and no ResourceSlice"),
        (json.dumps(OLD), "object 1: ResourceSlice has version 'v1beta1', Berth reads v1"),
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


async def test_a_cluster_is_read_and_saved(tmp_path: Path) -> None:
    async with berthing({"n1": "dgx1-v100"}) as b:
        await b.settled()
        write_kubeconfig(tmp_path, b.api)
        words = ["assess", "--kubeconfig", str(tmp_path / "kubeconfig"), "--save", str(tmp_path / "saved.json")]
        code, out, err = await berth_beside(words)
        assert code == 0, err
        assert "1 node, 8 GPUs: 8 free" in out
    assert assessed(tmp_path / "saved.json")["nodes"] == 1
