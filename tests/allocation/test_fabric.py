"""The fabric model against published figures, and with sources that contradict each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.api.gpu_topology import Fabric, Source
from extender.api.resource_slices import Attributes, Device, Schema, SliceDecoder
from extender.base.bits import members
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import GPU_DRIVER, gpu_slice
from extender.topology.agent_slices import Reading, attributes_of, fabric_of
from extender.topology.products import flat_graph, usual_graph
from extender.topology.sets import (
    Measures,
    bandwidth,
    is_joined,
    largest_joined,
    links_inside,
    mesh_problem,
    quality,
    ranked,
)
from extender.topology.sources import choose_fabric, live_fabric
from tests.worlds.vendor_worlds import whole_gpus

MACHINES = carried_machines()


def fabric(name: str) -> Fabric:
    found = fabric_of(SliceDecoder().decode(fabric_slice("n", MACHINES[name])).devices)
    assert found is not None
    return found


# machine, GPUs, best, worst, of the lowest-numbered set (published bridges and meshes, NCCL's rates)
TABLE = [
    ("dgx1-v100", 2, 40, 10, 20),
    ("dgx1-v100", 4, 80, 10, 80),
    ("dgx1-v100", 5, 40, 10, 10),
    ("dgx1-v100", 8, 120, 120, 120),
    ("dgx1-p100", 4, 54, 10, 54),
    ("a100-pcie-8-bridged", 2, 240, 20, 240),
    ("a100-pcie-8-bridged", 4, 20, 20, 20),
    ("h100-pcie-8-bridged", 2, 247, 30, 30),
    ("hgx-h100-8", 2, 371, 371, 371),
    ("hgx-h100-8", 8, 371, 371, 371),
    ("l40s-8-pix", 4, 20, 20, 20),
    ("gb200-nvl72-tray", 4, 722, 722, 722),
]


@pytest.mark.parametrize(("machine", "count", "best", "worst", "lowest"), TABLE)
def test_ring_bandwidth(machine: str, count: int, best: float, worst: float, lowest: float) -> None:
    graph = fabric(machine).graph
    found = [bandwidth(graph, mask) for mask in ranked(graph, (1 << graph.size) - 1, count)]
    assert (round(max(found)), round(min(found)), round(bandwidth(graph, (1 << count) - 1))) == (best, worst, lowest)


def most_cycles(size: int, links: int) -> int:
    """How many Hamiltonian cycles fit, each with half a link of its edges, by trying all sets of them."""
    orders = [(0, *order) for order in permutations(range(1, size)) if order[0] < order[-1]]
    cycles = [[frozenset((a, b)) for a, b in zip(order, (*order[1:], 0), strict=True)] for order in orders]
    for count in range(links * (size - 1), 0, -1):  # each takes two of the 2 x links x (size - 1) halves of a GPU
        for chosen in combinations_with_replacement(cycles, count):
            if max(Counter(edge for cycle in chosen for edge in cycle).values()) <= 2 * links:
                return count
    return 0


@pytest.mark.parametrize(("size", "links"), [(3, 1), (3, 2), (4, 1), (4, 2), (5, 1), (5, 2)])
def test_a_fully_joined_set_reaches_what_a_brute_force_finds(size: int, links: int) -> None:
    table = tuple(tuple(links * (i != j) for j in range(size)) for i in range(size))
    graph = replace(flat_graph("unknown", size), links=table, link_gbps=100.0)
    assert bandwidth(graph, (1 << size) - 1) == 100.0 * most_cycles(size, links)


def test_eight_fully_joined_gpus_cost_no_search() -> None:
    """2,520 cycles of eight GPUs are more than the search may look at."""
    table = tuple(tuple(int(i != j) for j in range(8)) for i in range(8))
    assert mesh_problem(table) == ""
    lacking = tuple(tuple(int(i != j and {i, j} != {0, 1}) for j in range(8)) for i in range(8))
    assert "allow too many rings" in mesh_problem(lacking)


# Measurements of all-reduce, GB/s bus bandwidth (public nccl-tests reports).
MEASURED = [("dgx1-v100", 8, 129), ("hgx-h100-8", 8, 370), ("a100-pcie-8-bridged", 2, 208)]


@pytest.mark.parametrize(("machine", "count", "measured"), MEASURED)
def test_prediction_is_within_16_percent(machine: str, count: int, measured: float) -> None:
    graph = fabric(machine).graph
    best = ranked(graph, (1 << graph.size) - 1, count)[0]
    assert abs(bandwidth(graph, best) - measured) / measured <= 0.16


@pytest.mark.parametrize("machine", ["hgx-h100-8", "gb200-nvl72-tray"])
def test_switched_boards_are_neutral(machine: str) -> None:
    graph = fabric(machine).graph
    full = (1 << graph.size) - 1
    for count in range(2, graph.size):
        assert len({quality(graph, mask, full)[:2] for mask in ranked(graph, full, count)}) == 1


def test_degraded_gpu_lowers_exactly_its_sets() -> None:
    graph = fabric("hgx-b200-8-degraded").graph
    for mask in ranked(graph, 255, 4):
        assert is_joined(graph, mask) == (not mask >> 2 & 1)


@given(
    st.sampled_from(["dgx1-v100", "a100-pcie-8-bridged", "h100-pcie-8-bridged", "rtx-a6000-4-bridged"]),
    st.integers(1, 255),
    st.integers(1, 8),
)
def test_ranking_is_exhaustive(machine: str, free: int, count: int) -> None:
    """The best set is never worse than any other set of that size."""
    graph = fabric(machine).graph
    free &= (1 << graph.size) - 1
    found = ranked(graph, free, count)
    everything = [m for m in range(1 << graph.size) if m & ~free == 0 and m.bit_count() == count]
    assert sorted(found) == everything
    if found:
        assert bandwidth(graph, found[0]) == max(bandwidth(graph, m) for m in everything)


@pytest.mark.parametrize(
    ("gpus", "free", "count", "sets"),
    [(64, (1 << 64) - 1, 8, (0xFF,)), (64, 0x3FFFF << 40, 17, (0x1FFFF << 40,)), (64, (1 << 64) - 1, 65, ())],
)
def test_sets_of_more_gpus_than_a_machine_has_are_not_ranked(
    gpus: int, free: int, count: int, sets: tuple[int, ...]
) -> None:
    """A driver can publish any number of devices that look like GPUs. 64 claims on 4 nodes with 128 took minutes."""
    measures = Measures()
    assert measures.ranked(flat_graph("unknown", gpus), free, count) == sets
    assert not measures.sizes()["quality"]


def test_sixteen_gpus_are_ranked() -> None:
    """The most that a machine has; 16 free ones of more, too."""
    dgx2 = usual_graph("Tesla V100-SXM3-32GB", 16)
    assert dgx2 is not None
    assert len(ranked(dgx2, 0xFFFF, 2)) == len(ranked(flat_graph("unknown", 128), 0xFFFF << 64, 2)) == 120


@given(st.integers(0, 255))
def test_adding_links_never_hurts(mask: int) -> None:
    small, large = fabric("dgx1-p100").graph, fabric("dgx1-v100").graph
    assert links_inside(small, mask) <= links_inside(large, mask)
    assert len(members(mask)) == mask.bit_count()


def device(reading: Reading, position: int) -> Device:
    facts = attributes_of(reading)
    names = tuple(f"fabric.berth.dev/{name}" for name in facts)
    return Device(f"gpu-{position}", Attributes(Schema(names, ("any",) * len(names)), tuple(facts.values())))


def test_asymmetric_links_count_as_the_smaller() -> None:
    readings = [
        Reading("GPU-a", "X", links=((1, 4),), link_mbps=25000, nvlink_version=3),
        Reading("GPU-b", "X", links=((0, 2),), link_mbps=25000, nvlink_version=3),
    ]
    found = fabric_of([device(r, i) for i, r in enumerate(readings)])
    assert found is not None
    assert found.graph.links == ((0, 2), (2, 0))


@pytest.mark.parametrize(
    "readings",
    [
        [],
        [Reading("", "X")],
        [Reading("GPU-a", "X"), Reading("GPU-a", "X")],
        [Reading(f"GPU-{i}", "X") for i in range(17)],
    ],
)
def test_contradictory_slices_are_not_believed(readings: list[Reading]) -> None:
    assert fabric_of([device(r, i) for i, r in enumerate(readings)]) is None


def test_absurd_numbers_never_promise_more() -> None:
    broken = Device(
        "gpu-0",
        Attributes(
            Schema(
                (
                    "fabric.berth.dev/uuid",
                    "fabric.berth.dev/switchLinks",
                    "fabric.berth.dev/memoryFreeMiB",
                    "fabric.berth.dev/links",
                ),
                ("s", "i", "i", "s"),
            ),
            ("GPU-a", -5, -1, "9:99,x:y"),
        ),
    )
    found = fabric_of([broken])
    assert found is not None
    assert found.graph.switch_links == (0,)
    assert found.gpus[0].memory_free_bytes is None


@pytest.mark.parametrize(
    ("machine", "live", "source"),
    [
        ("dgx1-v100", True, Source.LIVE),
        ("dgx1-v100", False, Source.TABLE),
        ("hgx-h100-8", False, Source.TABLE),
        ("l40s-8-pix", False, Source.SLICE),
    ],
)
def test_order_of_trust(machine: str, live: bool, source: Source) -> None:
    decoder = SliceDecoder()
    gpus = whole_gpus(gpu_slice("n", MACHINES[machine]), GPU_DRIVER)
    slice_ = decoder.decode(fabric_slice("n", MACHINES[machine])) if live else None
    said = live_fabric(slice_, GPU_DRIVER, gpus, lambda _: "")[0] if slice_ is not None else None
    found = choose_fabric(said, GPU_DRIVER, gpus)
    assert found is not None
    assert found.source is source


def test_slice_of_another_machine_is_not_believed() -> None:
    """A slice whose UUIDs match no GPU is ignored, and the next source is used."""
    decoder = SliceDecoder()
    gpus = whole_gpus(gpu_slice("n", MACHINES["l40s-8-pix"]), GPU_DRIVER)
    other = decoder.decode(fabric_slice("other", MACHINES["l40s-8-pix"]))
    said, _ = live_fabric(other, GPU_DRIVER, gpus, lambda _: "")
    found = choose_fabric(said, GPU_DRIVER, gpus)
    assert found is not None
    assert found.source is Source.SLICE


def test_largest_joined_is_the_largest() -> None:
    """The result equals that of trying every set with the ring model."""
    for name in ("dgx1-v100", "a100-pcie-8-crossed", "hgx-b200-8-degraded", "l40s-8-pix"):
        fabric = fabric_of(SliceDecoder().decode(fabric_slice("n", carried_machines()[name])).devices)
        assert fabric is not None
        for free in (0b11111111, 0b10110111, 0b00011101, 0b1):
            gpus = [i for i in range(8) if free >> i & 1]
            sets = (chosen for size in range(2, len(gpus) + 1) for chosen in combinations(gpus, size))
            expected = max((len(s) for s in sets if is_joined(fabric.graph, sum(1 << i for i in s))), default=0)
            assert largest_joined(fabric.graph, free, 8) == expected, (name, bin(free))
