"""The links that a node's agent publishes are the affair of its node: their cost, and their part in all scores."""

from __future__ import annotations

import gc
import random
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from extender.allocation import FleetBaseline
from extender.api.gpu_topology import Graph, Source
from extender.api.resource_slices import SliceDecoder
from extender.cache import ClusterCache
from extender.cache.slice_index import NODE_BURST, NODE_SECONDS, TOO_OFTEN
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import GPU_DRIVER, gpu_slice
from extender.sandbox.machines import gpu_uuid as made_up_uuid
from extender.topology.sets import MAX_MESH, bandwidth, best_gbps, mesh_problem, ranked
from extender.topology.sources import choose_fabric, live_fabric
from tests.worlds.filled_caches import device_slice, fabric_at, machine_nodes, put, read_agent
from tests.worlds.vendor_worlds import whole_gpus

MACHINES = carried_machines()
DECODER = SliceDecoder()
Links = dict[tuple[int, int], int]

# machine to the best ring of 2, 3, ... GPUs, in GB/s
BEST = {
    "a100-pcie-8-bridged": [240, 20, 20, 20, 20, 20, 20],
    "a100-pcie-8-crossed": [240, 20, 20, 20, 20, 20, 20],
    "a40-8-bridged": [48, 20, 20, 20, 20, 20, 20],
    "dgx1-p100": [18, 36, 54, 36, 54, 54, 72],
    "dgx1-v100": [40, 40, 80, 40, 80, 80, 120],
    "gb200-nvl72-tray": [722, 722, 722],
    "h100-pcie-8-bridged": [247, 30, 30, 30, 30, 30, 30],
    "hgx-b200-8-degraded": [722, 722, 722, 722, 722, 722, 30],
    "hgx-h100-8": [371, 371, 371, 371, 371, 371, 371],
    "l40s-8-pix": [20, 20, 20, 20, 20, 20, 20],
    "rtx-a6000-4-bridged": [48, 20, 20],
    "t4-4": [10, 10, 10],
}


def said(gpus: int, node: str = "n1", links: Links | None = None, **same: str | int) -> dict:
    """An agent's slice with so many GPUs, these links, and the same further attributes on each GPU."""
    devices = []
    for i in range(gpus):
        row = {b if a == i else a: count for (a, b), count in (links or {}).items() if i in (a, b)}
        values = {"productName": "X", **same, "uuid": made_up_uuid(node, i), "memoryTotalMiB": 1024}
        values["links"] = ",".join(f"{peer}:{count}" for peer, count in sorted(row.items()))
        attributes = {k: {"int": v} if isinstance(v, int) else {"string": v} for k, v in values.items()}
        devices.append({"name": f"gpu-{i}", "attributes": attributes})
    obj = fabric_slice(node, MACHINES["t4-4"])
    obj["spec"]["devices"] = devices
    return obj


def complete(gpus: range, count: int) -> Links:
    return dict.fromkeys(combinations(gpus, 2), count)


def irregular(gpus: int, seed: int) -> Links:
    """Links between pairs by chance, as many as the bounds of each GPU allow."""
    chance, found, used = random.Random(seed), dict[tuple[int, int], int](), [0] * gpus
    for a, b in chance.choices(list(combinations(range(gpus), 2)), k=60 * gpus):
        if used[a] < 36 and used[b] < 36:
            found[a, b] = found.get((a, b), 0) + 1
            used[a], used[b] = used[a] + 1, used[b] + 1
    return found


def circle(gpus: int) -> Links:
    return {(min(a, b), max(a, b)): 1 for a, b in ((i, (i + 1) % gpus) for i in range(gpus))}


def two_meshes() -> Links:
    """The links of two DGX-1, the most expensive ones that Berth believes."""
    mesh = {
        (a, b): n for a, row in enumerate(live("dgx1-v100")[0].graph.links) for b, n in enumerate(row) if a < b and n
    }
    return mesh | {(a + 8, b + 8): n for (a, b), n in mesh.items()}


@pytest.mark.parametrize(
    ("gpus", "links", "word"),
    [
        (16, complete(range(13), 3), "join 13 GPUs"),
        (16, {(a, b): 4 for a in range(8) for b in range(8, 16)}, "join 16 GPUs"),
        (16, irregular(16, 1), "without a switch"),
        (16, circle(16), "join 16 GPUs"),
        (9, circle(9), "join 9 GPUs"),
        (8, {**complete(range(8), 5), (0, 1): 4}, "too many rings"),
        (8, irregular(8, 1), "too many rings"),
        (16, {**complete(range(8), 5), (0, 1): 4} | complete(range(8, 16), 5), "too many rings"),
    ],
)
def test_links_that_cost_a_long_search_are_named_and_left_out(gpus: int, links: Links, word: str) -> None:
    """Attack: stall serve with links whose rings take a long search."""
    found, problems = read_agent(said(gpus, links=links, nvlinkVersion=5))
    assert word in problems[0]
    assert not any(map(any, found.graph.links))
    assert [gpu.memory_total_bytes for gpu in found.gpus] == [1 << 30] * gpus, "the rest of the slice counts"
    assert best_gbps(found.graph, (1 << gpus) - 1, gpus) == found.graph.pcie_gbps


def test_a_switch_joins_more_gpus_than_a_mesh() -> None:
    found, problems = read_agent(said(16, switchLinks=6, nvlinkVersion=2))
    assert not problems
    assert best_gbps(found.graph, (1 << 16) - 1, 2 * MAX_MESH) == 120


def test_sixteen_gpus_in_two_meshes_are_believed() -> None:
    found, problems = read_agent(said(16, links=two_meshes(), nvlinkVersion=2))
    assert not problems
    best = [round(best_gbps(found.graph, (1 << 16) - 1, count)) for count in range(2, 10)]
    assert best == [*BEST["dgx1-v100"], found.graph.pcie_gbps]


def live(machine: str) -> tuple[Any, tuple[str, ...]]:
    gpus = whole_gpus(gpu_slice("n1", MACHINES[machine]), GPU_DRIVER)
    said, problems = live_fabric(DECODER.decode(fabric_slice("n1", MACHINES[machine])), GPU_DRIVER, gpus, lambda _: "")
    return choose_fabric(said, GPU_DRIVER, gpus), problems


def test_every_machine_has_a_table_row() -> None:
    assert BEST.keys() == MACHINES.keys()


@pytest.mark.parametrize("machine", BEST)
def test_machines_keep_their_rings(machine: str) -> None:
    found, problems = live(machine)
    graph, full = found.graph, (1 << found.graph.size) - 1
    assert not problems
    assert found.source is Source.LIVE
    assert graph == read_agent(fabric_slice("n1", MACHINES[machine]))[0].graph
    assert [round(best_gbps(graph, full, count)) for count in range(2, graph.size + 1)] == BEST[machine]
    for free in range(full + 1):
        for count in range(2, free.bit_count() + 1):
            rings = [bandwidth(graph, mask) for mask in ranked(graph, free, count)]
            assert best_gbps(graph, free, count) == rings[0] == max(rings)


# -- the fleet's baseline ------------------------------------------------------------------------------------


def baseline(cache: ClusterCache) -> FleetBaseline:
    return cache.snapshot().baseline


@pytest.mark.parametrize(
    ("machine", "lie"),
    [
        ("t4-4", said(4, switchLinks=36, linkMBps=200_000)),
        ("t4-4", said(4, links={(0, 1): 36}, nvlinkVersion=5)),
        ("t4-4", said(4, pcieGeneration=16)),
        ("l40s-8-pix", said(8, pcieGeneration=5)),
        ("l40s-8-pix", said(8, links=complete(range(4), 6), nvlinkVersion=4)),
        ("hgx-h100-8", said(8, switchLinks=18, nvlinkVersion=5)),
        ("hgx-h100-8", said(8, switchLinks=36, nvlinkVersion=4)),
        ("dgx1-v100", said(8, switchLinks=18, nvlinkVersion=4)),
        ("a100-pcie-8-bridged", said(8, links={(0, 1): 18}, linkMBps=200_000, nvlinkVersion=16)),
    ],
)
def test_rates_that_the_product_cannot_have_do_not_count(machine: str, lie: dict) -> None:
    """The driver states the product. The whole fleet has this product, so nothing can be better than an honest node."""
    cache = machine_nodes(n1=machine, n2=machine)
    most = max(*baseline(cache).best_ring_gbps.values(), 120 if machine == "dgx1-v100" else 0)
    put(cache, lie)
    assert max(baseline(cache).best_ring_gbps.values()) <= most
    assert "has at most" in cache.agent_problems["n1"][0]
    assert "n2" not in cache.agent_problems


def test_an_unknown_product_counts_as_the_newest_known_one_at_most() -> None:
    cache = machine_nodes(n1="t4-4", n2="t4-4")
    unknown = gpu_slice("n1", MACHINES["t4-4"])
    for device in unknown["spec"]["devices"]:
        device["attributes"]["productName"] = {"string": "NVIDIA R999"}
    put(cache, unknown)
    put(cache, said(4, switchLinks=36, linkMBps=200_000, nvlinkVersion=16, pcieGeneration=16))
    assert {count: round(gbps) for count, gbps in baseline(cache).best_ring_gbps.items()} == {2: 722, 3: 722, 4: 722}


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_gpus_that_the_driver_does_not_publish_do_not_count(kept: int) -> None:
    """The agent of a node with few GPUs publishes four (the others are, for example, in MIG mode)."""
    cache = machine_nodes(n1="gb200-nvl72-tray", n2="t4-4")
    few = gpu_slice("n1", MACHINES["gb200-nvl72-tray"])
    del few["spec"]["devices"][kept:]
    put(cache, few)
    fleet = {count: 722 if count <= kept else 10 for count in (2, 3, 4)}
    assert {count: round(gbps) for count, gbps in baseline(cache).best_ring_gbps.items()} == fleet
    assert not cache.agent_problems


def partitioned(whole: int = 0) -> dict:
    """The slice of a tray whose GPUs, but for the first ones, are in MIG mode. A device may name its GPU's UUID."""
    found = gpu_slice("n1", MACHINES["gb200-nvl72-tray"])
    for device in found["spec"]["devices"][whole:]:
        device["attributes"] |= {"type": {"string": "mig"}, "parentUUID": device["attributes"]["uuid"]}
    return found


def test_a_mig_device_is_no_gpu_of_the_baseline() -> None:
    cache = machine_nodes(n1="gb200-nvl72-tray", n2="t4-4")
    put(cache, partitioned(whole=1))
    assert baseline(cache).best_ring_gbps == {2: 10, 3: 10, 4: 10}


@pytest.mark.parametrize("whole", [0, 2])
def test_a_mig_device_has_the_place_of_its_gpu(whole: int) -> None:
    """Also on a node whose GPUs are all in MIG mode. NVIDIA's driver 0.4 publishes no NUMA node."""
    cache = machine_nodes(n1="gb200-nvl72-tray")
    put(cache, device_slice("n1", "dra.net", [{"name": "nic", "attributes": {"dra.net/numaNode": {"int": 0}}}]))
    mig = partitioned(whole)
    for number, device in enumerate(mig["spec"]["devices"][whole:]):
        device["attributes"]["uuid"] = {"string": f"MIG-{number}"}
        device["attributes"].pop("resource.kubernetes.io/pcieRoot", None)
    put(cache, mig)
    info = cache.snapshot().node_infos["n1"]
    assert info.locality is not None
    gpus = [bit for bit, one in enumerate(info.inventory.devices) if one.id.driver == "gpu.nvidia.com"]
    assert [info.locality.numa[bit] for bit in gpus] == [(0,), (0,), (1,), (1,)]
    assert len({info.locality.roots[bit] for bit in gpus} - {0}) == 4
    assert [bit >= 0 for bit in info.gpu_bits] == [number < whole for number in range(4)]
    assert not cache.agent_problems
    put(cache, gpu_slice("n1", MACHINES["t4-4"]) | {"metadata": mig["metadata"]})
    info = cache.snapshot().node_infos["n1"]
    assert [bit >= 0 for bit in info.gpu_bits] == [True] * 4


def test_the_agent_of_a_node_that_lost_its_mig_devices_has_no_fabric() -> None:
    cache = machine_nodes(n1="gb200-nvl72-tray")
    mig = partitioned()
    for device in mig["spec"]["devices"]:
        del device["attributes"]["uuid"]
    put(cache, mig)
    assert fabric_at(cache) is not None
    mig["spec"]["devices"] = []
    put(cache, mig)
    assert fabric_at(cache) is None


def test_gpus_that_no_driver_publishes_belong_to_every_agent_that_names_them() -> None:
    """A node whose GPUs are in MIG mode loses nothing if the agent of another node names their UUIDs."""
    cache = machine_nodes(n1="t4-4", n2="gb200-nvl72-tray")
    few = gpu_slice("n2", MACHINES["gb200-nvl72-tray"])
    del few["spec"]["devices"][2:]
    put(cache, few)
    before = baseline(cache)
    lie = said(5, switchLinks=18, nvlinkVersion=5)
    lie["spec"]["devices"][4]["attributes"]["uuid"] = {"string": made_up_uuid("n2", 3)}
    put(cache, lie)
    assert fabric_at(cache, "n2").source is Source.LIVE
    assert baseline(cache) is before
    assert cache.agent_problems.keys() == {"n1"}


def test_made_up_gpus_do_not_raise_the_size_of_the_largest_node() -> None:
    cache = machine_nodes(n1="t4-4", n2="t4-4")
    put(cache, said(16))
    assert baseline(cache).most_gpus == 4
    assert baseline(cache).best_ring_gbps.keys() == {2, 3, 4}


def test_a_new_graph_with_the_same_best_rings_leaves_the_baseline_as_it_is() -> None:
    """Another baseline voids all scores of the fleet."""
    cache = machine_nodes(n1="t4-4", n2="t4-4")
    before = baseline(cache)
    put(cache, said(4, productName="Tesla T4", numaNode=7))
    assert fabric_at(cache).graph.numa == (7,) * 4
    assert baseline(cache) is before


def test_another_numa_node_or_distance_causes_no_new_search_for_rings() -> None:
    """Attack: keep serve busy with ever new NUMA nodes or distances."""
    cache = machine_nodes(n1="dgx1-v100", n2="t4-4")
    links = two_meshes()
    put(cache, said(16, links=links, nvlinkVersion=2))
    before, searches = baseline(cache), mesh_problem.cache_info().misses
    assert searches
    for number in range(1, 3):
        put(cache, said(16, links=links, nvlinkVersion=2, numaNode=number, distances="5" * number))
        assert baseline(cache) is before
    assert fabric_at(cache).graph.numa == (2,) * 16
    assert mesh_problem.cache_info().misses == searches


def test_ever_new_slices_of_an_agent_keep_no_more_graphs_than_the_tables_hold() -> None:
    """The table of interned graphs holds 1,024, and the caches of GPU sets as many."""
    cache = machine_nodes(n1="hgx-h100-8", n2="t4-4")
    for number in range(3000):
        cache.expire(60.0 * number)
        put(cache, said(2, links={(0, 1): 2}, linkMBps=20_000 + number, numaNode=number % 1024), now=60.0 * number)
        baseline(cache)
    gc.collect()
    assert sum(type(kept) is Graph for kept in gc.get_objects()) <= 2 * 1024 + 512, "512 for the tables of products"


# -- ever new links ------------------------------------------------------------------------------------------


def numa_of(cache: ClusterCache, node: str) -> int:
    return int(fabric_at(cache, node).graph.numa[0])


def test_links_that_change_ever_again_wait_and_delay_no_other_node() -> None:
    """Each write with new links costs a search for rings: ever new ones once kept serve busy."""
    cache = machine_nodes(n1="dgx1-v100", n2="t4-4")
    for number in range(1, 50):
        put(cache, said(8, pcieGeneration=3, numaNode=number), now=1.0)
        cache.snapshot()
    cache.apply_node("n1", replace(cache.store.nodes["n1"], labels={"a": "b"}))
    put(cache, said(4, "n2", pcieGeneration=3, numaNode=7), now=1.0)
    assert (numa_of(cache, "n1"), numa_of(cache, "n2")) == (1 + NODE_BURST, 7), "whatever else changes the node"
    assert cache.agent_problems["n1"][0] == TOO_OFTEN
    assert "n2" not in cache.agent_problems
    cache.expire(1 + NODE_SECONDS)
    assert numa_of(cache, "n1") == 49, "the newest slice counts"
    assert "n1" not in cache.agent_problems
    for number in range(50, 60):
        put(cache, said(8, pcieGeneration=3, numaNode=number), now=1 + 3 * NODE_SECONDS)
        cache.snapshot()
    assert numa_of(cache, "n1") == 51, "one for each 5 s"
    assert cache.agent_problems["n1"]


def test_an_agent_that_changes_the_name_of_its_pool_gains_no_time() -> None:
    """Attack: keep serve busy with ever new links or rates."""
    cache, other = machine_nodes(n1="dgx1-v100"), said(8)
    other["spec"]["pool"]["name"] = "n2"  # so the node has no agent's slice
    for number in range(1, 50):
        put(cache, other)
        put(cache, said(8, numaNode=number))
        cache.snapshot()
    assert numa_of(cache, "n1") == 1 + NODE_BURST


def test_the_state_of_gpus_does_not_wait() -> None:
    cache = machine_nodes(n1="t4-4")
    for number in range(50):
        put(cache, said(4, memoryFreeMiB=number, note=f"check {number}"), now=5.0 * number)
        fabric = fabric_at(cache)
        assert (fabric.gpus[0].memory_free_bytes, fabric.gpus[0].note) == (number << 20, f"check {number}")
