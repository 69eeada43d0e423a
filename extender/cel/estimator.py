"""The static worst case of an expression, by the API server's rules: it rejects a new selector above the limit.

Costs are units of cel-go's estimator; only the maximum is kept. A size is the number of characters, bytes or items
that a value can have. A size without a bound is UNBOUNDED, and so is every cost that depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extender.cel import ast
from extender.cel import types as t
from extender.cel.macros import LOOPS
from extender.cel.prices import FLAT, LIST_COST, MAP_COST, MESSAGE_COST, UNBOUNDED, Argument, add, times

_SCALARS = frozenset({"bool", "int", "uint", "double", "duration", "timestamp", "null"})
_OPTIONAL_MAP_COST = 3  # hasValue, value, and the list that the macro's binding loops over; optional.of is one more


@dataclass(frozen=True, slots=True)
class Size:
    """The largest size of a value, of its items or values, and of its keys."""

    size: int = UNBOUNDED
    item: Size | None = None
    key: Size | None = None


Cost = tuple[int, Size]
"""The worst cost of a node, and the size of its value."""
Sizes = Mapping[str, Mapping[str, Size]]
"""The sizes of the fields of struct types that are inputs: type name, then field name."""


class Estimator(ast.Visitor[Cost]):
    """Estimates one checked tree; `sizes` are the sizes of the inputs."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._locals: dict[str, Size] = {}

    def literal(self, node: ast.Literal) -> Cost:
        return 0, Size(len(node.value) if isinstance(node.value, str | bytes) else 1)

    def ident(self, node: ast.Ident) -> Cost:
        return 1, self._locals.get(node.name) or _by_type(node)

    def select(self, node: ast.Select) -> Cost:
        if node.type is not None and node.type.kind == "type":
            return 1, Size(1)
        cost, operand = self.visit(node.operand)
        if node.test:
            return cost, Size(1)
        kind = node.operand.type.kind if node.operand.type is not None else ""
        return add(cost, 1 if kind in ("map", "struct", "var") else 0), self._field(node, operand)

    def _field(self, node: ast.Select, operand: Size) -> Size:
        type_ = node.operand.type
        if isinstance(node.operand, ast.Ident) and type_ is not None and type_.name in self._sizes:
            return self._sizes[type_.name].get(node.field_name) or Size()
        return operand.item or _by_type(node)

    def call(self, node: ast.Call) -> Cost:
        found = [self.visit(part) for part in node.parts]
        costs = [cost for cost, _ in found]
        if node.function in ("_&&_", "_||_"):
            return add(*costs), Size(1, found[0][1].item)
        if node.function in ("_[_]", "_[?_]"):
            return add(1, *costs), found[0][1].item or _by_type(node)
        if node.function == "_?_:_":
            return add(costs[0], max(costs[1:])), Size(max(found[1][1].size, found[2][1].size), found[1][1].item)
        price = node.chosen[0].traits.price if node.chosen else FLAT
        arguments = [_argument(part, known) for part, (_, known) in zip(node.parts, found, strict=True)]
        cost = add(price.estimate(arguments), *costs)
        if price.returns_argument:
            return cost, found[0][1]
        size = price.size(arguments)
        return cost, Size(_by_type(node).size if size is None else size, found[0][1].item if found else None)

    def list_literal(self, node: ast.ListLiteral) -> Cost:
        found = [self.visit(item) for item in node.items]
        largest = max((known.size for _, known in found), default=0)
        return add(LIST_COST, *(cost for cost, _ in found)), Size(len(node.items), Size(largest))

    def map_literal(self, node: ast.MapLiteral) -> Cost:
        found = [(self.visit(key), self.visit(value)) for key, value, _ in node.entries]
        keys = max((key[1].size for key, _ in found), default=0)
        values = max((value[1].size for _, value in found), default=0)
        cost = add(MAP_COST, *(c for pair in found for c, _ in pair))
        return cost, Size(len(node.entries), Size(values), Size(keys))

    def message_literal(self, node: ast.MessageLiteral) -> Cost:
        return add(MESSAGE_COST, *(self.visit(field.value)[0] for field in node.fields)), Size(1)

    def loop(self, node: ast.Loop) -> Cost:
        outer, source = self.visit(node.range)
        saved = dict(self._locals)
        mapping = node.range.type is not None and node.range.type.kind == "map"
        item, key = source.item or Size(), source.key or Size(1)
        names = node.variables
        self._locals[names[0]] = key if mapping or len(names) > 1 else item
        if len(names) > 1:
            self._locals[names[1]] = item
        condition = self.visit(node.filter)[0] if node.filter is not None else None
        body, produced = self.visit(node.body)
        self._locals = saved
        cost = LOOPS[node.kind]
        iteration = add(body, cost.iteration)
        if condition is not None:
            iteration = add(condition, max(iteration, 1))
        return add(outer, cost.start, times(source.size, iteration), cost.end), _result(
            node.kind, source, produced, item
        )

    def bind(self, node: ast.Bind) -> Cost:
        init, known = self.visit(node.init)
        body, result = self._with(node.name, known, node.body)
        return add(LIST_COST, init, body), result

    def optional_map(self, node: ast.OptionalMap) -> Cost:
        target, known = self.visit(node.target)
        body, result = self._with(node.name, known, node.body)
        return add(target, target, LIST_COST, body, _OPTIONAL_MAP_COST + (0 if node.flat else 1)), result

    def _with(self, name: str, known: Size, body: ast.Node) -> Cost:
        saved = dict(self._locals)
        self._locals[name] = known
        found = self.visit(body)
        self._locals = saved
        return found


def _result(kind: str, source: Size, produced: Size, item: Size) -> Size:
    """The size of the result of a macro; `produced` is the size of its body."""
    match kind:
        case "all" | "exists" | "exists_one":
            return Size(1)
        case "filter" | "sortBy":
            return Size(source.size, item)
        case "map" | "transformList":
            return Size(source.size, produced)
        case "transformMap":
            return Size(source.size, produced, source.key)
        case _:
            return Size(source.size, produced.item, produced.key)


def _argument(node: ast.Node, known: Size) -> Argument:
    literal = node.value if isinstance(node, ast.Literal) else None
    return Argument(node.type or t.DYN, known.size, known.item.size if known.item else UNBOUNDED, literal)


def _by_type(node: ast.Node) -> Size:
    return Size(1) if node.type is not None and node.type.kind in _SCALARS else Size()


def estimate(tree: ast.Node, sizes: Sizes) -> int:
    """The worst cost of a checked tree in units; UNBOUNDED where nothing bounds it."""
    return min(Estimator(sizes).visit(tree)[0], UNBOUNDED)
