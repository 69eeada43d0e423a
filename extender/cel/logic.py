"""&&, || and ?: — the operators that absorb errors or leave a side unevaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from extender.cel.errors import EvalError

Closure = Callable[[list[Any]], Any]


def conjunction(terms: list[Closure]) -> Closure:
    """False if any term is false, whatever the others do."""
    return _chain(terms, decisive=False)


def disjunction(terms: list[Closure]) -> Closure:
    """True if any term is true, whatever the others do."""
    return _chain(terms, decisive=True)


def _chain(terms: list[Closure], *, decisive: bool) -> Closure:
    other = not decisive

    def run(frame: list[Any]) -> bool:
        for term in terms:
            try:
                value: object = term(frame)
            except EvalError:
                return absorb(frame)
            if value is decisive:
                return decisive
            if value is not other:  # no bool at all
                return absorb(frame)
        return other

    def absorb(frame: list[Any]) -> bool:
        """Some term failed: another may still settle it; else the first failure counts."""
        failure: EvalError | None = None
        for term in terms:
            try:
                value: object = term(frame)
            except EvalError as error:
                failure = failure or error
                continue
            if value is decisive:
                return decisive
            if value is not other:
                failure = failure or EvalError("no such overload")
        assert failure is not None
        raise failure

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
