"""The syntax tree. A macro is a node of its own: the checker, the estimator and the compiler treat each loop once.

A pass over the tree that treats the kinds of nodes differently is a `Visitor`; `walk` gives the nodes to any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from extender.cel.types import Overload, Type

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Node:
    """A piece of source. `offset` counts characters up to its start, or to its operator; the checker sets `type`."""

    offset: int
    type: Type | None = field(default=None, init=False, repr=False)
    parenthesized: bool = field(default=False, init=False, repr=False)
    size: int = field(default=1, init=False, repr=False)  # nodes of its tree; the checker sets it


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
    """function(args) or target.function(args); an operator is a function such as `_==_`.

    `chosen` are the overloads that the checker found possible: none for && and ||, which take no overload, and for
    the optional selection `_?._`.
    """

    function: str
    args: list[Node]
    target: Node | None = None
    chosen: tuple[Overload, ...] = field(default=(), init=False, repr=False)

    @property
    def parts(self) -> list[Node]:
        """The target, where the call has one, and the arguments."""
        return [self.target, *self.args] if self.target is not None else self.args


@dataclass(slots=True, eq=False)
class ListLiteral(Node):
    items: list[Node]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class MapLiteral(Node):
    entries: list[tuple[Node, Node, bool]]  # key, value, optional


class FieldInit(NamedTuple):
    """field: value in a message literal; `offset` is the offset of the colon."""

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
    """A comprehension macro. `kind` is a name in macros.LOOPS; `filter` is the optional condition of the macros that
    make a list or a map; `body` is the predicate or the result."""

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
            return list(node.parts)
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


def walk(root: Node) -> Iterator[Node]:
    """All nodes of a tree, a parent before its parts."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(children(node))


class Chain(NamedTuple):
    """The operands of a && b && c or a || b || c from left to right, and the offsets of the operators between them."""

    terms: list[Node]
    offsets: list[int]


def chain(node: Call, *, enter_parentheses: bool) -> Chain:
    """The chain of one operator under a node, however the parser balanced it.

    With `enter_parentheses`, a && (b && c) has three terms; without, it has two.
    """
    found = Chain([], [])
    stack: list[Node] = [node]
    while stack:
        current = stack.pop()
        entered = current is node or enter_parentheses or not current.parenthesized
        if entered and isinstance(current, Call) and current.function == node.function:
            found.offsets.append(current.offset)
            stack.extend(reversed(current.args))
        else:
            found.terms.append(current)
    found.offsets.sort()
    return found


_METHODS: dict[type[Node], str] = {
    Literal: "literal",
    Ident: "ident",
    Select: "select",
    Call: "call",
    ListLiteral: "list_literal",
    MapLiteral: "map_literal",
    MessageLiteral: "message_literal",
    Loop: "loop",
    Bind: "bind",
    OptionalMap: "optional_map",
}


class Visitor(ABC, Generic[R]):
    """A pass over the tree with one method for each kind of node.

    `visit` takes one Python frame beside the method: a tree of MAX_TREE_DEPTH levels must fit Python's stack.
    """

    def visit(self, node: Node) -> R:
        """The result of the method for this kind of node."""
        return self.method(node)(node)

    def method(self, node: Node) -> Callable[[Any], R]:
        """The method for this kind of node."""
        found: Callable[[Any], R] = getattr(self, _METHODS[type(node)])
        return found

    @abstractmethod
    def literal(self, node: Literal) -> R: ...
    @abstractmethod
    def ident(self, node: Ident) -> R: ...
    @abstractmethod
    def select(self, node: Select) -> R: ...
    @abstractmethod
    def call(self, node: Call) -> R: ...
    @abstractmethod
    def list_literal(self, node: ListLiteral) -> R: ...
    @abstractmethod
    def map_literal(self, node: MapLiteral) -> R: ...
    @abstractmethod
    def message_literal(self, node: MessageLiteral) -> R: ...
    @abstractmethod
    def loop(self, node: Loop) -> R: ...
    @abstractmethod
    def bind(self, node: Bind) -> R: ...
    @abstractmethod
    def optional_map(self, node: OptionalMap) -> R: ...
