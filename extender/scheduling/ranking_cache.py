"""The rankings of the demands asked for lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from extender.scheduling.node_ranking import NodeRanking
from extender.scheduling.pod_requirements import PodRequirements

# Five hundred demands on five thousand half-full nodes take about half of it; the whole process has 512 MiB.
_LIMIT_BYTES = 128 << 20
_RECOUNT = 64  # calls between two looks at how rankings grew


class RankingCache:
    """Rankings by demand, bounded by their estimated bytes; the least recently asked demand goes first."""

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._known: OrderedDict[object, NodeRanking] = OrderedDict()
        self._before = 0  # evaluations of rankings that are gone
        self._calls = 0

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[NodeRanking]:
        """The one asked for longest ago first."""
        return iter(self._known.values())

    def get_or_create(self, requirements: PodRequirements) -> NodeRanking:
        """The ranking of a demand, which may lag behind."""
        ranking = self._known.get(requirements.key)
        self._calls += 1
        if ranking is None:
            self._shrink()
            ranking = self._known[requirements.key] = NodeRanking(requirements)
            return ranking
        self._known.move_to_end(requirements.key)
        if self._calls % _RECOUNT == 0:
            self._shrink()
        return ranking

    def peek(self, requirements: PodRequirements) -> NodeRanking | None:
        """The ranking of a demand, if there is one. That it was looked at does not count as asked."""
        return self._known.get(requirements.key)

    def has(self, requirements: PodRequirements) -> bool:
        """Whether a ranking of the demand is at hand."""
        return requirements.key in self._known

    @property
    def estimated_bytes(self) -> int:
        """About what all rankings keep in memory."""
        return sum(ranking.estimated_bytes for ranking in self._known.values())

    @property
    def evaluations(self) -> int:
        """Searches made since the start."""
        return self._before + sum(ranking.evaluations for ranking in self._known.values())

    @property
    def groups(self) -> int:
        """Statuses remembered, over all demands."""
        return sum(ranking.groups for ranking in self._known.values())

    def clear(self) -> None:
        self._before = self.evaluations
        self._known.clear()

    def _shrink(self) -> None:
        """Drop rankings until the rest is within the limit, but never the one asked for last."""
        size = self.estimated_bytes
        while size > self._limit_bytes and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            size -= oldest.estimated_bytes
            self._before += oldest.evaluations
