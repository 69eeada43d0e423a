"""Attributes that requests derive by CEL, and that constraints compare (KEP-6080)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cache import ClusterCache
from extender.scheduling import NodeRanking, Placement, ignores_identity
from tests.worlds.agreeing import check_case
from tests.worlds.filled_caches import NODE, asked, claim_for, class_of_driver, device_slice, put

Json = dict[str, Any]
CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "derived_attributes.yaml").read_text())
CLASSES = [class_of_driver(name) for name in ("gpu", "nic")]


def slices_of(case: Json, node: str = "n") -> list[Json]:
    named = {
        driver: [{"name": f"{driver}-{i}", "attributes": one} for i, one in enumerate(case.get(f"{driver}s", []))]
        for driver in ("gpu", "nic")
    }
    return [device_slice(node, driver, devices) for driver, devices in named.items()]


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
    return claim_for(*requests, constraints=case["constraints"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("alternatives", [False, True])
def test_serve_and_allocate_agree(case: Json, *, alternatives: bool) -> None:
    check_case(case, [*CLASSES, NODE, *slices_of(case)], claim_of(case, alternatives=alternatives))


@pytest.mark.parametrize("attribute", ["place", "uuid"])
def test_each_node_gets_the_status_of_its_own_devices(attribute: str) -> None:
    """Nodes that differ in no more than an identity share a status, but not where an expression reads it."""
    numa = f'int(device.attributes["gpu"].{attribute}.substring(4))'
    requests = {"g": {"of": "gpu", "numa": numa}, "n": {"of": "nic", "numa": 'device.attributes["nic"].numa'}}
    case = {"requests": requests, "constraints": [{"matchAttribute": "x/numa"}]}
    cache = put(ClusterCache(), *CLASSES)
    for name, place in (("a", "numa0"), ("b", "numa1"), ("c", "numa0")):
        devices = {"gpus": [{attribute: {"string": place}}], "nics": [{"numa": {"int": 0}}]}
        put(cache, {"kind": "Node", "metadata": {"name": name}}, *slices_of(devices, name))
    requirements, context = asked(cache, claim_of(case, alternatives=False))
    snapshot = cache.snapshot()
    assert ignores_identity(requirements, context) == (attribute == "place")
    ranking = NodeRanking(requirements)
    assert ranking.update(snapshot, context)
    found = {name: ranking.evaluate(info, context) for name, info in snapshot.node_infos.items()}
    assert {name for name, status in found.items() if isinstance(status, Placement)} == {"a", "c"}
