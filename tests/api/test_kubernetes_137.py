"""Fields that Kubernetes 1.37 brought, on objects of its API types: they were not tried on a 1.37 server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.allocation import Features
from extender.api.quantity import parse_quantity
from extender.api.reasons import Code
from extender.api.resource_slices import SliceDecoder
from extender.cache import ClusterCache
from extender.cli.allocate_command import answer
from extender.explain import explain
from extender.policy import Policy
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import GPU_DRIVER, gpu_slice
from extender.scheduling import FilterStatus, Placement, Unschedulable, evaluate
from extender.topology.sources import choose_fabric, live_fabric
from tests.worlds.filled_caches import ADMINS, CLASS, NODE, asked, claim_for, device_slice, pod_with, put
from tests.worlds.running_berth import berthing, claim, pod
from tests.worlds.vendor_worlds import whole_gpus

Json = dict[str, Any]
CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "kubernetes-1.37.yaml").read_text())
GATES = (
    "DRAAdminAccess",
    "DRAPrioritizedList",
    "DRAPartitionableDevices",
    "DRADeviceTaints",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus",
)
_SPEC_FIELDS = ("skipNodeOperations", "partitionTypeAttribute")


def slices_of(case: Json) -> list[Json]:
    count = 2 if "counters" in case else 1
    spec = {"driver": "d", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": count}}
    own = {name: case[name] for name in _SPEC_FIELDS if name in case}
    parts: list[Json] = [{**own, "devices": case["devices"]}]
    parts += [{"sharedCounters": case["counters"]}] if "counters" in case else []
    return [
        {"kind": "ResourceSlice", "metadata": {"name": f"s{i}"}, "spec": {**spec, **part}}
        for i, part in enumerate(parts)
    ]


def claim_of(case: Json) -> Json:
    exactly = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1, **case["exactly"]}
    return claim_for({"name": "r", "exactly": exactly})


def features_of(case: Json) -> Features:
    return Features.from_gates([*GATES, *case.get("gates", ())])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_allocated_devices(case: Json) -> None:
    world = {
        "name": case["name"],
        "features": [*GATES, *case.get("gates", ())],
        "node": NODE,
        "resourceSlices": slices_of(case),
        "deviceClasses": [CLASS],
        "claims": [claim_of(case)],
    }
    for order in ("in-tree", "preferred"):
        found = answer(world, order)
        assert found["error"] is None
        results = found["allocations"][0]["devices"]["results"] if found["allocations"] else []
        assert [result["device"] for result in results] == ([] if case["expect"] == "none" else case["expect"])
        for name, amount in case.get("consumed", {}).items():
            assert parse_quantity(results[0]["consumedCapacity"][name]) == parse_quantity(amount)
        assert all(case.get("result", {}).items() <= result.items() for result in results)


@pytest.mark.parametrize("case", [case for case in CASES if "reason" in case], ids=lambda case: case["name"])
def test_why_not(case: Json) -> None:
    cache = put(ClusterCache(features_of(case)), CLASS, ADMINS, NODE, *slices_of(case))
    requirements, context = asked(cache, claim_of(case), features=features_of(case))
    snapshot = cache.snapshot()
    status = evaluate(snapshot.node_infos["n"], requirements, context)
    assert isinstance(status, Unschedulable)
    assert status.text == case["reason"]
    explanation = explain(pod_with("c"), snapshot, Policy(), context)
    assert [nodes.reason for nodes in explanation.unschedulable] == [case["reason"]]
    assert case.get("why", "") in "\n".join(explanation.unschedulable[0].causes)


def test_nodes_that_differ_in_such_a_field_alone_do_not_share_a_status() -> None:
    plain, left_out = {"name": "a"}, {"name": "a", "nodeAllocatableResources": {"cpu": {"mapping": {"quantity": "1"}}}}
    cache = ClusterCache()
    for node, device in (("n", plain), ("m", left_out)):
        put(cache, {"kind": "Node", "metadata": {"name": node}}, device_slice(node, "d", [device]))
    node_infos = cache.snapshot().node_infos
    assert node_infos["n"].state.allocation_signature != node_infos["m"].state.allocation_signature
    assert node_infos["n"].state != node_infos["m"].state


def test_a_device_in_use_that_only_another_node_sees_decides_about_the_group() -> None:
    """The counter set belongs to the pool, which has slices for two nodes."""
    cache = put(ClusterCache(), NODE, CLASS)
    uses = {"counterSet": "s", "counters": {"m": {"value": "1"}}}

    def publish(name: str, node: str, **content: Any) -> None:
        pool = {"name": "p", "generation": 1, "resourceSliceCount": 3}
        spec = {"driver": "d", "nodeName": node, "pool": pool, **content}
        put(cache, {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})

    def use(device: str, *groups: str) -> Json:
        return {"name": device, "consumesCounters": [{**uses, "compatibilityGroups": list(groups)}]}

    publish("s", "n", devices=[use("a", "mig"), use("b")])
    publish("t", "n", sharedCounters=[{"name": "s", "counters": {"m": {"value": "4"}}}])
    publish("u", "m", devices=[use("c", "vgpu")])

    def status() -> FilterStatus:
        requirements, context = asked(cache, claim_of({"exactly": {}}))
        return evaluate(cache.snapshot().node_infos["n"], requirements, context)

    assert isinstance(status(), Placement)
    result = {"request": "r", "driver": "d", "pool": "p", "device": "c"}
    other = claim_for({"name": "r", "exactly": {"deviceClassName": "any"}}, name="other")
    put(cache, {**other, "status": {"allocation": {"devices": {"results": [result]}}}})
    refused = status()
    assert isinstance(refused, Unschedulable)
    assert refused.reason.code is Code.COMPATIBILITY_GROUPS
    publish("u", "m", devices=[use("c", "vgpu", "mig")])
    placed = status()
    assert isinstance(placed, Placement)
    assert placed.solution.mask == 1


async def test_a_filter_tells_the_field() -> None:
    """Over HTTP: kube-scheduler shows the reason, explain the device."""
    async with berthing({"n1": "l40s-8-pix"}) as b:
        machine = gpu_slice("n1", carried_machines()["l40s-8-pix"])
        machine["metadata"]["name"] += "-newer"
        machine["spec"]["pool"]["generation"] += 1
        for device in machine["spec"]["devices"]:
            device["nodeAllocatableResources"] = {"cpu": {"mapping": {"quantity": "4"}}}
        await b.create(machine, claim("c", 1), pod("p", "c"))
        answered = await b.filter("p")
        assert answered["NodeNames"] == []
        assert "nodeAllocatableResources, which is not supported yet" in answered["FailedAndUnresolvableNodes"]["n1"]
        explanation = (await b.client.get("/v1/explain/default/p")).json()
        nodes = explanation["unschedulable"][0]
        assert nodes["code"] == "NODE_ALLOCATABLE"
        assert "nodeAllocatableResources" in nodes["causes"][0]


@pytest.mark.parametrize(
    ("silent", "agent", "wanted"),
    [
        ("nothing", True, (1,) * 8),  # an agent that tells none
        ("agent", True, (0,) * 8),  # one that tells them
        ("nothing", False, (1,) * 8),  # no agent: the standard attribute goes before what the product usually has
    ],
)
def test_the_standard_numa_node_is_read_where_the_agent_is_silent(
    silent: str, agent: bool, wanted: tuple[int, ...]
) -> None:
    machine, decoder = carried_machines()["hgx-h100-8"], SliceDecoder()
    published = gpu_slice("n", machine)
    for device in published["spec"]["devices"]:
        device["attributes"]["resource.kubernetes.io/numaNode"] = {"int": 1}
    live = fabric_slice("n", machine)
    for device in live["spec"]["devices"]:
        if silent == "nothing":
            del device["attributes"]["numaNode"]
        else:
            device["attributes"]["numaNode"] = {"int": 0}
    gpus = whole_gpus(published, GPU_DRIVER)
    said = live_fabric(decoder.decode(live), GPU_DRIVER, gpus, lambda _: "")[0] if agent else None
    found = choose_fabric(said, GPU_DRIVER, gpus)
    assert found is not None
    assert found.graph.numa == wanted
