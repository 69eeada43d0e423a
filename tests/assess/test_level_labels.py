"""berth assess with the labels of clouds: gangs are measured by them though the default policy does not name them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.assessed_clusters import assessed, objects_of, snapshot_file
from tests.worlds.commands import berth

pytestmark = pytest.mark.usefixtures("replays_in_turn")

Json = dict[str, Any]
SUBBLOCK, BLOCK = "cloud.google.com/gce-topology-subblock", "cloud.google.com/gce-topology-block"
CLIQUE, RACK = "nvidia.com/gpu.clique", "topology.kubernetes.io/rack"
GKE_LINE = f"group_levels: [{SUBBLOCK}, {BLOCK}]"


def cluster(**labels: Json) -> list[Json]:
    """Nodes with these labels, and a gang on the first two of them."""
    nodes = {name: {"machine": "hgx-h100-8", "labels": own} for name, own in labels.items()}
    gang = [{"name": f"g{i}", "node": node, "gpus": list(range(8)), "group": "g"} for i, node in enumerate("ab")]
    return objects_of({"nodes": nodes, "pods": gang})


def spread_over(near: str, far: str) -> list[Json]:
    """A gang on two domains of the nearer level, of which the second has room for all of it."""
    places = {"a": ("x1", "y1"), "b": ("x2", "y1"), "c": ("x2", "y1")}
    return cluster(**{name: {near: x, far: y} for name, (x, y) in places.items()})


def test_on_gke_berth_places_a_gang_better_and_the_first_screen_has_the_line_for_the_policy(tmp_path: Path) -> None:
    path, page, policy = snapshot_file(tmp_path, spread_over(SUBBLOCK, BLOCK)), tmp_path / "p.html", tmp_path / "p.yaml"
    code, out, err = berth(["assess", str(path), "--html", str(page)])
    assert code == 0, err
    assert out.startswith("Berth would place the running pods better: ")
    assert "1.0 domains for a gang (today 2.0, first fit 2.0)" in out
    assert "Gangs that spread over more domains than they need: 1 of 1." in out
    assert "labels of GKE" in out
    assert f"\n{GKE_LINE}\n" in out
    assert GKE_LINE in page.read_text()
    policy.write_text(GKE_LINE)
    _, with_policy, _ = berth(["assess", str(path), "--policy", str(policy)])
    assert "labels of GKE" not in with_policy
    assert with_policy.splitlines()[0] == out.splitlines()[0]


@pytest.mark.parametrize(
    ("near", "far"),
    [
        ("topology.k8s.aws/network-node-layer-3", "topology.k8s.aws/network-node-layer-1"),
        ("topology.k8s.aws/network-node-layer-4", "topology.k8s.aws/network-node-layer-3"),
        ("oci.oraclecloud.com/rdma.local_block_id", "oci.oraclecloud.com/rdma.hpc_island_id"),
        ("backend.coreweave.cloud/leafgroup", "backend.coreweave.cloud/fabric"),
        ("topology.nebius.com/tier-1", "topology.nebius.com/gpu-cluster-id"),
        ("fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1"),
        ("accelerator.topograph.run/domain", "fabric.topograph.run/tier-0"),
        ("network.topology.nvidia.com/accelerator", "network.topology.nvidia.com/leaf"),
        ("network.topology.nvidia.com/block", "network.topology.nvidia.com/spine"),
    ],
)
def test_the_nearest_label_of_a_cloud_comes_first(near: str, far: str, tmp_path: Path) -> None:
    found = assessed(snapshot_file(tmp_path, spread_over(near, far)))
    assert found["found_levels"]["levels"] == [near, far]
    assert [(row["level"], row["domains"], row["fewest"]) for row in found["gangs"]] == [(near, 2, 1)]


def test_the_labels_of_a_cloud_say_how_near_cliques_are(tmp_path: Path) -> None:
    objects = spread_over(SUBBLOCK, BLOCK)
    for obj in objects:
        if obj["kind"] == "Node":
            obj["metadata"]["labels"][CLIQUE] = f"{obj['metadata']['name']}.1"
    found = assessed(snapshot_file(tmp_path, objects))
    assert found["found_levels"] == {"setter": "GKE", "levels": [CLIQUE, SUBBLOCK, BLOCK]}


def test_racks_that_the_policy_names_are_the_levels(tmp_path: Path) -> None:
    objects = spread_over(RACK, BLOCK)
    found = assessed(snapshot_file(tmp_path, objects))
    assert found["found_levels"] is None
    assert [row["level"] for row in found["gangs"]] == [RACK]


@pytest.mark.parametrize("labels", [{}, {SUBBLOCK: ""}], ids=["no label", "a label without a value"])
def test_without_labels_it_is_not_known_whether_gangs_could_be_nearer(labels: Json, tmp_path: Path) -> None:
    path = snapshot_file(tmp_path, cluster(a=labels, b=labels, c=labels))
    code, out, err = berth(["assess", str(path)])
    assert code == 0, err
    assert out.startswith("It is not known whether Berth would place the running pods better.")
    assert "Not compared: how near the nodes of 1 gang are, which no label says." in out
    assert "Label nodes with their racks, and name the labels in group_levels of the policy." in out


def test_an_anonymous_snapshot_keeps_the_labels_of_clouds(tmp_path: Path) -> None:
    path, saved = snapshot_file(tmp_path, spread_over(SUBBLOCK, BLOCK)), tmp_path / "saved.json"
    code, out, err = berth(["assess", str(path), "--save", str(saved), "--anonymise"])
    assert (code, err) == (0, "")
    labels = [one["metadata"]["labels"] for one in json.loads(saved.read_text())["items"] if one["kind"] == "Node"]
    assert [one[SUBBLOCK] for one in labels] == [f"gce-topology-subblock-{i}" for i in (1, 2, 2)]
    _, again, _ = berth(["assess", str(saved)])
    assert again.splitlines()[0] == out.splitlines()[0]
    assert GKE_LINE in again
