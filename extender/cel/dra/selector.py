"""A device selector: an expression in a dialect of the API server, compiled once and evaluated on many devices.

`match` is three-valued: True, False, or an EvalError with the text of the reference. Equal inputs give equal answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from extender.api.resource_slices import Device
from extender.cel import ast
from extender.cel import types as t
from extender.cel.compiler import Checked, Environment, Program, build, check, cost
from extender.cel.cost import UNBOUNDED, Size, Work
from extender.cel.dra.device_binding import DeviceBinding
from extender.cel.dra.memory_bound import least_memory
from extender.cel.errors import BudgetExceeded, CelError, CompileError, Compiling, EvalError
from extender.cel.library import kubernetes_library
from extender.cel.values import type_name

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
