"""Predicted ring bandwidth of a set of GPUs, by bit mask.

The model (it predicts six published all-reduce figures within 16 %):
- Two GPUs reach links x rate.
- Three or more GPUs reach 2 x cycles x rate, where `cycles` is the largest number of Hamiltonian cycles that the NVLink
  graph holds at once. Each cycle uses one link of each edge on its way; half links are allowed.
- Behind an NVSwitch, the smallest number of links of a GPU counts.
- A set without an NVLink ring uses PCIe.
"""

from __future__ import annotations

from extender.model import Graph, members

_EXACT_SIZE = 8  # GPUs; the packing is greedy above, where no real machine is a mesh
_PACKING_STEPS = 1_000  # limit of the exact packing and of one greedy cycle; the machines in tests need at most 151


def ring_gbps(graph: Graph, mask: int) -> float:
    """Predicted bandwidth of an all-reduce over the set, per GPU, in GB/s; 0 for fewer than two GPUs."""
    chosen = members(mask)
    if len(chosen) < 2:  # noqa: PLR2004 - a ring needs two
        return 0.0
    fastest = _nvlink_gbps(graph, chosen)
    return max(fastest, graph.pcie_gbps)


def is_joined(graph: Graph, mask: int) -> bool:
    """Whether the set has a ring over NVLink alone. False for fewer than two GPUs."""
    chosen = members(mask)
    return len(chosen) > 1 and _nvlink_gbps(graph, chosen) > 0


def _nvlink_gbps(graph: Graph, chosen: list[int]) -> float:
    switched = min(graph.switch_links[i] for i in chosen)
    if switched:
        return switched * graph.link_gbps
    if len(chosen) == 2:  # noqa: PLR2004 - a pair
        return graph.links[chosen[0]][chosen[1]] * graph.link_gbps
    return _half_cycles(graph, chosen) * graph.link_gbps


def count_links_inside(graph: Graph, mask: int) -> int:
    """NVLinks between members of the set; links into a switch count once per member."""
    chosen = members(mask)
    if len(chosen) < 2:  # noqa: PLR2004 - one GPU has no peer
        return 0
    direct = sum(graph.links[a][b] for position, a in enumerate(chosen) for b in chosen[position + 1 :])
    return direct + sum(graph.switch_links[i] for i in chosen)


def _half_cycles(graph: Graph, chosen: list[int]) -> int:
    """How many cycles fit if each takes half a link. Four GPUs with one link per pair have three such cycles."""
    left = [[2 * graph.links[a][b] for b in chosen] for a in chosen]
    bound = min(sum(row) // 2 for row in left)
    if bound == 0:
        return 0
    if len(chosen) > _EXACT_SIZE:
        return _greedy_cycles(left, bound)
    found = _all_cycles(left)
    return _Packing(left, found, bound).best if found else 0


def _all_cycles(left: list[list[int]]) -> list[tuple[int, ...]]:
    """All Hamiltonian cycles from vertex 0, each in one direction only."""
    size = len(left)
    found: list[tuple[int, ...]] = []
    stack: list[tuple[int, ...]] = [(0,)]
    while stack:
        path = stack.pop()
        last = path[-1]
        if len(path) == size:
            if left[last][0] and path[1] < last:
                found.append(path)
            continue
        stack.extend((*path, v) for v in range(size) if left[last][v] and v not in path)
    return sorted(found)


def _edges(cycle: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(cycle, (*cycle[1:], cycle[0]), strict=True))


class _Packing:
    """`best` is the largest number of cycles without a common link: a depth-first search with an upper bound."""

    def __init__(self, left: list[list[int]], cycles: list[tuple[int, ...]], bound: int) -> None:
        self._left = left
        self._cycles = [_edges(cycle) for cycle in cycles]
        self._bound = bound
        self._steps = 0
        self.best = 0
        self._extend(0, 0)

    def _extend(self, first: int, count: int) -> None:
        self.best = max(self.best, count)
        for position in range(first, len(self._cycles)):
            self._steps += 1
            if self.best == self._bound or self._steps > _PACKING_STEPS:
                return
            edges = self._cycles[position]
            if all(self._left[a][b] for a, b in edges):
                self._change(edges, -1)
                self._extend(position, count + 1)
                self._change(edges, 1)

    def _change(self, edges: list[tuple[int, int]], amount: int) -> None:
        for a, b in edges:
            self._left[a][b] += amount
            self._left[b][a] += amount


def _greedy_cycles(left: list[list[int]], bound: int) -> int:
    count = 0
    while count < bound:
        cycle = _any_cycle(left)
        if cycle is None:
            break
        for a, b in _edges(cycle):
            left[a][b] -= 1
            left[b][a] -= 1
        count += 1
    return count


def _any_cycle(left: list[list[int]]) -> tuple[int, ...] | None:
    size = len(left)
    stack: list[tuple[int, ...]] = [(0,)]
    for _ in range(_PACKING_STEPS):
        if not stack:
            return None
        path = stack.pop()
        last = path[-1]
        if len(path) == size:
            if left[last][0]:
                return path
            continue
        # The stack visits vertices with few links first: a cycle that reaches them late often cannot leave them.
        ahead = [v for v in range(size) if left[last][v] and v not in path]
        stack.extend((*path, v) for v in sorted(ahead, key=lambda v: -sum(map(bool, left[v]))))
    return None
