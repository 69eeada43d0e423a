"""The closures of the nodes of a tree, which the compiler puts together.

A closure takes a frame and returns the value of its node. Where the checker knows the types, it calls the function
directly; otherwise it tries the overloads by the types of the values. The calls that selectors make most, a comparison
with a constant and a method on a value, have shorter closures with the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

from extender.api.quantity import Quantity
from extender.api.semver import Semver
from extender.cel import ast
from extender.cel import types as t
from extender.cel.cost import (
    BUDGET,
    CHOICE_COST,
    CONSTANT_COST,
    ERROR_COST,
    FLAT,
    LOOP_NODE_COST,
    LOOPS,
    PRICES,
    Closure,
    Frame,
    charged,
    compare_texts,
    make_list,
    make_map,
    pattern_units,
    sorting,
    spend,
)
from extender.cel.errors import BudgetExceeded, EvalError
from extender.cel.library.lists import sort_by
from extender.cel.library.operators import optional_any
from extender.cel.library.text import compiled, matches
from extender.cel.types import Overload, fits
from extender.cel.values import (
    Optional,
    UInt,
    equal,
    from_key,
    key_of,
    named,
    require_hash,
    same,
    total_weight,
    type_name,
    weight,
)

FIXED_SIZE = frozenset({"int", "uint", "double", "bool", "duration", "timestamp", "null", "struct"})  # kinds of types


class Constant:
    """A closure whose value is known: a call may take the value instead of calling the closure."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __call__(self, _: Frame) -> Any:
        return self.value


class Pending:
    """The value of a local variable until an expression reads it, and after its evaluation failed.

    It keeps the error: a variable made of two others, and so on, would evaluate the first one twice for each level.
    """

    __slots__ = ("_error", "_init")

    def __init__(self, init: Closure) -> None:
        self._init = init
        self._error: str | None = None

    def value(self, frame: Frame) -> Any:
        if self._error is not None:
            raise EvalError(self._error)
        try:
            return self._init(frame)
        except EvalError as error:
            self._error = str(error)
            raise


def lazy_local(slot: int) -> Closure:
    """The value of a local variable that is evaluated when the expression first reads it."""

    def read(frame: Frame) -> Any:
        held = frame[slot]
        if type(held) is Pending:
            held = frame[slot] = held.value(frame)
        return held

    return read


# -- &&, || and ?: — the operators that absorb errors or do not evaluate a side --------------------------------------


def logical(terms: list[Closure], *, decisive: bool) -> Closure:
    """&& is false if any term is false, || true if any is true, even if other terms fail.

    Each term runs once, also after an error: in nested chains a second run would double with each level.
    """
    other = not decisive

    def run(frame: Frame) -> bool:
        failure: EvalError | None = None
        for term in terms:
            try:
                value: object = term(frame)
            except EvalError as error:
                spend(frame, ERROR_COST)
                failure = failure or error
                continue
            if value is decisive:
                return decisive
            if value is not other:
                failure = failure or EvalError("no such overload")
        if failure is not None:
            raise failure
        return other

    return run


def conditional(condition: Closure, yes: Closure, no: Closure) -> Closure:
    """condition ? yes : no."""

    def run(frame: Frame) -> Any:
        value = condition(frame)
        if value is True:
            return yes(frame)
        if value is False:
            return no(frame)
        raise EvalError("no such overload")

    return run


# -- the comprehension macros: every iteration takes its units from the budget of the evaluation ---------------------


Iterations = Callable[[Frame], Iterator[None]]
"""It assigns the variables of a loop, once for each item of its range."""


def loop(node: ast.Loop, source: Closure, slots: list[int], body: Closure, condition: Closure | None) -> Closure:
    """The closure of a macro; `slots` are the frame slots of its one or two variables."""
    nodes = node.size - 1 - node.range.size  # of the body and the condition; a nested loop pays for itself
    iterations = _iterations(source, slots, LOOPS[node.kind].iteration + LOOP_NODE_COST * nodes)
    match node.kind:
        case "all":
            return _quantifier(iterations, body, decisive=False)
        case "exists":
            return _quantifier(iterations, body, decisive=True)
        case "exists_one":
            return lambda frame: sum(_true(body(frame)) for _ in iterations(frame)) == 1
        case "filter":
            item = slots[0]
            return _collect(iterations, lambda frame: frame[item], body)
        case "sortBy":
            return _sort_by(iterations, slots[0], body)
        case "map" | "transformList":
            return _collect(iterations, body, condition)
        case _:
            return _transform_map(iterations, slots[0], body, condition, entries=node.kind == "transformMapEntry")


def _iterations(source: Closure, slots: list[int], units: int) -> Iterations:
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


def _quantifier(iterations: Iterations, body: Closure, *, decisive: bool) -> Closure:
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


def _true(value: object) -> bool:
    if value is True or value is False:
        return value is True
    raise EvalError("no such overload")


def _sort_by(iterations: Iterations, slot: int, body: Closure) -> Closure:
    def run(frame: Frame) -> list[Any]:
        items: list[Any] = []
        keys: list[Any] = []
        for _ in iterations(frame):
            items.append(frame[slot])
            keys.append(body(frame))
        spend(frame, sorting(1 + total_weight(keys)))
        return make_list(frame, sort_by(items, keys))

    return run


def _collect(iterations: Iterations, body: Closure, condition: Closure | None) -> Closure:
    def run(frame: Frame) -> list[Any]:
        return make_list(
            frame, [body(frame) for _ in iterations(frame) if condition is None or _true(condition(frame))]
        )

    return run


def _transform_map(
    iterations: Iterations, slot: int, body: Closure, condition: Closure | None, *, entries: bool
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


# -- calls, selections and optional values ---------------------------------------------------------------------------


def paid_key(key: Closure) -> Closure:
    """A look-up compares the key with an equal one of the map."""

    def run(frame: Frame) -> Any:
        value = key(frame)
        spend(frame, compare_texts((value,)))
        return value

    return run


def direct(apply: Callable[..., Any], args: list[Closure]) -> Closure:
    match args:
        case [first]:
            return lambda frame: apply(first(frame))
        case [first, Constant(value=constant)]:
            return lambda frame: apply(first(frame), constant)
        case [first, second]:
            return lambda frame: apply(first(frame), second(frame))
        case _:
            return lambda frame: apply(*[arg(frame) for arg in args])


def paying(apply: Callable[..., Any], args: list[Closure]) -> Closure:
    match args:
        case [first]:
            return lambda frame: apply(frame, first(frame))
        case [first, second]:
            return lambda frame: apply(frame, first(frame), second(frame))
        case _:
            return lambda frame: apply(frame, *[arg(frame) for arg in args])


def dispatch(overloads: Sequence[Overload], args: list[Closure]) -> Closure:
    choices = [(overload, charged(overload.function, overload.apply, grows=True)) for overload in overloads]
    units = CHOICE_COST * len(choices)

    def run(frame: Frame) -> Any:
        spend(frame, units)
        values = tuple(arg(frame) for arg in args)
        for overload, paid in choices:
            if overload.accepts(values):
                try:
                    return overload.apply(*values) if paid is None else paid(frame, *values)
                except (AttributeError, TypeError):  # an item of a list has another type than the first one
                    break
        raise EvalError("no such overload")

    return run


def unboxed(value: Any) -> Optional:
    if type(value) is Optional:
        return value
    raise EvalError("no such overload")


def lazy_or(left: Closure, right: Closure) -> Closure:
    def run(frame: Frame) -> Optional:
        box = unboxed(left(frame))
        return box if box.present else unboxed(right(frame))

    return run


def lazy_or_value(left: Closure, right: Closure, node: ast.Call) -> Closure:
    """As in the reference, a value that is no optional is the result. The compiler relies on the type of the node: a
    value of another type is an error.
    """
    assert node.target is not None
    assert node.type is not None
    type_, is_certain = node.type, node.target.type is not None and not t.is_dynamic(node.target.type)
    can_tell = type_.kind in FIXED_SIZE | {"string", "bytes", "dyn", "any"}  # of a list, `fits` looks at one item

    def run(frame: Frame) -> Any:
        value = left(frame)
        if type(value) is Optional:
            if not value.present:
                return right(frame)
            value = value.value
        if is_certain or (can_tell and fits(value, type_)):
            return value
        raise EvalError("no such overload")

    return run


def selection(operand: Closure, field: str) -> Closure:
    def run(frame: Frame) -> Any:
        value = operand(frame)
        if type(value) is Optional:
            return optional_any(value, field)
        if not isinstance(value, dict):
            raise EvalError("no such overload")
        try:
            return value[field]
        except KeyError:
            raise EvalError(f"no such key: {field}") from None

    return run


# -- shorter closures; where a value has another type than expected, the closure uses the general form ---------------

# Values of one attribute for which a pattern remembers its answer, and characters of the longest one. Texts that an
# expression makes may have any length.
_REMEMBERED_TEXTS, _REMEMBERED_LENGTH = 64, 64
REMEMBERED_BYTES = 32 * 1024  # of all texts that one pattern remembers, at most
_BOUNDED_WEIGHT = 8  # weight of a constant that makes a call free: a text or a version of 64 characters
_SCALARS = (str, int, bool)
_HASHED = frozenset({str, int, bool, float, UInt})  # constants of a list from which the reference makes a set
_PYTHON_TYPES: dict[t.Type, type] = {t.STRING: str, t.INT: int, t.BOOL: bool, t.QUANTITY: Quantity, t.SEMVER: Semver}


def specialized(node: ast.Call, args: list[Closure]) -> Closure | None:
    """A shorter closure for this call, or None. `args` are the closures of the node's parts."""
    name, parts = node.function, node.parts
    if name in ("_==_", "_!=_"):
        return _equality(node, args)
    if name == "@in" and isinstance(parts[1], ast.ListLiteral):
        return _membership(args[0], parts[1])
    if len(node.chosen) != 1:
        return None
    overload = node.chosen[0]
    if overload.pure and all(isinstance(part, ast.Literal) for part in parts):
        return _evaluated(overload, parts)
    if overload.pattern:
        return _search(overload, parts[1], args)
    return _typed_call(overload, parts, args) if PRICES.get(name, FLAT).bounded else None


def _equality(node: ast.Call, args: list[Closure]) -> Closure | None:
    left, constant = args[0], node.parts[1]
    if not isinstance(constant, ast.Literal) or type(constant.value) not in _SCALARS:
        return None
    wanted, kind = constant.value, type(constant.value)

    def equals(frame: Frame) -> bool:
        value = left(frame)
        return bool(value == wanted) if type(value) is kind else equal(value, wanted)

    def differs(frame: Frame) -> bool:
        value = left(frame)
        return bool(value != wanted) if type(value) is kind else not same(value, wanted)

    return equals if node.function == "_==_" else differs


def _hashed_constants(items: ast.ListLiteral) -> list[object]:
    """The values of a list of constants from which the reference makes a set; empty where it makes none."""
    values = [item.value for item in map(_without_dyn, items.items) if isinstance(item, ast.Literal)]
    hashed = len(values) == len(items.items) and all(type(value) in _HASHED for value in values)
    return values if hashed else []


def _without_dyn(node: ast.Node) -> ast.Node:
    while isinstance(node, ast.Call) and node.function == "dyn":
        (node,) = node.args
    return node


def _membership(left: Closure, items: ast.ListLiteral) -> Closure | None:
    """x in ['a', 'b'] with a set of the texts; other types are compared one by one."""
    values = _hashed_constants(items)
    if not values:
        return None
    if any(type(value) is not str for value in values):
        return lambda frame: _is_among(frame, values, left(frame))
    texts = frozenset(values)

    def run(frame: Frame) -> bool:
        value = left(frame)
        return value in texts if type(value) is str else _is_among(frame, values, value)

    return run


def _is_among(frame: Frame, constants: Collection[object], value: object) -> bool:
    """Whether a value is one of the constants, which the reference looks up by hash. Raises EvalError."""
    spend(frame, CONSTANT_COST * len(constants))
    require_hash(value)
    try:
        wanted = key_of(value)
    except EvalError:
        return False
    return any(key_of(constant) == wanted for constant in constants)


def _evaluated(overload: Overload, parts: list[ast.Node]) -> Closure | None:
    """quantity('40Gi') once, not for every device. An error stays a run-time error, as in the reference."""
    try:
        return Constant(overload.apply(*(part.value for part in parts if isinstance(part, ast.Literal))))
    except EvalError:
        return None


def _search(overload: Overload, pattern: ast.Node, args: list[Closure]) -> Closure:
    """A search. A constant pattern is compiled here; for any other one each call pays."""
    # Where it is a literal, the check of the constants has paid for it (see compiler.py).
    constant = compiled(str(pattern.value), lambda _: None) if isinstance(pattern, ast.Literal) else None
    if constant is not None and overload.apply is matches:
        return _remembering(args[0], constant)
    search = charged(overload.function, overload.apply, grows=True)
    assert search is not None

    def run(frame: Frame) -> Any:
        values = tuple(arg(frame) for arg in args)
        if not overload.accepts(values):
            raise EvalError("no such overload")
        text, pattern, *rest = values
        program = compiled(pattern, partial(spend, frame)) if constant is None else constant
        return search(frame, text, program, *rest)

    return run


def _remembering(text: Closure, constant: Any) -> Closure:
    search, size = constant.search, constant.programsize
    known: dict[str, tuple[int, bool]] = {}  # by text: the units of a search, and whether it found the pattern

    def look(frame: Frame, value: object) -> bool:
        if type(value) is not str:
            raise EvalError("no such overload")
        cost = pattern_units(len(value), size)
        spend(frame, cost)
        found = search(value) is not None
        if len(value) <= _REMEMBERED_LENGTH:
            if len(known) >= _REMEMBERED_TEXTS:
                known.clear()
            known[value] = cost, found
        return found

    def run(frame: Frame) -> bool:
        value = text(frame)
        try:
            cost, found = known[value]
        except (KeyError, TypeError):  # a new text, or a value without a hash
            return look(frame, value)
        left = frame[BUDGET] = frame[BUDGET] - cost
        if left < 0:
            raise BudgetExceeded
        return found

    return run


def _typed_call(overload: Overload, parts: list[ast.Node], args: list[Closure]) -> Closure | None:
    """A free call of the only possible overload on a value of unknown type: the Python type of the value tells enough.
    The second argument is a short constant, if there is one."""
    kind = _PYTHON_TYPES.get(overload.args[0]) if parts[0].type != overload.args[0] else None
    if kind is None:
        return None
    target, apply = args[0], overload.apply

    def unary(frame: Frame) -> Any:
        value = target(frame)
        if type(value) is kind:
            return apply(value)
        raise EvalError("no such overload")

    match args[1:]:
        case []:
            return unary
        case [Constant(value=constant)] if parts[1].type == overload.args[1] and weight(constant) <= _BOUNDED_WEIGHT:

            def binary(frame: Frame) -> Any:
                value = target(frame)
                if type(value) is kind:
                    return apply(value, constant)
                raise EvalError("no such overload")

            return binary
    return None
