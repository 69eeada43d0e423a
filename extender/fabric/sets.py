"""Which sets of free GPUs are best, and what a choice leaves behind."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import NamedTuple

from cachetools import LRUCache

from extender.fabric import ring
from extender.model import Graph, members

_EXHAUSTIVE = 2_000  # sets ranked one by one; C(12, 6) and every choice on 8 GPUs are below
_REMEMBERED = 65_536  # (graph, mask) pairs of about 150 bytes; 255 per 8-GPU graph
_BEST = 4096  # (graph, mask, count)
_RANKED_BYTES = 16 << 20  # of all ranked sets; an 8-GPU graph has half a MiB of them


class Quality(NamedTuple):
    """Sorts better sets first when compared ascending."""

    minus_ring_gbps: float
    minus_links_inside: int
    worst_distance: int
    numa_nodes: int
    minus_links_left: int
    mask_order: int


class Measures:
    """Measures of sets of GPUs, `remembered` answers of each; those used least recently go first."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self.bandwidth = lru_cache(remembered)(ring.ring_gbps)
        self.links_inside = lru_cache(remembered)(ring.count_links_inside)
        self.quality = lru_cache(remembered)(self._quality)

    def _quality(self, graph: Graph, mask: int, free: int) -> Quality:
        """How good it is to take `mask` out of `free`."""
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
    """Ranked sets, bounded by estimated bytes; those used least recently go first."""

    def __init__(self, limit_bytes: int = _RANKED_BYTES) -> None:
        self._known: LRUCache[tuple[Graph, int, int], tuple[int, ...]] = LRUCache(limit_bytes, getsizeof=_ranked_bytes)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, graph: Graph, free: int, count: int) -> tuple[int, ...]:
        """Sets of `count` GPUs out of `free`, the best first. All of them where that is cheap, else good seeds."""
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
    """A set grown from one GPU, always by the best next one."""
    mask = 1 << seed
    for _ in range(count - 1):
        ahead = [mask | 1 << i for i in members(free & ~mask)]
        mask = min(ahead, key=lambda m: (-links_inside(graph, m), quality(graph, m, free)[2:]))
    return mask


@lru_cache(_BEST)
def best_gbps(graph: Graph, free: int, count: int) -> float:
    """The best ring of `count` GPUs that `free` still offers."""
    sets = ranked(graph, free, count)
    return bandwidth(graph, sets[0]) if sets else 0.0


def largest_joined(graph: Graph, free: int, most: int) -> int:
    """How many GPUs out of `free`, at most `most`, NVLink alone can join in a ring; 0 where it joins none."""
    for count in range(min(free.bit_count(), most), 1, -1):
        if any(ring.is_joined(graph, mask) for mask in ranked(graph, free, count)[:1]):
            return count
    return 0


class Graphs:
    """Interns graphs: equal machines share one object and so all that is computed for it."""

    def __init__(self, limit: int = 1024) -> None:
        self._known: OrderedDict[Graph, Graph] = OrderedDict()
        self._limit = limit

    def intern(self, graph: Graph) -> Graph:
        known = self._known.setdefault(graph, graph)
        self._known.move_to_end(known)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
        return known
