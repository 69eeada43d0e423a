"""The comprehension macros as closures. Every iteration takes its units from the budget of the evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from extender.cel import ast
from extender.cel.errors import EvalError
from extender.cel.frame import Closure, Frame, spend
from extender.cel.library.lists import sort_by
from extender.cel.logic import ERROR_COST
from extender.cel.macros import LOOPS
from extender.cel.prices import make_list, make_map, sort_units
from extender.cel.values import from_key, key_of, named, total_weight, type_name

_NODE = 3  # units for a node of the body


def loop(
    node: ast.Loop, source: Closure, slots: list[int], body: Closure, condition: Closure | None, nodes: int
) -> Closure:
    """The closure of a macro; `slots` are the frame slots of its one or two variables, `nodes` the number of nodes of
    its body and its condition. A nested loop pays for itself."""
    iterations = _iterations(source, slots, LOOPS[node.kind].iteration + _NODE * nodes)
    match node.kind:
        case "all":
            return _quantifier(iterations, body, decisive=False)
        case "exists":
            return _quantifier(iterations, body, decisive=True)
        case "exists_one":
            return _exists_one(iterations, body)
        case "filter":
            return _filter(iterations, slots[0], body)
        case "sortBy":
            return _sort_by(iterations, slots[0], body)
        case "map" | "transformList":
            return _collect(iterations, body, condition)
        case _:
            return _transform_map(iterations, slots[0], body, condition, entries=node.kind == "transformMapEntry")


def _iterations(source: Closure, slots: list[int], units: int) -> Callable[[Frame], Iterator[None]]:
    two = len(slots) > 1
    first, second = slots[0], slots[-1]

    def run(frame: Frame) -> Iterator[None]:
        value = source(frame)
        pairs: Iterator[tuple[Any, Any]]
        if isinstance(value, list | tuple):
            pairs = enumerate(value)
        elif isinstance(value, dict):
            pairs = ((from_key(key), item) for key, item in value.items())
        else:
            raise EvalError(f"got '{type_name(value)}', expected iterable type")
        mapping = isinstance(value, dict)
        for key, item in pairs:
            spend(frame, units)
            frame[first] = key if two or mapping else item
            if two:
                frame[second] = item
            yield

    return run


def _quantifier(iterations: Callable[[Frame], Iterator[None]], body: Closure, *, decisive: bool) -> Closure:
    """all and exists: one decisive iteration decides the result, even if other iterations fail."""

    def run(frame: Frame) -> bool:
        error: EvalError | None = None
        for _ in iterations(frame):
            try:
                value = body(frame)
            except EvalError as raised:
                spend(frame, ERROR_COST)
                error = raised
                continue
            if value is not True and value is not False:
                error = EvalError("no such overload")
            elif value is decisive:
                return decisive
        if error is not None:
            raise error
        return not decisive

    return run


def _exists_one(iterations: Callable[[Frame], Iterator[None]], body: Closure) -> Closure:
    def run(frame: Frame) -> bool:
        count = 0
        for _ in iterations(frame):
            count += _true(body(frame))
        return count == 1

    return run


def _true(value: object) -> bool:
    if value is True or value is False:
        return value is True
    raise EvalError("no such overload")


def _filter(iterations: Callable[[Frame], Iterator[None]], slot: int, body: Closure) -> Closure:
    def run(frame: Frame) -> list[Any]:
        found: list[Any] = []
        for _ in iterations(frame):
            item = frame[slot]
            if _true(body(frame)):
                found.append(item)
        return make_list(frame, found)

    return run


def _sort_by(iterations: Callable[[Frame], Iterator[None]], slot: int, body: Closure) -> Closure:
    def run(frame: Frame) -> list[Any]:
        items: list[Any] = []
        keys: list[Any] = []
        for _ in iterations(frame):
            items.append(frame[slot])
            keys.append(body(frame))
        spend(frame, sort_units(1 + total_weight(keys)))
        return make_list(frame, sort_by(items, keys))

    return run


def _collect(iterations: Callable[[Frame], Iterator[None]], body: Closure, condition: Closure | None) -> Closure:
    def run(frame: Frame) -> list[Any]:
        return make_list(
            frame, [body(frame) for _ in iterations(frame) if condition is None or _true(condition(frame))]
        )

    return run


def _transform_map(
    iterations: Callable[[Frame], Iterator[None]], slot: int, body: Closure, condition: Closure | None, *, entries: bool
) -> Closure:
    def run(frame: Frame) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for _ in iterations(frame):
            key = frame[slot]
            if condition is not None and not _true(condition(frame)):
                continue
            value = body(frame)
            added = value if entries else {key_of(key): value}
            if not isinstance(added, dict):
                raise EvalError("no such overload")
            spend(frame, len(added))
            for name, item in added.items():
                if name in found:
                    raise EvalError(f"insert failed: key {named(from_key(name))} already exists")
                found[name] = item
        return make_map(frame, found)

    return run
