"""Filter and prioritize over real HTTP: choices, reasons, holds."""

from __future__ import annotations

import pytest

from extender.policy import Policy
from extender.sandbox import carried_machines
from extender.sandbox.apiserver.registry import RESOURCES
from extender.sandbox.machines import gpu_slice, node_object
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import berthing, claim, jobs, one_node, pod

pytestmark = pytest.mark.loopback


async def test_first_choice_is_held() -> None:
    """Two pods filtered before either is bound do not get the same last device."""
    async with one_node(*jobs(p0=1, p1=1, p2=1, p3=1, p4=1)) as b:
        answers = [await b.filter(f"p{i}") for i in range(5)]
        assert [bool(a["NodeNames"]) for a in answers] == [True] * 4 + [False]
        assert answers[4]["FailedAndUnresolvableNodes"] == {"n1": "matching devices are held by a pod being scheduled"}


@pytest.mark.parametrize("notes", [{}, {"berth.dev/group": "g", "berth.dev/group-min": "2"}], ids=["alone", "gang"])
@pytest.mark.parametrize("pods", [["p"], ["p", "q"]], ids=len)
@pytest.mark.parametrize("gpus", [2, 9], ids=["fits", "unschedulable"])
@pytest.mark.parametrize("finalizers", [[], ["tests.example/keep"]], ids=["deleted", "being deleted"])
async def test_nothing_is_kept_for_a_pod_that_is_gone(
    notes: dict[str, str], pods: list[str], gpus: int, finalizers: list[str]
) -> None:
    """kube-scheduler may have sent the filter request before the deletion. No event tells to forget the pod later."""
    async with berthing({"n1": "t4-4"}) as b:
        for name in pods:
            b.cluster.apply(claim(name, gpus))
            made = pod(name, name, annotations=notes)
            made["metadata"]["finalizers"] = finalizers
            b.cluster.apply(made)
        await b.settled()
        sent = {name: {"Pod": b.pod(name), "NodeNames": ["n1"]} for name in pods}
        for name in pods:
            b.cluster.api.registry.delete(RESOURCES["", "pods"], ("default", name))
        await b.settled()
        for name, body in sent.items():
            answer = (await b.client.post("/filter", json=body)).json()
            assert answer["Error"] == f"pod default/{name} was deleted or is bound"
        lines = (await b.client.get("/metrics")).text.splitlines()
        kept = [one for one in lines if one.startswith(("berth_holds", "berth_gangs_forming", "berth_gangs_waiting"))]
        assert [one for one in kept if not one.endswith(" 0.0")] == []
        assert not b.app.service.filter_service.remembered()["unschedulable"]


async def test_only_nodes_that_were_asked_about_are_chosen() -> None:
    """Filter evaluates the best nodes first, and skips those that the scheduler has excluded."""
    async with berthing({f"n{i}": "t4-4" if i % 2 else "hgx-h100-8" for i in range(6)}) as b:
        await b.create(claim("c", 1), pod("p", "c"))
        all_nodes = (await b.filter("p"))["NodeNames"]
        assert len(all_nodes) == 6
        assert (await b.filter("p", [*all_nodes[1:], "n-unheard-of"]))["NodeNames"] == all_nodes[1:]
        assert (await b.filter("p", all_nodes[4:]))["NodeNames"] == all_nodes[4:]


async def test_filtering_again_replaces_the_hold() -> None:
    async with one_node(claim("c", 4), pod("p", "c")) as b:
        for _ in range(3):
            assert (await b.filter("p"))["NodeNames"] == ["n1"]


async def test_reasons_are_stable_and_name_the_request() -> None:
    """The same cause gives the same text every time: a text that varies wakes the pod at once."""
    async with berthing({"n1": "t4-4", "n2": "l40s-8-pix"}) as b:
        b.cluster.apply(claim("none", 1, "device.attributes['gpu.nvidia.com'].productName == 'H100'"))
        await b.create(claim("many", 9), pod("p", "none"), pod("q", "many"))
        for _ in range(2):
            for name, words in (("p", "no device matches request gpu"), ("q", "too few devices match request gpu")):
                assert set((await b.filter(name))["FailedAndUnresolvableNodes"].values()) == {words}


async def test_broken_objects_are_named_and_other_pods_are_served() -> None:
    """Unknown classes, broken CEL and a runtime error: a reason with object and cause; other pods are served."""
    wrong = [
        claim("unknown", deviceClassName="nope"),
        claim("broken", 1, "device.attributes["),
        claim("fails", 1, "device.attributes['gpu.nvidia.com'].nope == 1"),
    ]
    async with one_node(*wrong, *(pod(name, name) for name in ("unknown", "broken", "fails")), *jobs(good=1)) as b:
        reasons = {
            name: (await b.filter(name))["FailedAndUnresolvableNodes"].get("n1")
            for name in ("unknown", "broken", "fails", "good")
        }
        assert reasons["unknown"] == "claim default/unknown, request gpu: device class nope does not exist"
        assert "selector #0: CEL compile error" in reasons["broken"]
        assert "1:19" in reasons["broken"]
        assert "no such key: nope" in reasons["fails"]
        assert reasons["good"] is None


async def test_malformed_slice_breaks_only_its_pool() -> None:
    async with berthing({"n1": "t4-4", "n2": "t4-4"}) as b:
        obj = b.cluster.store["resourceslices", ("", "00000-gpu.nvidia.com-n1")]
        bad = {
            **obj,
            "spec": {**obj["spec"], "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "lots"}}}]},
        }
        b.cluster.store.put("resourceslices", ("", "00000-gpu.nvidia.com-n1"), bad)
        await b.create(claim("c", 4), pod("p", "c"))
        assert (await b.filter("p"))["NodeNames"] == ["n2"]
        reason = (await b.filter("p", ["n1"]))["FailedAndUnresolvableNodes"]["n1"]
        assert "spec.devices[0].capacity[memory].value" in reason
        assert "'lots'" in reason


async def test_extended_resource_backed_by_a_class_is_never_bound_without_a_device() -> None:
    async with berthing({"n1": "t4-4"}) as b:
        limits = {"limits": {"nvidia.com/gpu": "1"}}
        b.cluster.apply(pod("legacy", containers=[{"name": "m", "image": "pause", "resources": limits}]))
        b.cluster.apply(
            pod("other", containers=[{"name": "m", "image": "pause", "resources": {"limits": {"example.com/x": "1"}}}])
        )
        await b.settled()
        answer = await b.filter("legacy")
        assert answer["NodeNames"] == [] or (
            await b.bind("legacy", answer["NodeNames"][0]) == "" and len(b.held()) == 1
        )
        assert (await b.filter("other"))["NodeNames"] == ["n1"]


@pytest.mark.parametrize(
    ("annotations", "best"),
    [
        ({}, "pcie"),
        ({"berth.dev/topology": "product"}, "pcie"),
        ({"berth.dev/topology": "none"}, "pcie"),
        ({"berth.dev/topology": "preferred"}, "switched"),
        ({"berth.dev/topology": "required"}, "switched"),
        ({"berth.dev/bandwidth": "300"}, "switched"),
        ({"berth.dev/bandwidth": "15"}, "pcie"),
    ],
)
async def test_best_node_gets_ten_and_order_follows_what_was_asked(annotations: dict[str, str], best: str) -> None:
    nodes = {"pcie": "l40s-8-pix", "bridged": "a100-pcie-8-bridged", "switched": "hgx-h100-8"}
    async with berthing(nodes) as b:
        await b.create(claim("c", 8), pod("p", "c", annotations=annotations))
        names = (await b.filter("p"))["NodeNames"]
        assert names[0] == best
        found = await b.prioritize("p", names)
        assert found.pop(best) == 10
        assert all(score < 10 for score in found.values())


async def test_pods_without_devices_leave_the_cpu_beside_free_gpus() -> None:
    """Else the next pod would find these GPUs, but not the CPU that it asks for beside them."""
    async with berthing({"full": "t4-4", "used": "t4-4", "idle": "t4-4"}) as b:
        b.cluster.apply(node_object("plain", carried_machines()["t4-4"], {}))  # no ResourceSlice names this node
        await b.create(*jobs(p=4, q=1), pod("web"))
        assert await b.bind("p", "full") == ""
        assert await b.bind("q", "used") == ""
        names = ["full", "used", "idle", "plain"]
        assert await b.prioritize("web", names) == {"full": 10, "used": 2, "idle": 0, "plain": 10}
        assert (await b.filter("web", names))["NodeNames"] == names

        await b.create(*jobs(r=3))
        assert await b.bind("r", "used") == ""
        b.cluster.api.registry.delete(RESOURCES["", "nodes"], ("", "plain"))
        await b.settled()
        assert await b.prioritize("web", names) == {"full": 10, "used": 10, "idle": 0, "plain": 0}


async def test_annotations_filter_by_topology_and_bandwidth() -> None:
    async with berthing({"pcie": "l40s-8-pix", "bridged": "a100-pcie-8-bridged"}) as b:
        await b.create(
            claim("c", 2),
            claim("d", 4),
            pod("p", "c", annotations={"berth.dev/topology": "required"}),
            pod("q", "d", annotations={"berth.dev/min-bandwidth-gbps": "100"}),
            pod("r", "c", annotations={"berth.dev/topology": "always"}),
        )
        assert (await b.filter("p"))["NodeNames"] == ["bridged"]
        assert set((await b.filter("q"))["FailedAndUnresolvableNodes"].values()) == {
            "no free device set has the required bandwidth"
        }
        assert "'always' is not one of" in (await b.filter("r"))["FailedAndUnresolvableNodes"]["pcie"]


async def test_candidates_bound_the_answer() -> None:
    nodes = {f"n{i}": "t4-4" for i in range(6)}
    async with berthing(nodes, Policy(candidates=2)) as b:
        await b.create(claim("c"), pod("p", "c"))
        assert (await b.filter("p"))["NodeNames"] == ["n0", "n1"]


async def test_unknown_claim_is_an_error_that_is_retried() -> None:
    async with one_node(pod("p", "later")) as b:
        assert "claim default/later is not known yet" in (await b.filter("p"))["Error"]


async def test_rejected_pod_is_woken_when_a_slice_brings_devices() -> None:
    """The marker class is touched once, and only because a pod waits."""
    async with berthing({"n1": "t4-4"}) as b:
        machine = carried_machines()["hgx-h100-8"]
        await b.create(node_object("n2", machine, {}), claim("c", 8), pod("p", "c"))
        assert (await b.filter("p"))["NodeNames"] == []
        before = b.cluster.store["deviceclasses", ("", "berth.dev")]["metadata"]["resourceVersion"]
        b.cluster.apply(gpu_slice("n2", machine))
        await eventually(
            lambda: b.cluster.store["deviceclasses", ("", "berth.dev")]["metadata"]["resourceVersion"] != before
        )
        assert (await b.filter("p"))["NodeNames"] == ["n2"]
        assert b.app.service.requeuer.touches == 1
