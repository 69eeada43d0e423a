"""The end of the time of a piece of work, which all nodes, selectors and searches that it evaluates share."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NoReturn

from extender.base.berth_errors import BerthError


class DeadlineExceeded(BerthError):
    """The time is over. The statuses and masks found until then are kept, so a later attempt continues from there."""

    def __init__(self) -> None:
        super().__init__("the evaluation of the claims takes longer than one call; it continues in the queue: retry")


class Deadline:
    """The end of `seconds` from now on.

    Run `check` before each step of the work, and set `progressed` when the result of a step is stored: the next attempt
    has less to do. With `ends_one`, `check` does not raise before that: otherwise a step that takes longer than all the
    seconds would never come to its end. Work that stores no result runs `check_time` instead, which makes no such
    exception.
    """

    __slots__ = ("_clock", "_until", "ends_one", "progressed")

    def __init__(self, seconds: float, clock: Callable[[], float], *, ends_one: bool = False) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self.progressed = False
        self.ends_one = ends_one

    def check(self) -> float:
        """The seconds that are left, infinite for the step that always ends. Raises DeadlineExceeded."""
        if self.ends_one and not self.progressed:
            return inf
        left = self._until - self._clock()
        if left <= 0:
            self.exceed()
        return left

    def check_time(self) -> None:
        """Raises DeadlineExceeded if no seconds are left."""
        if self._clock() >= self._until:
            self.exceed()

    def exceed(self) -> NoReturn:
        """The next step would take longer than the seconds that are left. Raises DeadlineExceeded."""
        raise DeadlineExceeded


NO_DEADLINE = Deadline(inf, lambda: 0.0)  # for work that delays no other caller, such as a command
