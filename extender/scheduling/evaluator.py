"""Caches that all evaluations of one process share: compiled selectors, match masks and placements."""

from __future__ import annotations

from collections.abc import Iterable

from extender.allocation import Features, Snapshot
from extender.cel.dra import Masks
from extender.model import UNLIMITED, CallBudget
from extender.scheduling.evaluate import EvaluationContext
from extender.scheduling.placements import PlacementCache


class Evaluator:
    """Creates evaluation contexts. The rankings and explanations of one process share one Evaluator."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._masks = Masks()
        self._placements = PlacementCache()

    def evaluation_context(self, snapshot: Snapshot, budget: CallBudget = UNLIMITED) -> EvaluationContext:
        """The context for evaluations on a snapshot, limited by the budget of the call."""
        return EvaluationContext(self._masks, self._features, snapshot.baseline, self._placements, budget)

    def forget_slices(self, names: Iterable[str]) -> None:
        """Drop the match masks of deleted slices, by slice name."""
        for name in names:
            self._masks.forget(name)

    def remembered(self) -> dict[str, int]:
        """The number of entries per cache."""
        return {"placements": len(self._placements), **self._masks.remembered()}
