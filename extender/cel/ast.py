"""The syntax tree. Macros are nodes of their own, so that checker, cost and closures treat each loop once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from extender.cel.types import Type


@dataclass(slots=True, eq=False)
class Node:
    """A piece of source starting at character `offset`; the checker fills `type`."""

    offset: int
    type: Type | None = field(default=None, init=False, repr=False)


@dataclass(slots=True, eq=False)
class Literal(Node):
    value: object


@dataclass(slots=True, eq=False)
class Ident(Node):
    name: str


@dataclass(slots=True, eq=False)
class Select(Node):
    """operand.field, or has(operand.field) where `test` is set."""

    operand: Node
    field_name: str
    test: bool = False
    optional: bool = False


@dataclass(slots=True, eq=False)
class Call(Node):
    """function(args) or target.function(args). `chosen` are the overloads that the checker found possible."""

    function: str
    args: list[Node]
    target: Node | None = None
    chosen: tuple[object, ...] = field(default=(), init=False, repr=False)


@dataclass(slots=True, eq=False)
class ListLiteral(Node):
    items: list[Node]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class MapLiteral(Node):
    entries: list[tuple[Node, Node, bool]]  # key, value, optional


class FieldInit(NamedTuple):
    """field: value in a message literal; `offset` is that of the colon."""

    name: str
    value: Node
    optional: bool
    offset: int


@dataclass(slots=True, eq=False)
class MessageLiteral(Node):
    """name{field: value}."""

    name: str
    fields: list[FieldInit]


@dataclass(slots=True, eq=False)
class Loop(Node):
    """A comprehension macro: kind is all, exists, exists_one, map, filter, sortBy, transformList,
    transformMap or transformMapEntry; `filter` is the optional condition of the map-like ones, `body` the predicate or result."""

    kind: str
    range: Node
    variables: tuple[str, ...]
    body: Node
    filter: Node | None = None


@dataclass(slots=True, eq=False)
class Bind(Node):
    """cel.bind(name, init, body): init is evaluated when first used."""

    name: str
    init: Node
    body: Node


@dataclass(slots=True, eq=False)
class OptionalMap(Node):
    """target.optMap(name, body) or target.optFlatMap(name, body)."""

    target: Node
    name: str
    body: Node
    flat: bool


def children(node: Node) -> list[Node]:
    """The direct parts of a node, in source order."""
    match node:
        case Select():
            return [node.operand]
        case Call():
            return [*([node.target] if node.target else []), *node.args]
        case ListLiteral():
            return list(node.items)
        case MapLiteral():
            return [part for key, value, _ in node.entries for part in (key, value)]
        case MessageLiteral():
            return [field.value for field in node.fields]
        case Loop():
            return [node.range, *([node.filter] if node.filter else []), node.body]
        case Bind():
            return [node.init, node.body]
        case OptionalMap():
            return [node.target, node.body]
        case _:
            return []
