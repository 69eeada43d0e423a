"""The charges of an evaluation: every operation that walks or grows takes from the budget.

The limit is the API server's runtime limit. An operation costs about as much as in the reference, and never less than
the work it makes here: a unit stands for 50 ns. So every expression ends in a bounded time and memory; only loops that
make no sense on a device can cost more here than there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from extender.cel.frame import Frame, spend
from extender.cel.overloads import Overload
from extender.cel.pricing import LIST_COST, MAP_COST
from extender.cel.values import List, Map, total_weight, weighed


def make_list(frame: Frame, items: list[Any]) -> List:
    """A new list of the evaluation, which pays for it by its weight. Raises BudgetExceeded."""
    spend(frame, len(items) + LIST_COST)
    made = weighed(items)
    spend(frame, made.weight)
    return made


def make_map(frame: Frame, entries: dict[Any, Any]) -> Map:
    """A new map of the evaluation, which pays for it by its weight. Raises BudgetExceeded."""
    spend(frame, len(entries) + MAP_COST)
    made = Map(entries)
    made.weight = 1 + total_weight(entries.values()) + total_weight(entries)
    spend(frame, made.weight)
    return made


def charged(overload: Overload, *, grows: bool) -> Callable[..., Any] | None:
    """The implementation with the frame as first argument, which pays before the call and for its result; None where
    a call is free.

    `grows` says whether an argument or the result can be large.
    """
    price, apply = overload.traits.price, overload.apply
    if price.overhead and not grows:
        return _with_overhead(price.overhead, apply)
    if not grows or price.scalar:
        return None
    before = price.charge()

    def run(frame: Frame, *args: Any) -> Any:
        if before is not None:
            spend(frame, before(args))
        value = apply(*args)
        if price.each is not None:
            value = _listed(frame, value, price.each(args))
        if isinstance(value, str | bytes):
            spend(frame, 1 + len(value) // 10)
        elif type(value) is list:
            return make_list(frame, value)
        elif type(value) is dict:
            return make_map(frame, value)
        return value

    return run


def _listed(frame: Frame, items: Any, units: int) -> list[Any]:
    """The items of an iterator, each of which costs as many units; without None. Raises BudgetExceeded."""
    found = []
    for item in items:
        spend(frame, units)
        if item is not None:
            found.append(item)
    return found


def _with_overhead(units: int, apply: Callable[..., Any]) -> Callable[..., Any]:
    def run(frame: Frame, *args: Any) -> Any:
        spend(frame, units)
        return apply(*args)

    return run
