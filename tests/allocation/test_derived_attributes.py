"""Attributes that requests derive by CEL, and that constraints compare (KEP-6080)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.allocation import Features
from extender.api.device_classes import decode_class
from extender.api.nodes import decode_node
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import PodClaim, decode_claim
from extender.api.resource_slices import SliceDecoder
from extender.base.bits import members
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.cli.allocate_command import answer, decode_case
from extender.policy import Policy
from extender.scheduling import (
    EvaluationContext,
    NodeRanking,
    Placement,
    PodRequirements,
    Unschedulable,
    evaluate,
    ignores_identity,
    requirements_of,
)

Json = dict[str, Any]
CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "derived_attributes.yaml").read_text())
CLASSES: list[Json] = [
    {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{name}"'}}]}}
    for name in ("gpu", "nic")
]


def slices_of(case: Json, node: str = "n") -> list[Json]:
    found = []
    for driver in ("gpu", "nic"):
        devices = [{"name": f"{driver}-{i}", "attributes": one} for i, one in enumerate(case.get(f"{driver}s", []))]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
        found.append({"metadata": {"name": f"{driver}-{node}"}, "spec": spec})
    return found


def form_of(request: Json) -> Json:
    form: Json = {"deviceClassName": request["of"], "count": request.get("count", 1)}
    if "numa" in request:
        form["derivedAttributes"] = [{"name": "x/numa", "expression": request["numa"]}]
    if "selector" in request:
        form["selectors"] = [{"cel": {"expression": request["selector"]}}]
    return form


def claim_of(case: Json, *, alternatives: bool) -> Json:
    requests = [
        {"name": name, "firstAvailable": [{"name": "only", **form_of(request)}]}
        if alternatives
        else {"name": name, "exactly": form_of(request)}
        for name, request in case["requests"].items()
    ]
    devices = {"requests": requests, "constraints": case["constraints"]}
    return {"metadata": {"namespace": "x", "name": "c", "uid": "c"}, "spec": {"devices": devices}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("alternatives", [False, True])
def test_allocated_devices(case: Json, *, alternatives: bool) -> None:
    world = {
        "name": case["name"],
        "features": ["DRAListTypeAttributes", "DRAPrioritizedList"],
        "node": {"metadata": {"name": "n"}},
        "resourceSlices": slices_of(case),
        "deviceClasses": CLASSES,
        "claims": [claim_of(case, alternatives=alternatives)],
    }
    for order in ("in-tree", "preferred"):
        found = answer(decode_case(world), order)
        if case["expect"] == "error":
            assert case["text"] in found["error"]
            continue
        assert found["error"] is None
        results = found["allocations"][0]["devices"]["results"] if found["allocations"] else None
        assert (results and [r["device"] for r in results]) == (None if case["expect"] == "none" else case["expect"])


def asked(case: Json, nodes: dict[str, Json]) -> tuple[ClusterCache, PodRequirements, EvaluationContext]:
    """A cache with these nodes, each with the devices of a case, and the requirements of the claim of `case`."""
    cache, decoder = ClusterCache(), SliceDecoder()
    for class_ in CLASSES:
        cache.apply_class(class_["metadata"]["name"], decode_class(class_))
    for name, world in nodes.items():
        cache.apply_node(name, decode_node({"metadata": {"name": name}}))
        for obj in slices_of(world, name):
            cache.apply_slice(obj["metadata"]["name"], decoder.decode(obj))
    made = decode_claim(claim_of(case, alternatives=False))
    cache.apply_claim(made.key, made)
    snapshot = cache.snapshot()
    requirements = requirements_of(Pod(ObjectKey("x", "p"), "p", claims=(PodClaim("g", "c"),)), snapshot, Policy())
    assert isinstance(requirements, PodRequirements)
    return cache, requirements, EvaluationContext(Masks(), Features(), snapshot.baseline)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_serve_agrees(case: Json) -> None:
    cache, requirements, context = asked(case, {"n": case})
    info = cache.snapshot().node_infos["n"]
    status = evaluate(info, requirements, context)
    if case["expect"] in ("error", "none"):
        assert isinstance(status, Unschedulable)
        assert case.get("text", "") in status.text
    else:
        assert isinstance(status, Placement)
        assert [info.inventory.devices[bit].device.name for bit in members(status.solution.mask)] == case["expect"]


@pytest.mark.parametrize("attribute", ["place", "uuid"])
def test_each_node_gets_the_status_of_its_own_devices(attribute: str) -> None:
    """Nodes that differ in no more than an identity share a status, but not where an expression reads it."""
    numa = f'int(device.attributes["gpu"].{attribute}.substring(4))'
    requests = {"g": {"of": "gpu", "numa": numa}, "n": {"of": "nic", "numa": 'device.attributes["nic"].numa'}}
    case = {"requests": requests, "constraints": [{"matchAttribute": "x/numa"}]}
    worlds = {
        name: {"gpus": [{attribute: {"string": place}}], "nics": [{"numa": {"int": 0}}]}
        for name, place in (("a", "numa0"), ("b", "numa1"), ("c", "numa0"))
    }
    cache, requirements, context = asked(case, worlds)
    snapshot = cache.snapshot()
    assert ignores_identity(requirements, context) == (attribute == "place")
    ranking = NodeRanking(requirements)
    assert ranking.update(snapshot, context)
    found = {name: ranking.evaluate(info, context) for name, info in snapshot.node_infos.items()}
    assert {name for name, status in found.items() if isinstance(status, Placement)} == {"a", "c"}
