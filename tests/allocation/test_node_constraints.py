"""The constraints of gang members on nodes: node selector, required node affinity, taints."""

from __future__ import annotations

from typing import Any

import pytest

from extender.api.nodes import Node, decode_node
from extender.api.pods import Pod, decode_pod
from extender.scheduling import UsableNodes

TAINT = {"key": "team", "value": "b", "effect": "NoSchedule"}
NODES: list[dict[str, Any]] = [
    {"metadata": {"name": "plain", "labels": {"zone": "1"}}},
    {"metadata": {"name": "tainted", "labels": {"zone": "1"}}, "spec": {"taints": [TAINT]}},
    {"metadata": {"name": "cordoned", "labels": {"zone": "1"}}, "spec": {"unschedulable": True}},
    {"metadata": {"name": "far", "labels": {"zone": "2"}}},
    {"metadata": {"name": "soft"}, "spec": {"taints": [{"key": "team", "effect": "PreferNoSchedule"}]}},
]
NAMED = {node["metadata"]["name"]: decode_node(node) for node in NODES}


def affinity(*names: str) -> dict[str, Any]:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in names]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def pod(namespace: str = "default", **spec: Any) -> Pod:
    metadata = {"name": "p", "namespace": namespace, "uid": "1", "annotations": {"berth.dev/group": "job"}}
    return decode_pod({"metadata": metadata, "spec": spec})


@pytest.mark.parametrize(("spec", "expected"), [
    ({}, {"plain", "far", "soft"}),
    ({"nodeSelector": {"zone": "1"}}, {"plain"}),
    ({"affinity": affinity("far", "soft", "tainted")}, {"far", "soft"}),
    ({"nodeSelector": {"zone": "2"}, "affinity": affinity("far", "plain")}, {"far"}),
    ({"tolerations": [{"key": "team", "value": "b"}]}, {"plain", "tainted", "far", "soft"}),
    ({"tolerations": [{"key": "team", "value": "a"}]}, {"plain", "far", "soft"}),
    ({"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoExecute"}]}, {"plain", "far", "soft"}),
])  # fmt: skip
def test_nodes_that_a_member_may_use(spec: dict[str, Any], expected: set[str]) -> None:
    assert UsableNodes().of([pod(**spec)], NAMED, 0) == {"1": expected}


def test_a_pod_that_may_use_all_nodes_is_left_out() -> None:
    assert UsableNodes().of([pod(tolerations=[{"operator": "Exists"}])], NAMED, 0) == {}


def test_results_are_bounded_and_follow_the_nodes() -> None:
    usable = UsableNodes(limit=4)
    for zone in range(100):
        usable.of([pod(nodeSelector={"zone": str(zone)})], NAMED, 0)
    assert len(usable) == 4
    wanted = pod(nodeSelector={"zone": "3"})
    assert usable.of([wanted], NAMED, 0) == {"1": frozenset()}
    moved = NAMED | {"far": decode_node({"metadata": {"name": "far", "labels": {"zone": "3"}}})}
    assert usable.of([wanted], moved, 1) == {"1": {"far"}}


def test_the_results_of_one_namespace_do_not_replace_those_of_others() -> None:
    """The plan of a gang whose constraints take several calls began again in each of them."""

    class Labels(dict[str, str]):
        reads = 0

        def get(self, key: str, default: Any = None) -> Any:
            self.reads += 1
            return super().get(key, default)

    labels, usable = Labels(zone="1"), UsableNodes(limit=4)
    nodes = {"n": Node("n", labels)}
    honest = pod("honest", nodeSelector={"zone": "1"})
    usable.of([honest], nodes, 0)
    for zone in range(100):
        usable.of([pod("hostile", nodeSelector={"zone": str(zone)})], nodes, 0)
    before = labels.reads
    usable.of([honest], nodes, 0)
    assert labels.reads == before
    assert len(usable) == 4
