"""Gangs of ComputeDomains on two NVL72 racks, over real HTTP against the sandbox.

Each of the 36 trays has four GPUs and one channel of NVIDIA's driver for ComputeDomains.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from extender.policy import Policy, load_policy
from extender.sandbox import carried_machines
from extender.sandbox.apiserver.registry import RESOURCES
from extender.vendors import COMPUTE_DOMAIN_DRIVER, COMPUTE_DOMAIN_LABEL
from tests.worlds.eventually import eventually
from tests.worlds.filled_caches import class_of_driver, device_slice
from tests.worlds.gang_pods import gets_a_node, requeues
from tests.worlds.running_berth import Berthing, Json, berthing, pod

pytestmark = pytest.mark.loopback

RACKS, TRAYS, GPUS = 2, 18, 4
CLIQUE = Policy().group_levels[0]
CHANNELS = "compute-domain-default-channel.nvidia.com"
CHANNEL = {"name": "channel-0", "attributes": {"type": {"string": "channel"}, "id": {"int": 0}}}
ANOTHER = "node is in another ComputeDomain"
IN_CLIQUE = "another ComputeDomain has channels in NVLink clique"
CROWDED = "another ComputeDomain has channels in the node's NVLink clique"


def tray_claim(name: str, domain: str) -> Json:
    """A whole tray, with the channel of a ComputeDomain."""
    gpu = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": GPUS}
    channel = {"deviceClassName": CHANNELS, "allocationMode": "ExactCount", "count": 1}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": domain}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "devices": {
                "requests": [{"name": "gpu", "exactly": gpu}, {"name": "channel", "exactly": channel}],
                "config": [
                    {"requests": ["channel"], "opaque": {"driver": COMPUTE_DOMAIN_DRIVER, "parameters": parameters}}
                ],
            }
        },
    }


def small_claim(name: str, domain: str) -> Json:
    """One GPU with the channel of a ComputeDomain."""
    found = tray_claim(name, domain)
    found["spec"]["devices"]["requests"][0]["exactly"]["count"] = 1
    return found


def channel(b: Berthing, node: str, domain: str, namespace: str = "default") -> None:
    """Allocate the channel of a node to a ComputeDomain."""
    found = tray_claim(f"channel-of-{node}", domain)
    found["metadata"]["namespace"] = namespace
    found["spec"]["devices"]["requests"].pop(0)
    b.cluster.apply(found)
    result = {"request": "channel", "driver": COMPUTE_DOMAIN_DRIVER, "pool": node, "device": "channel-0"}
    change = {"status": {"allocation": {"devices": {"results": [result]}}}}
    claims, key = RESOURCES["resource.k8s.io", "resourceclaims"], (namespace, f"channel-of-{node}")
    b.cluster.api.registry.patch(claims, key, change, "status", strategic=False)


@asynccontextmanager
async def racks(*, labelled: bool = True, policy: str = "") -> AsyncIterator[Berthing]:
    async with berthing({}, load_policy(policy) if policy else None) as b:
        b.cluster.apply(class_of_driver(COMPUTE_DOMAIN_DRIVER, CHANNELS))
        for rack in range(RACKS):
            for tray in range(TRAYS):
                labels = {CLIQUE: f"rack-{rack}"} if labelled else {}
                b.cluster.add_node(name(rack, tray), carried_machines()["gb200-nvl72-tray"], labels)
                b.cluster.apply(device_slice(name(rack, tray), COMPUTE_DOMAIN_DRIVER, [CHANNEL]))
        await b.settled()
        yield b


def name(rack: int, tray: int) -> str:
    return f"r{rack}-t{tray:02}"


def member(b: Berthing, group: str, index: int, minimum: int, **annotations: str) -> str:
    found = f"{group}-{index}"
    notes = {"berth.dev/group": group, "berth.dev/group-min": str(minimum)} if minimum else {}
    notes |= {f"berth.dev/group-{key}": value for key, value in annotations.items()}
    b.cluster.apply(tray_claim(f"{found}-tray", f"domain-of-{group}"))
    b.cluster.apply(pod(found, f"{found}-tray", annotations=notes))
    return found


async def gang(b: Berthing, group: str, size: int, **annotations: str) -> dict[str, str]:
    """Create a gang and bind it; the node of each pod."""
    pods = [member(b, group, index, size, **annotations) for index in range(size)]
    await b.settled()
    nodes = {}
    for one in pods:
        answer = await b.filter(one)
        assert len(answer["NodeNames"] or ()) == 1, answer
        nodes[one] = answer["NodeNames"][0]
    assert set(await asyncio.gather(*(b.bind(one, node) for one, node in nodes.items()))) == {""}
    await b.settled()
    return nodes


def racks_of(nodes: dict[str, str]) -> Counter[str]:
    return Counter(node.partition("-")[0] for node in nodes.values())


async def test_gangs_fill_racks_tightly_and_keep_one_whole() -> None:
    async with racks() as b:
        small = await gang(b, "small", 4)
        assert len(racks_of(small)) == 1
        assert len(set(small.values())) == 4, "one channel for each node, so one member on each tray"
        whole = await gang(b, "whole", 18)
        assert racks_of(whole).total() == TRAYS
        assert racks_of(whole).keys().isdisjoint(racks_of(small)), "the small gang left the other rack whole"
        held = b.held()
        assert len(held) == len(set(held)) == 22 * (GPUS + 1)


async def test_a_gang_leaves_a_spare_tray_and_its_replacement_returns_to_the_rack() -> None:
    async with racks() as b:
        nodes = await gang(b, "train", 17)
        assert len(racks_of(nodes)) == 1
        (rack,) = racks_of(nodes)
        died = nodes["train-3"]
        registry = b.cluster.api.registry
        registry.delete(RESOURCES["", "pods"], ("default", "train-3"))
        registry.delete(RESOURCES["resource.k8s.io", "resourceclaims"], ("default", "train-3-tray"))
        for slice_ in [s for s in b.cluster.store.all("resourceslices") if s["spec"].get("nodeName") == died]:
            registry.delete(RESOURCES["resource.k8s.io", "resourceslices"], ("", slice_["metadata"]["name"]))
        registry.delete(RESOURCES["", "nodes"], ("", died))
        member(b, "train", 17, 17)
        await b.settled()
        await eventually(lambda: gets_a_node(b, "train-17"), "the bound pods are read")
        (node,) = (await b.filter("train-17"))["NodeNames"]
        assert node.partition("-")[0] == rack
        assert node not in nodes.values()
        assert await b.bind("train-17", node) == ""


async def test_a_gang_larger_than_a_rack_uses_both_or_waits() -> None:
    async with racks() as b:
        strict = [member(b, "strict", index, 20, topology="required") for index in range(20)]
        await b.settled()
        answer = await b.filter(strict[0])
        reasons = set(answer["FailedAndUnresolvableNodes"].values())
        assert reasons == {"no domain has room for all pods of group strict together"}
        assert not b.held()
        nodes = await gang(b, "wide", 20)
        assert sorted(racks_of(nodes).values()) == [2, 18], "the fewest racks, the first one filled"


async def test_a_node_of_another_domain_is_avoided_until_its_label_goes() -> None:
    async with racks() as b:
        for tray in range(TRAYS):
            label(b, name(0, tray), "domain-of-another")
        nodes = await gang(b, "train", 4)
        assert set(racks_of(nodes)) == {"r1"}
        alone = member(b, "solo", 0, 0)
        for tray in range(TRAYS):
            label(b, name(1, tray), "domain-of-another")
        await b.settled()
        answer = await b.filter(alone)
        assert not answer["NodeNames"]
        assert set(answer["FailedAndUnresolvableNodes"].values()) == {ANOTHER}
        explained = (await b.client.get(f"/v1/explain/default/{alone}")).json()
        assert f"{ANOTHER} on 36 of 36 nodes" in str(explained)
        async with requeues(b, "the pod is requeued"):
            label(b, name(0, 5), "domain-of-solo")
        assert (await b.filter(alone))["NodeNames"] == [name(0, 5)]


async def test_pods_of_a_domain_are_drawn_to_its_clique_without_an_annotation() -> None:
    async with racks() as b:
        for index in range(4):
            one = member(b, "plain", index, 0)
            await b.settled()
            node = (await b.filter(one))["NodeNames"][0]
            assert await b.bind(one, node) == ""
        assert len(racks_of({one: b.node_of(one) for one in (f"plain-{index}" for index in range(4))})) == 1


@pytest.mark.parametrize(("policy", "shared"), [("prefer", False), ("require", False), ("ignore", True)])
async def test_two_domains_share_a_rack_only_if_the_policy_ignores_it(policy: str, shared: bool) -> None:
    """Two in one clique break each other. Without the rule, a rack is filled before the next is used."""
    async with racks(policy=f"compute_domains: {policy}") as b:
        first = await gang(b, "first", 4)
        second = await gang(b, "second", 4)
        assert (racks_of(first).keys() == racks_of(second).keys()) is shared
        again = member(b, "first", 9, 0)
        await b.settled()
        (node, *_) = (await b.filter(again))["NodeNames"]
        assert node.partition("-")[0] in racks_of(first), "a pod joins its own domain"


async def test_a_pod_alone_avoids_the_rack_of_another_domain_while_there_is_another() -> None:
    async with racks() as b:
        taken = await gang(b, "taken", 4)
        alone = member(b, "alone", 0, 0)
        await b.settled()
        answer = await b.filter(alone)
        racks_in_order = [node.partition("-")[0] for node in answer["NodeNames"]]
        assert racks_in_order[0] not in racks_of(taken)
        assert racks_in_order == sorted(racks_in_order, key=lambda rack: rack in racks_of(taken))
        assert set(racks_in_order[18:]) == racks_of(taken).keys(), "the other rack comes last, and is not refused"


async def test_explain_has_the_order_of_filter_and_says_why_a_better_node_comes_last() -> None:
    """Its rack has a tray in use, so that packing scores the trays there higher."""
    async with racks() as b:
        channel(b, name(0, 0), "domain-of-x")
        b.cluster.occupy(name(0, 1), (0, 1))
        await b.create(small_claim("alone-tray", "domain-of-alone"), pod("alone", "alone-tray"))
        explained = (await b.client.get("/v1/explain/default/alone")).json()
        nodes = (await b.filter("alone"))["NodeNames"]
        assert [one["node"] for one in explained["best"]] == nodes[:5]
        last = f"{name(0, 1)} has a better score, but {IN_CLIQUE} rack-0: its nodes come last"
        assert last in explained["sentence"]
        assert await b.bind("alone", nodes[0]) == ""
        note = b.cluster.store["pods", ("default", "alone")]["metadata"]["annotations"]["berth.dev/decision"]
        assert IN_CLIQUE not in note
        assert "runner-up r1-" in note, "a tray of the other rack is no runner-up, though its score is better"


async def test_the_decision_in_a_crowded_clique_says_so() -> None:
    async with racks() as b:
        for rack in range(RACKS):
            channel(b, name(rack, 0), f"domain-of-{rack}")
        await b.create(small_claim("alone-tray", "domain-of-alone"), pod("alone", "alone-tray"))
        explained = (await b.client.get("/v1/explain/default/alone")).json()
        assert [one["clique"] for one in explained["best"]] == ["rack-0"] * 5
        assert "better score" not in explained["sentence"]
        (node, *_) = (await b.filter("alone"))["NodeNames"]
        assert await b.bind("alone", node) == ""
        await b.settled()
        note = b.cluster.store["pods", ("default", "alone")]["metadata"]["annotations"]["berth.dev/decision"]
        assert f"; {IN_CLIQUE} rack-0; " in note
        explained = (await b.client.get("/v1/explain/default/alone")).json()
        assert explained["decision"]["chosen"]["clique"] == "rack-0"


async def test_the_reason_is_the_other_domain_where_it_is_all_that_stands_in_the_way() -> None:
    """More nodes have no such device at all. What would help names claims of the pod's own namespace only."""
    async with racks(policy="compute_domains: require") as b:
        for index in range(40):
            b.cluster.add_node(f"t4-{index:02}", carried_machines()["t4-4"])
        channel(b, name(0, 0), "domain-of-x")
        channel(b, name(1, 0), "domain-of-y", "secret")
        await b.create(small_claim("alone-tray", "domain-of-alone"), pod("alone", "alone-tray"))
        explained = (await b.client.get("/v1/explain/default/alone")).json()
        assert f"fits nowhere: {CROWDED} on 36 of 76 nodes; fits on r0-t01 and 16 more" in explained["sentence"]
        assert [miss.partition("ComputeDomain")[2] for miss in explained["misses"][:2]] == [
            ", which has channels for claim default/channel-of-r0-t00, ends",
            ", which has channels for 1 claim of other namespaces, ends",
        ]
        assert "secret" not in str(explained)


async def test_a_domain_waits_for_a_rack_of_its_own_if_the_policy_requires_it() -> None:
    async with racks(policy="compute_domains: require") as b:
        pods = [member(b, group, 0, 0) for group in ("a", "b")]
        await b.settled()
        for one in pods:
            assert await b.bind(one, (await b.filter(one))["NodeNames"][0]) == ""
            await b.settled()
        assert len(racks_of({one: b.node_of(one) for one in pods})) == 2
        waits = member(b, "c", 0, 0)
        whole = [member(b, "d", index, 4) for index in range(4)]
        await b.settled()
        answer = await b.filter(waits)
        assert answer["NodeNames"] in (None, [])
        assert set(answer["FailedAndUnresolvableNodes"].values()) == {CROWDED}
        explained = (await b.client.get(f"/v1/explain/default/{waits}")).json()
        assert f"{CROWDED} on 36 of 36 nodes" in explained["sentence"]
        assert not (await b.filter(whole[0]))["NodeNames"]
        touches, ended = b.app.service.requeuer.touches, b.node_of("a-0")
        registry = b.cluster.api.registry
        registry.delete(RESOURCES["", "pods"], ("default", "a-0"))
        registry.delete(RESOURCES["resource.k8s.io", "resourceclaims"], ("default", "a-0-tray"))
        await eventually(lambda: b.app.service.requeuer.touches > touches, "the pod is requeued")
        (node, *_) = (await b.filter(waits))["NodeNames"]
        assert node.partition("-")[0] == ended.partition("-")[0]


async def test_the_label_of_another_domain_keeps_its_rack() -> None:
    """The daemons of a domain may still run where its claims have ended."""
    async with racks(policy="compute_domains: require") as b:
        label(b, name(0, 3), "domain-of-another")
        alone = member(b, "alone", 0, 0)
        await b.settled()
        answer = await b.filter(alone)
        assert {node.partition("-")[0] for node in answer["NodeNames"]} == {"r1"}


@pytest.mark.parametrize("topology", ["required", "preferred"])
async def test_an_unknown_domain_is_named(topology: str) -> None:
    async with racks(labelled=False) as b:
        pods = [member(b, "train", index, 4, topology=topology) for index in range(4)]
        await b.settled()
        answer = await b.filter(pods[0])
        if topology == "preferred":
            assert answer["NodeNames"], "no domain is better than another"
        else:
            reasons = set(answer["FailedAndUnresolvableNodes"].values())
            assert reasons == {f"no node with devices has the label {CLIQUE} that group train needs"}


def label(b: Berthing, node: str, domain: str) -> None:
    change = {"metadata": {"labels": {COMPUTE_DOMAIN_LABEL: domain}}}
    b.cluster.api.registry.patch(RESOURCES["", "nodes"], ("", node), change, "", strategic=True)
