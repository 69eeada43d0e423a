"""Random pods on machines with GPUs and NICs: as many near pairs as a brute force over all solutions finds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import pytest

from extender.scheduling import Placement
from extender.topology.sets import bandwidth, links_inside
from tests.worlds.nic_worlds import GPU, MACHINES, NIC, NicFleet, Oracle, counted

DRIVER = {"gpu": GPU, "nic": NIC}
ROOT = "resource.kubernetes.io/pcieRoot"
Sets = tuple[tuple[int, ...], tuple[int, ...]]  # GPUs, NICs
Roots = tuple[tuple[int, frozenset[str]], ...]  # by claim


class Asked(NamedTuple):
    """A request: position of its claim, kind, count, and the remainder by 2 of the device's number, or None."""

    claim: int
    kind: str
    number: int
    remainder: int | None = None

    def request(self, name: str) -> dict[str, Any]:
        exactly = counted(self.number, self.number)[self.kind == "nic"]["exactly"]
        text = f'device.attributes["{NIC}"].number % 2 == {self.remainder}'
        selectors = [] if self.remainder is None else [{"cel": {"expression": text}}]
        return {"name": name, "exactly": {**exactly, "selectors": selectors}}


def random_pod(rng: random.Random) -> list[Asked]:
    """Up to five GPUs and NICs by count, or up to three in pairs, in two claims, or with requests that accept few."""
    gpus, nics, style = rng.randint(0, 3), rng.randint(0, 3), rng.choice(["counted", "paired", "claims", "selected"])
    if style == "paired":
        return [Asked(0, kind, 1) for _ in range(max(nics, 1)) for kind in DRIVER]
    if style == "counted":
        found = [Asked(0, kind, rng.choice([1, 2, 3, 4, 5])) for kind in DRIVER]
    if style == "claims":
        found = [Asked(claim, kind, rng.randint(0, 2)) for claim in range(2) for kind in DRIVER]
    if style == "selected":
        found = [Asked(0, "gpu", gpus), Asked(0, "nic", nics), Asked(0, "nic", 1, rng.randint(0, 1))]
    return [one for one in found if one.number]


def solutions(pod: Sequence[Asked], free: dict[str, list[int]], oracle: Oracle, *, on_one_root: bool) -> set[Sets]:
    """The devices of each solution. `on_one_root`: the GPUs of each claim agree on a PCIe root."""
    found: set[tuple[Sets, Roots]] = {(((), ()), ())}
    for asked in pod:
        found = {
            new for sets, roots in found for new in extended(asked, free, oracle, sets, roots if on_one_root else None)
        }
    return {sets for sets, _ in found}


def extended(
    asked: Asked, free: dict[str, list[int]], oracle: Oracle, sets: Sets, roots: Roots | None
) -> Iterator[tuple[Sets, Roots]]:
    """The sets with those of one more request. `roots` are those that the GPUs of each claim have in common."""
    position = [*DRIVER].index(asked.kind)
    left = [b for b in free[asked.kind] if b not in sets[position] and asked.remainder in (None, b % 2)]
    for bits in combinations(left, asked.number):
        common = dict(roots or ())
        if asked.kind == "gpu" and roots is not None:
            known = [common[asked.claim]] if asked.claim in common else []
            common[asked.claim] = frozenset.intersection(*known, *(frozenset(oracle.gpus[bit][0]) for bit in bits))
            if not common[asked.claim]:
                continue
        grown = tuple(sorted(sets[position] + bits))
        yield (grown, sets[1]) if position == 0 else (sets[0], grown), tuple(sorted(common.items()))


@pytest.mark.parametrize("name", MACHINES)
def test_a_random_pod_has_as_many_near_pairs_as_a_brute_force_finds(name: str) -> None:
    rng, machine, oracle, compared = random.Random(name), MACHINES[name], Oracle(MACHINES[name]), 0
    for _ in range(80):
        pod, free = random_pod(rng), {kind: list(range(len(machine[f"{kind}s"]))) for kind in DRIVER}
        for bits in free.values():
            rng.shuffle(bits)
        own = {kind: tuple(bits.pop() for _ in range(rng.choice([0, 0, 1]))) for kind, bits in free.items()}
        held = [(kind, bit) for kind, bits in free.items() for bit in bits[: rng.randint(0, len(bits) - 1)]]
        free = {kind: [bit for bit in bits if (kind, bit) not in held] for kind, bits in free.items()}
        on_one_root = rng.random() < 0.2 and name != "lists"  # a list needs a feature gate
        fleet = NicFleet({"n": machine})
        fleet.hold("n", [(DRIVER[kind], f"{kind}-{bit}") for kind, bit in held])
        claims = []
        for claim in sorted({one.claim for one in pod}):
            named = [(f"{one.kind}-{i}", one) for i, one in enumerate(pod) if one.claim == claim]
            covered = [request for request, one in named if one.kind == "gpu"]
            limits = [{"matchAttribute": ROOT, "requests": covered}] if on_one_root and covered else []
            claims.append(([one.request(request) for request, one in named], limits))
        if not claims:
            continue
        mine = [(DRIVER[kind], f"{kind}-{bit}") for kind, bits in own.items() for bit in bits]
        status, info = fleet.evaluate("n", fleet.asking_claims(claims, "n", mine)), fleet.node_info("n")
        found = solutions(pod, free, oracle, on_one_root=on_one_root)
        assert isinstance(status, Placement) == bool(found)
        if not isinstance(status, Placement):
            continue
        assert info.fabric is not None
        graph = info.fabric.graph

        @cache
        def worth(sets: Sets, own: tuple[tuple[int, ...], ...] = tuple(own.values()), graph: Any = graph) -> Any:
            mask, (gpus, nics) = sum(1 << bit for bit in sets[0]), (a + b for a, b in zip(own, sets, strict=True))
            pairs = oracle.best(gpus, nics) if gpus and nics else ()
            return bandwidth(graph, mask), pairs, links_inside(graph, mask)

        names = [one.rpartition("/")[2].partition("-") for one in status.devices(info)]
        gpus, nics = (tuple(sorted(int(number) for kind, _, number in names if kind == one)) for one in DRIVER)
        assert (gpus, nics) in found
        assert worth((gpus, nics)) == max(map(worth, found)), (pod, own, held)
        compared += len(found) > 1
    assert compared > 10, "how many pods had a choice"
