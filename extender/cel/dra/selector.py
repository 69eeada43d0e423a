"""A device selector: an expression that is compiled once and evaluated on many devices.

`match` is three-valued: True, False, or an EvalError with the text of the reference. Equal inputs give equal answers.
"""

from __future__ import annotations

from extender.cel import ast
from extender.cel.dra.device_binding import DeviceBinding
from extender.cel.dra.dialect import COST_LIMIT, STORED, Dialect, environment_of
from extender.cel.errors import BudgetExceeded, CelError, CompileError, EvalError
from extender.cel.prices import UNBOUNDED
from extender.cel.program import Checked, Program, build, check, cost
from extender.cel.values import type_name
from extender.cel.work import Work
from extender.model import Device

_AND = "_&&_"
_INTERNAL = "internal error of the evaluation:"  # a fault of Berth


class Selector:
    """A compiled selector. `reads` are the names of the parts of a device that it reads (see DeviceBinding), `terms`
    the texts of a, (b && c) and d in a && (b && c) && d.

    `most_bytes` is the most memory that it takes, estimated.
    """

    __slots__ = ("_locals", "_run", "expression", "most_bytes", "reads", "terms")

    def __init__(self, program: Program, reads: frozenset[str], terms: tuple[str, ...]) -> None:
        self.expression = program.expression
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
    return BudgetExceeded() if isinstance(error, RecursionError) else EvalError(f"{_INTERNAL} {type(error).__name__}")


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
    return Selector(program, frozenset(binding.reads), terms)


def terms_of(expression: str, tree: ast.Node) -> tuple[str, ...]:
    """The texts of a, (b && c) and d in a && (b && c) && d; the whole expression if it is not such a chain."""
    if not isinstance(tree, ast.Call) or tree.function != _AND or tree.parenthesized:
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
