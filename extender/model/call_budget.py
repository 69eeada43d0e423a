"""The limit of one call in seconds and steps. All nodes, selectors and searches that the call evaluates share it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NoReturn

from extender.model.berth_errors import BerthError


class CallBudgetSpent(BerthError):
    """The call has used up its budget. Its partial results are kept, so a later call continues from there."""

    def __init__(self) -> None:
        super().__init__("the evaluation of the claims exceeds the budget of this call; a later call continues it")


class CallBudget:
    """A limit in seconds and steps. A step is one selector on one device, one compiled selector, or one search step.

    The caller runs `check` before a piece of work, and `mark_progress` after it has stored a result. A budget that
    starts with more than 0 seconds always lets one piece end. Otherwise every call would start again with a piece that
    takes longer than the budget, and no call would finish it. Work that keeps no result runs `check_time` instead,
    which makes no such exception.
    """

    __slots__ = ("_clock", "_progressed", "_steps", "_until", "began", "exhausted", "in_vain", "seconds")

    def __init__(self, seconds: float, steps: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.began = clock()
        self.seconds = seconds
        self._until = self.began + seconds
        self._steps = steps
        self._progressed = seconds <= 0
        self.exhausted = False
        self.in_vain = False  # a caller sets it if its work had no result and must be repeated

    def check(self, steps: int = 1) -> float:
        """Subtract steps. Returns the seconds that are left, infinite for the piece that always ends. Raises
        CallBudgetSpent if no steps or no seconds are left."""
        self._steps -= steps
        if not self._progressed:
            return inf
        left = self._until - self._clock()
        if self._steps < 0 or left <= 0:
            self.exhaust()
        return left

    def exhaust(self) -> NoReturn:
        """End the budget, because the next piece of work would exceed it. Raises CallBudgetSpent."""
        self.exhausted = True
        raise CallBudgetSpent

    def check_time(self) -> None:
        """Raises CallBudgetSpent if no seconds are left."""
        if self._clock() >= self._until:
            self.exhaust()

    def mark_progress(self) -> None:
        """The caller has stored the result of a piece of work."""
        self._progressed = True


class _Unlimited(CallBudget):
    """A budget without a limit, for work that delays no other caller, such as a command."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(1.0, 0, lambda: 0.0)

    def check(self, steps: int = 1) -> float:  # noqa: ARG002 - as in the base class
        """Never raises."""
        return inf

    def check_time(self) -> None:
        """Never raises."""

    def mark_progress(self) -> None:
        """Does nothing: `check` never raises."""


UNLIMITED = _Unlimited()
