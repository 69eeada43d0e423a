"""berth assess: over how many domains each running gang is, how few would hold its pods, and who names gangs."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from extender.assess.gang_spread import Sizes, fewest_domains
from tests.worlds.assessed_clusters import assessed, objects_of, snapshot_file
from tests.worlds.commands import berth

pytestmark = pytest.mark.usefixtures("replays_in_turn")

Json = dict[str, Any]
RACK = "topology.kubernetes.io/rack"


def racks(nodes: str, *, machine: str = "hgx-h100-8") -> dict[str, Json]:
    """Nodes `r1a r1b r2a`: the first two characters are the rack."""
    return {name: {"machine": machine, "labels": {RACK: name[:2]}} for name in nodes.split()}


def gang(gpus: int, nodes: str, **described: Any) -> list[Json]:
    """A pod with so many GPUs on each of the nodes."""
    named = enumerate(nodes.split())
    return [{"name": f"g{i}", "node": node, "gpus": list(range(gpus)), **described} for i, node in named]


def fewest(pods: Sizes, domains: list[Sizes]) -> int:
    return fewest_domains(pods, Counter(frozenset(one.items()) for one in domains))


@pytest.mark.parametrize(("gpus", "few"), [(5, 2), (4, 1)], ids=["whole pods only", "as many as fit"])
def test_a_node_holds_as_many_pods_as_fit(gpus: int, few: int, tmp_path: Path) -> None:
    """Five GPUs are too many for two pods of a node of eight, though one rack has 16 GPUs for the 15 of three pods."""
    pods = gang(gpus, "r1a r1b r2a", group="g")
    path = snapshot_file(tmp_path, objects_of({"nodes": racks("r1a r1b r2a r2b"), "pods": pods}))
    assert [(row["domains"], row["fewest"]) for row in assessed(path)["gangs"]] == [(2, few)]
    assert f"more domains than they need: {2 - few} of 1." in berth(["assess", str(path), "--no-replay"])[1]


def test_pods_of_equal_size_need_no_more_domains_than_the_best_choice() -> None:
    random = Random(7)
    for _ in range(300):
        size, pods = random.randint(1, 8), random.randint(2, 12)
        domains = [Counter({("h", random.randint(1, 8)): random.randint(1, 3)}) for _ in range(random.randint(1, 5))]
        rooms = [sum(gpus // size * nodes for (_, gpus), nodes in one.items()) for one in domains]
        enough = [n for n in range(1, len(rooms) + 1) for some in combinations(rooms, n) if sum(some) >= pods]
        assert fewest(Counter({("h", size): pods}), domains) == min(enough, default=len([r for r in rooms if r]))


def test_pods_of_two_sizes_and_products() -> None:
    domains = [Counter({("h", 8): 1, ("t", 4): 2}), Counter({("h", 8): 2})]
    assert fewest(Counter({("h", 8): 1, ("t", 1): 5}), domains) == 1
    assert fewest(Counter({("h", 5): 2, ("h", 3): 2}), domains) == 1
    assert fewest(Counter({("h", 5): 3}), domains) == 2


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("pod-group-name", "annotations"),
        ("scheduling.k8s.io/group-name", "annotations"),
        ("gang.scheduling.koordinator.sh/name", "labels"),
    ],
)
def test_gangs_of_other_schedulers_are_gangs(key: str, kind: str, tmp_path: Path) -> None:
    pods = gang(8, "r1a r2a", **{kind: {key: "train"}})
    path, jobs = snapshot_file(tmp_path, objects_of({"nodes": racks("r1a r2a r2b"), "pods": pods})), tmp_path / "jobs"
    found = assessed(path, "--jobs", str(jobs), replays=True)
    assert [(row["gang"], row["source"], row["domains"], row["fewest"]) for row in found["gangs"]] == [
        ("default/train", key, 2, 1)
    ]
    assert [row["domains"] for row in found["replay"]["rows"][:2]] == [2.0, 1.0]
    assert found["verdict"]["helps"] is True
    assert [json.loads(line)["pods"] for line in jobs.read_text().splitlines()] == [2]
    (told,) = (line for line in found["unknown"] if key in line)
    assert told.startswith("1 gang is named by ")


def test_a_name_that_volcano_makes_for_one_pod_is_no_gang(tmp_path: Path) -> None:
    notes = {"scheduling.k8s.io/group-name": "podgroup-1"}
    pods = gang(1, "r1a r2a", annotations=notes)
    assert assessed(snapshot_file(tmp_path, objects_of({"nodes": racks("r1a r2a"), "pods": pods})))["gangs"] == []
