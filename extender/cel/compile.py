"""Syntax tree to closures. A closure takes a frame: [device, driver, remaining budget, local, local, …].

No code is generated: each node becomes one Python function that calls those of its parts. Where the checker knows
the types, the operation is called directly; otherwise the overloads are tried by the values' types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from extender.cel import ast
from extender.cel import types as t
from extender.cel.access import device_read
from extender.cel.budget import charged, make_list, make_map, spend
from extender.cel.check import qualified
from extender.cel.costs_of_calls import MESSAGE_COST
from extender.cel.errors import EvalError
from extender.cel.fast import Fixed, fast_call, one_overload
from extender.cel.functions import Overload
from extender.cel.logic import conditional, conjunction, disjunction
from extender.cel.loops import loop
from extender.cel.messages import make_message
from extender.cel.values import NONE, Optional, TypeValue, literal_key, total_weight

Frame = list[Any]
Closure = Callable[[Frame], Any]

FIRST_LOCAL = 3  # frame slots before the locals: device, driver, budget
_LOGIC = {"_&&_": conjunction, "_||_": disjunction}
_FIXED_SIZE = frozenset({"int", "uint", "double", "bool", "duration", "timestamp", "null", "struct"})
# Calls whose work is bounded by an attribute's 64 characters or a quantity: nothing to charge.
_CHEAP = frozenset({"compareTo", "isGreaterThan", "isLessThan", "startsWith", "endsWith", "major", "minor", "patch", "isInteger"})
_ATTRIBUTE_LENGTH = 64  # resource.k8s.io DeviceAttributeMaxValueLength
_FIELD_COST = 5  # units for each value that a message literal takes in
_UNSET = object()


class Compiler:
    """Compiles one checked tree; `slots` is the length a frame must have, `reads` what it reads of a device."""

    def __init__(self, type_names: dict[str, str]) -> None:
        self._type_names = type_names
        self._locals: dict[str, int] = {}
        self._lazy: set[int] = set()
        self.slots = FIRST_LOCAL
        self.reads: set[str] = set()

    def build(self, node: ast.Node) -> Closure:
        read = device_read(node, self.reads, self._locals)
        if read is not None:
            return read
        match node:
            case ast.Literal():
                return Fixed(node.value)
            case ast.Ident():
                return self._ident(node.name)
            case ast.Select():
                return self._select(node)
            case ast.Call():
                return self._call(node)
            case ast.ListLiteral():
                return self._list(node)
            case ast.MapLiteral():
                return self._map(node)
            case ast.MessageLiteral():
                return self._message(node)
            case ast.Loop():
                return self._loop(node)
            case ast.Bind():
                return self._bind(node)
            case ast.OptionalMap():
                return self._optional_map(node)
        raise AssertionError(f"unknown node {node!r}")

    # -- names ----------------------------------------------------------------------------------------------

    def _ident(self, name: str) -> Closure:
        slot = self._locals.get(name)
        if slot is None:
            named = TypeValue(self._type_names[name])
            return lambda _: named
        if slot in self._lazy:
            return _lazy_local(slot)
        return lambda frame: frame[slot]

    def _declare(self, name: str, *, lazy: bool = False) -> tuple[int, int | None]:
        """A slot for a new local; the second value is what the name meant before."""
        previous = self._locals.get(name)
        slot = self.slots
        self.slots += 1
        self._locals[name] = slot
        if lazy:
            self._lazy.add(slot)
        return slot, previous

    def _restore(self, name: str, previous: int | None) -> None:
        if previous is None:
            del self._locals[name]
        else:
            self._locals[name] = previous

    def _select(self, node: ast.Select) -> Closure:
        name = qualified(node)
        if name is not None and name in self._type_names and not node.test:
            named = TypeValue(self._type_names[name])
            return lambda _: named
        operand, field = self.build(node.operand), node.field_name
        return _presence(operand, field) if node.test else _selection(operand, field)

    # -- calls ----------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Closure:
        name = node.function
        if name in _LOGIC:
            return _LOGIC[name]([self.build(term) for term in _terms(node)])
        if name == "_?_:_":
            return conditional(*(self.build(arg) for arg in node.args))
        if name == "_?._":
            field = node.args[1]
            assert isinstance(field, ast.Literal)
            return _optional_selection(self.build(node.args[0]), str(field.value))
        if name == "@in" and isinstance(node.args[1], ast.ListLiteral) and not node.args[1].items:
            return lambda _: False
        parts = [node.target, *node.args] if node.target is not None else node.args
        if name in ("or", "orValue") and node.target is not None:
            return _lazy_or(self.build(parts[0]), self.build(parts[1]), whole=name == "or")
        return self._apply(node, parts)

    def _apply(self, node: ast.Call, parts: list[ast.Node]) -> Closure:
        overloads = [o for o in node.chosen if isinstance(o, Overload)]
        args = [self.build(part) for part in parts]
        short = fast_call(node, parts, args, self._locals)
        if short is not None:
            return short
        if len(overloads) == 1 and node.function in _CHEAP:
            short = one_overload(overloads[0], parts, args, overloads[0].apply)
            if short is not None:
                return short
        if len(overloads) == 1 and all(_certain(part, want) for part, want in zip(parts, overloads[0].args, strict=True)):
            paid = charged(node.function, overloads[0].apply, grows=_may_grow([*parts, node]))
            return _direct(overloads[0].apply, args) if paid is None else _paying(paid, args)
        return _dispatch(node.function, overloads, args)

    # -- literals -------------------------------------------------------------------------------------------

    def _list(self, node: ast.ListLiteral) -> Closure:
        items = [self.build(item) for item in node.items]
        if not node.optional:
            if all(isinstance(item, ast.Literal) for item in node.items):
                constant = [item.value for item in node.items if isinstance(item, ast.Literal)]
                return lambda _: constant
            return lambda frame: make_list(frame, [item(frame) for item in items])
        optional = node.optional

        def build(frame: Frame) -> list[Any]:
            found: list[Any] = []
            for position, item in enumerate(items):
                value = item(frame)
                if position not in optional:
                    found.append(value)
                elif _box(value).present:
                    found.append(value.value)
            return make_list(frame, found)

        return build

    def _map(self, node: ast.MapLiteral) -> Closure:
        entries = [(self.build(key), self.build(value), optional) for key, value, optional in node.entries]

        def build(frame: Frame) -> dict[Any, Any]:
            found: dict[Any, Any] = {}
            for key, value, optional in entries:
                hashed, item = literal_key(key(frame)), value(frame)
                if not optional:
                    found[hashed] = item
                elif _box(item).present:
                    found[hashed] = item.value
            return make_map(frame, found)

        return build

    def _message(self, node: ast.MessageLiteral) -> Closure:
        fields = [(field.name, self.build(field.value), field.optional) for field in node.fields]
        type_ = node.name

        def build(frame: Frame) -> Any:
            found: dict[str, Any] = {}
            for name, value, optional in fields:
                item = value(frame)
                if not optional:
                    found[name] = item
                elif _box(item).present:
                    found[name] = item.value
            spend(frame, MESSAGE_COST + _FIELD_COST * total_weight(found.values()))
            return make_message(type_, found)

        return build

    # -- macros ---------------------------------------------------------------------------------------------

    def _loop(self, node: ast.Loop) -> Closure:
        source = self.build(node.range)
        declared = [(name, *self._declare(name)) for name in node.variables]
        condition = self.build(node.filter) if node.filter is not None else None
        body = self.build(node.body)
        for name, _, previous in reversed(declared):
            self._restore(name, previous)
        return loop(node, source, [slot for _, slot, _ in declared], body, condition)

    def _bind(self, node: ast.Bind) -> Closure:
        init = self.build(node.init)
        slot, previous = self._declare(node.name, lazy=True)
        body = self.build(node.body)
        self._restore(node.name, previous)

        def run(frame: Frame) -> Any:
            frame[slot] = (_UNSET, init)
            return body(frame)

        return run

    def _optional_map(self, node: ast.OptionalMap) -> Closure:
        target = self.build(node.target)
        slot, previous = self._declare(node.name)
        body = self.build(node.body)
        self._restore(node.name, previous)
        flat = node.flat

        def run(frame: Frame) -> Any:
            box = _box(target(frame))
            if not box.present:
                return NONE
            frame[slot] = box.value
            value = body(frame)
            return _box(value) if flat else Optional(value)

        return run


def _terms(node: ast.Call) -> list[ast.Node]:
    """The operands of a && b && c, however the parser balanced them."""
    found: list[ast.Node] = []
    for arg in node.args:
        found += _terms(arg) if isinstance(arg, ast.Call) and arg.function == node.function else [arg]
    return found


def _certain(part: ast.Node, want: t.Type) -> bool:
    """Whether the static type alone guarantees that the overload fits."""
    have = part.type
    if want.kind in ("var", "dyn", "any"):
        return True
    if have is None or t.is_dynamic(have):
        return False
    if want.kind in ("list", "map", "type") or want.name == "optional_type":
        return have.kind == want.kind and all(p.kind in ("var", "dyn") or p == h for p, h in zip(want.params, have.params, strict=False))
    return have == want


def _direct(apply: Callable[..., Any], args: list[Closure]) -> Closure:
    match args:
        case [first]:
            return lambda frame: apply(first(frame))
        case [first, Fixed(value=constant)]:
            return lambda frame: apply(first(frame), constant)
        case [first, second]:
            return lambda frame: apply(first(frame), second(frame))
        case _:
            return lambda frame: apply(*[arg(frame) for arg in args])


def _may_grow(parts: list[ast.Node]) -> bool:
    """Whether one of these can be large: scalars of known type and literals cannot."""
    return any(_long(part.value) if isinstance(part, ast.Literal) else part.type is None or part.type.kind not in _FIXED_SIZE for part in parts)


def _long(value: object) -> bool:
    """Whether a literal is larger than what an attribute can hold."""
    return isinstance(value, str | bytes) and len(value) > _ATTRIBUTE_LENGTH


def _paying(apply: Callable[..., Any], args: list[Closure]) -> Closure:
    match args:
        case [first]:
            return lambda frame: apply(frame, first(frame))
        case [first, second]:
            return lambda frame: apply(frame, first(frame), second(frame))
        case _:
            return lambda frame: apply(frame, *[arg(frame) for arg in args])


def _dispatch(function: str, overloads: list[Overload], args: list[Closure]) -> Closure:
    choices = [(overload, charged(function, overload.apply)) for overload in overloads]

    def run(frame: Frame) -> Any:
        values = tuple(arg(frame) for arg in args)
        for overload, paid in choices:
            if overload.accepts(values):
                return overload.apply(*values) if paid is None else paid(frame, *values)
        raise EvalError("no such overload")

    return run


def _lazy_local(slot: int) -> Closure:
    def read(frame: Frame) -> Any:
        held = frame[slot]
        if type(held) is tuple and len(held) == 2 and held[0] is _UNSET:  # noqa: PLR2004 - (marker, init)
            held = frame[slot] = held[1](frame)
        return held

    return read


def _box(value: Any) -> Optional:
    if type(value) is Optional:
        return value
    raise EvalError("no such overload")


def _lazy_or(left: Closure, right: Closure, *, whole: bool) -> Closure:
    def run(frame: Frame) -> Any:
        box = _box(left(frame))
        if box.present:
            return box if whole else box.value
        other = right(frame)
        return _box(other) if whole else other

    return run


def _selection(operand: Closure, field: str) -> Closure:
    def run(frame: Frame) -> Any:
        value = operand(frame)
        if type(value) is Optional:
            return _optional_field(value.value, field) if value.present else NONE
        if not isinstance(value, dict):
            raise EvalError("no such overload")
        try:
            return value[field]
        except KeyError:
            raise EvalError(f"no such key: {field}") from None

    return run


def _optional_selection(operand: Closure, field: str) -> Closure:
    def run(frame: Frame) -> Any:
        value = operand(frame)
        if type(value) is Optional:
            return _optional_field(value.value, field) if value.present else NONE
        return _optional_field(value, field)

    return run


def _optional_field(value: Any, field: str) -> Optional:
    if not isinstance(value, dict):
        raise EvalError("no such overload")
    try:
        return Optional(value[field])
    except KeyError:
        return NONE


def _presence(operand: Closure, field: str) -> Closure:
    def run(frame: Frame) -> bool:
        value = operand(frame)
        if type(value) is Optional:
            value = value.value if value.present else None
        if not isinstance(value, dict):
            return False
        try:
            value[field]
        except KeyError:
            return False
        return True

    return run
