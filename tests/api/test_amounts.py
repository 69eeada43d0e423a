"""Amounts and names of capacities and counters that tenants and drivers write: `berth allocate` and filter agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.allocation import Features
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.quantity import parse_quantity
from extender.api.resource_claims import PodClaim
from extender.base.berth_errors import WireError
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.cli.allocate_command import answers_of
from extender.policy import Policy
from extender.scheduling import EvaluationContext, Placement, PodRequirements, evaluate, requirements_of
from extender.scheduling.requirements import UnschedulableAndUnresolvable
from tests.worlds.filled_caches import ADMINS, CLASS, NODE, device_slice, pod_with, put

Json = dict[str, Any]
CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "amounts.yaml").read_text())
DRIVER = "d.example.com"


def objects(case: Json) -> list[Json]:
    parts = [{"devices": case["devices"]}, *([{"sharedCounters": case["counters"]}] if "counters" in case else [])]
    pool = {"name": "p", "generation": 1, "resourceSliceCount": len(parts)}
    where = {"perDeviceNodeSelection": True} if case.get("perDevice") else {"nodeName": "n"}
    claims = [{"results": [{"driver": DRIVER, "pool": "p", "request": "r", **one}]} for one in case.get("stored", ())]
    asked = [*({} for _ in claims), *case["claims"]]
    return [
        CLASS,
        NODE,
        *(
            {
                "kind": "ResourceSlice",
                "metadata": {"name": f"s{i}"},
                "spec": {"driver": DRIVER, "pool": pool, **where, **part},
            }
            for i, part in enumerate(parts)
        ),
        *(
            {
                "kind": "ResourceClaim",
                "metadata": {"namespace": "x", "name": f"c{i}", "uid": f"c{i}"},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any", **one}}]}},
                **({"status": {"allocation": {"devices": claims[i]}}} if i < len(claims) else {}),
            }
            for i, one in enumerate(asked)
        ),
    ]


@pytest.mark.parametrize("order", ["in-tree", "preferred"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_offline(case: Json, order: str) -> None:
    try:
        (found,) = answers_of([("", obj) for obj in objects(case)], order, None)
    except WireError as error:
        found = {"error": str(error), "allocations": None}
    taken = [[one["device"] for one in claim["devices"]["results"]] for claim in found["allocations"] or ()]
    assert (taken or "none") == case["expect"], found
    assert case.get("why", "") in "\n".join([found["error"] or "", *found.get("why", ())])
    if "consumed" in case:
        consumed = found["allocations"][-1]["devices"]["results"][0]["consumedCapacity"]
        assert {name: parse_quantity(amount) for name, amount in consumed.items()} == {
            name: parse_quantity(amount) for name, amount in case["consumed"].items()
        }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_live(case: Json) -> None:
    cluster = objects(case)
    claims = [obj["metadata"]["name"] for obj in cluster if obj["kind"] == "ResourceClaim" and "status" not in obj]
    snapshot = put(ClusterCache(), ADMINS, *cluster).snapshot()
    requirements = requirements_of(pod_with(*claims), snapshot, Policy())
    status: Any = requirements
    if isinstance(requirements, PodRequirements):
        context = EvaluationContext(Masks(), Features(), snapshot.baseline)
        status = evaluate(snapshot.node_infos["n"], requirements, context)
    assert isinstance(status, Placement) == (case["expect"] != "none"), status


def test_a_pool_that_is_incomplete_on_one_node_fails_all_devices_there_alone() -> None:
    slices = [device_slice(node, DRIVER, [{"name": "a"}]) for node in ("n", "m")]
    slices[1]["spec"]["pool"]["resourceSliceCount"] = 2
    world = [CLASS, *slices, objects({"devices": [], "claims": [{"allocationMode": "All"}]})[-1]]
    found = {one["node"]: one for one in answers_of([("", obj) for obj in world], "preferred", None)}
    assert found["n"]["allocations"] is not None
    assert "asks for all devices, but resource pool d.example.com/m is currently being updated" in found["m"]["error"]


def test_a_negative_amount_of_a_template_is_refused_by_field() -> None:
    """The pod once was asked to wait for ever, until its claim has the pod as owner."""
    obj = objects({"devices": [], "claims": [{"capacity": {"requests": {"mem": "-1"}}}]})[-1]
    obj["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "p", "uid": "p", "controller": True}]
    entry = PodClaim("g", template_name="t")
    pod = Pod(ObjectKey("x", "p"), "p", claims=(entry,), claim_statuses={"g": "c0"})
    found = requirements_of(pod, put(ClusterCache(), obj).snapshot(), Policy())
    assert isinstance(found, UnschedulableAndUnresolvable)
    assert "capacity.requests[mem]: must not be negative, is -1" in str(found.reason)
