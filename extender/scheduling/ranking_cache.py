"""The cache of node rankings, in which no namespace takes the place of others."""

from __future__ import annotations

from collections.abc import Iterator

from extender.model import FairLRU
from extender.scheduling.node_ranking import NodeRanking
from extender.scheduling.pod_requirements import PodRequirements

# 500 rankings of 5,000 half-full nodes need about half of this; the memory limit of the process is 512 MiB.
_LIMIT_BYTES = 128 << 20
_MOST = 4096  # rankings: /metrics reads each; so many pods may wait
_MEASURED = 16  # rankings that one call measures at most


class RankingCache:
    """Rankings by requirements key, see FairLRU: a tenant may have pods with 64 large claims.

    Each counts at least a share of the limit, so that there are at most `most`. A ranking grows after a call has
    returned it, so later calls measure it. The time of a call does not depend on the number of rankings.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES, most: int = _MOST) -> None:
        least = max(1, limit_bytes // most)
        self._rankings: FairLRU[object, NodeRanking] = FairLRU(limit_bytes, lambda one: max(least, one.estimated_bytes))
        self._unmeasured: dict[object, None] = {}  # keys of rankings that calls returned since: they may have grown
        self._evicted_evaluations = 0  # evaluations of evicted rankings

    def __len__(self) -> int:
        return len(self._rankings)

    def __iter__(self) -> Iterator[NodeRanking]:
        return self._rankings.values()

    def get_or_create(self, requirements: PodRequirements) -> NodeRanking:
        """The ranking for the requirements. The caller must update it to its snapshot."""
        key = requirements.key
        self._unmeasured.pop(key, None)  # the next call for another ranking measures it
        self._measure()
        found = self._rankings.get(key)
        if found is None:
            found = NodeRanking(requirements)
            self._drop(self._rankings.put(requirements.namespace, key, found))
        self._unmeasured[key] = None
        return found

    def peek(self, requirements: PodRequirements) -> NodeRanking | None:
        """The cached ranking or None."""
        found = self._rankings.get(requirements.key)
        if found is not None:
            self._unmeasured[requirements.key] = None
        return found

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
        self._rankings.clear()
        self._unmeasured.clear()

    def _measure(self) -> None:
        for _ in range(min(_MEASURED, len(self._unmeasured))):
            key, _ = self._unmeasured.popitem()
            self._drop(self._rankings.measure(key))

    def _drop(self, dropped: list[tuple[object, NodeRanking]]) -> None:
        for key, ranking in dropped:
            self._unmeasured.pop(key, None)
            self._evicted_evaluations += ranking.evaluations
