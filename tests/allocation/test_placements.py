"""Placements that several pod requirements share equal the placement of each one alone."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.allocation import Features
from extender.api.nodes import decode_node
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import PodClaim, Reservation, Result
from extender.api.resource_slices import DeviceId, SliceDecoder
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.policy import Policy, load_policy
from extender.sandbox import carried_machines
from extender.sandbox.machines import gpu_slice, node_object
from extender.scheduling import (
    EvaluationContext,
    NodeRanking,
    Placement,
    PodRequirements,
    evaluate,
    ignores_identity,
)
from extender.scheduling.evaluate import PlacementCache
from tests.worlds.filled_caches import GPU_CLASS, device_slice, put, required
from tests.worlds.running_berth import claim

_POLICIES = (Policy(), load_policy("headroom: roomy"), load_policy("packing: spread\nweights: {packing: 50}"))
_SELECTORS = (
    "",
    'device.attributes["gpu.nvidia.com"].brand == "Nvidia"',
    'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("20Gi")) >= 0',
    'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0',
    'device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:00"',
    'device.attributes["gpu.nvidia.com"].nothing == 1',
    'device.driver == "net.example.com"',
    'device.driver in ["net.example.com", "gpu.nvidia.com"]',
)
_ANNOTATIONS: tuple[dict[str, str], ...] = (
    {},
    {"topology": "required"},
    {"topology": "none"},
    {"min-bandwidth-gbps": "100"},
    {"expected-memory": "30Gi"},
)
SHARED = 8  # the number of the pool that all nodes reach
_ASKED = st.tuples(
    st.integers(1, 4),
    st.sampled_from(_SELECTORS),
    st.sampled_from(_ANNOTATIONS),
    st.sampled_from(_POLICIES),
    st.sampled_from(["gpu", "card"]),
)


def fleet(held: list[tuple[int, int]]) -> tuple[ClusterCache, Masks]:
    """Four machines twice; of each node in turn, these devices are held. A pool that all nodes reach is number 8."""
    cache, machines = put(ClusterCache(), GPU_CLASS), carried_machines()
    for number, kind in enumerate(("hgx-h100-8", "dgx1-v100", "a100-pcie-8-bridged", "t4-4") * 2):
        name = f"n{number}"
        put(cache, node_object(name, machines[kind], {}), gpu_slice(name, machines[kind]))
    if any(node == SHARED for node, _ in held):
        devices = [{"name": f"gpu-{i}", "capacity": {"memory": {"value": f"{10 * (5 - i)}Gi"}}} for i in range(5)]
        put(cache, device_slice(f"n{SHARED}", "net.example.com", devices, nodeName=None, allNodes=True))
    for number, (node, device) in enumerate(held):
        one: dict[str, Any] = claim(f"held-{number}", 1)
        one["metadata"]["uid"] = f"held-{number}"
        driver = "net.example.com" if node == SHARED else "gpu.nvidia.com"
        result = {"request": "gpu", "driver": driver, "pool": f"n{node}", "device": f"gpu-{device}"}
        put(cache, {**one, "status": {"allocation": {"devices": {"results": [result]}}}})
    return cache, Masks()


def requirements(
    cache: ClusterCache, count: int, selector: str, annotations: dict[str, str], policy: Policy, request: str
) -> PodRequirements:
    asked = claim("asked", count, selector)
    asked["spec"]["devices"]["requests"][0]["name"] = request
    prefixed = {f"berth.dev/{key}": value for key, value in annotations.items()}
    pod = Pod(ObjectKey("default", "p"), "u", (PodClaim("g", "asked"),), annotations=prefixed)
    return required(pod, put(cache, asked), policy)


@given(
    st.lists(st.tuples(st.integers(0, SHARED), st.integers(0, 3)), max_size=12, unique=True),
    st.lists(_ASKED, min_size=1, max_size=6),
)
def test_a_shared_placement_equals_the_placement_of_the_pod_alone(
    held: list[tuple[int, int]], asked: list[tuple]
) -> None:
    cache, masks = fleet(held)
    placements = PlacementCache()
    for one in asked:
        wanted, snapshot = requirements(cache, *one), cache.snapshot()
        alone, shared = (
            EvaluationContext(masks, Features(), snapshot.baseline),
            EvaluationContext(masks, Features(), snapshot.baseline, placements),
        )
        if ignores_identity(wanted, alone):
            shared = shared.sharing_selections()
        for node_info in snapshot.node_infos.values():
            assert evaluate(node_info, wanted, shared) == evaluate(node_info, wanted, alone)


def test_nodes_share_no_placement_if_their_packing_counts_other_devices() -> None:
    """One has a GPU and a NIC; the other, whose devices are as many and alike, has no GPU."""
    cache = put(ClusterCache(), GPU_CLASS)
    for node, driver in (("n1", "gpu.example.com"), ("n2", "fpga.example.com")):
        put(cache, {"kind": "Node", "metadata": {"name": node}})
        put(cache, *(device_slice(node, one, [{"name": "x"}]) for one in (driver, "nic.example.com")))
    asked = requirements(cache, 1, 'device.driver == "nic.example.com"', {}, Policy(), "nic")
    snapshot, said = cache.snapshot(), []
    context = EvaluationContext(Masks(), Features(), snapshot.baseline, PlacementCache())
    for node in ("n1", "n2"):
        found = evaluate(snapshot.node_infos[node], asked, context)
        assert isinstance(found, Placement)
        said += [part.sentence for part in found.parts if part.name == "packing"]
    assert said == ["0 of 1 GPU in use before (pack)", "0 of 2 devices in use before (pack)"]


def test_a_cached_placement_keeps_no_request() -> None:
    """A request may take 128 KiB, and a tenant may fill the cache with pods that differ in their annotations."""
    cache, masks = fleet([])
    long = " " * 10_000 + "true"
    wanted, snapshot, placements = requirements(cache, 1, long, {}, Policy(), "gpu"), cache.snapshot(), PlacementCache()
    context = EvaluationContext(masks, Features(), snapshot.baseline, placements)
    found = [evaluate(node_info, wanted, context, shared=True) for node_info in snapshot.node_infos.values()]
    assert len(placements) == len(set(map(id, found))) == 4
    for one, node_info in zip(found, snapshot.node_infos.values(), strict=True):
        assert isinstance(one, Placement)
        assert one.is_shared
        assert not one.solution.picks[0][0].request.selectors
        own = evaluate(node_info, wanted, context)
        assert isinstance(own, Placement)
        assert own.solution.picks[0][0].request is wanted.specs[0].requests[0].alternatives[0]


def test_nodes_that_differ_in_use_alone_are_matched_once() -> None:
    """A ranking reads the selectors for one node of each kind, and for every node if they read an identity."""
    cache, _ = fleet([(0, 1), (4, 2)])
    for selector, slices in ((_SELECTORS[2], 4), ('device.attributes["gpu.nvidia.com"].uuid != "x"', 8)):
        masks, wanted = Masks(), requirements(cache, 1, selector, {}, _POLICIES[0], "gpu")
        snapshot = cache.snapshot()
        ranking = NodeRanking(wanted)
        assert ranking.update(snapshot, EvaluationContext(masks, Features(), snapshot.baseline))
        assert ranking.nodes == len(snapshot.node_infos)
        assert masks.remembered()["masks"] == slices


def test_placements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[PlacementCache.__module__], "_MAX_PLACEMENTS", 3)
    cache, masks = fleet([(0, 1)])
    placements, wanted, snapshot = (
        PlacementCache(),
        requirements(cache, 2, "", {}, _POLICIES[0], "gpu"),
        cache.snapshot(),
    )
    for node_info in snapshot.node_infos.values():
        evaluate(node_info, wanted, EvaluationContext(masks, Features(), snapshot.baseline, placements))
    assert len(placements) == 3


def test_placements_of_another_fleet_are_dropped() -> None:
    """Scores are relative to the fleet, so placements of another fleet are dropped."""
    cache, masks = fleet([])
    placements = PlacementCache()
    for more in ((), ("hgx-b200-8-degraded",)):
        for kind in more:
            machine = carried_machines()[kind]
            cache.apply_node("more", decode_node(node_object("more", machine, {})))
            cache.apply_slice("more", SliceDecoder().decode(gpu_slice("more", machine)))
        wanted, snapshot = requirements(cache, 2, "", {}, _POLICIES[0], "gpu"), cache.snapshot()
        for node_info in snapshot.node_infos.values():
            shared, alone = (
                EvaluationContext(masks, Features(), snapshot.baseline, placements),
                EvaluationContext(masks, Features(), snapshot.baseline),
            )
            assert evaluate(node_info, wanted, shared) == evaluate(node_info, wanted, alone)
    assert len(placements) == 5


def test_nodes_share_the_choice_among_the_devices_that_all_of_them_reach() -> None:
    """Four machines, and one more number of own devices in use. A claim on the pool changes no own placement."""
    cache, masks = fleet([(0, 1), (0, 2), (SHARED, 0)])
    placements, known = PlacementCache(), []
    for driver, held in (("net", ""), ("gpu", ""), ("gpu", "gpu-1")):
        if held:
            result = Result("r", DeviceId("net.example.com", f"n{SHARED}", held))
            cache.hold({"c": Reservation("other", "n0", (result,), 10.0)})
        wanted = requirements(cache, 1, f'device.driver.startsWith("{driver}")', {}, _POLICIES[0], "gpu")
        snapshot = cache.snapshot()
        for node_info in snapshot.node_infos.values():
            evaluate(node_info, wanted, EvaluationContext(masks, Features(), snapshot.baseline, placements))
        known.append(len(placements))
    assert known == [5, 10, 10]
