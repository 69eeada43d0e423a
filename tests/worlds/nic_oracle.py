"""How near the devices of a machine of nic_worlds.py can be, by a brute force over all pairs."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

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
        self._known: dict[object, tuple[int, int, int]] = {}
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
        """Of pairs in which each device is once, or those of the smaller kind about equally often."""
        key = tuple(sorted(str(self.gpus[i]) for i in gpus)), tuple(sorted(str(self.nics[i]) for i in nics))
        if key not in self._known:
            few, many = (gpus, nics) if len(gpus) <= len(nics) else (nics, gpus)
            found = [list(zip(one, many, strict=True)) for one in spreads(few, len(many))]
            self._known[key] = max(self.value(one if few is gpus else [(a, b) for b, a in one]) for one in found)
        return self._known[key]

    def sets(self, numbers: list[int], count: int) -> list[tuple[int, ...]]:
        """The sets of so many NICs; of those whose NICs have the same places, one."""
        found = {tuple(sorted(map(str, (self.nics[i] for i in one)))): one for one in combinations(numbers, count)}
        return list(found.values())


def spreads(few: tuple[int, ...], many: int) -> list[tuple[int, ...]]:
    """For each of the many one of the few: all ways in which each of these is in as many pairs, or in one more."""
    least, most = many // len(few), -(-many // len(few))
    return [one for one in set(permutations(few * most, many)) if all(one.count(device) >= least for device in few)]
