"""&&, || and ?: — the operators that absorb errors or leave a side unevaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from extender.cel.budget import spend
from extender.cel.errors import EvalError

Closure = Callable[[list[Any]], Any]
_ERROR_COST = 10  # raising and catching, by the units of the budget


def conjunction(terms: list[Closure]) -> Closure:
    """False if any term is false, whatever the others do."""
    return _chain(terms, decisive=False)


def disjunction(terms: list[Closure]) -> Closure:
    """True if any term is true, whatever the others do."""
    return _chain(terms, decisive=True)


def _chain(terms: list[Closure], *, decisive: bool) -> Closure:
    other = not decisive

    def run(frame: list[Any]) -> bool:
        try:
            for term in terms:
                value: object = term(frame)
                if value is decisive:
                    return decisive
                if value is not other:  # no bool at all
                    break
            else:
                return other
        except EvalError:
            pass
        return _absorb(terms, frame, decisive=decisive)

    return _pair(terms, decisive=decisive) if len(terms) == 2 else run  # noqa: PLR2004 - most selectors have two terms


def _pair(terms: list[Closure], *, decisive: bool) -> Closure:
    (first, second), other = terms, not decisive

    def run(frame: list[Any]) -> bool:
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


def _absorb(terms: list[Closure], frame: list[Any], *, decisive: bool) -> bool:
    """Some term failed: another may still settle it; else the first failure counts."""
    spend(frame, _ERROR_COST * len(terms))
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
    def run(frame: list[Any]) -> Any:
        value = condition(frame)
        if value is True:
            return yes(frame)
        if value is False:
            return no(frame)
        raise EvalError("no such overload")

    return run
