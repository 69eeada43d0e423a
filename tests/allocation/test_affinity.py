"""GPUs and NICs of one pod are near each other: as near as a brute force can get them, with no worse NVLink set."""

from __future__ import annotations

import random
from itertools import chain, combinations, product
from math import comb
from typing import Any, NamedTuple

import pytest

from extender.api.reasons import Code, Reason
from extender.base.bits import members, union
from extender.policy import Policy, Weights
from extender.scheduling import Placement, Unschedulable
from extender.topology.affinity import near_pairs, pairs_of
from extender.topology.sets import bandwidth
from tests.worlds.counted_work import lines_of
from tests.worlds.nic_worlds import GPU, MACHINES, NIC, NicFleet, Oracle, counted, paired, sentence


def cases() -> list[Any]:
    """Each machine with devices held at random. The larger ones get fewer cases: a brute force tries all sets."""
    rng, found = random.Random(7), []
    for name, machine in MACHINES.items():
        for count in (1, 2, 4):
            for number in range(8 if count < 4 else 4):
                held = [
                    [(driver, i) for i in range(len(machine[key])) if rng.random() < number / 10]
                    for key, driver in (("gpus", GPU), ("nics", NIC))
                ]
                found.append(pytest.param(name, count, list(chain(*held)), id=f"{name}-{count}-{number}"))
    return found


def of_kind(fleet: NicFleet, placement: Placement, kind: str) -> dict[str, list[int]]:
    """The devices of a driver by request, as numbers."""
    devices = fleet.node_info("n").inventory.devices
    found: dict[str, list[int]] = {}
    for pick in placement.solution.picks[0]:
        if devices[pick.bit].id.driver == kind:
            found.setdefault(pick.request.name, []).append(int(devices[pick.bit].id.device.partition("-")[2]))
    return found


@pytest.mark.parametrize(("name", "count", "held"), cases())
def test_numbered_requests_are_as_near_as_a_brute_force_finds_them(
    name: str, count: int, held: list[tuple[str, int]]
) -> None:
    """Requests for several devices at once: test_random_pods_near.py."""
    machine, fleet = MACHINES[name], NicFleet({"n": MACHINES[name]})
    prefix = {GPU: "gpu", NIC: "nic"}
    fleet.hold("n", [(driver, f"{prefix[driver]}-{number}") for driver, number in held])
    status = fleet.evaluate("n", fleet.asking(paired(count)))
    free = {
        kind: [i for i in range(len(machine[key])) if (kind, i) not in held]
        for kind, key in ((GPU, "gpus"), (NIC, "nics"))
    }
    if min(map(len, free.values())) < count:
        assert isinstance(status, Unschedulable)
        return
    assert isinstance(status, Placement)
    oracle, info = Oracle(machine), fleet.node_info("n")
    assert info.fabric is not None
    graph = info.fabric.graph

    def ring(gpus: tuple[int, ...]) -> float:
        return bandwidth(graph, sum(1 << i for i in gpus))

    best_ring = max(map(ring, combinations(free[GPU], count)))
    best = max(
        oracle.best(gpus, nics)
        for gpus in combinations(free[GPU], count)
        if ring(gpus) == best_ring
        for nics in oracle.sets(free[NIC], count)
    )
    gpus, nics = of_kind(fleet, status, GPU), of_kind(fleet, status, NIC)
    assert ring(tuple(chain(*gpus.values()))) == best_ring
    assert oracle.value([(gpus[f"gpu-{i}"][0], nics[f"nic-{i}"][0]) for i in range(count)]) == best


def place(
    machine: str | dict[str, Any],
    requests: list[Any],
    policy: Policy | None = None,
    *constraints: dict[str, Any],
    **held: list[int],
) -> Said:
    """What a pod gets on a node with this machine; `held` has the numbers of GPUs and NICs in use."""
    fleet = NicFleet({"n": MACHINES[machine] if isinstance(machine, str) else machine}, policy or Policy())
    fleet.hold("n", [(GPU if kind == "gpu" else NIC, f"{kind}-{i}") for kind, numbers in held.items() for i in numbers])
    found = fleet.placement("n", fleet.asking(requests, constraints))
    names = fleet.names("n", found)
    part = next((part for part in found.parts if part.name == "affinity"), None)
    return Said(names, *((part.value, part.sentence) if part is not None else (None, "")))


class Said(NamedTuple):
    devices: list[str]
    value: float | None
    sentence: str


def test_the_score_says_how_many_pairs_are_near() -> None:
    best = place("a100-efa", counted(4, 4))
    assert best == Said(
        ["gpu-0", "gpu-2", "gpu-3", "gpu-4", "nic-0", "nic-1", "nic-2", "nic-3"],
        1.0,
        "4 pairs of devices: 4 on one PCIe root",
    )
    worse = place("a100-efa", counted(2, 2), gpu=[0, 1, 4, 5, 6, 7], nic=[1, 3, 4, 5, 6])
    assert worse.devices == ["gpu-2", "gpu-3", "nic-0", "nic-2"]
    assert worse.sentence == "2 pairs of devices: 1 on one NUMA node, 1 on one PCIe root"
    apart = place("a100-efa", counted(1, 1), nic=[0, 1, 2], gpu=[4, 5, 6, 7])
    assert (apart.value, apart.sentence) == (0.0, "1 pair of devices: 1 apart")


def test_what_is_unknown_is_neutral_and_refuses_no_pod() -> None:
    silent = {"product": "NVIDIA T4", "gpus": [[1, None], [2, None]], "nics": [[None, 0], [None, -1]]}
    found = place(silent, counted(2, 2))
    assert (found.value, len(found.devices)) == (None, 4)
    half = place({**silent, "nics": [[None, 0], [2, -1]]}, counted(2, 2))
    assert half.sentence == "2 pairs of devices: 1 not known how near, 1 on one PCIe root"
    lacking = place({**silent, "nics": [[1, 0], [3, 0]]}, counted(2, 2))
    assert lacking.sentence == "2 pairs of devices: 1 not known how near, 1 on one PCIe root"
    other_roots = place({**silent, "nics": [[8, 0], [9, 0]]}, counted(2, 2))
    assert (other_roots.value, len(other_roots.devices)) == (None, 4)


def test_a_gpu_gets_two_nics_and_a_nic_serves_two_gpus() -> None:
    assert place("gb300", counted(1, 2), gpu=[0, 1]).devices == ["gpu-2", "nic-2", "nic-3"]
    two = place("a100-efa", counted(2, 1), gpu=[0, 2, 3], nic=[0, 1, 2])
    assert two.devices == ["gpu-4", "gpu-5", "nic-3"]
    assert two.sentence == "2 pairs of devices: 2 on one PCIe root"
    assert place("a100-efa", counted(4, 2)).sentence == "4 pairs of devices: 4 on one PCIe root"


def test_the_larger_weight_decides_between_nvlink_and_near_nics() -> None:
    """GPUs 0 and 2 are joined, and 0 and 1 share a root; the free NICs are on the root of 2 and 3, and of 4 and 5."""
    links = place("bridged-pairs", counted(2, 2), gpu=[4, 5], nic=[2])
    assert links.devices[:2] in (["gpu-0", "gpu-2"], ["gpu-1", "gpu-3"])
    crossed = {**MACHINES["bridged-pairs"], "nics": [[1, 0], [1, 0]]}
    assert place(crossed, counted(2, 2), gpu=[4, 5]).devices[:2] == ["gpu-0", "gpu-2"]
    near = Policy(weights=Weights(link=2, affinity=6))
    assert place(crossed, counted(2, 2), near, gpu=[4, 5]).devices[:2] == ["gpu-0", "gpu-1"]
    none = Policy(weights=Weights(affinity=0))
    assert place("a100-efa", counted(1, 1), none, nic=[0]).devices == ["gpu-0", "nic-1"]


DGX1 = {
    "product": "Tesla V100-SXM2-32GB",
    "gpus": [[number // 2, number // 4] for number in range(8)],
    "nics": [[number, number // 2] for number in range(4)],
}


def test_among_rings_of_equal_bandwidth_nearness_comes_before_the_number_of_links() -> None:
    """On a mesh, three GPUs with five links among them are no faster than three with four."""
    beside = place(DGX1, counted(3, 1), gpu=[6], nic=[0, 1, 3])
    assert beside.devices == ["gpu-4", "gpu-5", "gpu-7", "nic-2"]
    assert beside.sentence == "3 pairs of devices: 1 on one NUMA node, 2 on one PCIe root"
    alone = place(DGX1, counted(3, 0)[:1], gpu=[6], nic=[0, 1, 3])
    assert alone.devices == ["gpu-0", "gpu-2", "gpu-3"], "without NICs the most links"


def test_constraints_stay_hard() -> None:
    """All four devices on one PCIe root: the nearest pairs alone would be on two roots."""
    machine = {**MACHINES["a100-efa"], "nics": [[10, 0], [20, 0], [90, 1], [90, 1]]}
    fleet, constraint = NicFleet({"n": machine}), {"matchAttribute": "resource.kubernetes.io/pcieRoot"}
    assert place(machine, counted(2, 2), None, constraint).devices == ["gpu-4", "gpu-5", "nic-2", "nic-3"]
    assert isinstance(fleet.evaluate("n", fleet.asking(counted(3, 1), [constraint])), Unschedulable)


@pytest.mark.parametrize(
    ("nics", "count", "devices"),
    [
        ([[None, 1], [4, 1]], 1, ["gpu-1", "nic-1"]),
        ([[5, 1], [5, 1], [0, 0]], 2, ["gpu-0", "gpu-1", "nic-0", "nic-2"]),
        ([[4, 1], [4, 1], [3, 1], [2, 0]], 2, ["gpu-0", "gpu-1", "nic-0", "nic-3"]),
    ],
)
def test_nics_that_must_differ_are_near(nics: list[Any], count: int, devices: list[str]) -> None:
    """With distinctAttribute. A NIC without the attribute is none of them."""
    machine = {"product": "NVIDIA L40S", "gpus": [[0, 0], [5, 1]], "nics": nics}
    constraint = {"requests": ["nic"], "distinctAttribute": "resource.kubernetes.io/pcieRoot"}
    assert place(machine, counted(count, count), None, constraint).devices == devices


def test_a_nic_that_another_gpu_needs_is_left_to_it() -> None:
    """GPU 0 has no NIC on its root. Of those on its NUMA node it gets the one beside no free GPU."""
    found = place("hgx-one-to-one", counted(1, 1), gpu=[1, 4, 5, 6, 7], nic=[3])
    assert found.devices in (["gpu-2", "nic-1"], ["gpu-3", "nic-0"])
    lone = {**MACHINES["hgx-one-to-one"], "gpus": [[99, 0], ["3b", 0]], "nics": [["3b", 0], [16, 0]]}
    assert place(lone, counted(2, 2)).sentence == "2 pairs of devices: 1 on one NUMA node, 1 on one PCIe root"
    held = {**lone, "gpus": [[99, 0], ["3b", 0]]}
    assert place(held, [counted(1, 1)[0], counted(1, 1)[1]], nic=[]).devices == ["gpu-1", "nic-0"]


def test_requests_with_numbers_belong_together_in_any_order() -> None:
    requests = [paired(2)[i] for i in (3, 0, 2, 1)]  # nic-1, gpu-0, gpu-1, nic-0
    fleet = NicFleet({"n": MACHINES["hgx-one-to-one"]})
    found = fleet.placement("n", fleet.asking(requests))
    chosen = {kind: of_kind(fleet, found, kind) for kind in (GPU, NIC)}
    oracle = Oracle(MACHINES["hgx-one-to-one"])
    pairs = [(chosen[GPU][f"gpu-{i}"][0], chosen[NIC][f"nic-{i}"][0]) for i in (0, 1)]
    assert oracle.value(pairs) == (2, 0, 0)


def test_a_node_with_near_devices_comes_before_one_where_they_are_apart() -> None:
    fleet = NicFleet({"a": MACHINES["a100-efa"], "b": MACHINES["a100-efa"]})
    fleet.hold("a", [(NIC, f"nic-{i}") for i in (0, 1, 2)] + [(GPU, f"gpu-{i}") for i in (4, 5, 6, 7)])
    asking = fleet.asking(counted(1, 1))
    assert fleet.placement("b", asking).score > fleet.placement("a", asking).score


def test_two_nodes_whose_devices_are_placed_alike_share_a_state() -> None:
    other = {**MACHINES["a100-efa"], "gpus": [[root, n] for root, n in MACHINES["a100-efa"]["gpus"]]}
    renamed = {"gpus": other["gpus"], "nics": other["nics"], "product": other["product"]}
    for kind in ("gpus", "nics"):
        renamed[kind] = [[f"f{root}", numa] for root, numa in renamed[kind]]
    moved = {**other, "nics": list(reversed(other["nics"]))}
    fleet = NicFleet({"a": other, "b": renamed, "c": moved})
    a, b, c = (fleet.node_info(name) for name in "abc")
    assert a.locality is b.locality
    assert a.state.hardware_signature is b.state.hardware_signature
    assert c.state.hardware_signature is not a.state.hardware_signature


@pytest.mark.parametrize(("gpus", "nics"), [(3, 2), (2, 3), (5, 3), (3, 5), (1, 4), (4, 1)])
def test_every_chosen_device_is_in_a_pair(gpus: int, nics: int) -> None:
    fleet = NicFleet({"n": MACHINES["hgx-one-to-one"]})
    found = fleet.placement("n", fleet.asking(counted(gpus, nics)))
    info = fleet.node_info("n")
    pairs = pairs_of(info.locality, found.solution.mask)
    assert len(pairs) == max(gpus, nics)
    assert {p.anchor for p in pairs} | {p.other for p in pairs} == set(members(found.solution.mask))


@pytest.mark.parametrize("name", MACHINES)
def test_the_share_of_near_pairs_is_of_those_that_can_be(name: str) -> None:
    """Fewer NICs than GPUs leave GPUs without a near one, whatever one takes."""
    info = NicFleet({"n": MACHINES[name]}).node_info("n")
    kinds = [[b for b, one in enumerate(info.inventory.devices) if one.id.driver == kind] for kind in (GPU, NIC)]
    for gpus, nics in product(*(range(1, len(kind) + 1) for kind in kinds)):
        if comb(len(kinds[0]), gpus) * comb(len(kinds[1]), nics) > 300:
            continue
        sets = product(combinations(kinds[0], gpus), combinations(kinds[1], nics))
        found = [near_pairs(info.locality, union([1 << bit for bit in chain(*one)])) for one in sets]
        assert {most for _, most in found} == {max(near for near, _ in found)}, (gpus, nics)


def test_requests_for_the_same_devices_are_counted_together() -> None:
    """Each of the four requests alone has a GPU. A search of all sets would take 20,000 steps, and give up."""
    fleet = NicFleet({"n": MACHINES["gb300"]})
    fleet.hold("n", [(GPU, "gpu-0")])
    found = fleet.evaluate("n", fleet.asking(paired(4)))
    assert found == Unschedulable(Reason(Code.IN_USE, ("gpu-3",)))
    assert fleet.evaluate("n", fleet.asking(paired(5))) == Unschedulable(Reason(Code.TOO_FEW_TOGETHER, ("gpu-4",)))


def score(fleet: NicFleet, node: str, requests: list[Any]) -> float:
    return fleet.placement(node, fleet.asking(requests)).score


def test_near_comes_before_unknown_and_unknown_before_apart() -> None:
    """Where a third machine of the fleet has PCIe roots, which neither of the two has."""
    silent = {"product": "NVIDIA GB300", "gpus": [["8", None]] * 4, "nics": [[None, None]] * 4}
    fleet = NicFleet(
        {"near": MACHINES["gb300"], "unknown": silent, "roots": MACHINES["a100-efa"], "far": MACHINES["gb300"]}
    )
    fleet.hold("far", [(GPU, "gpu-0"), (GPU, "gpu-1"), (NIC, "nic-2"), (NIC, "nic-3")])
    near, unknown, far = (score(fleet, node, counted(2, 2)) for node in ("near", "unknown", "far"))
    assert near > unknown > far


def test_nvlink_comes_before_near_nics_between_nodes_too() -> None:
    """A pod with GPUs and NICs communicates. On one node its GPUs are joined, on the other its NICs are near."""
    joined = {**MACHINES["bridged-pairs"], "nics": [[2, 0], [9, 1]]}
    near = {**MACHINES["bridged-pairs"], "nics": [[1, 0], [1, 0]]}
    fleet = NicFleet({"joined": joined, "near": near})
    fleet.hold("joined", [(GPU, f"gpu-{i}") for i in (1, 3, 4, 5)])
    fleet.hold("near", [(GPU, f"gpu-{i}") for i in (2, 3, 4, 5)])
    assert score(fleet, "joined", counted(2, 2)) > score(fleet, "near", counted(2, 2))


def pinned(*numbers: int) -> list[Any]:
    """Requests gpu-0, nic-0, ...; each NIC by its name."""
    requests = paired(len(numbers))
    for i, number in enumerate(numbers):
        text = f'device.attributes["{NIC}"].number == {number}'
        requests[2 * i + 1]["exactly"]["selectors"] = [{"cel": {"expression": text}}]
    return requests


@pytest.mark.parametrize("numbers", [(2, 3), (3, 2), (0, 7), (7, 4, 0, 2)])
def test_a_pinned_nic_gets_the_gpu_beside_it(numbers: tuple[int, ...]) -> None:
    fleet = NicFleet({"n": MACHINES["hgx-one-to-one"]})
    found = fleet.placement("n", fleet.asking(pinned(*numbers)))
    gpus, nics = of_kind(fleet, found, GPU), of_kind(fleet, found, NIC)
    pairs = [(gpus[f"gpu-{i}"][0], nics[f"nic-{i}"][0]) for i in range(len(numbers))]
    assert [nic for _, nic in pairs] == list(numbers)
    assert Oracle(MACHINES["hgx-one-to-one"]).value(pairs) == (len(numbers), 0, 0)


def test_a_request_for_any_nic_leaves_the_one_that_another_request_needs() -> None:
    """Any NIC and one of two: the one of two that is beside the other GPU."""
    machine = {"product": "NVIDIA H100 80GB HBM3", "gpus": [[1, 0], [2, 1]], "nics": [[1, 0], [1, 0], [2, 1]]}
    requests = [counted(2, 1)[0], *(one for one in paired(2) if one["name"].startswith("nic"))]
    requests[2]["exactly"]["selectors"] = [{"cel": {"expression": f'device.attributes["{NIC}"].number < 2'}}]
    assert place(machine, requests).devices[2] == "nic-2", "of nic-0"


def test_admin_access_beside_other_requests_is_no_device_to_choose() -> None:
    (one, _) = paired(1)
    admin = {"name": "monitor", "exactly": {**one["exactly"], "adminAccess": True}}
    fleet = NicFleet({"n": MACHINES["hgx-one-to-one"]})
    fleet.cache.apply_namespace("default", {"resource.kubernetes.io/admin-access": "true"})
    found = fleet.placement("n", fleet.asking([admin, *counted(1, 1)]))
    assert sentence(found) == "1 pair of devices: 1 on one PCIe root"
    assert not sentence(found, "link"), "one GPU has no peer; the other one is only watched"


def test_nics_of_one_model_are_the_nearest_of_that_model() -> None:
    """matchAttribute on the NICs: those of the model that has one beside each GPU."""
    machine = {"product": "NVIDIA H100 80GB HBM3", "gpus": [[1, 0], [2, 1]]}
    machine["nics"] = [[1, 0], [1, 0], [2, 1], [9, 1]]
    constraint = {"matchAttribute": f"{NIC}/model", "requests": ["nic"]}
    found = place({**machine, "models": ["a", "b", "b", "a"]}, counted(2, 2), None, constraint)
    assert found.devices[2:] == ["nic-1", "nic-2"]


def test_many_parts_of_gpus_get_near_nics() -> None:
    """2 of 56 MIG devices: only the last GPUs have a free NIC beside them."""
    gpus = [[root, None] for root in range(8) for _ in range(7)]
    machine = {"product": "NVIDIA H100 80GB HBM3", "gpus": gpus, "parts": True, "nics": [[r, None] for r in range(8)]}
    found = place(machine, counted(2, 2), nic=[0, 1, 2, 3, 4])
    assert found.sentence == "2 pairs of devices: 2 on one PCIe root"


TWO_BRIDGES = {  # GPUs 0 and 1, 2 and 3 are joined; a NIC beside each
    "product": "NVIDIA A100-PCIE-80GB",
    "gpus": [[i, i // 2] for i in range(4)],
    "nics": [[i, i // 2] for i in range(4)],
    "links": [[0, 1], [2, 3]],
    "models": ["a"] * 4,
}


def test_a_constraint_of_the_nics_claim_does_not_hide_the_gpus() -> None:
    """GPU 0 is in use: the other bridge, and its NICs. The NICs' claim has a constraint of its own."""
    fleet = NicFleet({"n": TWO_BRIDGES})
    fleet.hold("n", [(GPU, "gpu-0")])
    gpus, nics = counted(2, 2)
    asking = fleet.asking_claims([([gpus], ()), ([nics], [{"matchAttribute": f"{NIC}/model"}])])
    found = fleet.placement("n", asking)
    names = fleet.names("n", found)
    assert names == ["gpu-2", "gpu-3", "nic-2", "nic-3"]
    assert found.ring_gbps > 50


def test_claims_with_constraints_of_their_own_keep_nvlink() -> None:
    """Two claims of a GPU and a NIC on one PCIe root each: the GPUs of both are joined."""
    fleet = NicFleet({"n": TWO_BRIDGES})
    fleet.hold("n", [(GPU, "gpu-0")])
    pair = (counted(1, 1), [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}])
    found = fleet.placement("n", fleet.asking_claims([pair, pair]))
    names = fleet.names("n", found)
    assert names == ["gpu-2", "nic-2", "gpu-3", "nic-3"]


def test_nvlink_comes_first_where_the_nics_must_be_apart() -> None:
    """A distinctAttribute wants one NIC of each socket: the joined GPUs, though only one has its NIC beside it."""
    fleet = NicFleet({"n": TWO_BRIDGES})
    apart = {"distinctAttribute": "dra.net/numaNode", "requests": ["nic"]}
    found = fleet.placement("n", fleet.asking(counted(2, 2), [apart]))
    assert found.ring_gbps > 50


@pytest.mark.parametrize(
    ("gpus", "nics", "attribute"), [(4, 28, ""), (8, 24, ""), (4, 16, "distinctAttribute"), (4, 4, "matchAttribute")]
)
def test_the_work_on_one_node_is_bounded(gpus: int, nics: int, attribute: str) -> None:
    """A claim for many of 64 NICs in odd places took 0.8 s, in which the process answered nothing else."""
    rng = random.Random(3)
    machine = {
        "product": "NVIDIA A100-PCIE-40GB",
        "gpus": [[rng.randint(0, 9), [rng.randint(0, 3), rng.randint(0, 3)]] for _ in range(8)],
        "nics": [[[rng.randint(0, 9), rng.randint(0, 9)], rng.randint(0, 3)] for _ in range(64)],
        "models": [f"m{i % 16}" for i in range(64)],
        "links": [[a, b] for a in range(8) for b in range(a) if rng.random() < 0.5],
    }
    fleet = NicFleet({"n": machine})
    constraints = [{attribute: f"{NIC}/model", "requests": ["nic"]}] if attribute else []
    asking = fleet.asking(counted(gpus, nics), constraints)
    assert lines_of(lambda: fleet.evaluate("n", asking)) < 1_000_000


def of_type(kind: str, name: str, count: int) -> dict[str, Any]:
    """A request for whole GPUs, or for parts of them."""
    (request, _) = counted(count, 1)
    text = f'device.attributes["{GPU}"].type == "{kind}"'
    return {"name": name, "exactly": {**request["exactly"], "selectors": [{"cel": {"expression": text}}]}}


WITH_PARTS = {**MACHINES["hgx-one-to-one"], "migs": [6, 6, 7, 7]}  # GPUs 6 and 7 are divided in two


@pytest.mark.parametrize("held", [(), (0, 7), (4, 7, 6), (1, 2, 3, 0)], ids=str)
def test_a_part_of_a_gpu_and_a_whole_gpu_each_have_a_nic_of_their_own(held: tuple[int, ...]) -> None:
    """A part has the place of its GPU. With and without a NIC on the root of either."""
    fleet = NicFleet({"n": WITH_PARTS})
    fleet.hold("n", [(NIC, f"nic-{i}") for i in held] + [(GPU, "gpu-6"), (GPU, "gpu-7")])
    requests = [of_type("gpu", "gpu", 1), of_type("mig", "mig", 1), counted(1, 2)[1]]
    found = fleet.placement("n", fleet.asking(requests))
    names = fleet.names("n", found)
    gpu, mig = int(names[0].removeprefix("gpu-")), WITH_PARTS["migs"][int(names[1].removeprefix("mig-"))]
    oracle, free = Oracle(WITH_PARTS), [i for i in range(10) if i not in held]
    nics = tuple(int(name.removeprefix("nic-")) for name in names[2:])
    assert oracle.best((gpu, mig), nics) == max(
        oracle.best((one, part), pair) for one in range(6) for part in (6, 7) for pair in combinations(free, 2)
    )


def test_two_parts_of_one_gpu_have_a_nic_each() -> None:
    """Only GPU 7 has parts: one of the NICs is on its root, one on its NUMA node."""
    fleet = NicFleet({"n": {**MACHINES["hgx-one-to-one"], "migs": [7, 7]}})
    fleet.hold("n", [(GPU, "gpu-7")])
    found = fleet.placement("n", fleet.asking([of_type("mig", "mig", 2), counted(1, 2)[1]]))
    assert sentence(found) == "2 pairs of devices: 1 on one NUMA node, 1 on one PCIe root"


def test_a_whole_gpu_is_not_chosen_with_a_part_of_it() -> None:
    fleet = NicFleet({"n": {**MACHINES["hgx-one-to-one"], "migs": [0, 3, 3]}})
    fleet.hold("n", [(NIC, f"nic-{i}") for i in (1, 2, 4, 5, 6, 7)])  # near NICs: of GPUs 0 and 3
    requests = [of_type("gpu", "gpu", 1), of_type("mig", "mig", 1), counted(1, 2)[1]]
    found = fleet.placement("n", fleet.asking(requests))
    names = fleet.names("n", found)
    assert names[:2] in (["gpu-0", "mig-1"], ["gpu-0", "mig-2"], ["gpu-3", "mig-0"])
    assert sorted(names[2:]) == ["nic-0", "nic-3"]


def test_requests_for_different_nics_get_the_most_near_pairs() -> None:
    """Two NICs of any number and one of an even number, for two GPUs: an assignment with a rest."""
    requests = [*counted(2, 2), {**counted(1, 1)[1], "name": "even"}]
    text = f'device.attributes["{NIC}"].number % 2 == 0'
    requests[2] = {**requests[2], "exactly": {**requests[2]["exactly"], "selectors": [{"cel": {"expression": text}}]}}
    found = place("a100-efa", requests, gpu=[0, 1, 3, 4, 5, 6], nic=[6])
    assert found.sentence == "3 pairs of devices: 3 on one PCIe root"


def test_a_constraint_of_the_gpus_leaves_the_choice_of_their_root_to_the_nics() -> None:
    """Both GPUs on one PCIe root: the root of which a NIC is free, though others have as many free GPUs."""
    constraint = {"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": ["gpu"]}
    found = place("a100-efa", counted(2, 2), None, constraint, nic=[0, 1, 2, 5, 6])
    assert found.devices == ["gpu-4", "gpu-5", "nic-3", "nic-4"]
