"""An LRU cache of node rankings."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from extender.scheduling.node_ranking import NodeRanking
from extender.scheduling.pod_requirements import PodRequirements

# 500 rankings of 5,000 half-full nodes need about half of this; the memory limit of the process is 512 MiB.
_LIMIT_BYTES = 128 << 20
_CALLS_PER_SIZE_CHECK = 64  # calls between two size checks, because rankings grow


class RankingCache:
    """Rankings by requirements key, limited by estimated bytes. The least recently used ranking is evicted first."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        # Not an LRUCache: that takes the size of an entry when it is stored, and rankings grow.
        self._rankings: OrderedDict[object, NodeRanking] = OrderedDict()
        self._evicted_evaluations = 0  # evaluations of evicted rankings
        self._calls = 0

    def __len__(self) -> int:
        return len(self._rankings)

    def __iter__(self) -> Iterator[NodeRanking]:
        """Rankings in eviction order, the least recently used first."""
        return iter(self._rankings.values())

    def get_or_create(self, requirements: PodRequirements) -> NodeRanking:
        """The ranking for the requirements. The caller must update it to its snapshot."""
        ranking = self._rankings.get(requirements.key)
        self._calls += 1
        if ranking is None:
            self._shrink()
            ranking = self._rankings[requirements.key] = NodeRanking(requirements)
            return ranking
        self._rankings.move_to_end(requirements.key)
        if self._calls % _CALLS_PER_SIZE_CHECK == 0:
            self._shrink()
        return ranking

    def peek(self, requirements: PodRequirements) -> NodeRanking | None:
        """The cached ranking or None. This does not count as a use."""
        return self._rankings.get(requirements.key)

    @property
    def estimated_bytes(self) -> int:
        """The estimated memory of all rankings, in bytes."""
        return sum(ranking.estimated_bytes for ranking in self._rankings.values())

    @property
    def evaluations(self) -> int:
        """Node evaluations since the process started."""
        return self._evicted_evaluations + sum(ranking.evaluations for ranking in self._rankings.values())

    @property
    def statuses(self) -> int:
        """The number of statuses in all rankings."""
        return sum(ranking.statuses for ranking in self._rankings.values())

    def clear(self) -> None:
        self._evicted_evaluations = self.evaluations
        self._rankings.clear()

    def _shrink(self) -> None:
        """Evict rankings until the rest is within the limit; keep at least the most recently used one."""
        size = self.estimated_bytes
        while size > self._limit_bytes and len(self._rankings) > 1:
            _, oldest = self._rankings.popitem(last=False)
            size -= oldest.estimated_bytes
            self._evicted_evaluations += oldest.evaluations
