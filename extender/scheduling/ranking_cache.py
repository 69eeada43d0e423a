"""An LRU cache of node rankings."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from extender.scheduling.node_ranking import NodeRanking
from extender.scheduling.pod_requirements import PodRequirements

# 500 rankings of 5,000 half-full nodes need about half of this; the memory limit of the process is 512 MiB.
_LIMIT_BYTES = 128 << 20
_MOST = 4096  # rankings: /metrics reads each; so many pods may wait
_MEASURED = 16  # rankings that one call measures at most


class RankingCache:
    """Rankings by requirements key, limited in number and bytes. The least recently used one is evicted first.

    A ranking grows after a call has returned it, so later calls measure it. The time of a call does not depend on the
    number of rankings.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES, most: int = _MOST) -> None:
        self._limit_bytes = limit_bytes
        self._most = most
        # Not an LRUCache: that takes the size of an entry when it is stored, and rankings grow.
        self._rankings: OrderedDict[object, NodeRanking] = OrderedDict()
        self._measured: dict[object, int] = {}  # bytes by key, as last measured
        self._bytes = 0  # their sum
        self._unmeasured: dict[object, None] = {}  # keys of rankings that calls returned since: they may have grown
        self._evicted_evaluations = 0  # evaluations of evicted rankings

    def __len__(self) -> int:
        return len(self._rankings)

    def __iter__(self) -> Iterator[NodeRanking]:
        """Rankings in eviction order, the least recently used first."""
        return iter(self._rankings.values())

    def get_or_create(self, requirements: PodRequirements) -> NodeRanking:
        """The ranking for the requirements. The caller must update it to its snapshot."""
        key = requirements.key
        if key in self._rankings:
            self._rankings.move_to_end(key)
        self._measure()
        self._shrink()
        found = self._rankings.get(key)
        if found is None:
            found = self._rankings[key] = NodeRanking(requirements)
        self._unmeasured[key] = None
        return found

    def peek(self, requirements: PodRequirements) -> NodeRanking | None:
        """The cached ranking or None. This does not count as a use."""
        found = self._rankings.get(requirements.key)
        if found is not None:
            self._unmeasured[requirements.key] = None
        return found

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
        for table in (self._rankings, self._measured, self._unmeasured):
            table.clear()
        self._bytes = 0

    def _measure(self) -> None:
        for _ in range(min(_MEASURED, len(self._unmeasured))):
            key, _ = self._unmeasured.popitem()
            size = self._rankings[key].estimated_bytes
            self._bytes += size - self._measured.get(key, 0)
            self._measured[key] = size

    def _shrink(self) -> None:
        """Evict rankings until the rest is within the limits; keep at least the most recently used one."""
        while len(self._rankings) > 1 and (self._bytes > self._limit_bytes or len(self._rankings) > self._most):
            key, oldest = self._rankings.popitem(last=False)
            self._bytes -= self._measured.pop(key, 0)
            self._unmeasured.pop(key, None)
            self._evicted_evaluations += oldest.evaluations
