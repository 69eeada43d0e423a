"""Influences on the score and the choice besides links: request mix, drift, memory, groups, overrides, partitions."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from extender.api.claim_specs import ClaimSpec, DeviceRequest, Request
from extender.api.gpu_topology import DEFAULT_MIX, RequestShape, whole_gpus
from extender.api.object_meta import ObjectKey
from extender.api.quantity import parse_quantity
from extender.api.resource_claims import Allocation, Claim
from extender.cache.fleet_baseline import RequestMixEstimator
from extender.policy import load_policy
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import gpu_slice
from tests.worlds.dra_worlds import H100, use_memory
from tests.worlds.running_berth import Berthing, berthing, claim, pod

L40S, T4 = "l40s-8-pix", "t4-4"
Json = dict[str, Any]


async def ask(
    b: Berthing, name: str, count: int = 1, annotations: dict[str, str] | None = None, **exactly: Any
) -> Json:
    await b.create(claim(name, count, **exactly), pod(name, name, annotations=annotations))
    return await b.filter(name)


def failed(answer: Json) -> Json:
    return {**(answer["FailedNodes"] or {}), **(answer.get("FailedAndUnresolvableNodes") or {})}


async def why(b: Berthing, name: str) -> Json:
    return (await b.client.get(f"/v1/explain/default/{name}")).json()


async def change(b: Berthing, name: str, edit: Callable[[list[Json]], None]) -> None:
    """Edit a stored slice as its driver would."""
    obj = copy.deepcopy(b.cluster.store.get("resourceslices", ("", name)))
    assert obj is not None
    edit(obj["spec"]["devices"])
    obj["spec"]["pool"]["generation"] += 1
    b.cluster.store.put("resourceslices", ("", name), obj)
    await b.settled()


def fabric_name(node: str) -> str:
    return fabric_slice(node, carried_machines()[H100])["metadata"]["name"]


@pytest.mark.parametrize(
    ("drift", "avoided", "fits"), [("penalise", True, True), ("filter", True, False), ("ignore", False, True)]
)
async def test_gpus_in_use_without_an_allocation(drift: str, avoided: bool, fits: bool) -> None:
    async with berthing({"n1": H100}, load_policy(f"{{drift: {drift}, weights: {{value: 0}}}}")) as b:
        await change(b, fabric_name("n1"), use_memory(0, 1, 2, 3, mib=20_000))
        await ask(b, "four", 4)
        found = (await why(b, "four"))["best"][0]
        devices = {d.rpartition("-")[2] for d in found["devices"]}
        assert (devices == set("4567")) is avoided, found
        b.app.service.cache.release(b.pod("four")["metadata"]["uid"])
        await ask(b, "five", 5)
        found = await why(b, "five")
        assert (found["outcome"] == "fits") is fits
        if fits:
            sentences = " ".join(part["sentence"] for part in found["best"][0]["parts"])
            assert "no memory requested for 5 GPUs: 398 GiB assumed of 398 GiB unclaimed" in sentences, sentences
        if drift == "filter":
            reason = "memory of matching devices is in use without a claim for request gpu"
            assert reason in found["sentence"]
        if drift == "penalise":
            assert any("memory in use that no claim holds" in p["sentence"] for p in found["best"][0]["parts"])


async def test_idle_memory_and_old_words_are_no_drift() -> None:
    async with berthing({"n1": H100}) as b:
        await change(b, fabric_name("n1"), use_memory(0, mib=700))
        cache = b.app.service.cache
        assert not cache.snapshot().node_infos["n1"].drift
        await change(b, fabric_name("n1"), use_memory(0, mib=9000))
        node_info = cache.snapshot().node_infos["n1"]
        assert node_info.positions(node_info.drift) == 1
        cache.expire(b.app.service.clock() + b.app.service.filter_service.policy.live_memory_seconds + 1)
        assert not cache.snapshot().node_infos["n1"].drift, "the data of a silent agent are ignored"
        await change(b, fabric_name("n1"), use_memory(0, mib=9100))
        node_info = cache.snapshot().node_infos["n1"]
        assert node_info.positions(node_info.drift) == 1


async def test_expected_memory_leaves_small_cards_out_and_names_their_memory() -> None:
    async with berthing({"n1": T4, "n2": L40S}) as b:
        assert (await ask(b, "small", 1, {"berth.dev/expected-memory": "10Gi"}))["NodeNames"][0] == "n1"
        assert (await ask(b, "middle", 1, {"berth.dev/expected-memory": "30Gi"}))["NodeNames"] == ["n2"]
        refused = await ask(b, "large", 1, {"berth.dev/expected-memory": "80Gi"})
        assert failed(refused)["n1"] == "80Gi of memory asked for, the largest matching device has 15Gi"
        assert (
            "berth.dev/expected-memory" in failed(await ask(b, "bad", 1, {"berth.dev/expected-memory": "much"}))["n1"]
        )


@pytest.mark.parametrize(
    ("exactly", "annotations", "need"),
    [
        ({}, {}, "70 GiB needed of 80 GiB unclaimed"),
        ({}, {"berth.dev/expected-memory": "75Gi"}, "75 GiB needed of 80 GiB unclaimed"),
        ({"capacity": {"requests": {"memory": "72Gi"}}}, {"berth.dev/expected-memory": "75Gi"}, "72 GiB needed of 80"),
    ],
    ids=["selector", "annotation", "request"],
)
async def test_memory_in_a_selector_is_a_request(exactly: Json, annotations: dict[str, str], need: str) -> None:
    """The user's own figure comes before the bound of the selector."""
    at_least = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("70Gi")) >= 0'
    async with berthing({"n1": H100, "n2": T4}) as b:
        await ask(b, "plain")
        assert (await ask(b, "p", 1, annotations, selectors=[{"cel": {"expression": at_least}}], **exactly))[
            "NodeNames"
        ]
        parts = {part["name"]: part["sentence"] for part in (await why(b, "p"))["best"][0]["parts"]}
        assert parts["headroom"].startswith(need), parts


async def test_memory_in_the_selector_of_a_class_is_a_request() -> None:
    """Two pods match the same devices by other selectors; each is told its own need."""
    bound = 'device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("40Gi"))'
    async with berthing({"n1": H100}) as b:
        class_ = copy.deepcopy(b.cluster.store["deviceclasses", ("", "gpu.nvidia.com")])
        class_["metadata"] = {"name": "large"}
        class_["spec"]["selectors"].append({"cel": {"expression": bound}})
        await b.create(class_)
        await ask(b, "plain")
        await ask(b, "large", deviceClassName="large")
        found = {
            name: [part["sentence"] for part in (await why(b, name))["best"][0]["parts"] if part["name"] == "headroom"]
            for name in ("plain", "large")
        }
        assert found["plain"] == []  # `value` prefers the cheap GPU: nothing is assumed
        assert found["large"][0].startswith("40 GiB needed of 80 GiB"), found


async def test_eighty_gi_never_fit_a_card_of_eighty_gb() -> None:
    async with berthing({"n1": H100}) as b:
        refused = await ask(b, "p", 1, capacity={"requests": {"memory": "80Gi"}})
        assert failed(refused)["n1"] == "80Gi of memory asked for, the largest matching device has 79.6Gi"


async def test_pods_of_a_group_share_a_clique_then_a_rack() -> None:
    nodes = {f"n{i}": "gb200-nvl72-tray" for i in range(6)}
    async with berthing(nodes) as b:
        for i in range(6):
            node = b.cluster.store["nodes", ("", f"n{i}")]
            node["metadata"].setdefault("labels", {}).update(
                {"nvidia.com/gpu.clique": f"c{i % 3}", "topology.kubernetes.io/rack": f"r{i % 2}"}
            )
            b.cluster.store.put("nodes", ("", f"n{i}"), node)
        group = {"berth.dev/group": "ring"}
        first = (await ask(b, "a", 4, group))["NodeNames"][0]
        assert await b.bind("a", first) == ""
        await b.settled()
        second = (await ask(b, "b", 4, group))["NodeNames"][0]
        assert second != first, "the same clique"
        assert int(second[1]) % 3 == int(first[1]) % 3, "the same clique"
        assert await b.bind("b", second) == ""
        await b.settled()
        third = await ask(b, "c", 4, group)
        best = await b.prioritize("c", third["NodeNames"])
        assert best[third["NodeNames"][0]] == 10
        assert int(third["NodeNames"][0][1]) % 2 in {int(first[1]) % 2, int(second[1]) % 2}
        assert b.claims()[0]["metadata"]["annotations"]["berth.dev/group"] == "ring"
        other = (await ask(b, "d", 4))["NodeNames"]
        assert len(other) == 3, "the nodes of pods outside of a group do not matter"


async def test_overrides_by_namespace_and_class() -> None:
    policy = load_policy("""
overrides:
- {namespaces: [default], weights: {headroom: 0}, headroom: roomy}
- {classes: [other], packing: spread}
""")
    mine = policy.effective("default", frozenset({"gpu.nvidia.com"}))
    assert (mine.weights.headroom, mine.weights.link, mine.headroom, mine.packing) == (
        0,
        policy.weights.link,
        "roomy",
        "pack",
    )
    assert policy.effective("default", frozenset({"gpu.nvidia.com"})) is mine
    assert policy.effective("x", frozenset({"gpu.nvidia.com"})) is policy
    assert policy.effective("default", frozenset({"other"})).packing == "spread"
    for text, expected in (("{}", "n1"), ("overrides: [{namespaces: [default], headroom: roomy}]", "n2")):
        async with berthing({"n1": T4, "n2": H100}, load_policy(text)) as b:
            assert (await ask(b, "p"))["NodeNames"][0] == expected


async def test_only_partitions_of_fabric_manager_are_taken() -> None:
    """Partitions of two are {0,2} {1,3} {4,6} {5,7}; of four {0,1,2,3} {4,5,6,7}."""
    two = {0: 1, 2: 1, 1: 2, 3: 2, 4: 3, 6: 3, 5: 4, 7: 4}

    def edit(devices: list[Json]) -> None:
        for i, device in enumerate(devices):
            device["attributes"]["gpu.nvidia.com/partition2"] = {"int": two[i]}
            device["attributes"]["gpu.nvidia.com/partition4"] = {"int": 10 + i // 4}

    async with berthing({"n1": H100}) as b:
        await change(b, gpu_slice("n1", carried_machines()[H100])["metadata"]["name"], edit)
        taken: list[Any] = []
        for i in range(4):
            assert (await ask(b, f"p{i}", 2))["NodeNames"] == ["n1"]
            assert await b.bind(f"p{i}", "n1") == ""
            await b.settled()
            taken.append({int(device[-1]) for _, device in b.held()} - set().union(*taken))
        assert sorted(map(sorted, taken)) == [[0, 2], [1, 3], [4, 6], [5, 7]]
        b.cluster.store.remove("resourceclaims", ("default", "p1"))
        b.cluster.store.remove("resourceclaims", ("default", "p2"))
        await ask(b, "four", 4)
        found = await why(b, "four")
        assert "no partition of 4 GPUs is free" in found["sentence"], found
        assert found["misses"] == ["fits on n1 if gpu-0, gpu-2, held by pod default/p0, were free"]
    async with berthing({"n1": H100}) as b:
        await change(b, gpu_slice("n1", carried_machines()[H100])["metadata"]["name"], edit)
        assert failed(await ask(b, "three", 3)) == {"n1": "the node has no partition of 3 GPUs"}


def spec(count: int, memory: str = "") -> ClaimSpec:
    capacity = {"memory": parse_quantity(memory)} if memory else None
    return ClaimSpec((Request("r", (DeviceRequest("r", "c", count=count, capacity=capacity),)),))


def see(estimator: RequestMixEstimator, start: int, number: int, asked: ClaimSpec) -> None:
    for i in range(start, start + number):
        estimator.observe(Claim(ObjectKey("x", f"c{i}"), f"u{i}", allocation=Allocation(), spec=asked))


def test_request_mix_is_learned_in_steps() -> None:
    estimator = RequestMixEstimator()
    see(estimator, 0, 31, spec(8))
    assert estimator.mix(80 << 30) is DEFAULT_MIX, "too few claims for an estimate"
    see(estimator, 31, 1, spec(8))
    eight = estimator.mix(80 << 30)
    assert eight == ((whole_gpus(8), 1.0),)
    see(estimator, 32, 4, spec(1))
    assert estimator.mix(80 << 30) is eight, "a small change of the mix must not cause a new evaluation of all nodes"
    see(estimator, 36, 28, spec(1, "20Gi"))
    assert dict(estimator.mix(80 << 30)) == {
        whole_gpus(8): 0.5,
        RequestShape(1, 250): 0.4375,
        whole_gpus(1): 0.0625,
    }


def test_few_large_jobs_are_expected_too() -> None:
    """Of openb's pods, 3 of 100 ask for 8 GPUs, a quarter of all: they were not in the mix, and found no board."""
    estimator = RequestMixEstimator()
    see(estimator, 0, 32, spec(1))
    assert estimator.mix(80 << 30) == ((whole_gpus(1), 1.0),)
    see(estimator, 32, 1, spec(8))
    assert {shape for shape, share in estimator.mix(80 << 30) if share} == {whole_gpus(1), whole_gpus(8)}


@pytest.mark.parametrize("count", [33, 2**63 - 1, 2**70])
def test_claims_that_no_node_can_satisfy_are_not_learned(count: int) -> None:
    """An allocation has at most 32 results, so such a claim is never allocated."""
    estimator = RequestMixEstimator()
    see(estimator, 0, 40, spec(count))
    assert estimator.mix(80 << 30) is DEFAULT_MIX
    see(estimator, 40, 40, spec(32))
    assert estimator.mix(80 << 30) == ((whole_gpus(32), 1.0),)


async def test_learned_request_mix_moves_the_choice() -> None:
    """If most jobs need eight GPUs, a one-GPU pod goes to a machine that is already partly used."""
    async with berthing({"n1": H100, "n2": H100}, load_policy("weights: {packing: 0}")) as b:
        for i in range(40):
            old = claim(f"old-{i}", 8)
            old["status"] = {"allocation": {"devices": {"results": []}}}
            b.cluster.apply(old)
        first = (await ask(b, "a"))["NodeNames"][0]
        assert await b.bind("a", first) == ""
        await b.settled()
        assert (await ask(b, "b"))["NodeNames"][0] == first
        sentence = next(p["sentence"] for p in (await why(b, "b"))["best"][0]["parts"] if p["name"] == "fragmentation")
        assert re.match(r"the typical job (gains|loses) \d|no change for the typical job, ", sentence)
