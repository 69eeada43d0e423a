"""Paying for work: every evaluation has a budget, and whatever grows or walks takes from it.

The limit is the API server's runtime limit; what an operation costs is close to the reference's figures, and never less
than the work it makes here. So an expression ends in a bounded time and memory, whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from extender.cel.costs_of_calls import LIST_COST, MAP_COST
from extender.cel.errors import BudgetExceeded
from extender.cel.values import List, Map, weight

Frame = list[Any]
Closure = Callable[[Frame], Any]
BUDGET = 2  # the frame slot that holds what is left

_PATTERNS = frozenset({"matches", "find", "findAll"})
_PAIRWISE = frozenset({"sets.contains", "sets.equivalent", "sets.intersects", "distinct", "sort"})
_WALKS = frozenset({"_==_", "_!=_", "@in", "indexOf", "lastIndexOf", "includes", "format", "flatten", "isSorted", "sum", "min", "max", "contains"})
# Functions whose answer is no larger than a number: nothing has to be charged for it.
_SMALL = frozenset({"_<_", "_<=_", "_>_", "_>=_", "_-_", "_*_", "_/_", "_%_", "-_", "!_", "_[_]", "_[?_]", "compareTo", "size", "int", "bool", "double"})


def spend(frame: Frame, amount: int) -> None:
    """Take from the budget. Raises BudgetExceeded."""
    frame[BUDGET] -= amount
    if frame[BUDGET] < 0:
        raise BudgetExceeded


def make_list(frame: Frame, items: list[Any]) -> List:
    """A list of the evaluation's own, paid for by its weight."""
    made = List(items)
    made.weight = 1 + sum(map(weight, items))
    spend(frame, made.weight + LIST_COST)
    return made


def make_map(frame: Frame, entries: dict[Any, Any]) -> Map:
    """A map of the evaluation's own, paid for by its weight."""
    made = Map(entries)
    made.weight = 1 + sum(map(weight, entries.values())) + len(entries)
    spend(frame, made.weight + MAP_COST)
    return made


def charged(function: str, apply: Callable[..., Any]) -> Callable[..., Any] | None:
    """`apply` with the frame as first argument, paying before it walks and after it produced; None where nothing is due."""
    if function in _SMALL:
        return None
    before = _price(function)

    def run(frame: Frame, *args: Any) -> Any:
        if before is not None:
            spend(frame, before(args))
        value = apply(*args)
        if isinstance(value, str | bytes):
            spend(frame, 1 + len(value) // 10)
        elif type(value) is list:
            return make_list(frame, value)
        return value

    return run


def _price(function: str) -> Callable[[tuple[Any, ...]], int] | None:
    if function == "replace":
        return lambda args: (len(args[0]) + (args[0].count(args[1]) * len(args[2]))) // 10
    if function == "join":
        return lambda args: (sum(map(len, args[0])) + len(args[0]) * len(args[-1] if len(args) > 1 else "")) // 10
    if function in _PATTERNS:
        return lambda args: (1 + weight(args[0])) * (1 + len(args[1]) // 4)
    if function in _PAIRWISE:
        return lambda args: weight(args[0]) * weight(args[-1])
    if function in _WALKS:
        return lambda args: min(weight(args[0]), weight(args[-1])) if function in ("_==_", "_!=_") else max(map(weight, args))
    return None
