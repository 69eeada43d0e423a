"""&&, || and ?: — the operators that absorb errors or do not evaluate a side."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from extender.cel.errors import EvalError
from extender.cel.frame import Closure, Frame, spend

ERROR_COST = 40  # units for raising and catching an error


def conjunction(terms: list[Closure]) -> Closure:
    """False if any term is false, even if other terms fail."""
    return _chain(terms, decisive=False)


def disjunction(terms: list[Closure]) -> Closure:
    """True if any term is true, even if other terms fail."""
    return _chain(terms, decisive=True)


def _chain(terms: list[Closure], *, decisive: bool) -> Closure:
    """Each term runs once, also after an error: in nested chains a second run would double with each level."""
    other = not decisive

    def run(frame: Frame) -> bool:
        failure: EvalError | None = None
        for term in terms:
            try:
                value: object = term(frame)
            except EvalError as error:
                spend(frame, ERROR_COST)
                failure = failure or error
                continue
            if value is decisive:
                return decisive
            if value is not other:
                failure = failure or EvalError("no such overload")
        if failure is not None:
            raise failure
        return other

    return _pair(terms, decisive=decisive) if len(terms) == 2 else run  # noqa: PLR2004 - most selectors have two terms


def _pair(terms: list[Closure], *, decisive: bool) -> Closure:
    (first, second), other = terms, not decisive

    def run(frame: Frame) -> bool:
        try:
            left: object = first(frame)
        except EvalError as error:
            return _decided(frame, second, error, decisive=decisive)
        if left is decisive:
            return decisive
        if left is not other:
            return _decided(frame, second, EvalError("no such overload"), decisive=decisive)
        right: object = second(frame)
        if right is True or right is False:
            return right
        raise EvalError("no such overload")

    return run


def _decided(frame: Frame, second: Closure, failure: EvalError, *, decisive: bool) -> bool:
    """The decision of the second term after the first one failed; else the first error counts."""
    spend(frame, ERROR_COST)
    value: object = None
    with suppress(EvalError):
        value = second(frame)
    if value is decisive:
        return decisive
    raise failure


def conditional(condition: Closure, yes: Closure, no: Closure) -> Closure:
    """condition ? yes : no."""

    def run(frame: Frame) -> Any:
        value = condition(frame)
        if value is True:
            return yes(frame)
        if value is False:
            return no(frame)
        raise EvalError("no such overload")

    return run
