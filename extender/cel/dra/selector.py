"""A device selector: an expression in a dialect of the API server, compiled once and evaluated on many devices.

`match` is three-valued: True, False, or an EvalError with the text of the reference. Equal inputs give equal answers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from extender.api.quantity import NANO
from extender.api.resource_slices import Device
from extender.cel import ast
from extender.cel import types as t
from extender.cel.compiler import Checked, Environment, Program, build, check, cost
from extender.cel.cost import UNBOUNDED, Size, Work
from extender.cel.dra.device_binding import DeviceBinding, constant_path
from extender.cel.errors import BudgetExceeded, CelError, CompileError, Compiling, EvalError
from extender.cel.library import kubernetes_library
from extender.cel.library.kubernetes import quantity
from extender.cel.values import type_name
from extender.vendors import amount_of_memory

COST_LIMIT = 1_000_000  # units of an estimate and of an evaluation: resource.k8s.io CELSelectorExpressionMaxCost
LATEST = (1, 37)
_DEVICE = t.Type("struct", "kubernetes.DRADevice")
# resource.k8s.io limits of a device: characters of names and values, entries of a map.
_DRIVER, _DOMAIN, _ID, _VALUE, _ENTRIES = 63, 63, 32, 64, 32


@dataclass(frozen=True, slots=True)
class Dialect:
    """The CEL of one kind of expressions: stored ones (scheduling, every function) or new ones on a version."""

    version: tuple[int, int] = LATEST
    stored: bool = True
    list_types: bool = True  # feature gate DRAListTypeAttributes: the type of an attribute is dyn, otherwise any
    consumable_capacity: bool = True  # feature gate DRAConsumableCapacity; it only matters for new expressions


STORED = Dialect()


@lru_cache(maxsize=16)
def environment_of(dialect: Dialect) -> Environment:
    """The environment of device selectors in a dialect."""
    attribute = t.DYN if dialect.list_types else t.ANY
    fields = {
        "driver": t.STRING,
        "attributes": t.map_of(t.STRING, t.map_of(t.STRING, attribute)),
        "capacity": t.map_of(t.STRING, t.map_of(t.STRING, t.QUANTITY)),
    }
    if dialect.stored or (dialect.consumable_capacity and dialect.version >= (1, 34)):
        fields["allowMultipleAllocations"] = t.BOOL
    major, minor = dialect.version
    # New expressions may use the functions of the version before, so that a roll-back can read them.
    known = dialect.version if dialect.stored else (major, minor - 1)
    includes = dialect.version >= (1, 36) and (dialect.stored or dialect.list_types)
    return Environment(
        kubernetes_library(known, includes=includes, all_versions=dialect.stored),
        variables={"device": _DEVICE},
        structs={_DEVICE.name: fields},
        sizes={_DEVICE.name: _field_sizes()},
    )


def _field_sizes() -> dict[str, Size]:
    value = Size(_VALUE, item=Size(_VALUE))
    attributes = Size(_ENTRIES, value, Size(_ID))
    amounts = Size(_ENTRIES, Size(), Size(_ID))
    return {
        "driver": Size(_DRIVER),
        "attributes": Size(_ENTRIES, attributes, Size(_DOMAIN)),
        "capacity": Size(_ENTRIES, amounts, Size(_DOMAIN)),
        "allowMultipleAllocations": Size(1),
    }


class Selector:
    """A compiled selector. `reads` are the names of the parts of a device that it reads (see DeviceBinding), `terms`
    the texts of a, (b && c) and d in a && (b && c) && d.

    `most_bytes` is the most memory that it takes, estimated; `least_memory` the bytes of memory that it demands of a
    device, or 0.
    """

    __slots__ = ("_locals", "_run", "expression", "least_memory", "most_bytes", "reads", "terms")

    def __init__(self, program: Program, reads: frozenset[str], terms: tuple[str, ...], least_memory: int) -> None:
        self.expression = program.expression
        self.least_memory = least_memory
        self.most_bytes = program.most_bytes
        self.reads = reads
        self.terms = terms
        self._run = program.run
        self._locals = program.locals

    def match(self, device: Device, driver: str, units: int = COST_LIMIT) -> bool:
        """Whether the device is selected. Raises EvalError or BudgetExceeded where the expression has no answer; the
        latter, too, where the evaluation takes more than `units`."""
        frame = [units, device, driver]
        if self._locals:
            frame += self._locals
        try:
            value = self._run(frame)
        except CelError:
            raise
        except Exception as error:  # a fault in one selector must not end the work for other pods
            raise _fault(error) from error
        if value is True or value is False:
            return value
        raise EvalError(f"CEL result of type {type_name(value)} could not be converted to bool")

    def value(self, device: Device, driver: str, units: int = COST_LIMIT) -> object:
        """The value of the expression, of any type. Raises EvalError, or BudgetExceeded above `units`."""
        try:
            return self._run([units, device, driver, *self._locals])
        except CelError:
            raise
        except Exception as error:
            raise _fault(error) from error


def _fault(error: Exception) -> CelError:
    """The error of an expression whose evaluation failed with an error that the language does not have."""
    if isinstance(error, RecursionError):
        return BudgetExceeded()
    return EvalError(f"internal error of the evaluation: {type(error).__name__}")  # a fault of Berth


def compile_selector(expression: str, dialect: Dialect = STORED, work: Work | None = None) -> Selector:
    """Compile an expression that must yield a bool. Raises CompileError with every issue."""
    checked = check_selector(expression, dialect, work)
    _check_output(checked, dialect)
    return _selector(checked)


def compile_value(expression: str, dialect: Dialect = STORED, work: Work | None = None) -> Selector:
    """Compile an expression of any type, for its `value`. Raises CompileError with every issue."""
    return _selector(check_selector(expression, dialect, work))


def _selector(checked: Checked) -> Selector:
    binding = DeviceBinding()
    program = build(checked, binding)
    terms = terms_of(checked.expression, checked.tree)
    with Compiling(checked.expression):
        return Selector(program, frozenset(binding.reads), terms, least_memory(checked.tree))


def terms_of(expression: str, tree: ast.Node) -> tuple[str, ...]:
    """The texts of a, (b && c) and d in a && (b && c) && d; the whole expression if it is not such a chain."""
    if not isinstance(tree, ast.Call) or tree.function != "_&&_" or tree.parenthesized:
        return (expression.strip(),)
    operators = ast.chain(tree, enter_parentheses=False).offsets
    starts = [0, *(offset + len("&&") for offset in operators)]
    ends = [*operators, len(expression)]
    return tuple(expression[start:end].strip() for start, end in zip(starts, ends, strict=True))


def check_selector(expression: str, dialect: Dialect = STORED, work: Work | None = None) -> Checked:
    """The typed tree of an expression about a device. Raises CompileError with every issue."""
    return check(expression, environment_of(dialect), work)


def check_cost(expression: str, dialect: Dialect) -> None:
    """Reject an expression as the API server does on creation: its worst case is above the limit. Raises
    CompileError."""
    worst = cost(check_selector(expression, dialect))
    if worst > COST_LIMIT:
        factor = "without bound" if worst >= UNBOUNDED else f"{worst / COST_LIMIT:.1f} times the limit"
        problem = f"too complex, exceeds cost limit: the worst case is {factor} of {COST_LIMIT}"
        raise CompileError(expression, [], problem)


def _check_output(checked: Checked, dialect: Dialect) -> None:
    allowed = ("bool", "any", "dyn") if dialect.list_types else ("bool", "any")
    kind = checked.type.kind
    if kind not in allowed:
        shown = {"null": "null_type", "any": "google.protobuf.Any"}.get(kind, str(checked.type))
        raise CompileError(checked.expression, [], f"must evaluate to bool or the unknown type, not {shown}")


# -- the least memory that a selector demands of a device, read from its tree once per program ----------------------

_Compare = Callable[[int, int], bool]
_COMPARISONS: dict[str, _Compare] = {
    "isLessThan": operator.lt,
    "isGreaterThan": operator.gt,
    "_<_": operator.lt,
    "_<=_": operator.le,
    "_==_": operator.eq,
    "_!=_": operator.ne,
    "_>=_": operator.ge,
    "_>_": operator.gt,
}
_SIGNS = (-1, 0, 1)


class _Comparison(NamedTuple):
    """A comparison of two amounts. It is true if the sign of left - right is in `signs`."""

    left: ast.Node
    right: ast.Node
    signs: frozenset[int]


def least_memory(tree: ast.Node) -> int:
    """The memory in bytes that each device has that the checked tree selects and that has memory; 0 for none.

    A demand is a comparison of a device's memory with a constant amount: by compareTo, isLessThan, isGreaterThan, sign
    of a difference, asInteger, == or `in`, on either side, joined by &&, ||, ! and ?:. Any other part demands nothing.
    So the answer may be too small, and is never too large. An upper bound demands nothing.
    """
    return _least(tree, wanted=True)


def _least(node: ast.Node, *, wanted: bool) -> int:
    """The least memory in bytes of the devices on which the node is `wanted`. One Python frame for each level."""
    match node:
        case ast.Call(function="!_", args=[part]):
            return _least(part, wanted=not wanted)
        case ast.Call(function="_&&_" | "_||_" as name):
            parts = []
            for term in ast.chain(node, enter_parentheses=True).terms:
                parts.append(_least(term, wanted=wanted))  # noqa: PERF401 - a comprehension takes a second frame
            return max(parts) if (name == "_&&_") == wanted else min(parts)
        case ast.Call(function="_?_:_", args=[_, yes, no]):
            return min(_least(yes, wanted=wanted), _least(no, wanted=wanted))
        case ast.Call(function="@in", args=[item, ast.ListLiteral(items=items)]) if wanted and _is_memory(item):
            amounts = [_amount(one) for one in items]
            return _bytes(min(amounts)) if amounts else 0
        case ast.Call():
            return _bound(node, wanted=wanted)
    return 0


def _bound(node: ast.Call, *, wanted: bool) -> int:
    """The bytes that a comparison of memory with a constant demands; 0 for any other call."""
    found = _comparison(node)
    if found is None:
        return 0
    left, right, signs = found
    if _is_memory(right):
        left, right, signs = right, left, frozenset(-sign for sign in signs)
    return _bytes(_amount(right)) if _is_memory(left) and (-1 in signs) != wanted else 0


def _comparison(node: ast.Call) -> _Comparison | None:
    compare = _COMPARISONS.get(node.function)
    if compare is None:
        return None
    left, right = node.parts
    if (pair := _difference(left)) is not None and isinstance(right, ast.Literal) and type(right.value) is int:
        return _Comparison(*pair, _signs(compare, right.value))
    if (pair := _difference(right)) is not None and isinstance(left, ast.Literal) and type(left.value) is int:
        number = left.value
        return _Comparison(*pair, frozenset(sign for sign in _SIGNS if compare(number, sign)))
    return _Comparison(left, right, _signs(compare, 0))


def _signs(compare: _Compare, number: int) -> frozenset[int]:
    return frozenset(sign for sign in _SIGNS if compare(sign, number))


def _difference(node: ast.Node) -> tuple[ast.Node, ast.Node] | None:
    """a and b of a call whose value is the sign of a - b."""
    match node:
        case ast.Call(function="compareTo", target=ast.Node() as left, args=[right]):
            return left, right
        case ast.Call(function="sign", parts=[ast.Call(function="sub", target=ast.Node() as left, args=[right])]):
            return left, right
    return None


def _is_memory(node: ast.Node) -> bool:
    """Whether the node reads the memory of the device, as a quantity or a number, with or without a default."""
    match node:
        case ast.Call(function="asInteger" | "asApproximateFloat" | "orValue", target=ast.Node() as read):
            return _is_memory(read)
        case ast.Call(function="_?._", args=[domain, ast.Literal(value=str() as name)]):
            path = (*(constant_path(domain) or ()), name)
        case _:
            path = constant_path(node) or ()
    match path:
        case ("capacity", _, name):
            return amount_of_memory({name: name}) is not None
    return False


def _amount(node: ast.Node) -> int:
    """The nanos of a constant amount: a quantity, a whole number or a product of those; 0 for any other node."""
    match node:
        case ast.Call(function="quantity", args=[ast.Literal(value=str() as text)]):
            try:
                return quantity(text).nanos
            except EvalError:  # only an evaluation of the selector reports it
                return 0
        case ast.Literal(value=int() as number):
            return int(number) * NANO
        case ast.Call(function="_*_", args=[left, ast.Literal(value=int() as factor)]):
            return _amount(left) * int(factor)
    return 0


def _bytes(nanos: int) -> int:
    return max(-(-nanos // NANO), 0)
