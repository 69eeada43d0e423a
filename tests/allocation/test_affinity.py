"""GPUs and NICs of one pod are near each other: as near as a brute force can get them, with no worse NVLink set."""

from __future__ import annotations

import random
from itertools import chain, combinations, permutations
from typing import Any

import pytest

from extender.scheduling import Placement, Unschedulable
from extender.topology.sets import bandwidth, links_inside
from tests.worlds.nic_worlds import GPU, MACHINES, NIC, NicFleet, counted, paired

Chosen = list[tuple[int, int]]  # pairs of a GPU and a NIC


class Oracle:
    """Compares devices by the text of the machine file, and tries all sets and all pairs."""

    def __init__(self, machine: dict[str, Any]) -> None:
        agent = machine.get("agent", [None] * len(machine["gpus"]))
        gpus = [self._place(entry, said) for entry, said in zip(machine["gpus"], agent, strict=True)]
        nics = [self._place(entry, None) for entry in machine["nics"]]
        known: dict[str, set[int]] = {}
        for roots, numa in gpus + nics:
            if len(roots) == 1 and numa:
                known.setdefault(min(roots), set()).add(numa[0])
        self.gpus, self.nics = ([self._completed(one, known) for one in kind] for kind in (gpus, nics))

    @staticmethod
    def _place(entry: list[Any], agent: int | None) -> tuple[set[str], list[int]]:
        root, numa = ([] if value is None else value if isinstance(value, list) else [value] for value in entry)
        nodes = [node for node in numa if node >= 0]
        return set(map(str, root)), nodes + [node for node in [agent] if node is not None and node not in nodes]

    @staticmethod
    def _completed(place: tuple[set[str], list[int]], known: dict[str, set[int]]) -> tuple[set[str], list[int]]:
        roots, numa = place
        if not numa and len(roots) == 1 and len(known.get(min(roots), ())) == 1:
            return roots, list(known[min(roots)])
        return place

    def value(self, pairs: Chosen) -> tuple[int, int, int]:
        """Numbers of pairs on one root, on one NUMA node, and with a common NUMA node of their lists."""
        found = [0, 0, 0]
        for gpu, nic in pairs:
            (roots, numa), (others, nodes) = self.gpus[gpu], self.nics[nic]
            if roots & others:
                found[0] += 1
            elif numa[:1] and numa[:1] == nodes[:1]:
                found[1] += 1
            elif set(numa) & set(nodes):
                found[2] += 1
        return found[0], found[1], found[2]

    def best(self, gpus: tuple[int, ...], nics: tuple[int, ...]) -> tuple[int, int, int]:
        return max(self.value(list(zip(gpus, order, strict=True))) for order in permutations(nics))


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


@pytest.mark.parametrize("requests", [counted, paired], ids=["counted", "paired"])
@pytest.mark.parametrize(("name", "count", "held"), cases())
def test_pairs_are_as_near_as_a_brute_force_finds_them(
    name: str, count: int, held: list[tuple[str, int]], requests: Any
) -> None:
    machine, fleet = MACHINES[name], NicFleet({"n": MACHINES[name]})
    prefix = {GPU: "gpu", NIC: "nic"}
    fleet.hold("n", [(driver, f"{prefix[driver]}-{number}") for driver, number in held])
    status = fleet.evaluate("n", fleet.asking(requests(count, count) if requests is counted else requests(count)))
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

    def ring(gpus: tuple[int, ...]) -> tuple[float, int]:
        mask = sum(1 << i for i in gpus)
        return bandwidth(graph, mask), links_inside(graph, mask)

    best_ring = max(map(ring, combinations(free[GPU], count)))
    best = max(
        oracle.best(gpus, nics)
        for gpus in combinations(free[GPU], count)
        if ring(gpus) == best_ring
        for nics in combinations(free[NIC], count)
    )
    gpus, nics = of_kind(fleet, status, GPU), of_kind(fleet, status, NIC)
    assert ring(tuple(chain(*gpus.values()))) == best_ring
    if requests is counted:
        assert oracle.best(tuple(gpus["gpu"]), tuple(nics["nic"])) == best
    else:
        pairs = [(gpus[f"gpu-{i}"][0], nics[f"nic-{i}"][0]) for i in range(count)]
        assert oracle.value(pairs) == best


def place(machine: dict[str, Any] | str, requests: list[Any], policy: Policy | None = None, **held: Any) -> Placement:
    """The placement on a node with this machine; `held` are the numbers of GPUs and NICs in use."""
    fleet = NicFleet({"n": MACHINES[machine] if isinstance(machine, str) else machine}, policy or Policy())
    fleet.hold("n", [(GPU if kind == "gpus" else NIC, f"{kind[:3]}-{i}") for kind in held for i in held[kind]])
    found = fleet.evaluate("n", fleet.asking(requests))
    assert isinstance(found, Placement), found
    return found


def part(placement: Placement) -> tuple[float, str] | None:
    return next(((one.value, one.sentence) for one in placement.parts if one.name == "affinity"), None)


def devices(placement: Placement, fleet: NicFleet) -> list[str]:
    return sorted(name.rpartition("/")[2] for name in placement.devices(fleet.node_info("n")))
