"""&&, || and ?: — the operators that absorb errors or do not evaluate a side."""

from __future__ import annotations

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
    other = not decisive

    def run(frame: Frame) -> bool:
        try:
            for term in terms:
                value: object = term(frame)
                if value is decisive:
                    return decisive
                if value is not other:  # not a bool
                    break
            else:
                return other
        except EvalError:
            pass
        return _absorb(terms, frame, decisive=decisive)

    return _pair(terms, decisive=decisive) if len(terms) == 2 else run  # noqa: PLR2004 - most selectors have two terms


def _pair(terms: list[Closure], *, decisive: bool) -> Closure:
    (first, second), other = terms, not decisive

    def run(frame: Frame) -> bool:
        try:
            left: object = first(frame)
            if left is decisive:
                return decisive
            right: object = second(frame)
            if left is other and (right is True or right is False):
                return right
        except EvalError:
            pass
        return _absorb(terms, frame, decisive=decisive)

    return run


def _absorb(terms: list[Closure], frame: Frame, *, decisive: bool) -> bool:
    """The result where a term failed: another term may still decide it; else the first error counts."""
    spend(frame, ERROR_COST * len(terms))
    failure: EvalError | None = None
    for term in terms:
        try:
            value: object = term(frame)
        except EvalError as error:
            failure = failure or error
            continue
        if value is decisive:
            return decisive
        if value is not (not decisive):
            failure = failure or EvalError("no such overload")
    assert failure is not None
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
