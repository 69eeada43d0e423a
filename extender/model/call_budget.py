"""How much one call may work: seconds and steps, shared by all nodes, selectors and searches that it evaluates."""

from __future__ import annotations

from collections.abc import Callable

from extender.model.berth_errors import BerthError


class CallBudgetSpent(BerthError):
    """The call has used up its budget. What it did stays done, so a later call goes on from there."""

    def __init__(self) -> None:
        super().__init__("the claims are costly, and this call has worked long enough; a later one goes on from here")


class CallBudget:
    """Seconds and steps. A step is one selector on one device, one selector compiled, or one step of a search.

    `check` comes before a piece of work, and `keep` after one whose result is remembered. A budget that is not empty
    from the start lets one such piece end in any case: otherwise a piece that takes longer than a budget would be begun
    anew by every call and never end.
    """

    __slots__ = ("_clock", "_progressed", "_steps", "_until", "began", "exhausted", "seconds")

    def __init__(self, seconds: float, steps: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.began = clock()
        self.seconds = seconds
        self._until = self.began + seconds
        self._steps = steps
        self._progressed = seconds <= 0
        self.exhausted = False

    def check(self, steps: int = 1) -> None:
        """Count work. Raises BudgetSpent where none is left."""
        self._steps -= steps
        if self._progressed and (self._steps < 0 or self._clock() >= self._until):
            self.exhausted = True
            raise CallBudgetSpent

    def mark_progress(self) -> None:
        """The result of a piece of work is remembered."""
        self._progressed = True


class _Unlimited(CallBudget):
    """For work that nobody else waits for, as that of the command line."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(1.0, 0, lambda: 0.0)

    def check(self, steps: int = 1) -> None:
        """There is always some left."""

    def mark_progress(self) -> None:
        """Nothing depends on it."""


UNLIMITED = _Unlimited()
