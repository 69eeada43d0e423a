"""The least memory that a selector demands of a device, read from its tree once per program.

A demand is a comparison of a device's memory with a constant amount: by compareTo, isLessThan, isGreaterThan, sign of a
difference, asInteger, == or `in`, on either side, joined by &&, ||, ! and ?:. Any other part demands nothing. So the
answer may be too small, and is never too large. An upper bound demands nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

from extender.api.quantity import NANO
from extender.cel import ast
from extender.cel.dra.device_binding import constant_path
from extender.cel.errors import EvalError
from extender.cel.library.resources import quantity
from extender.vendors import amount_of_memory

_Compare = Callable[[int, int], bool]
_METHODS: dict[str, _Compare] = {"isLessThan": operator.lt, "isGreaterThan": operator.gt}
_OPERATORS: dict[str, _Compare] = {
    "_<_": operator.lt,
    "_<=_": operator.le,
    "_==_": operator.eq,
    "_!=_": operator.ne,
    "_>=_": operator.ge,
    "_>_": operator.gt,
}
_SIGNS = (-1, 0, 1)


class _Comparison(NamedTuple):
    """A comparison of two amounts. It is true if the sign of left - right is in `signs`."""

    left: ast.Node
    right: ast.Node
    signs: frozenset[int]


def least_memory(tree: ast.Node) -> int:
    """The memory in bytes that each device has that the checked tree selects and that has memory; 0 for none."""
    return _least(tree, wanted=True)


def _least(node: ast.Node, *, wanted: bool) -> int:
    """The least memory in bytes of the devices on which the node is `wanted`. One Python frame for each level."""
    match node:
        case ast.Call(function="!_", args=[part]):
            return _least(part, wanted=not wanted)
        case ast.Call(function="_&&_" | "_||_" as name):
            parts = []
            for term in ast.chain(node, enter_parentheses=True).terms:
                parts.append(_least(term, wanted=wanted))  # noqa: PERF401 - a comprehension takes a second frame
            return max(parts) if (name == "_&&_") == wanted else min(parts)
        case ast.Call(function="_?_:_", args=[_, yes, no]):
            return min(_least(yes, wanted=wanted), _least(no, wanted=wanted))
        case ast.Call(function="@in", args=[item, ast.ListLiteral(items=items)]) if wanted and _is_memory(item):
            amounts = [_amount(one) for one in items]
            return _bytes(min(amounts)) if amounts else 0
        case ast.Call():
            return _bound(node, wanted=wanted)
    return 0


def _bound(node: ast.Call, *, wanted: bool) -> int:
    """The bytes that a comparison of memory with a constant demands; 0 for any other call."""
    found = _comparison(node)
    if found is None:
        return 0
    left, right, signs = found
    if _is_memory(right):
        left, right, signs = right, left, frozenset(-sign for sign in signs)
    return _bytes(_amount(right)) if _is_memory(left) and (-1 in signs) != wanted else 0


def _comparison(node: ast.Call) -> _Comparison | None:
    if node.function in _METHODS and node.target is not None:
        return _Comparison(node.target, node.args[0], _signs(_METHODS[node.function], 0))
    compare = _OPERATORS.get(node.function)
    if compare is None:
        return None
    left, right = node.args
    if (pair := _difference(left)) is not None and isinstance(right, ast.Literal) and type(right.value) is int:
        return _Comparison(*pair, _signs(compare, right.value))
    if (pair := _difference(right)) is not None and isinstance(left, ast.Literal) and type(left.value) is int:
        number = left.value
        return _Comparison(*pair, frozenset(sign for sign in _SIGNS if compare(number, sign)))
    return _Comparison(left, right, _signs(compare, 0))


def _signs(compare: _Compare, number: int) -> frozenset[int]:
    return frozenset(sign for sign in _SIGNS if compare(sign, number))


def _difference(node: ast.Node) -> tuple[ast.Node, ast.Node] | None:
    """a and b of a call whose value is the sign of a - b."""
    match node:
        case ast.Call(function="compareTo", target=ast.Node() as left, args=[right]):
            return left, right
        case ast.Call(function="sign", parts=[ast.Call(function="sub", target=ast.Node() as left, args=[right])]):
            return left, right
    return None


def _is_memory(node: ast.Node) -> bool:
    """Whether the node reads the memory of the device, as a quantity or a number, with or without a default."""
    match node:
        case ast.Call(function="asInteger" | "asApproximateFloat" | "orValue", target=ast.Node() as read):
            return _is_memory(read)
        case ast.Call(function="_?._", args=[domain, ast.Literal(value=str() as name)]):
            path = (*(constant_path(domain) or ()), name)
        case _:
            path = constant_path(node) or ()
    match path:
        case ("capacity", _, name):
            return amount_of_memory({name: name}) is not None
    return False


def _amount(node: ast.Node) -> int:
    """The nanos of a constant amount: a quantity, a whole number or a product of those; 0 for any other node."""
    match node:
        case ast.Call(function="quantity", args=[ast.Literal(value=str() as text)]):
            try:
                return quantity(text).nanos
            except EvalError:  # only an evaluation of the selector reports it
                return 0
        case ast.Literal(value=int() as number):
            return int(number) * NANO
        case ast.Call(function="_*_", args=[left, ast.Literal(value=int() as factor)]):
            return _amount(left) * int(factor)
    return 0


def _bytes(nanos: int) -> int:
    return max(-(-nanos // NANO), 0)
