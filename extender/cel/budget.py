"""Paying for work: every evaluation has a budget, and whatever grows or walks takes from it.

The limit is the API server's runtime limit; what an operation costs is close to the reference's figures, and never less
than the work it makes here: a unit stands for 50 ns. So an expression ends in a bounded time and memory, whatever it
says; only loops that make no sense on a device can cost more here than there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from extender.cel.costs_of_calls import LIST_COST, MAP_COST
from extender.cel.errors import BudgetExceeded
from extender.cel.library.text import regex
from extender.cel.values import List, Map, total_weight, weight

Frame = list[Any]
Closure = Callable[[Frame], Any]
BUDGET = 2  # the frame slot that holds what is left

_PATTERNS = frozenset({"matches", "find", "findAll"})
# Functions that take their time whatever the size of the arguments, in units.
_SLOW = {
    "cidr": 150, "isCIDR": 150, "containsIP": 150, "containsCIDR": 200, "masked": 100, "ip": 50, "isIP": 50, "ip.isCanonical": 100,
    "url": 100, "isURL": 100, "timestamp": 60, "duration": 40, "quantity": 20, "isQuantity": 20, "semver": 20, "isSemver": 20,
    "strings.quote": 40, "add": 10, "sub": 10, "format": 100, "validate": 40, "uint": 5, "double": 5, "string": 5,
}  # fmt: skip
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
    spend(frame, len(items) + LIST_COST)
    made = List(items)
    made.weight = 1 + total_weight(items)
    spend(frame, made.weight)
    return made


def make_map(frame: Frame, entries: dict[Any, Any]) -> Map:
    """A map of the evaluation's own, paid for by its weight."""
    spend(frame, len(entries) + MAP_COST)
    made = Map(entries)
    made.weight = 1 + total_weight(entries.values()) + len(entries)
    spend(frame, made.weight)
    return made


def charged(function: str, apply: Callable[..., Any], *, grows: bool = True) -> Callable[..., Any] | None:
    """`apply` with the frame as first argument, paying before it walks and after it produced; None where nothing is due.

    `grows` says whether an argument or the answer can be large.
    """
    slow = _SLOW.get(function, 60 if function.startswith("get") else 0)  # parts of dates look up time zones
    if slow and not grows:
        return _after(slow, apply)
    if not grows or function in _SMALL:
        return None
    before = _price(function, slow)

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


def _after(price: int, apply: Callable[..., Any]) -> Callable[..., Any]:
    def run(frame: Frame, *args: Any) -> Any:
        spend(frame, price)
        return apply(*args)

    return run


def _price(function: str, slow: int) -> Callable[[tuple[Any, ...]], int] | None:
    """What a call costs before it runs; a pattern costs by the size of its program."""
    if slow:
        return lambda args: slow + max(map(weight, args))
    if function == "replace":
        return lambda args: (len(args[0]) + (args[0].count(args[1]) * len(args[2]))) // 10
    if function == "join":
        return lambda args: (sum(map(len, args[0])) + len(args[0]) * len(args[-1] if len(args) > 1 else "")) // 10
    if function in _PATTERNS:
        return lambda args: pattern_price(len(args[0]), regex(args[1]).programsize)
    if function in _PAIRWISE:
        return lambda args: weight(args[0]) * weight(args[-1])
    if function in _WALKS:
        return lambda args: 2 * (min if function in ("_==_", "_!=_") else max)(map(weight, args))
    return None


def pattern_price(length: int, program: int) -> int:
    """Looking for a pattern: at worst every instruction of its program at every character."""
    return (1 + length) * (1 + program) // 4
