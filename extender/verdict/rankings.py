"""The rankings of the demands asked for lately."""

from __future__ import annotations

from collections import OrderedDict

from extender.allocation.view import Snapshot
from extender.verdict.demand import Demand
from extender.verdict.evaluate import Rules
from extender.verdict.ranking import Ranking


class Rankings:
    """A bounded set of rankings; the least recently asked demand goes first."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._known: OrderedDict[object, Ranking] = OrderedDict()
        self._before = 0  # evaluations of rankings that are gone

    def __len__(self) -> int:
        return len(self._known)

    def of(self, demand: Demand, snapshot: Snapshot, rules: Rules) -> Ranking:
        """The ranking of a demand, with every node of the snapshot."""
        ranking = self.at_hand(demand)
        ranking.follow(snapshot, rules)
        return ranking

    def at_hand(self, demand: Demand) -> Ranking:
        """The ranking of a demand, which may lag behind."""
        ranking = self._known.get(demand.key)
        if ranking is None:
            ranking = self._known[demand.key] = Ranking(demand)
            if len(self._known) > self._limit:
                self._before += self._known.popitem(last=False)[1].evaluations
        else:
            self._known.move_to_end(demand.key)
        return ranking

    def known(self, demand: Demand) -> bool:
        """Whether a ranking of the demand is at hand."""
        return demand.key in self._known

    @property
    def evaluations(self) -> int:
        """Searches made since the start."""
        return self._before + sum(ranking.evaluations for ranking in self._known.values())

    @property
    def groups(self) -> int:
        """Verdicts remembered, over all demands."""
        return sum(ranking.groups for ranking in self._known.values())

    def clear(self) -> None:
        self._before = self.evaluations
        self._known.clear()
