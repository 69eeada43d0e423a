"""How near the devices of a machine of nic_worlds.py can be, by a brute force over all pairs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import combinations, permutations
from typing import Any

Pairs = Iterable[tuple[int, int]]  # of a GPU and a NIC
Place = tuple[set[str], list[int]]  # PCIe roots; NUMA nodes, of which the first is the usual one


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
        self._known: dict[object, tuple[int, int, int]] = {}
        self.gpus, self.nics = ([self._completed(one, known) for one in kind] for kind in (gpus, nics))
        self._near = [[nearness(gpu, nic) for nic in self.nics] for gpu in self.gpus]
        self._names = [[str(place) for place in kind] for kind in (self.gpus, self.nics)]

    @staticmethod
    def _place(entry: list[Any], agent: int | None) -> Place:
        root, numa = ([] if value is None else value if isinstance(value, list) else [value] for value in entry)
        nodes = [node for node in numa if node >= 0]
        return set(map(str, root)), nodes + [node for node in [agent] if node is not None and node not in nodes]

    @staticmethod
    def _completed(place: Place, known: dict[str, set[int]]) -> Place:
        roots, numa = place
        if not numa and len(roots) == 1 and len(known.get(min(roots), ())) == 1:
            return roots, list(known[min(roots)])
        return place

    def value(self, pairs: Pairs) -> tuple[int, int, int]:
        """Numbers of pairs on one root, on one NUMA node, and with a common NUMA node of their lists."""
        found = [self._near[gpu][nic] for gpu, nic in pairs]
        return found.count(0), found.count(1), found.count(2)

    def best(self, gpus: tuple[int, ...], nics: tuple[int, ...]) -> tuple[int, int, int]:
        """Of pairs in which each device is once, or those of the smaller kind about equally often."""
        key = tuple(sorted(self._names[0][i] for i in gpus)), tuple(sorted(self._names[1][i] for i in nics))
        if key not in self._known:
            few, many = (gpus, nics) if len(gpus) <= len(nics) else (nics, gpus)
            found = [zip((few[i] for i in one), many, strict=True) for one in spreads(len(few), len(many))]
            self._known[key] = max(self.value(one if few is gpus else ((b, a) for a, b in one)) for one in found)
        return self._known[key]

    def sets(self, numbers: list[int], count: int) -> list[tuple[int, ...]]:
        """The sets of so many NICs; of those whose NICs have the same places, one."""
        found = {tuple(sorted(self._names[1][i] for i in one)): one for one in combinations(numbers, count)}
        return list(found.values())


def nearness(gpu: Place, nic: Place) -> int:
    """0 on one root, 1 on one NUMA node, 2 with a common NUMA node of their lists, 3 apart or not known."""
    (roots, numa), (others, nodes) = gpu, nic
    return 0 if roots & others else 1 if numa[:1] and numa[:1] == nodes[:1] else 2 if {*numa} & {*nodes} else 3


@cache
def spreads(few: int, many: int) -> list[tuple[int, ...]]:
    """For each of the many the position of one of the few: all ways in which each of these is in as many pairs, or in
    one more."""
    least, most = many // few, -(-many // few)
    return [
        one for one in {*permutations([*range(few)] * most, many)} if all(one.count(i) >= least for i in range(few))
    ]
