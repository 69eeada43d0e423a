"""What every evaluation of one process shares: compiled selectors with what they matched, and placements of equal states."""

from __future__ import annotations

from collections.abc import Iterable

from extender.allocation import Features, Snapshot
from extender.cel.dra import Masks
from extender.model import UNLIMITED, CallBudget
from extender.scheduling.evaluate import EvaluationContext
from extender.scheduling.placements import PlacementCache


class Evaluator:
    """Makes the rules of evaluations. Rankings and explanations of one process use the same one."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._masks = Masks()
        self._placements = PlacementCache()

    def evaluation_context(self, snapshot: Snapshot, budget: CallBudget = UNLIMITED) -> EvaluationContext:
        """What statuses on a snapshot depend on, and how much work they may take."""
        return EvaluationContext(self._masks, self._features, snapshot.baseline, self._placements, budget)

    def forget_slices(self, names: Iterable[str]) -> None:
        """Drop what selectors matched on slices that are gone."""
        for name in names:
            self._masks.forget(name)

    def remembered(self) -> dict[str, int]:
        """How much is kept in memory."""
        return {"grants": len(self._placements), **self._masks.remembered()}
