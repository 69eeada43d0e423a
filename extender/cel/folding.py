"""Constant folding, as far as the reference does it at compile time.

The planner of the reference folds conversions of constants, compiles constant patterns and checks constant keys
(cel-go, interpreter). It rejects a constant that cannot work, also in a branch that never runs.
"""

from __future__ import annotations

from typing import Any

from extender.cel import ast
from extender.cel import types as t
from extender.cel.cost import Work
from extender.cel.errors import EvalError, Issue
from extender.cel.library.text import verbs_of
from extender.cel.patterns import bytes_of, compiled
from extender.cel.specialize import REMEMBERED_BYTES
from extender.cel.values import UInt, type_name

_KEYS = (str, bool, int, UInt, float)  # types of a constant between brackets
_MAX_UNITS = 500_000  # to compile the constant patterns of an expression: 25 ms
_WHOLE, _REAL = ("int", "uint"), ("double", "string")
_FORMATTED = {  # the kinds of types that each verb of string.format takes
    "s": (*_WHOLE, *_REAL, "bool", "bytes", "null", "type", "timestamp", "duration", "list", "map"),
    "d": _WHOLE, "o": _WHOLE, "b": (*_WHOLE, "bool"), "x": (*_WHOLE, "string", "bytes"),
    "X": (*_WHOLE, "string", "bytes"), "f": _REAL, "e": _REAL,
}  # fmt: skip
_VARIES = object()  # stands for the value of a node that is no constant


def constant_issues(root: ast.Node, work: Work) -> tuple[list[Issue], int]:
    """The issues of constant arguments in a checked tree (conversions, regular expressions, keys, formats), and the
    most bytes that its constant regular expressions take. Raises TooMuchWork."""
    folder = _Folder(work)
    return sorted(folder.issues_of(root)), folder.pattern_bytes


class _Folder:
    """Folds constants from the leaves up, as far as the reference does."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._values: dict[int, Any] = {}  # by id of the node
        self._units = 0  # of the patterns
        self.pattern_bytes = 0

    def issues_of(self, root: ast.Node) -> list[Issue]:
        found: list[Issue] = []
        for node, in_format in _leaves_first(root):
            try:
                self._values[id(node)] = self._fold(node)
                self._check(node)
                if not in_format:
                    _check_items(node)
            except EvalError as error:
                found.append(Issue(node.offset, str(error)))
        return found

    def _value(self, node: ast.Node) -> Any:
        return self._values.get(id(node), _VARIES)

    def _fold(self, node: ast.Node) -> Any:
        """The value of a constant, or _VARIES. Raises EvalError for a conversion that fails."""
        match node:
            case ast.Literal():
                return node.value
            case ast.ListLiteral() if not node.optional:
                items = [self._value(item) for item in node.items]
                return _VARIES if any(item is _VARIES for item in items) else items
            case ast.Call(target=None, args=[argument]) if any(one.conversion for one in node.chosen):
                value = self._value(argument)
                return _VARIES if value is _VARIES else _converted(node, value)
        return _VARIES

    def _check(self, node: ast.Node) -> None:
        """Raise EvalError where a call fails with its constants."""
        if not isinstance(node, ast.Call):
            return
        if any(one.pattern for one in node.chosen):
            pattern = self._value(node.parts[1])
            if isinstance(pattern, str) and self._units <= _MAX_UNITS:
                self.pattern_bytes += bytes_of(compiled(pattern, self._pay)) + REMEMBERED_BYTES
        elif node.function in ("_[_]", "_[?_]"):
            key = self._value(node.args[1])
            if key is not _VARIES and not isinstance(key, _KEYS):
                raise EvalError(f"invalid qualifier type: {type_name(key)}")
        elif node.function == "format" and isinstance(node.target, ast.Literal) and len(node.args) == 1:
            _check_format(str(node.target.value), node.args[0])

    def _pay(self, units: int) -> None:
        self._work.spend(2 * units)  # the compiler may compile the pattern again
        self._units += units
        if self._units > _MAX_UNITS:
            raise EvalError("the regular expressions up to here take too much work to compile")


def _leaves_first(root: ast.Node) -> list[tuple[ast.Node, bool]]:
    """All nodes, each with whether it is inside a call of format."""
    found, stack = [], [(root, False)]
    while stack:
        node, in_format = stack.pop()
        found.append((node, in_format))
        in_format = in_format or (isinstance(node, ast.Call) and node.function == "format")
        stack.extend((child, in_format) for child in ast.children(node))
    return found[::-1]


def _check_items(node: ast.Node) -> None:
    """Raise EvalError for a list or map literal whose items have different types; the unknown type is one of them."""
    match node:
        case ast.ListLiteral():
            _check_same([_type(item, optional=i in node.optional) for i, item in enumerate(node.items)])
        case ast.MapLiteral():
            _check_same([_type(key, optional=False) for key, _, _ in node.entries])
            _check_same([_type(value, optional=optional) for _, value, optional in node.entries])


def _type(node: ast.Node, *, optional: bool) -> t.Type:
    found = node.type or t.ERROR
    inner = (t.unwrap_optional(found) if optional else None) or found
    return inner.params[0] if inner.kind == "wrapper" else inner


def _check_same(types: list[t.Type]) -> None:
    other = next((one for one in types[1:] if one != types[0]), None)
    if other is not None:
        raise EvalError(f"expected type '{types[0]}' but found '{other}'")


def _converted(node: ast.Call, value: Any) -> Any:
    for overload in node.chosen:
        if overload.accepts((value,)):
            return overload.apply(value)
    raise EvalError(f"no such overload: {node.function}({type_name(value)})")


def _check_format(template: str, values: ast.Node) -> None:
    verbs = verbs_of(template)
    if not isinstance(values, ast.ListLiteral):
        return
    have = len(values.items)
    if len(verbs) > have:
        raise EvalError(f"index {have} out of range")
    if len(verbs) < have:
        raise EvalError(f"too many arguments supplied to string.format (expected {len(verbs)}, got {have})")
    for verb, item in zip(verbs, values.items, strict=True):
        _check_formatted(verb, item)


def _check_formatted(verb: str, value: ast.Node) -> None:
    """Raise EvalError if a value can have no text for the verb. An attribute has not: its type is Any, not dyn."""
    found = _type(value, optional=False)
    if found.kind not in ("dyn", *_FORMATTED[verb]):
        raise EvalError(f"error during formatting: clause %{verb} cannot be used on {found}")
    if verb == "s" and isinstance(value, ast.ListLiteral):
        for item in value.items:
            _check_formatted(verb, item)
    if verb == "s" and isinstance(value, ast.MapLiteral):
        for _, item, _ in value.entries:
            _check_formatted(verb, item)
