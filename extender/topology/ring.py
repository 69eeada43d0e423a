"""Predicted ring bandwidth of a set of GPUs, by bit mask.

The model (it predicts six published all-reduce figures within 16 %):
- Two GPUs reach links x rate.
- Three or more GPUs reach 2 x cycles x rate, where `cycles` is the largest number of Hamiltonian cycles that the NVLink
  graph holds at once. Each cycle uses one link of each edge on its way; half links are allowed.
- If all pairs of the set have equally many links, every link of every GPU is in a cycle: a complete graph with each
  edge doubled is a union of Hamiltonian cycles. So GPUs that are fully joined reach links per pair x peers x rate.
- Behind an NVSwitch, the smallest number of links of a GPU counts.
- A set without an NVLink ring uses PCIe. So does a set of more than MAX_MESH GPUs without an NVSwitch.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import TypeAlias

from extender.api.gpu_topology import Interconnect
from extender.base.bits import members

MAX_MESH = 8  # GPUs that NVLinks join without a switch; no machine joins more
MAX_GRAPH_STEPS = 10_000  # limit of the search for the rings of all sets of a graph; a DGX-1 needs 4,165
_MAX_CHECKED = 1024  # tables of links in each cache, at most 3 KiB each; a fleet has dozens


Links: TypeAlias = tuple[tuple[int, ...], ...]  # working NVLinks from each GPU to each other


class _Steps:
    """The steps that a search may still take."""

    def __init__(self, left: int) -> None:
        self.left = left


def ring_gbps(graph: Interconnect, mask: int) -> float:
    """Predicted bandwidth of an all-reduce over the set, per GPU, in GB/s; 0 for fewer than two GPUs."""
    if mask.bit_count() < 2:  # noqa: PLR2004 - a ring needs two
        return 0.0
    return max(_nvlink_gbps(graph, members(mask)), graph.pcie_gbps)


def is_joined(graph: Interconnect, mask: int) -> bool:
    """Whether the set has a ring over NVLink alone. False for fewer than two GPUs."""
    chosen = members(mask)
    return len(chosen) > 1 and _nvlink_gbps(graph, chosen) > 0


def _nvlink_gbps(graph: Interconnect, chosen: list[int]) -> float:
    switched = min(graph.switch_links[i] for i in chosen)
    if switched:
        return switched * graph.link_gbps
    if len(chosen) == 2:  # noqa: PLR2004 - a pair
        return graph.links[chosen[0]][chosen[1]] * graph.link_gbps
    return _half_cycles(graph.links, chosen, _Steps(MAX_GRAPH_STEPS)) * graph.link_gbps


def count_links_inside(graph: Interconnect, mask: int) -> int:
    """NVLinks between members of the set; links into a switch count once per member."""
    if mask.bit_count() < 2:  # noqa: PLR2004 - one GPU has no peer
        return 0
    chosen = members(mask)
    direct = sum(graph.links[a][b] for position, a in enumerate(chosen) for b in chosen[position + 1 :])
    return direct + sum(graph.switch_links[i] for i in chosen)


@lru_cache(_MAX_CHECKED)
def mesh_problem(links: Links) -> str:
    """Why the rings of the direct links cannot be computed; '' if they can. The cost is at most MAX_GRAPH_STEPS."""
    steps = _Steps(MAX_GRAPH_STEPS)
    for mask in meshes(links, (1 << len(links)) - 1):
        mesh = members(mask)
        if len(mesh) > MAX_MESH:
            return f"NVLinks join {len(mesh)} GPUs without a switch, where no machine joins more than {MAX_MESH}"
        for size in range(3, len(mesh) + 1):
            for chosen in combinations(mesh, size):
                _half_cycles(links, list(chosen), steps)
                if steps.left <= 0:
                    return f"the NVLinks of {len(mesh)} GPUs allow too many rings"
    return ""


@lru_cache(_MAX_CHECKED)
def joined_sets(graph: Interconnect, gpus: int) -> tuple[int, ...]:
    """Masks of the GPUs out of `gpus` that NVLink joins: behind the switch, or by direct links; others are alone."""
    switched = sum(1 << i for i in members(gpus) if graph.switch_links[i])
    return (*([switched] if switched else []), *meshes(graph.links, gpus & ~switched))


@lru_cache(_MAX_CHECKED)
def meshes(links: Links, free: int) -> tuple[int, ...]:
    """Masks of the GPUs out of `free` that direct links join, through GPUs out of `free`."""
    near = [sum(1 << j for j, count in enumerate(row) if count) for row in links]
    found = []
    while free:
        mesh, ahead = 0, free & -free
        while ahead:
            mesh |= ahead & -ahead
            ahead = (ahead | near[(ahead & -ahead).bit_length() - 1]) & free & ~mesh
        free &= ~mesh
        found.append(mesh)
    return tuple(found)


def _half_cycles(links: Links, chosen: list[int], steps: _Steps) -> int:
    """How many cycles fit if each takes half a link. Four GPUs with one link per pair have three such cycles."""
    if len(chosen) > MAX_MESH:
        return 0
    counts = {links[a][b] for a, b in combinations(chosen, 2)}
    if len(counts) == 1:
        return counts.pop() * (len(chosen) - 1)
    left = [[2 * links[a][b] for b in chosen] for a in chosen]
    bound = min(sum(row) // 2 for row in left)
    if bound == 0:
        return 0
    found = _all_cycles(left, steps)
    return _Packing(left, found, bound, steps).best if found else 0


def _all_cycles(left: list[list[int]], steps: _Steps) -> list[tuple[int, ...]]:
    """All Hamiltonian cycles from vertex 0, each in one direction only."""
    size = len(left)
    found: list[tuple[int, ...]] = []
    stack: list[tuple[int, ...]] = [(0,)]
    while stack and steps.left > 0:
        steps.left -= 1
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

    def __init__(self, left: list[list[int]], cycles: list[tuple[int, ...]], bound: int, steps: _Steps) -> None:
        self._left = left
        self._cycles = [_edges(cycle) for cycle in cycles]
        self._bound = bound
        self._steps = steps
        self.best = 0
        self._extend(0, 0)

    def _extend(self, first: int, count: int) -> None:
        self.best = max(self.best, count)
        for position in range(first, len(self._cycles)):
            self._steps.left -= 1
            if self.best == self._bound or self._steps.left <= 0:
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
