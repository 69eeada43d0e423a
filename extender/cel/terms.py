"""Which part of a selector said no: the top-level && terms, evaluated one by one."""

from __future__ import annotations

from functools import lru_cache

from extender.cel import ast
from extender.cel.errors import CelError, CompileError
from extender.cel.lexer import tokens
from extender.cel.parser import parse
from extender.cel.selector import Environment, Selector, compile_selector, compile_value
from extender.model.device import Device
from extender.model.quantity import Quantity, readable
from extender.model.semver import Semver

_COMPARISONS = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in"})
_QUESTIONS = frozenset({"compareTo", "isGreaterThan", "isLessThan", "startsWith", "endsWith", "contains", "matches"})
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")


@lru_cache(maxsize=512)
def split_terms(expression: str) -> tuple[str, ...]:
    """The texts of a && b && c; the whole expression where it is not such a chain, or does not even have tokens."""
    depth, start, found = 0, 0, []
    try:
        parts = list(tokens(expression))
    except CompileError:
        return (expression.strip(),)
    for token in parts:
        if token.text in _OPEN:
            depth += 1
        elif token.text in _CLOSE:
            depth -= 1
        elif depth == 0 and token.kind == "op":
            if token.text in ("||", "?"):
                return (expression.strip(),)
            if token.text == "&&":
                found.append(expression[start : token.offset].strip())
                start = token.offset + len(token.text)
    return (*found, expression[start:].strip())


def failed_term(expression: str, environment: Environment, device: Device, driver: str) -> str:
    """The first term that is false or fails on a device, with the value it saw; '' where all hold."""
    for term in split_terms(expression):
        try:
            if compile_selector(term, environment).match(device, driver):
                continue
        except CompileError:
            continue  # a term may only make sense inside the whole
        except CelError as error:
            return f"`{term}` fails: {error}"
        return f"`{term}` is false" + _seen(term, environment, device, driver)
    return ""


def _seen(term: str, environment: Environment, device: Device, driver: str) -> str:
    value = seen_value(term, environment, device, driver)
    return f" (saw {value})" if value else ""


def seen_value(term: str, environment: Environment, device: Device, driver: str) -> str:
    """What a term looked at on a device, as people write it; '' where that cannot be told."""
    left = _left_side(term, environment)
    if left is None:
        return ""
    try:
        return _shown(left.value(device, driver))
    except CelError:
        return ""


@lru_cache(maxsize=512)
def _left_side(term: str, environment: Environment) -> Selector | None:
    """The value that a comparison looks at, or on which a method is called."""
    try:
        tree = parse(term)
    except CompileError:
        return None
    end = len(term)
    if isinstance(tree, ast.Call) and tree.function in _COMPARISONS:
        end, tree = tree.offset, tree.args[0]
    if isinstance(tree, ast.Call) and tree.target is not None and tree.function in _QUESTIONS:
        end = term.rindex(f".{tree.function}", 0, tree.offset)
    elif end == len(term):
        return None
    try:
        return compile_value(term[:end], environment)
    except CompileError:
        return None


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, Semver):
        return value.text
    if isinstance(value, Quantity):
        return readable(value.nanos)
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
