"""The terms of a selector: the operands of its top-level &&, evaluated in turn to find the term that fails."""

from __future__ import annotations

from functools import lru_cache

from extender.cel import ast
from extender.cel.dra.dialect import Dialect
from extender.cel.dra.selector import Selector, compile_selector, compile_value
from extender.cel.errors import CelError, CompileError
from extender.cel.parser import parse
from extender.model import Device, Quantity, Semver, readable

_COMPARISONS = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in"})
_TESTS = frozenset({"compareTo", "isGreaterThan", "isLessThan", "startsWith", "endsWith", "contains", "matches"})
_AND = "_&&_"


@lru_cache(maxsize=512)
def split_terms(expression: str) -> tuple[str, ...]:
    """The texts of a, (b && c) and d in a && (b && c) && d; the whole expression if it is not such
    a chain."""
    try:
        tree = parse(expression)
    except CompileError:
        return (expression.strip(),)
    if not isinstance(tree, ast.Call) or tree.function != _AND or tree.parenthesized:
        return (expression.strip(),)
    operators = ast.chain(tree, enter_parentheses=False).offsets
    starts = [0, *(offset + len("&&") for offset in operators)]
    ends = [*operators, len(expression)]
    return tuple(expression[start:end].strip() for start, end in zip(starts, ends, strict=True))


def failed_term(expression: str, dialect: Dialect, device: Device, driver: str) -> str:
    """The first term that is false or fails on a device, with the value that it read; '' if all are true."""
    for term in split_terms(expression):
        try:
            if compile_selector(term, dialect).match(device, driver):
                continue
        except CompileError:
            continue  # some terms compile only as a part of the expression
        except CelError as error:
            return f"`{term}` fails: {error}"
        return f"`{term}` is false" + _observed(term, dialect, device, driver)
    return ""


def _observed(term: str, dialect: Dialect, device: Device, driver: str) -> str:
    value = observed_value(term, dialect, device, driver)
    return f" (saw {value})" if value else ""


def observed_value(term: str, dialect: Dialect, device: Device, driver: str) -> str:
    """The value of a device that a term compares or tests, as a user writes it; '' if the term has no such value."""
    left = _left_side(term, dialect)
    if left is None:
        return ""
    try:
        return _shown(left.value(device, driver))
    except CelError:
        return ""


@lru_cache(maxsize=512)
def _left_side(term: str, dialect: Dialect) -> Selector | None:
    """The expression for the left side of a comparison, or for the target of a method."""
    try:
        tree = parse(term)
    except CompileError:
        return None
    end = len(term)
    if isinstance(tree, ast.Call) and tree.function in _COMPARISONS:
        end, tree = tree.offset, tree.args[0]
    if isinstance(tree, ast.Call) and tree.target is not None and tree.function in _TESTS:
        end = term.rindex(f".{tree.function}", 0, tree.offset)
    elif end == len(term):
        return None
    try:
        return compile_value(term[:end], dialect)
    except CompileError:
        return None


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, Semver):
        return value.text
    if isinstance(value, Quantity):
        return readable(value.nanos)
    return str(value).lower() if isinstance(value, bool) else str(value)
