"""An LRU cache of node rankings, in which no namespace takes the place of others."""

from __future__ import annotations

from collections import Counter, OrderedDict
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
    key: object
    bytes: int = 0

    @property
    def namespace(self) -> str:
        """The namespace of the pod for which the ranking was created."""
        return self.ranking.requirements.namespace


class RankingCache:
    """Rankings by requirements key, limited in number and bytes.

    Beyond a limit, the namespace with the most rankings, or with the most bytes, loses its least recently used one: a
    tenant may have pods with 64 large claims. A ranking grows after a call has returned it, so later calls measure it.
    The time of a call does not depend on the number of rankings.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES, most: int = _MOST) -> None:
        self._limit_bytes = limit_bytes
        self._most = most
        # Not an LRUCache: that takes the size of an entry when it is stored, and rankings grow.
        self._entries: OrderedDict[object, _Entry] = OrderedDict()
        self._namespaces: dict[str, OrderedDict[object, _Entry]] = {}  # the same entries
        self._bytes: Counter[str] = Counter()  # the sum of the entries of each namespace
        self._all_bytes = 0
        self._unmeasured: dict[_Entry, None] = {}  # rankings that calls returned since: they may have grown
        self._evicted_evaluations = 0  # evaluations of evicted rankings

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[NodeRanking]:
        """Rankings, the least recently used first."""
        return (entry.ranking for entry in self._entries.values())

    def get_or_create(self, requirements: PodRequirements) -> NodeRanking:
        """The ranking for the requirements. The caller must update it to its snapshot."""
        entry = self._entries.get(requirements.key)
        if entry is not None:
            self._entries.move_to_end(requirements.key)
            self._namespaces[entry.namespace].move_to_end(requirements.key)
            self._unmeasured.pop(entry, None)  # the next call for another ranking measures it
        self._measure()
        self._shrink(entry)
        if entry is None:
            entry = self._entries[requirements.key] = _Entry(NodeRanking(requirements), requirements.key)
            self._namespaces.setdefault(entry.namespace, OrderedDict())[entry.key] = entry
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
        self._namespaces.clear()
        self._unmeasured.clear()
        self._bytes.clear()
        self._all_bytes = 0

    def _measure(self) -> None:
        for _ in range(min(_MEASURED, len(self._unmeasured))):
            entry, _ = self._unmeasured.popitem()
            self._count(entry, entry.ranking.estimated_bytes)

    def _count(self, entry: _Entry, size: int) -> None:
        self._bytes[entry.namespace] += size - entry.bytes
        self._all_bytes += size - entry.bytes
        entry.bytes = size

    def _shrink(self, used: _Entry | None) -> None:
        """Evict rankings until the rest is within the limits; keep `used`, and at least one."""
        while len(self._entries) > 1:
            if self._all_bytes > self._limit_bytes:
                largest = max(self._namespaces, key=self._bytes.__getitem__)
            elif len(self._entries) > self._most:
                largest = max(self._namespaces, key=lambda one: len(self._namespaces[one]))
            else:
                return
            oldest = next(iter(self._namespaces[largest].values()))
            if oldest is used:  # the only one of the largest namespace
                return
            self._evict(oldest)

    def _evict(self, entry: _Entry) -> None:
        self._count(entry, 0)
        self._unmeasured.pop(entry, None)
        self._evicted_evaluations += entry.ranking.evaluations
        rankings = self._namespaces[entry.namespace]
        del self._entries[entry.key], rankings[entry.key]
        if not rankings:
            del self._namespaces[entry.namespace], self._bytes[entry.namespace]
