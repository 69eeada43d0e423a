"""The state of one evaluation: a list with the budget, the inputs and the local variables.

The compiler turns every node of the tree into a closure, which takes a frame and returns the value of the node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from extender.cel.errors import BudgetExceeded

Frame = list[Any]
Closure = Callable[[Frame], Any]
BUDGET = 0  # the slot of the units that the evaluation may still spend
FIRST_INPUT = 1  # the slot of the first input; the local variables follow the inputs


def spend(frame: Frame, amount: int) -> None:
    """Take units from the budget. Raises BudgetExceeded."""
    frame[BUDGET] -= amount
    if frame[BUDGET] < 0:
        raise BudgetExceeded
