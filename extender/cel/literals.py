"""Literals that are checked when an expression is compiled, also in branches that never run."""

from __future__ import annotations

from collections.abc import Callable

from extender.cel import ast
from extender.cel.errors import EvalError, Issue
from extender.cel.functions import Overload
from extender.cel.library.formatting import clause_count
from extender.cel.library.text import regex
from extender.cel.library.time import parse_duration, parse_timestamp

_CONVERSIONS = frozenset({"int", "uint", "double", "bool", "string", "bytes"})
_ARGUMENTS: dict[str, Callable[[str], object]] = {"duration": parse_duration, "timestamp": parse_timestamp}


def literal_issues(root: ast.Node) -> list[Issue]:
    """Findings about constant arguments: regular expressions, durations, timestamps, conversions, formats."""
    found: list[Issue] = []
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call):
            found.extend(_of_call(node))
        stack.extend(ast.children(node))
    return sorted(found)


def _of_call(node: ast.Call) -> list[Issue]:
    if node.function == "matches" and node.args:
        return _try(node.args[-1], regex, "invalid matches argument")
    if node.function == "format" and isinstance(node.target, ast.Literal) and len(node.args) == 1:
        return _format(node, node.target)
    if len(node.args) != 1 or node.target is not None:
        return []
    if node.function in _ARGUMENTS:
        return _try(node.args[0], _ARGUMENTS[node.function], f"invalid {node.function} argument")
    return _conversion(node, node.args[0]) if node.function in _CONVERSIONS else []


def _conversion(node: ast.Call, argument: ast.Node) -> list[Issue]:
    """The reference folds conversions of literals while compiling, so a bad one is a compile error."""
    chosen = [overload for overload in node.chosen if isinstance(overload, Overload)]
    if not isinstance(argument, ast.Literal) or len(chosen) != 1:
        return []
    try:
        chosen[0].apply(argument.value)
    except EvalError as error:
        return [Issue(node.offset, str(error))]
    return []


def _try(argument: ast.Node, check: Callable[[str], object], problem: str) -> list[Issue]:
    if not isinstance(argument, ast.Literal) or not isinstance(argument.value, str):
        return []
    try:
        check(argument.value)
    except EvalError:
        return [Issue(argument.offset, problem)]
    return []


def _format(node: ast.Call, template: ast.Literal) -> list[Issue]:
    try:
        wanted = clause_count(str(template.value))
    except EvalError as error:
        return [Issue(template.offset, str(error))]
    values = node.args[0]
    if not isinstance(values, ast.ListLiteral):
        return []
    if wanted > len(values.items):
        return [Issue(values.offset, f"index {len(values.items)} out of range")]
    if wanted < len(values.items):
        return [Issue(values.offset, f"too many arguments supplied to string.format (expected {wanted}, got {len(values.items)})")]
    return []
