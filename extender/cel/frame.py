"""The state of one evaluation: a list with the budget, the inputs and the local variables.

The compiler turns every node of the tree into a closure, which takes a frame and returns the value of the node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from extender.cel.errors import BudgetExceeded, EvalError

Frame = list[Any]
Closure = Callable[[Frame], Any]
BUDGET = 0  # the slot of the units that the evaluation may still spend
FIRST_INPUT = 1  # the slot of the first input; the local variables follow the inputs


def spend(frame: Frame, amount: int) -> None:
    """Take units from the budget. Raises BudgetExceeded."""
    frame[BUDGET] -= amount
    if frame[BUDGET] < 0:
        raise BudgetExceeded


class Pending:
    """The value of a local variable until an expression reads it, and after its evaluation failed.

    It keeps the error: a variable made of two others, and so on, would evaluate the first one twice for each level.
    """

    __slots__ = ("_error", "_init")

    def __init__(self, init: Closure) -> None:
        self._init = init
        self._error: str | None = None

    def value(self, frame: Frame) -> Any:
        if self._error is not None:
            raise EvalError(self._error)
        try:
            return self._init(frame)
        except EvalError as error:
            self._error = str(error)
            raise


def lazy_local(slot: int) -> Closure:
    """The value of a local variable that is evaluated when the expression first reads it."""

    def read(frame: Frame) -> Any:
        held = frame[slot]
        if type(held) is Pending:
            held = frame[slot] = held.value(frame)
        return held

    return read
