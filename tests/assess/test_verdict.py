"""The first lines of berth assess: would Berth place the pods better, what shows it, and which waiting pods fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from extender.assess import replayed_pods
from extender.assess.assessment import verdict_of
from extender.assess.pod_sets import Bandwidth
from extender.assess.replayed_pods import Figures, Replayed
from tests.worlds.assessed_clusters import assessed, objects_of, snapshot_file
from tests.worlds.commands import berth

pytestmark = pytest.mark.usefixtures("replays_in_turn")

Json = dict[str, Any]
UNKNOWN = "It is not known whether Berth would place the running pods better"
BETTER = "Berth would place the running pods better: "
NO_BETTER = "Berth would not place the running pods better: "
BOARDS: Json = {
    "agent": True,
    "nodes": {f"n{i}": "dgx1-v100" for i in range(3)},
    "pods": [
        *({"name": f"a{i}", "node": f"n{i}", "gpus": [0]} for i in range(3)),
        *({"name": f"b{i}", "node": f"n{i}", "gpus": [1, 2, 3, 4]} for i in range(3)),
    ],
}
PLUGIN: Json = {
    "nodes": {
        "a": {
            "machine": "hgx-h100-8",
            "plugin": {"nvidia.com/gpu": "8"},
            "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        }
    },
    "pods": [{"name": "p", "node": "a", "plugin": {"nvidia.com/gpu": "2"}}],
}
BOARD: Json = PLUGIN["nodes"]["a"]
PLUGIN_GANG: Json = {  # the domain of each node is known, whichever GPUs the kubelet took
    "nodes": {
        name: {**BOARD, "labels": {**BOARD["labels"], "topology.kubernetes.io/rack": rack}}
        for name, rack in (("a", "r1"), ("b", "r2"), ("c", "r2"))
    },
    "pods": [{"name": f"g{n}", "node": n, "group": "g", "plugin": {"nvidia.com/gpu": "8"}} for n in "ab"],
}
HALF: Json = {
    "nodes": {"a": "a100-pcie-8-bridged", "h": "hgx-h100-8"},
    "pods": [{"name": "p", "node": "a", "gpus": [0, 2]}, {"name": "q", "node": "h", "gpus": [0, 2]}],
}
CASES: dict[str, tuple[Json, bool | None, list[str]]] = {
    "joined by Berth alone": (
        BOARDS, True,
        [f"{BETTER}joined GPUs for 3 of 3 pods with several (today 0 of 3, first fit ",
         " Replayed: 6 pods on 3 of 3 nodes."],
    ),
    "joined by first fit, too": (
        {**BOARDS, "pods": [{"name": "p", "node": "n0", "gpus": [3, 4, 5, 6]}]}, None,
        ["Berth may place the running pods better: joined GPUs for 1 of 1 pods with several (today 0 of 1, first fit 1",
         "First fit does as well there"],
    ),
    "a board with a switch": (
        {"nodes": {"a": "hgx-h100-8"}, "pods": [{"name": "p", "node": "a", "gpus": [0, 3]}]}, False,
        [f"{NO_BETTER}joined GPUs for 1 of 1 pods with several (today 1 of 1, first fit 1 of 1); "],
    ),
    "single GPUs": (
        {"nodes": {"a": "t4-4"}, "pods": [{"name": "p", "node": "a", "gpus": [0]}]}, False,
        [f"{NO_BETTER}none of them has several GPUs"],
    ),
    "no links known": (
        {"nodes": {"a": "dgx1-v100"}, "pods": [{"name": "p", "node": "a", "gpus": [3, 4, 5, 6]}]}, None,
        [f"{UNKNOWN}. Not compared: 1 pod with several GPUs, whose links no agent of Berth has read."],
    ),
    "some links known": (
        HALF, None,
        [f"{UNKNOWN}. It would not where that can be compared: joined GPUs for 1 of 1 pods",
         "Not compared: 1 pod with several GPUs, whose links no agent of Berth has read."],
    ),
    "pods of a device plugin beside pods with claims": (
        {"nodes": {**PLUGIN["nodes"], "t": "t4-4"},
         "pods": [*PLUGIN["pods"], {"name": "c", "node": "t", "gpus": [0]}]}, None,
        [f"{UNKNOWN}. Not compared: 1 pod with several GPUs of a device plugin."],
    ),
    "a device plugin": (
        PLUGIN, None,
        [f"{UNKNOWN}. Only the kubelet knows which GPUs they have today: with Berth, joined GPUs for 1 of 1 pods"],
    ),
    "gangs of a device plugin": (
        PLUGIN_GANG, True,
        [f"{BETTER}1.0 domains for a gang (today 2.0, first fit 2.0). Only the kubelet knows which GPUs"],
    ),
    "nothing runs": (
        {"nodes": {"a": "t4-4"}, "pods": [{"name": "w", "count": 1}]}, None,
        [f"{UNKNOWN}: the replay was not computed (no running pod has whole GPUs by known claims"],
    ),
    "waiting pods": (
        {"nodes": {"a": "t4-4", "b": "a100-pcie-8-bridged"},
         "pods": [{"name": "p", "node": "a", "gpus": [0]}, {"name": "fits", "count": 3}, {"name": "large", "count": 9},
                  {"name": "also", "count": 3},
                  {"name": "joined", "count": 2, "annotations": {"berth.dev/topology": "required"}}]}, False,
        ["Waiting pods that would fit now, each alone or with its gang: 2 of 4; of 1 it is not known."],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_first_lines_say_whether_berth_would_help(name: str, tmp_path: Path) -> None:
    described, helps, texts = CASES[name]
    path, page = snapshot_file(tmp_path, objects_of(described)), tmp_path / "page.html"
    found = assessed(path, "--html", str(page), replays=True)["verdict"]
    assert found["helps"] is helps
    assert [text for text in texts if text not in " ".join(found["sentences"])] == []
    assert found["sentences"][0] in page.read_text().replace("&#x27;", "'")


def test_the_screen_begins_with_the_verdict_and_says_that_no_replay_was_asked_for(tmp_path: Path) -> None:
    path = str(snapshot_file(tmp_path, objects_of(BOARDS)))
    assert berth(["assess", path])[1].startswith(BETTER)
    assert berth(["assess", path, "--no-replay"])[1].startswith(
        f"{UNKNOWN}: the replay was not computed (not asked for)."
    )


def figures(placement: str, started: int, joined: int, nics: float, domains: float) -> Figures:
    return Figures(placement, started, joined / 10, 100.0, 0.9, nics, domains, 10, joined)


TODAY, FIRST_FIT = figures("today", 20, 5, 0.5, 2.0), figures("first fit", 20, 4, 0.4, 2.0)


@pytest.mark.parametrize(
    ("berths", "helps", "text"),
    [
        (
            figures("Berth", 19, 9, 0.4, 1.0),
            True,
            (
                f"{BETTER}joined GPUs for 9 of 10 pods with several (today 5 of 10, first fit 4 of 10); "
                "1.0 domains for a gang (today 2.0, first fit 2.0). "
                "Worse: 40% of the NICs near (today 50%); 19 of 20 jobs placed. "
                "Replayed: 30 pods on 4 of 8 nodes, without 2 that cannot be replayed."
            ),
        ),
        (
            figures("Berth", 20, 4, 0.5, 2.0),
            False,
            "Worse: joined GPUs for 4 of 10 pods with several (today 5 of 10). Replayed",
        ),
        (figures("Berth", 20, 5, 0.504, 2.0), False, NO_BETTER),
    ],
    ids=["better and worse", "worse", "a difference that is not shown"],
)
def test_what_is_worse_with_berth_is_told(berths: Figures, helps: bool, text: str) -> None:
    replay = Replayed(4, 8, 30, 20, 2, rows=[TODAY, berths, FIRST_FIT])
    found = verdict_of(replay, Bandwidth(10, 10, 5, 900.0, 1000.0), 0, ())
    assert (found.helps, text in found.sentences[0]) == (helps, True), found.sentences


def test_a_large_cluster_is_replayed_around_its_gangs(tmp_path: Path) -> None:
    """Every second rack of four would have one pod of the gang."""
    places = {f"n{i}": f"r{i // 2}" for i in range(8)}
    nodes = {
        name: {"machine": "hgx-h100-8", "labels": {"topology.kubernetes.io/rack": rack}}
        for name, rack in places.items()
    }
    pods = [{"name": name, "node": name, "gpus": list(range(8)), "group": "g"} for name in ("n2", "n4")]
    pods += [{"name": f"p{i}", "node": f"n{i}", "gpus": [0, 1]} for i in (0, 6)]
    path = snapshot_file(tmp_path, objects_of({"nodes": nodes, "pods": pods}))
    for most, replayed in ((4, 2), (6, 3), (8, 4)):
        with patch.object(replayed_pods, "_MAX_NODES", most):
            found = assessed(path, replays=True)
        assert (found["replay"]["nodes"], found["replay"]["pods"]) == (most, replayed)
        assert [row["domains"] for row in found["replay"]["rows"][:2]] == [2.0, 1.0]
        assert "without a replay of all pods" not in found["verdict"]["sentences"][0]


def test_gangs_that_only_a_larger_replay_would_have_are_no_reason_for_a_no(tmp_path: Path) -> None:
    racks = {name: {"machine": "hgx-h100-8", "labels": {"topology.kubernetes.io/rack": name}} for name in "abc"}
    pods = [{"name": f"g{i}", "node": node, "gpus": [0, 1, 2, 3], "group": "g"} for i, node in enumerate("ab")]
    path = snapshot_file(
        tmp_path, objects_of({"nodes": racks, "pods": [*pods, {"name": "p", "node": "a", "gpus": [4, 5]}]})
    )
    with patch.object(replayed_pods, "_MAX_NODES", 1):
        found = assessed(path, replays=True)["verdict"]
    assert found["helps"] is None
    assert "Not compared: 1 gang over more domains than needed, without a replay of all pods." in found["sentences"][0]


KUEUE = {
    "labels": {"kueue.x-k8s.io/pod-group-name": "g"},
    "annotations": {"kueue.x-k8s.io/pod-group-total-count": "3"},
}
OF_PLUGIN: Json = {"plugin": {"nvidia.com/gpu": "6"}, **KUEUE}


@pytest.mark.parametrize(
    ("plugin", "pods", "fit"),
    [
        (True, [{"name": f"w{n}", **OF_PLUGIN} for n in range(3)], 0),
        (True, [{"name": "w", **OF_PLUGIN}], 0),
        (False, [{"name": f"w{n}", "count": 6, "annotations": {"pod-group-name": "g"}} for n in range(3)], 0),
        (False, [{"name": "w", "count": 6, "labels": {"scheduling.k8s.io/group-name": "g"}}], 0),
        (True, [{"name": "w", **OF_PLUGIN}, *({"name": f"r{n}", "node": "b", **OF_PLUGIN} for n in range(2))], 1),
    ],
    ids=["device plugin", "its only pod", "KAI", "Volcano", "the others of the group run"],
)
def test_a_waiting_pod_of_a_group_that_was_not_planned_is_not_said_to_fit(
    plugin: bool, pods: list[Json], fit: int, tmp_path: Path
) -> None:
    nodes = dict.fromkeys("ab", BOARD if plugin else "hgx-h100-8")
    path = str(snapshot_file(tmp_path, objects_of({"nodes": nodes, "pods": pods})))
    out = berth(["assess", path, "--no-replay", "--all"])[1]
    waiting = sum("node" not in one for one in pods)
    assert f"each alone or with its gang: {fit} of {waiting}" in out
    words = " ".join(out.split())
    assert ("whether its whole group fits is not known" in words) == (not fit)
    assert (f"{waiting} waiting pod{'s fit' if waiting > 1 else ' fits'} alone. Whether" in words) == (not fit)


NODES = "0/9 nodes are available: "
TOLD = {  # what schedulers say, and the part of it that is about no node's room, devices, labels or taints
    f"{NODES}9 Insufficient nvidia.com/gpu, 1 Too many pods. preemption: 0/9 are.": "",
    f"{NODES}1 cannot allocate all claims, 2 node(s) had untolerated taint {{a: b}}.": "",
    f"{NODES}2 node(s) didn't match Pod's node affinity/selector.": "",
    f"{NODES}2 node selector, node affinity, a taint or a cordon excludes the node.": "",
    "0/290 nodes available": "",
    "": "",
    f"{NODES}9 node(s) didn't match pod anti-affinity rules.": "node(s) didn't match pod anti-affinity rules",
    f"{NODES}1 Insufficient cpu, 8 node(s) didn't have free ports.": "node(s) didn't have free ports",
    f"{NODES}8 node(s) didn't have free ports.": "node(s) didn't have free ports",
    f"{NODES}pod has unbound immediate PersistentVolumeClaims.": "pod has unbound immediate PersistentVolumeClaims",
    "pod group is not ready": "pod group is not ready",
    f'{NODES}persistentvolumeclaim "data-0" not found.': 'persistentvolumeclaim "data-0" not found',
    f'{NODES}persistentvolumeclaim "data-1" not found.': 'persistentvolumeclaim "data-1" not found',
}


def test_pods_for_which_their_scheduler_has_different_reasons_are_different_rows(tmp_path: Path) -> None:
    """What is not looked at here. Counts, and the names of volumes, make no difference: two pairs share a row."""
    pods = [{"name": f"w{n:02}", "count": 1, "told": text} for n, text in enumerate(TOLD)]
    rows = assessed(snapshot_file(tmp_path, objects_of({"nodes": {"a": "hgx-h100-8"}, "pods": pods})))["waiting"]
    found = {int(row["first"][-2:]): (row["pods"], row["other_reason"]) for row in rows}
    assert found == {
        0: (6, ""),
        **{n: (2 if n in (7, 11) else 1, text) for n, text in enumerate(TOLD.values()) if n in (6, 7, 9, 10, 11)},
    }
    assert all(row["other_reason"] in row["reason"] for row in rows)
