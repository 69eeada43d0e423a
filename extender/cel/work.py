"""The work of compiling one expression, in the units of an evaluation: a unit stands for 50 ns.

Every stage pays before it works, so that a compilation ends in a bounded time. The prices were measured with absurd
expressions of 10 KiB; an ordinary one of this length takes up to 1,400,000 units.
"""

from __future__ import annotations

from extender.cel.errors import CelError

COMPILE_LIMIT = 1_800_000  # units of one compilation: 90 ms
CHARACTER, TOKEN = 2, 50  # to read and parse
NODE = 120  # to check, fold and compile one
STEP = 28  # of work with a type
OVERLOAD = 80  # to try one with arguments of new types


class TooMuchWork(CelError):
    """The compilation of an expression takes too much work."""


class Work:
    """The units that a compilation may still spend. `is_short` says whether it ended with fewer than the limit."""

    __slots__ = ("_left", "_most")

    def __init__(self, units: int = COMPILE_LIMIT) -> None:
        self._most = self._left = min(units, COMPILE_LIMIT)

    @property
    def is_short(self) -> bool:
        return self._left < 0 and self._most < COMPILE_LIMIT

    def spend(self, units: int) -> None:
        """Take units before the work. Raises TooMuchWork."""
        self._left -= units
        if self._left < 0:
            raise TooMuchWork("the expression takes too much work to compile")
