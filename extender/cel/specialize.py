"""Shorter closures for the calls that selectors make most: comparison with a constant, and a method on a value.

Each gives the same answer as the general form in the compiler. Where a value has another type than expected, the
closure uses the general form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from extender.api.quantity import Quantity
from extender.api.semver import Semver
from extender.cel import ast
from extender.cel import types as t
from extender.cel.closures import Constant
from extender.cel.cost import BUDGET, CONSTANT_COST, FLAT, PRICES, Closure, Frame, charged, pattern_units, spend
from extender.cel.errors import BudgetExceeded, EvalError
from extender.cel.library.text import matches
from extender.cel.overloads import Overload
from extender.cel.patterns import compiled
from extender.cel.values import UInt, equal, key_of, not_equal, require_hash, weight

# Values of one attribute for which a pattern remembers its answer, and characters of the longest one. Texts that an
# expression makes may have any length.
_REMEMBERED_TEXTS, _REMEMBERED_LENGTH = 64, 64
REMEMBERED_BYTES = 32 * 1024  # of all texts that one pattern remembers, at most
_BOUNDED_WEIGHT = 8  # weight of a constant that makes a call free: a text or a version of 64 characters
_SCALARS = (str, int, bool)
_HASHED = frozenset({str, int, bool, float, UInt})  # constants of a list from which the reference makes a set
_PYTHON_TYPES: dict[t.Type, type] = {t.STRING: str, t.INT: int, t.BOOL: bool, t.QUANTITY: Quantity, t.SEMVER: Semver}


def specialized(node: ast.Call, args: list[Closure]) -> Closure | None:
    """A shorter closure for this call, or None. `args` are the closures of the node's parts."""
    name, parts = node.function, node.parts
    if name in ("_==_", "_!=_"):
        return _equality(node, args)
    if name == "@in" and isinstance(parts[1], ast.ListLiteral):
        return _membership(args[0], parts[1])
    if len(node.chosen) != 1:
        return None
    overload = node.chosen[0]
    if overload.pure and all(isinstance(part, ast.Literal) for part in parts):
        return _evaluated(overload, parts)
    if overload.pattern:
        return _search(overload, parts[1], args)
    return _typed_call(overload, parts, args) if PRICES.get(name, FLAT).bounded else None


def _scalar_constant(node: ast.Node) -> Constant | None:
    """The constant of a literal that is a string, an int or a bool."""
    return Constant(node.value) if isinstance(node, ast.Literal) and type(node.value) in _SCALARS else None


def _equality(node: ast.Call, args: list[Closure]) -> Closure | None:
    left, same_wanted = args[0], node.function == "_==_"
    constant = _scalar_constant(node.parts[1])
    if constant is None:
        return None
    wanted, kind = constant.value, type(constant.value)

    def same(frame: Frame) -> bool:
        value = left(frame)
        return bool(value == wanted) if type(value) is kind else equal(value, wanted)

    def differs(frame: Frame) -> bool:
        value = left(frame)
        return bool(value != wanted) if type(value) is kind else not_equal(value, wanted)

    return same if same_wanted else differs


def _hashed_constants(items: ast.ListLiteral) -> list[object]:
    """The values of a list of constants from which the reference makes a set; empty where it makes none."""
    values = [item.value for item in map(_without_dyn, items.items) if isinstance(item, ast.Literal)]
    hashed = len(values) == len(items.items) and all(type(value) in _HASHED for value in values)
    return values if hashed else []


def _without_dyn(node: ast.Node) -> ast.Node:
    while isinstance(node, ast.Call) and node.function == "dyn":
        (node,) = node.args
    return node


def _membership(left: Closure, items: ast.ListLiteral) -> Closure | None:
    """x in ['a', 'b'] with a set of the texts; other types are compared one by one."""
    values = _hashed_constants(items)
    if not values:
        return None
    if any(type(value) is not str for value in values):
        return lambda frame: _is_among(frame, values, left(frame))
    texts = frozenset(values)

    def run(frame: Frame) -> bool:
        value = left(frame)
        return value in texts if type(value) is str else _is_among(frame, values, value)

    return run


def _is_among(frame: Frame, constants: Collection[object], value: object) -> bool:
    """Whether a value is one of the constants, which the reference looks up by hash. Raises EvalError."""
    spend(frame, CONSTANT_COST * len(constants))
    require_hash(value)
    try:
        wanted = key_of(value)
    except EvalError:
        return False
    return any(key_of(constant) == wanted for constant in constants)


def _evaluated(overload: Overload, parts: list[ast.Node]) -> Closure | None:
    """quantity('40Gi') once, not for every device. An error stays a run-time error, as in the reference."""
    try:
        return Constant(overload.apply(*(part.value for part in parts if isinstance(part, ast.Literal))))
    except EvalError:
        return None


def _search(overload: Overload, pattern: ast.Node, args: list[Closure]) -> Closure:
    """A search. A constant pattern is compiled here; for any other one each call pays."""
    constant = compiled(str(pattern.value), _nothing) if isinstance(pattern, ast.Literal) else None
    if constant is not None and overload.apply is matches:
        return _remembering(args[0], constant)
    search = charged(overload.function, overload.apply, grows=True)
    assert search is not None

    def run(frame: Frame) -> Any:
        values = tuple(arg(frame) for arg in args)
        if not overload.accepts(values):
            raise EvalError("no such overload")
        text, pattern, *rest = values
        program = compiled(pattern, partial(spend, frame)) if constant is None else constant
        return search(frame, text, program, *rest)

    return run


def _nothing(_: int) -> None:
    """The check of the constants has paid for the pattern (see folding.py)."""


def _remembering(text: Closure, constant: Any) -> Closure:
    search, size = constant.search, constant.programsize
    known: dict[str, tuple[int, bool]] = {}  # by text: the units of a search, and whether it found the pattern

    def look(frame: Frame, value: object) -> bool:
        if type(value) is not str:
            raise EvalError("no such overload")
        cost = pattern_units(len(value), size)
        spend(frame, cost)
        found = search(value) is not None
        if len(value) <= _REMEMBERED_LENGTH:
            if len(known) >= _REMEMBERED_TEXTS:
                known.clear()
            known[value] = cost, found
        return found

    def run(frame: Frame) -> bool:
        value = text(frame)
        try:
            cost, found = known[value]
        except (KeyError, TypeError):  # a new text, or a value without a hash
            return look(frame, value)
        left = frame[BUDGET] = frame[BUDGET] - cost
        if left < 0:
            raise BudgetExceeded
        return found

    return run


def _typed_call(overload: Overload, parts: list[ast.Node], args: list[Closure]) -> Closure | None:
    """A free call of the only possible overload on a value of unknown type: the Python type of the value tells enough.
    The second argument is a short constant, if there is one."""
    kind = _PYTHON_TYPES.get(overload.args[0]) if parts[0].type != overload.args[0] else None
    if kind is None:
        return None
    target, apply, constants = args[0], overload.apply, args[1:]

    def unary(frame: Frame) -> Any:
        value = target(frame)
        if type(value) is kind:
            return apply(value)
        raise EvalError("no such overload")

    match constants:
        case []:
            return unary
        case [Constant(value=constant)] if parts[1].type == overload.args[1] and weight(constant) <= _BOUNDED_WEIGHT:
            return _with_constant(target, kind, constant, apply)
    return None


def _with_constant(target: Closure, kind: type, constant: Any, apply: Callable[..., Any]) -> Closure:
    def run(frame: Frame) -> Any:
        value = target(frame)
        if type(value) is kind:
            return apply(value, constant)
        raise EvalError("no such overload")

    return run
