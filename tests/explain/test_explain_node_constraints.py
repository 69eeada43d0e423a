"""Explanations respect what kube-scheduler checks of a node besides devices."""

from __future__ import annotations

import pytest

from extender.api.fields import Json
from extender.cli.cluster_objects import dump_of
from extender.cli.explain_command import _offline
from tests.worlds.explain_worlds import asking, explained, objects_of_world
from tests.worlds.running_berth import pod

AFFINITY = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [AFFINITY]}}
TAINT = {"key": "maintenance", "effect": "NoSchedule"}


def world(node: Json, held: dict[str, list[str]] | None = None) -> list[Json]:
    """n1 with these fields, and n2 in zone b; each has a GPU."""
    objects = objects_of_world([{"name": "g0"}], held or {}, nodes=2)
    for one in objects:
        if one["kind"] == "Node":
            first = one["metadata"]["name"] == "n1"
            one.update(node if first else {})
            one["metadata"]["labels"] = {"zone": "a" if first else "b"}
    return objects


@pytest.mark.parametrize(
    ("node", "spec"),
    [
        ({"spec": {"unschedulable": True}}, {}),
        ({"spec": {"taints": [TAINT]}}, {}),
        ({}, {"nodeSelector": {"zone": "b"}}),
        ({}, {"affinity": {"nodeAffinity": REQUIRED}}),
    ],
)
@pytest.mark.parametrize("extended", [False, True])
def test_nodes_that_kube_scheduler_excludes_are_left_out(node: Json, spec: Json, extended: bool) -> None:
    objects, asked = world(node), asking({})
    if extended:
        objects[0]["spec"]["extendedResourceName"] = "example.com/gpu"
        limits = {"limits": {"example.com/gpu": "1"}}
        asked = [pod("want", containers=[{"name": "main", "image": "pause", "resources": limits}])]
    asked[-1]["spec"] |= spec
    found = explained(objects, asked)
    assert found["sentence"].startswith("pod default/want fits on 1 of 2 nodes; n2 is best")
    assert "node selector, node affinity, taints and cordons leave 1 of 2 nodes" in found["sentence"]
    tolerates = [{"key": "maintenance", "operator": "Exists"}, {"key": "node.kubernetes.io/unschedulable"}]
    asked[-1]["spec"]["tolerations"] = [{"operator": "Exists", **one} for one in tolerates]
    if not spec:
        assert "fits on 2 of 2 nodes" in explained(objects, asked)["sentence"]


def test_the_end_of_pods_on_excluded_nodes_is_no_advice() -> None:
    asked = asking({})
    asked[-1]["spec"]["nodeSelector"] = {"zone": "b"}
    found = explained([one for one in world({}, {"a": ["g0"]}) if one["metadata"]["name"][:2] != "n2"], asked)
    assert found["misses"] == []
    assert "fits nowhere: node selector, node affinity, a taint or a cordon excludes the node on 1" in found["sentence"]


def waiting(**fields: Json) -> str:
    (claim, want) = asking({})
    claim["metadata"]["uid"], want["metadata"]["uid"] = "uid-asked", "uid-want"
    for name, value in fields.items():
        want[name] = {**want.get(name, {}), **value}
    question = {"objects": [], "without": [], "free": [], "narrate": ""}
    (found,) = _offline(dump_of([*world({}), claim, want]), "default/want", None, question)
    return found["sentence"]


def test_a_waiting_pod_that_fits_names_the_last_answer_of_kube_scheduler() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}
    assert "; the last answer of kube-scheduler was: Insufficient cpu" in waiting(status={"conditions": [condition]})


def test_a_pod_with_scheduling_gates_says_so() -> None:
    assert "its scheduling gates" in waiting(spec={"schedulingGates": [{"name": "quota"}]})


@pytest.mark.parametrize(
    ("node", "spec", "cause", "remedy"),
    [
        (
            {"spec": {"taints": [TAINT | {"value": "disk"}]}},
            {},
            "the taint maintenance=disk:NoSchedule keeps it from n1",
            "it tolerated the taint maintenance=disk:NoSchedule",
        ),
        ({"spec": {"unschedulable": True}}, {}, "the cordon keeps it from n1", "the cordon ended"),
        (
            {},
            {"nodeSelector": {"zone": "c"}},
            "its node selector or node affinity keeps it from n1",
            "its node selector or node affinity admitted the node",
        ),
        (
            {"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]}},
            {},
            "the taint node.kubernetes.io/not-ready:NoExecute keeps it from n1",
            "the taint node.kubernetes.io/not-ready:NoExecute ended",
        ),
    ],
    ids=["taint", "cordon", "selector", "not ready"],
)
def test_what_alone_keeps_a_pod_from_nodes_with_free_devices_is_told_first(
    node: Json, spec: Json, cause: str, remedy: str
) -> None:
    """That other nodes have other GPUs came first, and the taint of the right ones had no name."""
    objects, asked = world(node), asking({})
    objects = [one for one in objects if one["kind"] != "ResourceSlice" or one["metadata"]["name"][:2] != "n2"]
    asked[-1]["spec"] |= spec
    found = explained(objects, asked)
    assert found["sentence"].startswith(f"pod default/want fits nowhere: {cause}, which has free devices for it; ")
    assert found["misses"][0] == f"fits on n1 if {remedy}"
    (excluded,) = [one for one in found["unschedulable"] if one["code"] == "NODE_CONSTRAINTS"]
    assert excluded["causes"][0] in cause


def test_the_nodes_that_selectors_taints_and_cordons_exclude_are_counted_apart() -> None:
    asked = asking({})
    asked[-1]["spec"]["nodeSelector"] = {"zone": "c"}
    told = "on 2 of 2 nodes (node selector or node affinity 2, cordon 1, taint maintenance:NoSchedule 1)"
    assert told in explained(world({"spec": {"taints": [TAINT], "unschedulable": True}}), asked)["sentence"]


def test_a_node_that_lacks_devices_behind_its_taint_is_no_remedy() -> None:
    found = explained(world({"spec": {"taints": [TAINT]}}, {"a": ["g0"]}), asking({"count": 2}))
    assert not [one for one in found["misses"] if "tolerated" in one]


def test_other_nodes_than_the_selected_ones_are_told_last_if_those_are_in_use() -> None:
    asked = asking({})
    asked[-1]["spec"]["nodeSelector"] = {"zone": "a"}
    found = explained(world({}, {"a": ["g0"]}), asked)
    assert "fits nowhere: matching devices are in use for request " in found["sentence"]
    assert found["misses"][0].startswith("fits on n1 if g0, held by pod default/a")
    assert found["misses"][-1] == "fits on n2 if its node selector or node affinity admitted the node"
