"""What every evaluation of one process shares: compiled selectors with what they matched, and grants of equal states."""

from __future__ import annotations

from collections.abc import Iterable

from extender.allocation.features import Features
from extender.allocation.view import Snapshot
from extender.cel.dra import Masks
from extender.model.budget import UNLIMITED, Budget
from extender.verdict.evaluate import Rules
from extender.verdict.grants import Grants


class Evaluator:
    """Makes the rules of evaluations. Rankings and explanations of one process use the same one."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._masks = Masks()
        self._grants = Grants()

    def rules(self, snapshot: Snapshot, budget: Budget = UNLIMITED) -> Rules:
        """What verdicts on a snapshot depend on, and how much work they may take."""
        return Rules(self._masks, self._features, snapshot.fleet, self._grants, budget)

    def forget_slices(self, names: Iterable[str]) -> None:
        """Drop what selectors matched on slices that are gone."""
        for name in names:
            self._masks.forget(name)

    def remembered(self) -> dict[str, int]:
        """How much is kept in memory."""
        return {"grants": len(self._grants), **self._masks.remembered()}
