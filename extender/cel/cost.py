"""The static worst case of an expression, by the API server's rules: above the limit a new selector is refused.

Costs are units of cel-go's estimator; only the maximum is kept. A size is the number of characters, bytes or items that
a value can have; one that nothing bounds is UNBOUNDED, and so is every cost that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from extender.cel import ast
from extender.cel import types as t
from extender.cel.costs_of_calls import LIST_COST, MAP_COST, MESSAGE_COST, UNBOUNDED, Sized, add, call_cost, times

__all__ = ["UNBOUNDED", "estimate"]

# resource.k8s.io limits of what a device can hold.
_DRIVER, _DOMAIN, _ID, _VALUE, _ENTRIES = 63, 63, 32, 64, 32
_SCALARS = frozenset({"bool", "int", "uint", "double", "duration", "timestamp", "null"})


@dataclass(slots=True)
class _Known:
    """What is known of a value: its size, that of its items or values, that of its keys."""

    size: int = UNBOUNDED
    item: _Known | None = None
    key: _Known | None = None


def _device_fields() -> dict[str, _Known]:
    value = _Known(_VALUE, item=_Known(_VALUE))
    inner = _Known(_ENTRIES, value, _Known(_ID))
    amounts = _Known(_ENTRIES, _Known(), _Known(_ID))
    return {
        "driver": _Known(_DRIVER),
        "attributes": _Known(_ENTRIES, inner, _Known(_DOMAIN)),
        "capacity": _Known(_ENTRIES, amounts, _Known(_DOMAIN)),
        "allowMultipleAllocations": _Known(1),
    }


class _Estimator:
    def __init__(self) -> None:
        self._locals: dict[str, _Known] = {}

    def cost(self, node: ast.Node) -> tuple[int, _Known]:
        """(worst cost, what is known of the value)."""
        match node:
            case ast.Literal():
                return 0, _Known(_literal_size(node.value))
            case ast.Ident():
                return 1, self._locals.get(node.name) or _by_type(node)
            case ast.Select():
                return self._select(node)
            case ast.Call():
                return self._call(node)
            case ast.ListLiteral():
                return self._list(node)
            case ast.MapLiteral():
                return self._map(node)
            case ast.MessageLiteral():
                return add(MESSAGE_COST, *(self.cost(field.value)[0] for field in node.fields)), _Known(1)
            case ast.Loop():
                return self._loop(node)
            case ast.Bind():
                return self._bind(node)
            case ast.OptionalMap():
                return self._optional_map(node)
        raise AssertionError(f"unknown node {node!r}")

    def _select(self, node: ast.Select) -> tuple[int, _Known]:
        if node.type is not None and node.type.kind == "type":
            return 1, _Known(1)
        cost, known = self.cost(node.operand)
        if node.test:
            return cost, _Known(1)
        kind = node.operand.type.kind if node.operand.type is not None else ""
        found = _field(node, known)
        return add(cost, 1 if kind in ("map", "struct", "var") else 0), found

    def _call(self, node: ast.Call) -> tuple[int, _Known]:
        parts = [node.target, *node.args] if node.target is not None else node.args
        found = [self.cost(part) for part in parts]
        costs = [cost for cost, _ in found]
        if node.function in ("_[_]", "_[?_]"):
            return add(1, *costs), found[0][1].item or _by_type(node)
        if node.function == "_?_:_":
            return add(costs[0], max(costs[1:])), _Known(max(found[1][1].size, found[2][1].size), found[1][1].item)
        if node.function == "dyn":
            return add(1, *costs), found[0][1]
        sized = [Sized(part, known.size, known.item.size if known.item else UNBOUNDED) for part, (_, known) in zip(parts, found, strict=True)]
        own, size = call_cost(node, sized)
        item = found[0][1].item if found else None
        return add(own, *costs), _Known(size if size is not None else _by_type(node).size, item)

    def _list(self, node: ast.ListLiteral) -> tuple[int, _Known]:
        found = [self.cost(item) for item in node.items]
        largest = max((known.size for _, known in found), default=0)
        return add(LIST_COST, *(cost for cost, _ in found)), _Known(len(node.items), _Known(largest))

    def _map(self, node: ast.MapLiteral) -> tuple[int, _Known]:
        found = [(self.cost(key), self.cost(value)) for key, value, _ in node.entries]
        keys = max((key[1].size for key, _ in found), default=0)
        values = max((value[1].size for _, value in found), default=0)
        cost = add(MAP_COST, *(c for pair in found for c, _ in pair))
        return cost, _Known(len(node.entries), _Known(values), _Known(keys))

    def _loop(self, node: ast.Loop) -> tuple[int, _Known]:
        outer, source = self.cost(node.range)
        saved = dict(self._locals)
        mapping = node.range.type is not None and node.range.type.kind == "map"
        item, key = source.item or _Known(), source.key or _Known(1)
        names = node.variables
        self._locals[names[0]] = key if mapping or len(names) > 1 else item
        if len(names) > 1:
            self._locals[names[1]] = item
        condition = self.cost(node.filter)[0] if node.filter is not None else None
        body, produced = self.cost(node.body)
        self._locals = saved
        init, turn, end, result = _turn(node.kind, body, condition, source, produced, item)
        return add(outer, init, times(source.size, turn), end), result

    def _bind(self, node: ast.Bind) -> tuple[int, _Known]:
        init, known = self.cost(node.init)
        body, result = self._with(node.name, known, node.body)
        return add(LIST_COST, init, body), result

    def _optional_map(self, node: ast.OptionalMap) -> tuple[int, _Known]:
        target, known = self.cost(node.target)
        body, result = self._with(node.name, known, node.body)
        # hasValue, value and the list that the macro's binding loops over; optional.of unless flat.
        return add(target, target, LIST_COST, body, 3 if node.flat else 4), result

    def _with(self, name: str, known: _Known, body: ast.Node) -> tuple[int, _Known]:
        saved = dict(self._locals)
        self._locals[name] = known
        found = self.cost(body)
        self._locals = saved
        return found


def _turn(
    kind: str, body: int, condition: int | None, source: _Known, produced: _Known, item: _Known
) -> tuple[int, int, int, _Known]:
    """(start, each turn, end, result) of a macro, by what the reference expands it to."""
    guarded: Callable[[int], int] = lambda step: step if condition is None else add(condition, max(step, 1))  # noqa: E731 - used thrice below
    match kind:
        case "all":
            return 0, add(body, 3), 1, _Known(1)
        case "exists":
            return 0, add(body, 4), 1, _Known(1)
        case "exists_one":
            return 0, add(body, 2), 2, _Known(1)
        case "filter":
            return LIST_COST, add(body, LIST_COST + 3), 1, _Known(source.size, item)
        case "map" | "transformList":
            return LIST_COST, guarded(add(body, LIST_COST + 2)), 1, _Known(source.size, produced)
        case "sortBy":
            return 2 * LIST_COST, add(body, LIST_COST + 2), 3, _Known(source.size, item)
        case "transformMap":
            return MAP_COST, guarded(add(body, 3)), 1, _Known(source.size, produced, source.key)
        case _:
            return MAP_COST, guarded(add(body, 2)), 1, _Known(source.size, produced.item, produced.key)


def _field(node: ast.Select, known: _Known) -> _Known:
    if isinstance(node.operand, ast.Ident) and node.operand.type == t.DEVICE:
        return _device_fields().get(node.field_name) or _Known()
    return known.item or _by_type(node)


def _by_type(node: ast.Node) -> _Known:
    return _Known(1) if node.type is not None and node.type.kind in _SCALARS else _Known()


def _literal_size(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 1


def estimate(tree: ast.Node) -> int:
    """The worst cost of a checked expression; UNBOUNDED where nothing bounds it."""
    return min(_Estimator().cost(tree)[0], UNBOUNDED)

