"""The compiler: it turns a checked tree into one closure.

No code is generated: each node becomes one Python function that calls the functions of its parts. If the checker knows
the types, the closure calls the operation directly; otherwise it tries the overloads by the types of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from extender.cel import ast, closures
from extender.cel import types as t
from extender.cel.checker import qualified
from extender.cel.closures import FIXED_SIZE, Constant, Pending, unboxed
from extender.cel.cost import FIELD_COST, MESSAGE_COST, Closure, Frame, charged, make_list, make_map, spend
from extender.cel.library.operators import index_any, optional_any
from extender.cel.messages import make_message
from extender.cel.specialize import specialized
from extender.cel.values import NONE, Optional, TypeValue, literal_key, total_weight, weighed

_INDEX: dict[str, Callable[..., Any]] = {"_[_]": index_any, "_[?_]": optional_any}
_DECISIVE = {"_&&_": False, "_||_": True}
_SMALL_TEXT = 64  # characters of a text that costs nothing; no attribute of a device is longer


class Binding(Protocol):
    """How a program reads its inputs, which have the first `slots` of a frame, with the budget.

    `hidden` are the local variables in scope: a local variable hides an input of the same name.
    """

    slots: int

    def read(self, node: ast.Node, hidden: Collection[str]) -> Closure | None:
        """The closure for a node that reads an input; None for another one."""


class Compiler(ast.Visitor[Closure]):
    """Compiles one checked tree. `slots` is the length that a frame must have."""

    def __init__(self, type_names: Collection[str], binding: Binding) -> None:
        self._type_names = type_names
        self._binding = binding
        self._locals: dict[str, int] = {}
        self._lazy: set[int] = set()
        self.slots = binding.slots

    def visit(self, node: ast.Node) -> Closure:
        read = self._binding.read(node, self._locals)
        return read if read is not None else self.method(node)(node)

    # -- names ----------------------------------------------------------------------------------------------

    def literal(self, node: ast.Literal) -> Closure:
        return Constant(node.value)

    def ident(self, node: ast.Ident) -> Closure:
        slot = self._locals.get(node.name)
        if slot is None:
            return Constant(TypeValue(node.name))
        return closures.lazy_local(slot) if slot in self._lazy else lambda frame: frame[slot]

    def _declare(self, *names: str) -> list[int]:
        """Slots for new local variables. The caller restores the variables of the outer scope."""
        slots = list(range(self.slots, self.slots + len(names)))
        self.slots += len(names)
        self._locals = {**self._locals, **dict(zip(names, slots, strict=True))}
        return slots

    def select(self, node: ast.Select) -> Closure:
        name = qualified(node)
        if name is not None and name in self._type_names and not node.test:
            return Constant(TypeValue(name))
        operand, field = self.visit(node.operand), node.field_name
        if node.test:
            return lambda frame: optional_any(operand(frame), field).present
        return closures.selection(operand, field)

    # -- calls ----------------------------------------------------------------------------------------------

    def call(self, node: ast.Call) -> Closure:
        name = node.function
        if name in _DECISIVE:
            terms = [self.visit(term) for term in ast.chain(node, enter_parentheses=True).terms]
            return closures.logical(terms, decisive=_DECISIVE[name])
        if name == "_?_:_":
            return closures.conditional(*(self.visit(arg) for arg in node.args))
        if name == "_?._":
            operand, field = (self.visit(arg) for arg in node.args)
            return lambda frame: optional_any(operand(frame), field(frame))
        if name == "@in" and isinstance(node.args[1], ast.ListLiteral) and not node.args[1].items:
            return Constant(False)
        if name in ("or", "orValue") and node.target is not None:
            left, right = self.visit(node.target), self.visit(node.args[0])
            return closures.lazy_or(left, right) if name == "or" else closures.lazy_or_value(left, right, node)
        return self._apply(node)

    def _apply(self, node: ast.Call) -> Closure:
        args = [self.visit(part) for part in node.parts]
        if node.function in _INDEX and _may_grow(node.parts[1:]):
            args[1] = closures.paid_key(args[1])
        short = specialized(node, args)
        if short is not None:
            return short
        if len(node.chosen) == 1:
            overload = node.chosen[0]
            if all(_certain(part, want) for part, want in zip(node.parts, overload.args, strict=True)):
                paid = charged(node.function, overload.apply, grows=_may_grow([*node.parts, node]))
                return closures.direct(overload.apply, args) if paid is None else closures.paying(paid, args)
        index = _INDEX.get(node.function)
        return closures.direct(index, args) if index is not None else closures.dispatch(node.chosen, args)

    # -- literals -------------------------------------------------------------------------------------------

    def list_literal(self, node: ast.ListLiteral) -> Closure:
        items = [self.visit(item) for item in node.items]
        if not node.optional:
            if all(isinstance(item, ast.Literal) for item in node.items):
                return Constant(weighed([item.value for item in node.items if isinstance(item, ast.Literal)]))
            return lambda frame: make_list(frame, [item(frame) for item in items])
        optional = node.optional

        def build(frame: Frame) -> list[Any]:
            found: list[Any] = []
            for position, item in enumerate(items):
                value = item(frame)
                if position not in optional:
                    found.append(value)
                elif unboxed(value).present:
                    found.append(value.value)
            return make_list(frame, found)

        return build

    def map_literal(self, node: ast.MapLiteral) -> Closure:
        entries = [(self.visit(key), self.visit(value), optional) for key, value, optional in node.entries]

        def build(frame: Frame) -> dict[Any, Any]:
            found: dict[Any, Any] = {}
            for key, value, optional in entries:
                hashed, item = literal_key(key(frame)), value(frame)
                if not optional:
                    found[hashed] = item
                elif unboxed(item).present:
                    found[hashed] = item.value
                else:
                    found.pop(hashed, None)
            return make_map(frame, found)

        return build

    def message_literal(self, node: ast.MessageLiteral) -> Closure:
        fields = [(field.name, self.visit(field.value), field.optional) for field in node.fields]
        type_ = node.name

        def build(frame: Frame) -> Any:
            found: dict[str, Any] = {}
            for name, value, optional in fields:
                item = value(frame)
                if not optional:
                    found[name] = item
                elif unboxed(item).present:
                    found[name] = item.value
            spend(frame, MESSAGE_COST + FIELD_COST * total_weight(found.values()))
            return make_message(type_, found)

        return build

    # -- macros ---------------------------------------------------------------------------------------------

    def loop(self, node: ast.Loop) -> Closure:
        source = self.visit(node.range)
        saved, slots = self._locals, self._declare(*node.variables)
        condition = self.visit(node.filter) if node.filter is not None else None
        body = self.visit(node.body)
        self._locals = saved
        return closures.loop(node, source, slots, body, condition)

    def bind(self, node: ast.Bind) -> Closure:
        init = self.visit(node.init)
        saved, (slot,) = self._locals, self._declare(node.name)
        self._lazy.add(slot)
        body = self.visit(node.body)
        self._locals = saved

        def run(frame: Frame) -> Any:
            frame[slot] = Pending(init)
            return body(frame)

        return run

    def optional_map(self, node: ast.OptionalMap) -> Closure:
        target = self.visit(node.target)
        saved, (slot,) = self._locals, self._declare(node.name)
        body = self.visit(node.body)
        self._locals = saved
        flat = node.flat

        def run(frame: Frame) -> Any:
            box = unboxed(target(frame))
            if not box.present:
                return NONE
            frame[slot] = box.value
            value = body(frame)
            return value if flat else Optional(value)

        return run


def _certain(part: ast.Node, want: t.Type) -> bool:
    """Whether the static type alone guarantees that the overload fits."""
    have = part.type
    if want.kind in ("var", "dyn", "any"):
        return True
    if have is None or t.is_dynamic(have):
        return False
    if want.kind in ("list", "map", "type") or want.name == "optional_type":
        params = zip(want.params, have.params, strict=False)
        return have.kind == want.kind and all(p.kind in ("var", "dyn") or p == h for p, h in params)
    return have == want


def _may_grow(parts: list[ast.Node]) -> bool:
    """Whether one of these can be large: a scalar of known type and a short literal cannot."""
    return any(_long(part.value) if isinstance(part, ast.Literal) else not _is_small(part.type) for part in parts)


def _is_small(type_: t.Type | None) -> bool:
    """Whether no value of a type is large. A version and a URL are texts with their parts."""
    return type_ is not None and type_.kind in FIXED_SIZE and type_ not in (t.SEMVER, t.URL)


def _long(value: object) -> bool:
    """Whether a literal is a text that costs something."""
    return isinstance(value, str | bytes) and len(value) > _SMALL_TEXT
