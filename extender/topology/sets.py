"""Sets of GPUs, by bit mask: the predicted bandwidth of their ring, and which sets to prefer of the free ones.

The model of a ring (it predicts six published all-reduce figures within 16 %):
- Two GPUs reach links x rate.
- Three or more GPUs reach 2 x cycles x rate, where `cycles` is the largest number of Hamiltonian cycles that the NVLink
  graph holds at once. Each cycle uses one link of each edge on its way; half links are allowed.
- If all pairs of the set have equally many links, every link of every GPU is in a cycle: a complete graph with each
  edge doubled is a union of Hamiltonian cycles. So GPUs that are fully joined reach links per pair x peers x rate.
- Behind an NVSwitch, the smallest number of links of a GPU counts.
- A set without an NVLink ring uses PCIe. So does a set of more than MAX_MESH GPUs without an NVSwitch.

The order of sets includes the links that a choice leaves for later jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain, combinations, groupby
from math import comb
from typing import NamedTuple, TypeAlias

from cachetools import LRUCache

from extender.api.gpu_topology import Graph, Interconnect
from extender.base.bits import members

MAX_GPUS = 16  # of a node that an agent reads: the API's limits allow no more devices with attributes in one slice
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


def is_joined(graph: Graph, mask: int) -> bool:
    """Whether the set has a ring over NVLink alone. False for fewer than two GPUs."""
    chosen = members(mask)
    return len(chosen) > 1 and _nvlink_gbps(graph.interconnect, chosen) > 0


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


_MAX_EXHAUSTIVE = 2_000  # most sets that are ranked one by one; C(12, 6) and all choices on 8 GPUs are below
_MAX_REMEMBERED = 32_768  # (graph, mask) pairs in each cache; an 8-GPU graph has 255
_MAX_BEST = 4096  # (graph, mask, count) keys in the cache of best_gbps
_MAX_RANKED_BYTES = 16 << 20  # estimated, of all ranked sets without graphs; those of an 8-GPU graph take half a MiB
_MAX_GRAPHS = 1024  # graphs in all caches; one of 16 GPUs takes 7 KiB, or 4 KiB without localities


class Quality(NamedTuple):
    """The quality of a set. In ascending order, better sets come first."""

    minus_ring_gbps: float
    minus_links_inside: int
    worst_distance: int
    numa_nodes: int
    minus_links_left: int
    mask: int


Groups: TypeAlias = tuple[tuple[int, ...], ...]


class Measures:
    """Measures of sets of GPUs, with their caches.

    With graphs of up to 16 GPUs, all entries take at most 49 MiB: 16 MiB of ranked sets, 11 MiB of graphs, 22 MiB of
    other results. An entry keeps its graph alive, so one graph beyond the bound empties all caches. Otherwise an agent
    with ever new slices could fill every entry with its own graph.
    """

    def __init__(self) -> None:
        self._graphs: set[Graph] = set()
        self._interconnects: set[Interconnect] = set()
        self._bandwidth = lru_cache(_MAX_REMEMBERED)(ring_gbps)
        self._links_inside = lru_cache(_MAX_REMEMBERED)(count_links_inside)
        self._inside = lru_cache(_MAX_REMEMBERED)(self._quality_inside)
        self._best = lru_cache(_MAX_BEST)(self._best_gbps)
        self._by_bandwidth: LRUCache[tuple[Graph, int, int], Groups] = LRUCache(_MAX_RANKED_BYTES, _bytes_of)

    def clear(self) -> None:
        """Empty all caches."""
        for cache in (self._bandwidth, self._links_inside, self._inside, self._best):
            cache.cache_clear()
        for table in (self._by_bandwidth, self._graphs, self._interconnects):
            table.clear()

    def sizes(self) -> dict[str, int]:
        """The number of entries in each cache."""
        return {
            "graphs": len(self._graphs),
            "interconnects": len(self._interconnects),
            "bandwidth": self._bandwidth.cache_info().currsize,
            "links_inside": self._links_inside.cache_info().currsize,
            "quality": self._inside.cache_info().currsize,
            "best_gbps": self._best.cache_info().currsize,
            "ranked": len(self._by_bandwidth),
        }

    def bandwidth(self, graph: Graph, mask: int) -> float:
        """Predicted bandwidth of an all-reduce over the set, per GPU, in GB/s; 0 for fewer than two GPUs."""
        return self._bandwidth(self._noted_interconnect(graph), mask)

    def links_inside(self, graph: Graph, mask: int) -> int:
        """NVLinks between members of the set; links into a switch count once per member."""
        return self._links_inside(self._noted_interconnect(graph), mask)

    def quality(self, graph: Graph, mask: int, free: int) -> Quality:
        """The quality of taking the GPUs of `mask` out of the free GPUs `free`."""
        return self._quality(self._noted(graph), mask, free)

    def best_gbps(self, graph: Graph, free: int, count: int) -> float:
        """Bandwidth of the best ring of `count` GPUs out of `free`, in GB/s; 0 if there are too few."""
        return self._best(self._noted_interconnect(graph), free, count)

    def ranked(self, graph: Graph, free: int, count: int) -> tuple[int, ...]:
        """Masks of `count` GPUs out of `free`, the best first."""
        return tuple(chain.from_iterable(self.by_bandwidth(graph, free, count)))

    def by_bandwidth(self, graph: Graph, free: int, count: int) -> Groups:
        """The sets of `ranked`, in groups of equal ring bandwidth.

        All sets if there are at most _MAX_EXHAUSTIVE, else one good set around each GPU. Of more than MAX_GPUS, which
        no machine has, only the first set: to rank them takes seconds.
        """
        if free.bit_count() > MAX_GPUS:
            return ((sum(1 << i for i in members(free)[:count]),),) if 0 < count <= free.bit_count() else ()
        known = self._by_bandwidth.get((graph, free, count))
        if known is None:
            known = self.in_groups(graph, free, self._sets(graph, free, count))
            if _bytes_of(known) <= self._by_bandwidth.maxsize:
                self._by_bandwidth[graph, free, count] = known
        return known

    def in_groups(self, graph: Graph, free: int, sets: Iterable[int]) -> Groups:
        """The sets in groups of equal ring bandwidth, the best first."""
        graph = self._noted(graph)
        found = sorted([self._quality(graph, mask, free) for mask in sets])
        return tuple(tuple(one.mask for one in group) for _, group in groupby(found, lambda one: one.minus_ring_gbps))

    def _noted(self, graph: Graph) -> Graph:
        """The graph, of which results are kept from now on. One beyond the bound empties all caches."""
        if graph not in self._graphs:
            if len(self._graphs) >= _MAX_GRAPHS:
                self.clear()
            self._noted_interconnect(graph)  # first, because it may empty the table of graphs, too
            self._graphs.add(graph)
        return graph

    def _noted_interconnect(self, graph: Graph) -> Interconnect:
        """As `_noted`, for results that depend on the graph's interconnect alone."""
        if graph.interconnect not in self._interconnects:
            if len(self._interconnects) >= _MAX_GRAPHS:
                self.clear()
            self._interconnects.add(graph.interconnect)
        return graph.interconnect

    # -- with a noted graph ----------------------------------------------------------------------------------

    def _quality(self, graph: Graph, mask: int, free: int) -> Quality:
        return Quality(*self._inside(graph, mask), -self._links_inside(graph.interconnect, free & ~mask), mask)

    def _quality_inside(self, graph: Graph, mask: int) -> tuple[float, int, int, int]:
        """The first four values of the Quality: those that do not depend on the other free GPUs."""
        if mask.bit_count() == 1:  # it has no peer
            return 0.0, 0, 0, 1
        chosen = members(mask)
        pairs = [(a, b) for position, a in enumerate(chosen) for b in chosen[position + 1 :]]
        return (
            -self._bandwidth(graph.interconnect, mask),
            -self._links_inside(graph.interconnect, mask),
            max((graph.distance[a][b] for a, b in pairs), default=0),
            len({graph.numa[i] for i in chosen}),
        )

    def _best_gbps(self, interconnect: Interconnect, free: int, count: int) -> float:
        if not 1 < count <= free.bit_count():
            return 0.0
        links = [number for i, number in enumerate(interconnect.switch_links) if free >> i & 1]
        switched = sorted(links, reverse=True)[count - 1]
        joined_directly = meshes(interconnect.links, free) if count <= MAX_MESH else ()
        large = [members(mesh) for mesh in joined_directly if mesh.bit_count() >= count]
        sets = (chosen for mesh in large for chosen in combinations(mesh, count))
        joined = (self._bandwidth(interconnect, sum(1 << i for i in chosen)) for chosen in sets)
        return max(interconnect.pcie_gbps, switched * interconnect.link_gbps, *joined)

    def _sets(self, graph: Graph, free: int, count: int) -> Iterable[int]:
        available = members(free)
        if count > len(available) or count < 1:
            return ()
        if comb(len(available), count) <= _MAX_EXHAUSTIVE:
            return (sum(1 << i for i in chosen) for chosen in combinations(available, count))
        return {self._grown(graph, free, seed, count) for seed in available}

    def _grown(self, graph: Graph, free: int, seed: int, count: int) -> int:
        """A set of `count` GPUs that starts with `seed` and takes the best next GPU at each step."""
        mask = 1 << seed
        for _ in range(count - 1):
            ahead = [mask | 1 << i for i in members(free & ~mask)]
            mask = min(
                ahead, key=lambda m: (-self._links_inside(graph.interconnect, m), self._quality(graph, m, free)[2:])
            )
        return mask


def _bytes_of(groups: Groups) -> int:
    return 256 + sum(48 + 40 * len(group) for group in groups)


measures = Measures()
bandwidth, links_inside, quality = measures.bandwidth, measures.links_inside, measures.quality
best_gbps, ranked, by_bandwidth, in_groups = (
    measures.best_gbps,
    measures.ranked,
    measures.by_bandwidth,
    measures.in_groups,
)


def largest_joined(graph: Graph, free: int, most: int) -> int:
    """The largest number of GPUs out of `free`, at most `most`, whose best set has an NVLink ring; 0 if none has."""
    for count in range(min(free.bit_count(), most), 1, -1):
        if any(is_joined(graph, mask) for mask in ranked(graph, free, count)[:1]):
            return count
    return 0
