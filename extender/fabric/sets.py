"""Ranking of sets of free GPUs, including the links that a choice leaves for later jobs."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb
from typing import NamedTuple

from cachetools import LRUCache

from extender.fabric import ring
from extender.model import Graph, members

_EXHAUSTIVE = 2_000  # most sets that are ranked one by one; C(12, 6) and all choices on 8 GPUs are below
_REMEMBERED = 65_536  # (graph, mask) pairs in each cache, about 150 bytes each; an 8-GPU graph has 255
_BEST = 4096  # (graph, mask, count) keys in the cache of best_gbps
_RANKED_BYTES = 16 << 20  # estimated size of all ranked sets; those of an 8-GPU graph take half a MiB


class Quality(NamedTuple):
    """The quality of a set. In ascending order, better sets come first."""

    minus_ring_gbps: float
    minus_links_inside: int
    worst_distance: int
    numa_nodes: int
    minus_links_left: int
    mask_order: int


class Measures:
    """Measures of sets of GPUs. Each has an LRU cache with `remembered` entries."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self.bandwidth = lru_cache(remembered)(ring.ring_gbps)
        self.links_inside = lru_cache(remembered)(ring.count_links_inside)
        self.quality = lru_cache(remembered)(self._quality)

    def _quality(self, graph: Graph, mask: int, free: int) -> Quality:
        """The quality of taking the GPUs of `mask` out of the free GPUs `free`."""
        chosen = members(mask)
        pairs = [(a, b) for position, a in enumerate(chosen) for b in chosen[position + 1 :]]
        return Quality(
            -self.bandwidth(graph, mask),
            -self.links_inside(graph, mask),
            max((graph.distance[a][b] for a, b in pairs), default=0),
            len({graph.numa[i] for i in chosen}),
            -self.links_inside(graph, free & ~mask),
            mask,
        )


_shared = Measures()
bandwidth, links_inside, quality = _shared.bandwidth, _shared.links_inside, _shared.quality


def _ranked(graph: Graph, free: int, count: int) -> tuple[int, ...]:
    available = members(free)
    if count > len(available) or count < 1:
        return ()
    if comb(len(available), count) <= _EXHAUSTIVE:
        masks = [sum(1 << i for i in chosen) for chosen in combinations(available, count)]
    else:
        masks = sorted({_grown(graph, free, seed, count) for seed in available})
    return tuple(sorted(masks, key=lambda mask: quality(graph, mask, free)))


class RankedSets:
    """An LRU cache of ranked sets with a limit in estimated bytes."""

    def __init__(self, limit_bytes: int = _RANKED_BYTES) -> None:
        self._known: LRUCache[tuple[Graph, int, int], tuple[int, ...]] = LRUCache(limit_bytes, getsizeof=_ranked_bytes)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, graph: Graph, free: int, count: int) -> tuple[int, ...]:
        """Masks of `count` GPUs out of `free`, the best first.

        All sets if there are at most _EXHAUSTIVE, else one good set around each GPU.
        """
        key = graph, free, count
        known = self._known.get(key)
        if known is None:
            known = _ranked(graph, free, count)
            if _ranked_bytes(known) <= self._known.maxsize:
                self._known[key] = known
        return known


def _ranked_bytes(sets: tuple[int, ...]) -> int:
    return 256 + 40 * len(sets)


ranked = RankedSets().of


def _grown(graph: Graph, free: int, seed: int, count: int) -> int:
    """A set of `count` GPUs that starts with `seed` and takes the best next GPU at each step."""
    mask = 1 << seed
    for _ in range(count - 1):
        ahead = [mask | 1 << i for i in members(free & ~mask)]
        mask = min(ahead, key=lambda m: (-links_inside(graph, m), quality(graph, m, free)[2:]))
    return mask


@lru_cache(_BEST)
def best_gbps(graph: Graph, free: int, count: int) -> float:
    """Bandwidth of the best ring of `count` GPUs out of `free`, in GB/s; 0 if there are too few."""
    if not 1 < count <= free.bit_count():
        return 0.0
    switched = sorted((graph.switch_links[i] for i in members(free)), reverse=True)[count - 1]
    sets = (chosen for mesh in ring.meshes(graph, free) for chosen in combinations(members(mesh), count))
    joined = (bandwidth(graph, sum(1 << i for i in chosen)) for chosen in sets) if count <= ring.MAX_MESH else ()
    return max(graph.pcie_gbps, switched * graph.link_gbps, *joined)


def largest_joined(graph: Graph, free: int, most: int) -> int:
    """The largest number of GPUs out of `free`, at most `most`, whose best set has an NVLink ring; 0 if none has."""
    for count in range(min(free.bit_count(), most), 1, -1):
        if any(ring.is_joined(graph, mask) for mask in ranked(graph, free, count)[:1]):
            return count
    return 0


class Graphs:
    """Interns graphs. Equal machines share one object, and so the cached measures of that object."""

    def __init__(self, limit: int = 1024) -> None:
        self._known: LRUCache[Graph, Graph] = LRUCache(limit)

    def intern(self, graph: Graph) -> Graph:
        return self._known.setdefault(graph, graph)
