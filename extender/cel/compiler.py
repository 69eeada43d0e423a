"""From the text of an expression to its program: check it in an environment, fold its constants, compile it.

The planner of the reference folds conversions of constants, compiles constant patterns and checks constant keys
(cel-go, interpreter). It rejects a constant that cannot work, also in a branch that never runs. `constant_issues` does
it as far.

No code is generated: each node becomes one Python function that calls the functions of its parts. If the checker knows
the types, the closure calls the operation directly; otherwise it tries the overloads by the types of the values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from extender.cel import ast, closures
from extender.cel import types as t
from extender.cel.checker import Checker, qualified
from extender.cel.closures import FIXED_SIZE, REMEMBERED_BYTES, Constant, Pending, unboxed
from extender.cel.cost import (
    FIELD_COST,
    MESSAGE_COST,
    Closure,
    Estimator,
    Frame,
    Sizes,
    Work,
    charged,
    make_list,
    make_map,
    spend,
)
from extender.cel.errors import CompileError, Compiling, EvalError, Issue
from extender.cel.library.operators import index_any, optional_any
from extender.cel.library.text import bytes_of, compiled, verbs_of
from extender.cel.messages import MESSAGES, make_message
from extender.cel.parser import parse
from extender.cel.types import Library
from extender.cel.values import NONE, Optional, TypeValue, UInt, literal_key, total_weight, type_name, weighed

# Names of types, and the types that they stand for in type(x) == name and name{...}.
_STANDARD_TYPES: dict[str, t.Type] = {
    "bool": t.BOOL,
    "bytes": t.BYTES,
    "double": t.DOUBLE,
    "int": t.INT,
    "list": t.list_of(t.DYN),
    "map": t.map_of(t.DYN, t.DYN),
    "null_type": t.NULL,
    "string": t.STRING,
    "type": t.DYN,
    "uint": t.UINT,
    **{name: message.type for name, message in MESSAGES.items()},
    "optional_type": t.DYN,
    "net.IP": t.DYN,
    "net.CIDR": t.DYN,
}


@dataclass(frozen=True, eq=False)
class Environment:
    """The declarations that the checker, the estimator and the compiler use: `variables` are what it can name."""

    functions: Library
    variables: Mapping[str, t.Type]
    structs: Mapping[str, Mapping[str, t.Type]] = field(default_factory=dict)  # fields by struct type
    sizes: Sizes = field(default_factory=dict)

    @cached_property
    def type_names(self) -> Mapping[str, t.Type]:
        """The types that an expression can name."""
        return _STANDARD_TYPES | {name: t.Type("struct", name) for name in self.structs}

    @cached_property
    def declarations(self) -> dict[str, t.Type]:
        """The types of all names: variables and types."""
        return {**self.variables, **{name: t.type_of(type_) for name, type_ in self.type_names.items()}}


# Estimated bytes of a program, measured with tracemalloc: of any, of a node, and for each byte of the expression.
_PROGRAM_BYTES, _NODE_BYTES, _TEXT_BYTES = 1024, 768, 4


@dataclass(frozen=True, slots=True)
class Checked:
    """An expression with its tree, in which every node has a type.

    `pattern_bytes` is the most memory that the constant regular expressions of its program take.
    """

    expression: str
    tree: ast.Node
    environment: Environment
    pattern_bytes: int

    @property
    def type(self) -> t.Type:
        """The type of the whole expression."""
        return self.tree.type or t.ERROR


class Program(NamedTuple):
    """A compiled expression: the same inputs give the same answer.

    `run` takes a frame: [budget, *inputs, *locals]. `most_bytes` is the most memory that the program takes, estimated.
    """

    expression: str
    run: Closure
    locals: tuple[None, ...]
    most_bytes: int


def check(expression: str, environment: Environment, work: Work | None = None) -> Checked:
    """The tree of an expression with its types; `work` is what the check and the program may cost. Raises CompileError
    with every issue."""
    work = work or Work()
    with Compiling(expression):
        tree = parse(expression, work)
        checker = Checker(environment.functions, environment.declarations, environment.structs, work)
        checker.visit(tree)
        if checker.issues:
            raise CompileError(expression, checker.issues)
        checker.settle(tree)
        issues, pattern_bytes = constant_issues(tree, work)
    if issues:
        raise CompileError(expression, issues)
    return Checked(expression, tree, environment, pattern_bytes)


def cost(checked: Checked) -> int:
    """The worst case of an evaluation in units of the API server; UNBOUNDED where nothing bounds it. Raises
    CompileError where the expression is nested too deeply."""
    with Compiling(checked.expression):
        return Estimator(checked.environment.sizes).visit(checked.tree)[0]


def build(checked: Checked, binding: Binding) -> Program:
    """The program of a checked expression. Raises CompileError where the expression is nested too deeply."""
    compiler = Compiler(checked.environment.type_names, binding)
    with Compiling(checked.expression):
        run = compiler.visit(checked.tree)
    text_bytes = _TEXT_BYTES * sys.getsizeof(checked.expression)
    most_bytes = _PROGRAM_BYTES + text_bytes + _NODE_BYTES * checked.tree.size + checked.pattern_bytes
    return Program(checked.expression, run, (None,) * (compiler.slots - binding.slots), most_bytes)


# -- constant folding -----------------------------------------------------------------------------------------------

_KEYS = (str, bool, int, UInt, float)  # types of a constant between brackets
_MAX_UNITS = 500_000  # to compile the constant patterns of an expression: 25 ms
_WHOLE, _REAL = ("int", "uint"), ("double", "string")
_FORMATTED = {  # the kinds of types that each verb of string.format takes
    "s": (*_WHOLE, *_REAL, "bool", "bytes", "null", "type", "timestamp", "duration", "list", "map"),
    "d": _WHOLE, "o": _WHOLE, "b": (*_WHOLE, "bool"), "x": (*_WHOLE, "string", "bytes"),
    "X": (*_WHOLE, "string", "bytes"), "f": _REAL, "e": _REAL,
}  # fmt: skip
_VARIES = object()  # stands for the value of a node that is no constant


def constant_issues(root: ast.Node, work: Work) -> tuple[list[Issue], int]:
    """The issues of constant arguments in a checked tree (conversions, regular expressions, keys, formats), and the
    most bytes that its constant regular expressions take. Raises TooMuchWork."""
    folder = _Folder(work)
    return sorted(folder.issues_of(root)), folder.pattern_bytes


class _Folder:
    """Folds constants from the leaves up, as far as the reference does."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._values: dict[int, Any] = {}  # by id of the node
        self._units = 0  # of the patterns
        self.pattern_bytes = 0

    def issues_of(self, root: ast.Node) -> list[Issue]:
        found: list[Issue] = []
        for node, in_format in _leaves_first(root):
            try:
                self._values[id(node)] = self._fold(node)
                self._check(node)
                if not in_format:
                    _check_items(node)
            except EvalError as error:
                found.append(Issue(node.offset, str(error)))
        return found

    def _value(self, node: ast.Node) -> Any:
        return self._values.get(id(node), _VARIES)

    def _fold(self, node: ast.Node) -> Any:
        """The value of a constant, or _VARIES. Raises EvalError for a conversion that fails."""
        match node:
            case ast.Literal():
                return node.value
            case ast.ListLiteral() if not node.optional:
                items = [self._value(item) for item in node.items]
                return _VARIES if any(item is _VARIES for item in items) else items
            case ast.Call(target=None, args=[argument]) if any(one.conversion for one in node.chosen):
                value = self._value(argument)
                return _VARIES if value is _VARIES else _converted(node, value)
        return _VARIES

    def _check(self, node: ast.Node) -> None:
        """Raise EvalError where a call fails with its constants."""
        if not isinstance(node, ast.Call):
            return
        if any(one.pattern for one in node.chosen):
            pattern = self._value(node.parts[1])
            if isinstance(pattern, str) and self._units <= _MAX_UNITS:
                self.pattern_bytes += bytes_of(compiled(pattern, self._pay)) + REMEMBERED_BYTES
        elif node.function in ("_[_]", "_[?_]"):
            key = self._value(node.args[1])
            if key is not _VARIES and not isinstance(key, _KEYS):
                raise EvalError(f"invalid qualifier type: {type_name(key)}")
        elif node.function == "format" and isinstance(node.target, ast.Literal) and len(node.args) == 1:
            _check_format(str(node.target.value), node.args[0])

    def _pay(self, units: int) -> None:
        self._work.spend(2 * units)  # the compiler may compile the pattern again
        self._units += units
        if self._units > _MAX_UNITS:
            raise EvalError("the regular expressions up to here take too much work to compile")


def _leaves_first(root: ast.Node) -> list[tuple[ast.Node, bool]]:
    """All nodes, each with whether it is inside a call of format."""
    found, stack = [], [(root, False)]
    while stack:
        node, in_format = stack.pop()
        found.append((node, in_format))
        in_format = in_format or (isinstance(node, ast.Call) and node.function == "format")
        stack.extend((child, in_format) for child in ast.children(node))
    return found[::-1]


def _check_items(node: ast.Node) -> None:
    """Raise EvalError for a list or map literal whose items have different types; the unknown type is one of them."""
    match node:
        case ast.ListLiteral():
            _check_same([_type(item, optional=i in node.optional) for i, item in enumerate(node.items)])
        case ast.MapLiteral():
            _check_same([_type(key, optional=False) for key, _, _ in node.entries])
            _check_same([_type(value, optional=optional) for _, value, optional in node.entries])


def _type(node: ast.Node, *, optional: bool) -> t.Type:
    found = node.type or t.ERROR
    inner = (t.unwrap_optional(found) if optional else None) or found
    return inner.params[0] if inner.kind == "wrapper" else inner


def _check_same(types: list[t.Type]) -> None:
    other = next((one for one in types[1:] if one != types[0]), None)
    if other is not None:
        raise EvalError(f"expected type '{types[0]}' but found '{other}'")


def _converted(node: ast.Call, value: Any) -> Any:
    for overload in node.chosen:
        if overload.accepts((value,)):
            return overload.apply(value)
    raise EvalError(f"no such overload: {node.function}({type_name(value)})")


def _check_format(template: str, values: ast.Node) -> None:
    verbs = verbs_of(template)
    if not isinstance(values, ast.ListLiteral):
        return
    have = len(values.items)
    if len(verbs) > have:
        raise EvalError(f"index {have} out of range")
    if len(verbs) < have:
        raise EvalError(f"too many arguments supplied to string.format (expected {len(verbs)}, got {have})")
    for verb, item in zip(verbs, values.items, strict=True):
        _check_formatted(verb, item)


def _check_formatted(verb: str, value: ast.Node) -> None:
    """Raise EvalError if a value can have no text for the verb. An attribute has not: its type is Any, not dyn."""
    found = _type(value, optional=False)
    if found.kind not in ("dyn", *_FORMATTED[verb]):
        raise EvalError(f"error during formatting: clause %{verb} cannot be used on {found}")
    if verb == "s" and isinstance(value, ast.ListLiteral):
        for item in value.items:
            _check_formatted(verb, item)
    if verb == "s" and isinstance(value, ast.MapLiteral):
        for _, item, _ in value.entries:
            _check_formatted(verb, item)


# -- from a checked tree to closures --------------------------------------------------------------------------------

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
        short = closures.specialized(node, args)
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
