"""An LRU cache of node rankings."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from extender.scheduling.node_ranking import NodeRanking
from extender.scheduling.pod_requirements import PodRequirements

# 500 rankings of 5,000 half-full nodes need about half of this; the memory limit of the process is 512 MiB.
_LIMIT_BYTES = 128 << 20
_MOST = 4096  # rankings: /metrics reads each; so many pods may wait
_MEASURED = 16  # rankings that one call measures at most


@dataclass(slots=True, eq=False)
class _Entry:
    """A ranking with its estimated bytes, as last measured."""

    ranking: NodeRanking
    bytes: int = 0


class RankingCache:
    """Rankings by requirements key, limited in number and bytes. The least recently used one is evicted first.

    A ranking grows after a call has returned it, so later calls measure it. The time of a call does not depend on the
    number of rankings.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES, most: int = _MOST) -> None:
        self._limit_bytes = limit_bytes
        self._most = most
        # Not an LRUCache: that takes the size of an entry when it is stored, and rankings grow.
        self._entries: OrderedDict[object, _Entry] = OrderedDict()
        self._bytes = 0  # the sum of the entries
        self._unmeasured: dict[_Entry, None] = {}  # rankings that calls returned since: they may have grown
        self._evicted_evaluations = 0  # evaluations of evicted rankings

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[NodeRanking]:
        """Rankings in eviction order, the least recently used first."""
        return (entry.ranking for entry in self._entries.values())

    def get_or_create(self, requirements: PodRequirements) -> NodeRanking:
        """The ranking for the requirements. The caller must update it to its snapshot."""
        entry = self._entries.get(requirements.key)
        if entry is not None:
            self._entries.move_to_end(requirements.key)
            self._unmeasured.pop(entry, None)  # the next call for another ranking measures it
        self._measure()
        self._shrink()
        if entry is None:
            entry = self._entries[requirements.key] = _Entry(NodeRanking(requirements))
        self._unmeasured[entry] = None
        return entry.ranking

    def peek(self, requirements: PodRequirements) -> NodeRanking | None:
        """The cached ranking or None. This does not count as a use."""
        entry = self._entries.get(requirements.key)
        if entry is None:
            return None
        self._unmeasured[entry] = None
        return entry.ranking

    @property
    def estimated_bytes(self) -> int:
        """The estimated memory of all rankings, in bytes."""
        return sum(ranking.estimated_bytes for ranking in self)

    @property
    def evaluations(self) -> int:
        """Node evaluations since the process started."""
        return self._evicted_evaluations + sum(ranking.evaluations for ranking in self)

    @property
    def statuses(self) -> int:
        """The number of statuses in all rankings."""
        return sum(ranking.statuses for ranking in self)

    def clear(self) -> None:
        self._evicted_evaluations = self.evaluations
        self._entries.clear()
        self._unmeasured.clear()
        self._bytes = 0

    def _measure(self) -> None:
        for _ in range(min(_MEASURED, len(self._unmeasured))):
            entry, _ = self._unmeasured.popitem()
            size = entry.ranking.estimated_bytes
            self._bytes += size - entry.bytes
            entry.bytes = size

    def _shrink(self) -> None:
        """Evict rankings until the rest is within the limits; keep at least the most recently used one."""
        while len(self._entries) > 1 and (self._bytes > self._limit_bytes or len(self._entries) > self._most):
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= oldest.bytes
            self._unmeasured.pop(oldest, None)
            self._evicted_evaluations += oldest.ranking.evaluations
