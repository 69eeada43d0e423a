"""Calls that are loops or bindings: the standard macros, the two-variable ones, cel.bind, optMap."""

from __future__ import annotations

from typing import NamedTuple

from extender.cel.ast import Bind, Call, Ident, Loop, Node, OptionalMap, Select
from extender.cel.errors import CompileError, Issue
from extender.cel.prices import LIST_COST, MAP_COST


class LoopCost(NamedTuple):
    """The units of a loop without the units of its range and its body, as in the reference's expansion of the macro."""

    start: int
    iteration: int
    end: int


LOOPS: dict[str, LoopCost] = {
    "all": LoopCost(0, 3, 1),
    "exists": LoopCost(0, 4, 1),
    "exists_one": LoopCost(0, 2, 2),
    "filter": LoopCost(LIST_COST, LIST_COST + 3, 1),
    "map": LoopCost(LIST_COST, LIST_COST + 2, 1),
    "transformList": LoopCost(LIST_COST, LIST_COST + 2, 1),
    "sortBy": LoopCost(2 * LIST_COST, LIST_COST + 2, 3),
    "transformMap": LoopCost(MAP_COST, 3, 1),
    "transformMapEntry": LoopCost(MAP_COST, 2, 1),
}

_ONE_VARIABLE = {"all": 2, "exists": 2, "exists_one": 2, "filter": 2}
_TWO_VARIABLES = {"all", "exists", "exists_one", "existsOne"}
_TRANSFORMS = {"transformList", "transformMap", "transformMapEntry"}


def expand(source: str, call: Call) -> Node:
    """The node of the macro that this call is, or the call itself."""
    if call.target is None:
        return _has(source, call) if call.function == "has" and len(call.args) == 1 else call
    if _is_cel(call.target) and call.function == "bind" and len(call.args) == 3:  # noqa: PLR2004 - name, init, body
        return _bind(source, call)
    if call.function in ("optMap", "optFlatMap") and len(call.args) == 2:  # noqa: PLR2004 - name, body
        name = _variable(source, call.args[0], f"{call.function}() variable name must be a simple identifier")
        return OptionalMap(call.offset, call.target, name, call.args[1], call.function == "optFlatMap")
    return _loop(source, call)


def _is_cel(node: Node) -> bool:
    return isinstance(node, Ident) and node.name == "cel"


def _fail(source: str, node: Node, problem: str) -> CompileError:
    return CompileError(source, [Issue(node.offset, problem)])


def _has(source: str, call: Call) -> Node:
    field = call.args[0]
    if not isinstance(field, Select) or field.test:
        raise _fail(source, field, "invalid argument to has() macro")
    field.test = True
    return field


def _bind(source: str, call: Call) -> Node:
    name, init, body = call.args
    variable = _variable(source, name, "cel.bind() variable names must be simple identifiers")
    return Bind(call.offset, variable, init, body)


def _variable(source: str, node: Node, problem: str) -> str:
    if not isinstance(node, Ident):
        raise _fail(source, node, problem)
    if node.name == "__result__":
        raise _fail(source, node, "iteration variable overwrites accumulator variable")
    return node.name


def _loop(source: str, call: Call) -> Node:
    count, name = len(call.args), call.function
    assert call.target is not None
    if name in _ONE_VARIABLE and count == _ONE_VARIABLE[name]:
        return _make(source, call, name, 1)
    if name == "sortBy" and count == 2:  # noqa: PLR2004 - variable and key
        return _make(source, call, name, 1)
    if name == "map" and count in (2, 3):
        return _make(source, call, name, 1)
    if name in _TWO_VARIABLES and count == 3:  # noqa: PLR2004 - two variables and a predicate
        return _make(source, call, "exists_one" if name == "existsOne" else name, 2)
    if name in _TRANSFORMS and count in (3, 4):
        return _make(source, call, name, 2)
    return call


def _make(source: str, call: Call, kind: str, variables: int) -> Node:
    assert call.target is not None
    names = tuple(_variable(source, arg, "argument must be a simple name") for arg in call.args[:variables])
    if len(set(names)) < len(names):
        raise _fail(source, call.args[1], f"duplicate variable name: {names[1]}")
    rest = call.args[variables:]
    condition = rest[0] if len(rest) > 1 else None
    return Loop(call.offset, kind, call.target, names, rest[-1], condition)
