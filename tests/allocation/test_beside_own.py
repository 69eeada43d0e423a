"""A pod whose claims have devices on a node already gets new devices that are near them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from extender.base.bits import members
from extender.explain import explain
from extender.scheduling.decision import ScoredNode
from extender.topology.sets import bandwidth, links_inside
from tests.worlds.explain_worlds import run_pod
from tests.worlds.nic_worlds import GPU, MACHINES, NIC, NicFleet, Oracle, claim_of, counted
from tests.worlds.running_berth import berthing, pod

Json = dict[str, Any]


def chosen(fleet: NicFleet, own: Sequence[tuple[str, str]], gpus: int, nics: int) -> ScoredNode:
    """What a pod with these devices would get besides on the best node."""
    requests = [one for one in counted(gpus, nics) if one["exactly"]["count"]]
    asking, snapshot = fleet.pod_with("n", own, [(requests, ())]), fleet.cache.snapshot()
    found = explain(asking, snapshot, fleet.policy, fleet.evaluator.evaluation_context(snapshot))
    assert found.best, found.sentence
    return found.best[0]


def numbers(names: Sequence[str], kind: str) -> tuple[int, ...]:
    last = [name.rpartition("/")[2] for name in names]
    return tuple(int(name.partition("-")[2]) for name in last if name.startswith(kind))


def affinity(found: ScoredNode) -> str:
    return next(part.sentence for part in found.parts if part.name == "affinity")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", MACHINES)
def test_new_devices_are_as_near_to_own_ones_as_a_brute_force_finds(name: str, seed: int) -> None:
    rng, machine, oracle, compared = random.Random(seed), MACHINES[name], Oracle(MACHINES[name]), 0
    for _ in range(12):
        free = {"gpu": list(range(len(machine["gpus"]))), "nic": list(range(len(machine["nics"])))}
        for bits in free.values():
            rng.shuffle(bits)
        own = {kind: tuple(free[kind].pop() for _ in range(rng.randint(0, 2))) for kind in free}
        new = {kind: rng.randint(0, 2) for kind in free}
        taken = [(kind, bit) for kind, bits in free.items() for bit in bits if rng.random() < 0.4]
        free = {kind: [bit for bit in bits if (kind, bit) not in taken] for kind, bits in free.items()}
        if not sum(new.values()) or not all(own[kind] or new[kind] for kind in free):
            continue
        if any(len(free[kind]) < new[kind] for kind in free):
            continue
        fleet, driver = NicFleet({"n": machine}), {"gpu": GPU, "nic": NIC}
        fleet.hold("n", [(driver[kind], f"{kind}-{bit}") for kind, bit in taken])
        mine = [(driver[kind], f"{kind}-{bit}") for kind, bits in own.items() for bit in bits]
        found = chosen(fleet, mine, new["gpu"], new["nic"])
        fabric = fleet.node_info("n").fabric
        assert fabric is not None
        rings = {
            gpus: (bandwidth(fabric.graph, mask), links_inside(fabric.graph, mask))
            for gpus in combinations(sorted(free["gpu"]), new["gpu"])
            for mask in [sum(1 << bit for bit in gpus)]
        }
        gpus, nics, most = numbers(found.devices, "gpu"), numbers(found.devices, "nic"), max(rings.values())
        best = max(
            oracle.best(own["gpu"] + one, own["nic"] + other)
            for one, ring in rings.items()
            if ring == most
            for other in oracle.sets(free["nic"], new["nic"])
        )
        assert rings[tuple(sorted(gpus))] == most
        assert oracle.best(own["gpu"] + gpus, own["nic"] + nics) == best
        compared += 1
    assert compared


def test_a_nic_is_beside_the_gpu_that_the_pod_has_and_a_gpu_beside_its_nic() -> None:
    found = chosen(NicFleet({"n": MACHINES["hgx-one-to-one"]}), [(GPU, "gpu-5")], 0, 1)
    assert numbers(found.devices, "nic") == (6,)
    assert [pair.text for pair in found.pairs] == ["gpu-5 + nic-6: same PCIe root"]
    assert affinity(found) == "1 pair of devices: 1 on one PCIe root"
    found = chosen(NicFleet({"n": MACHINES["hgx-one-to-one"]}), [(NIC, "nic-4")], 1, 0)
    assert numbers(found.devices, "gpu") == (7,)
    assert [pair.text for pair in found.pairs] == ["gpu-7 + nic-4: same PCIe root"]


def test_an_own_pair_keeps_its_nic_and_a_new_gpu_gets_another() -> None:
    found = chosen(NicFleet({"n": MACHINES["hgx-one-to-one"]}), [(GPU, "gpu-0"), (NIC, "nic-3")], 1, 1)
    assert {pair.text for pair in found.pairs} >= {"gpu-0 + nic-3: same PCIe root"}
    assert affinity(found) == "2 pairs of devices: 2 on one PCIe root"


def test_it_is_said_why_no_device_is_nearer() -> None:
    fleet = NicFleet({"n": MACHINES["hgx-one-to-one"]})
    fleet.hold("n", [(NIC, "nic-3"), (GPU, "gpu-7")])
    found = chosen(fleet, [(GPU, "gpu-0")], 0, 1)
    assert [pair.note for pair in found.pairs] == ["no nearer NIC is free"]
    assert affinity(found) == "1 pair of devices: 1 on one NUMA node"
    found = chosen(fleet, [(NIC, "nic-4")], 1, 0)
    assert [pair.note for pair in found.pairs] == ["no nearer GPU is free"]
    own = chosen(fleet, [(GPU, "gpu-1"), (NIC, "nic-9")], 0, 1)
    assert [pair.note for pair in own.pairs if pair.other == "nic-9"] == [""], "nobody chooses it now"


def asking_for(kind: str, name: str, count: int) -> Json:
    """A claim for GPUs or for NICs alone."""
    found: Json = claim_of(name, count)
    devices = found["spec"]["devices"]
    devices["requests"] = [one for one in devices["requests"] if one["name"] == kind]
    return found


async def test_serve_binds_a_pod_with_a_nic_near_the_gpu_of_its_shared_claim() -> None:
    """The first NIC is near GPU 0, but the pod has GPU 2."""
    async with berthing({"n1": "gb200-nvl72-tray"}) as b:
        assert await run_pod(b, "others", [asking_for("gpu", "two", 2)]) == "n1"
        assert await run_pod(b, "first", [asking_for("gpu", "gpu", 1)]) == "n1"
        await b.create(asking_for("nic", "nic", 1), pod("second", "gpu", "nic"))
        assert (await b.filter("second"))["NodeNames"] == ["n1"]
        assert await b.bind("second", "n1") == ""
        note = b.pod("second")["metadata"]["annotations"]["berth.dev/decision"]
        assert note.endswith("; pairs gpu-2 + pci-0010-03-00-0: same NUMA node")
        assert "1 pair of devices: 1 on one NUMA node" in note
        (nic,) = [one for one in b.claims() if one["metadata"]["name"] == "nic"]
        assert nic["status"]["allocation"]["devices"]["results"][0]["device"] == "pci-0010-03-00-0"


def test_a_gpu_that_the_pod_only_watches_is_no_own_device() -> None:
    fleet = NicFleet({"n": MACHINES["hgx-one-to-one"]})
    watched = fleet.hold("n", [(GPU, "gpu-5")], admin=True)
    own = fleet.hold("n", [(NIC, "nic-4")])
    info = fleet.node_info("n")
    for key, names in ((watched, []), (own, ["nic-4"])):
        asked = fleet.asking_claims([(counted(1, 1), ())])
        asked = replace(asked, allocated_claims=(fleet.cache.store.claims[key],))
        assert [info.inventory.devices[bit].id.device for bit in members(asked.devices_on(info))] == names
