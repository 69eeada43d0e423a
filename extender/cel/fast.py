"""Shorter closures for what selectors say most: comparing an attribute with a constant, calling a method on it.

Each gives the same answers as the general form in compile; where a value has another type than expected, the general
form is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from extender.cel import ast
from extender.cel import types as t
from extender.cel.access import attribute_key, reads_driver
from extender.cel.budget import BUDGET, pattern_price, spend
from extender.cel.errors import BudgetExceeded, EvalError
from extender.cel.functions import Overload
from extender.cel.library.text import regex
from extender.cel.values import UInt, equal, not_equal
from extender.model.quantity import Quantity
from extender.model.semver import Semver

Frame = list[Any]
Closure = Callable[[Frame], Any]

_REMEMBERED_TEXTS = 64  # values of one attribute that a pattern is asked about again and again
_SCALARS = (str, int, bool)
_HASHED = frozenset({str, int, bool, float, UInt})  # constants of a list that the reference makes a set of
_PRIMITIVES = frozenset({"int", "string", "bool"})
_PURE_OF_TEXT = frozenset({"quantity", "semver", "isQuantity", "isSemver", "duration", "timestamp", "ip", "cidr", "url"})
_PYTHON_TYPES: dict[t.Type, type] = {t.STRING: str, t.INT: int, t.BOOL: bool, t.QUANTITY: Quantity, t.SEMVER: Semver}


class Fixed:
    """A closure whose value is known: whoever takes it as an argument may take the value instead."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __call__(self, _: Frame) -> Any:
        return self.value


def fast_call(node: ast.Call, parts: list[ast.Node], args: list[Closure], locals_: Collection[str]) -> Closure | None:
    """A special closure for this call, or None. `locals_` are the names that hide `device`."""
    name = node.function
    if name == "_==_" and isinstance(parts[1], ast.Literal):
        fused = _read_and_compare(parts[0], parts[1].value, locals_)
        if fused is not None:
            return fused
    if name in ("_==_", "_!=_"):
        return _equality(name, parts, args)
    if name == "@in" and isinstance(parts[1], ast.ListLiteral):
        return _membership(args[0], parts[1], attribute_key(parts[0], locals_))
    if name in _PURE_OF_TEXT and all(isinstance(part, ast.Literal) for part in parts):
        return _constant(node, parts)
    if name == "matches" and isinstance(parts[1], ast.Literal):
        return _pattern(args[0], str(parts[1].value))
    return None


def _read_and_compare(part: ast.Node, wanted: object, locals_: Collection[str]) -> Closure | None:
    """device.driver == 'x' and device.attributes[d].i == 'x' without a call for the reading."""
    if type(wanted) not in _SCALARS:
        return None
    if reads_driver(part, locals_):
        return lambda frame: frame[1] == wanted
    attribute = attribute_key(part, locals_)
    if attribute is None:
        return None
    (key, name), kind = attribute, type(wanted)

    def same(frame: Frame) -> bool:
        attributes = frame[0].attributes
        try:
            value = attributes.values_[attributes.schema.index[key]]
        except KeyError:
            raise EvalError(f"no such key: {name}") from None
        return value == wanted if type(value) is kind else equal(value, wanted)

    return same


def _equality(name: str, parts: list[ast.Node], args: list[Closure]) -> Closure | None:
    left, right = args
    kinds = {part.type.kind if part.type is not None else "dyn" for part in parts}
    if len(kinds) == 1 and kinds <= _PRIMITIVES:
        return (lambda frame: left(frame) == right(frame)) if name == "_==_" else (lambda frame: left(frame) != right(frame))
    constant = parts[1]
    if not isinstance(constant, ast.Literal) or type(constant.value) not in _SCALARS:
        return None
    wanted, kind = constant.value, type(constant.value)
    if name == "_==_":

        def same(frame: Frame) -> bool:
            value = left(frame)
            return bool(value == wanted) if type(value) is kind else equal(value, wanted)

        return same

    def differs(frame: Frame) -> bool:
        value = left(frame)
        return bool(value != wanted) if type(value) is kind else not_equal(value, wanted)

    return differs


def _membership(left: Closure, items: ast.ListLiteral, attribute: tuple[str, str] | None) -> Closure | None:
    """x in ['a', 'b'] by a set; other types are compared one by one."""
    values = [item.value for item in items.items if isinstance(item, ast.Literal)]
    if not values or len(values) < len(items.items) or not all(type(value) in _HASHED for value in values):
        return None
    if any(type(value) is not str for value in values):
        return lambda frame: _is_among(values, left(frame))
    texts = frozenset(values)
    if attribute is not None:
        return _attribute_among(*attribute, texts)

    def run(frame: Frame) -> bool:
        value = left(frame)
        return value in texts if type(value) is str else _is_among(values, value)

    return run


def _attribute_among(key: str, name: str, texts: frozenset[object]) -> Closure:
    def run(frame: Frame) -> bool:
        attributes = frame[0].attributes
        try:
            value = attributes.values_[attributes.schema.index[key]]
        except KeyError:
            raise EvalError(f"no such key: {name}") from None
        return value in texts if type(value) is str else _is_among(texts, value)

    return run


def _is_among(constants: Collection[object], value: object) -> bool:
    """Raises EvalError for a version: the reference looks constants up by hash, and a Semver has none in Go."""
    if type(value) is Semver:
        raise EvalError("internal error: hash of unhashable type kubernetes.Semver")
    return any(equal(constant, value) for constant in constants)


def _constant(node: ast.Call, parts: list[ast.Node]) -> Closure | None:
    """quantity('40Gi') once, not per device. What fails stays a run-time error, as in the reference."""
    overloads = [o for o in node.chosen if isinstance(o, Overload)]
    if len(overloads) != 1:
        return None
    try:
        value = overloads[0].apply(*(part.value for part in parts if isinstance(part, ast.Literal)))
    except EvalError:
        return None
    return Fixed(value)


def _pattern(text: Closure, pattern: str) -> Closure | None:
    search, program = regex(pattern).search, regex(pattern).programsize
    known: dict[str, tuple[int, bool]] = {}  # by text: what looking costs, and whether it was found

    def look(frame: Frame, value: object) -> bool:
        if type(value) is not str:
            raise EvalError("no such overload")
        cost = pattern_price(len(value), program)
        spend(frame, cost)
        if len(known) >= _REMEMBERED_TEXTS:
            known.clear()
        found = search(value) is not None
        known[value] = cost, found
        return found

    def run(frame: Frame) -> bool:
        value = text(frame)
        try:
            cost, found = known[value]
        except (KeyError, TypeError):  # not seen yet, or nothing that can be looked up
            return look(frame, value)
        left = frame[BUDGET] = frame[BUDGET] - cost
        if left < 0:
            raise BudgetExceeded
        return found

    return run


def one_overload(overload: Overload, parts: list[ast.Node], args: list[Closure], apply: Callable[..., Any]) -> Closure | None:
    """A call with one possible overload whose simple argument types are checked as Python types. `apply` takes no frame."""
    checks: list[type | None] = []
    for part, want in zip(parts, overload.args, strict=True):
        if part.type == want:
            checks.append(None)
        elif want in _PYTHON_TYPES:
            checks.append(_PYTHON_TYPES[want])
        else:
            return None
    if len(args) == 1 and checks[0] is not None:
        return _unary(args[0], checks[0], apply)
    if len(args) == 2 and checks[0] is not None and checks[1] is None:  # noqa: PLR2004 - target.method(known)
        return _binary(args[0], checks[0], args[1], apply)
    return None


def _unary(first: Closure, kind: type, apply: Callable[..., Any]) -> Closure:
    def run(frame: Frame) -> Any:
        value = first(frame)
        if type(value) is kind:
            return apply(value)
        raise EvalError("no such overload")

    return run


def _binary(first: Closure, kind: type, second: Closure, apply: Callable[..., Any]) -> Closure:
    if isinstance(second, Fixed):
        return _with_constant(first, kind, second.value, apply)

    def run(frame: Frame) -> Any:
        value, other = first(frame), second(frame)
        if type(value) is kind:
            return apply(value, other)
        raise EvalError("no such overload")

    return run


def _with_constant(first: Closure, kind: type, constant: Any, apply: Callable[..., Any]) -> Closure:
    def run(frame: Frame) -> Any:
        value = first(frame)
        if type(value) is kind:
            return apply(value, constant)
        raise EvalError("no such overload")

    return run
