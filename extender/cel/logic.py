"""&&, || and ?: — the operators that absorb errors or leave a side unevaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from extender.cel.errors import EvalError

Closure = Callable[[list[Any]], Any]


def conjunction(left: Closure, right: Closure) -> Closure:
    """False if either side is false, whatever the other does."""
    return _absorbing(left, right, decisive=False)


def disjunction(left: Closure, right: Closure) -> Closure:
    """True if either side is true, whatever the other does."""
    return _absorbing(left, right, decisive=True)


def _absorbing(left: Closure, right: Closure, *, decisive: bool) -> Closure:
    other = not decisive

    def run(frame: list[Any]) -> bool:
        try:
            first: object = left(frame)
        except EvalError as error:
            if settles(right, frame):
                return decisive
            raise error from None
        if first is decisive:
            return decisive
        if first is other:
            second = right(frame)
            if second is True:
                return True
            if second is False:
                return False
            raise EvalError("no such overload")
        if settles(right, frame):
            return decisive
        raise EvalError("no such overload")

    def settles(side: Closure, frame: list[Any]) -> bool:
        try:
            return side(frame) is decisive
        except EvalError:
            return False

    return run


def conditional(condition: Closure, yes: Closure, no: Closure) -> Closure:
    def run(frame: list[Any]) -> Any:
        value = condition(frame)
        if value is True:
            return yes(frame)
        if value is False:
            return no(frame)
        raise EvalError("no such overload")

    return run
