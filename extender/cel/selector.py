"""The door of the room: an expression compiled once, evaluated on many devices.

`match` is three-valued: True, False, or an EvalError with the reference's words. Equal inputs give equal answers;
nothing here keeps state but the caller's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from extender.cel import ast
from extender.cel import types as t
from extender.cel.check import Checker
from extender.cel.compile import FIRST_LOCAL, Closure, Compiler
from extender.cel.cost import UNBOUNDED, estimate
from extender.cel.errors import BudgetExceeded, CompileError, EvalError
from extender.cel.functions import Library
from extender.cel.library import library
from extender.cel.literals import literal_issues
from extender.cel.messages import MESSAGES
from extender.cel.parser import parse
from extender.cel.values import type_name
from extender.model.device import LIST_KINDS, Device

COST_LIMIT = 1_000_000  # resource.k8s.io CELSelectorExpressionMaxCost
LATEST = (1, 37)

_TYPE_IDENTS = {
    "bool": "bool", "bytes": "bytes", "double": "double", "int": "int", "list": "list", "map": "map",
    "null_type": "null_type", "string": "string", "type": "type", "uint": "uint",
    **{name: name for name in MESSAGES},
    "optional_type": "optional_type", "kubernetes.Quantity": "kubernetes.Quantity",
    "kubernetes.Semver": "kubernetes.Semver", "kubernetes.URL": "kubernetes.URL", "net.IP": "net.IP",
    "net.CIDR": "net.CIDR", "kubernetes.NamedFormat": "kubernetes.NamedFormat",
    "kubernetes.DRADevice": "kubernetes.DRADevice",
}
_IDENT_TYPES = {
    "bool": t.BOOL, "bytes": t.BYTES, "double": t.DOUBLE, "int": t.INT, "string": t.STRING, "uint": t.UINT,
    "null_type": t.NULL, "list": t.list_of(t.DYN), "map": t.map_of(t.DYN, t.DYN),
}
_OPAQUE = frozenset({"optional_type", "type", "net.IP", "net.CIDR"})


def _ident_type(name: str) -> t.Type:
    """What a type's name stands for, as in type(x) == name and name{...}."""
    if name in MESSAGES:
        return MESSAGES[name].type
    return t.DYN if name in _OPAQUE else _IDENT_TYPES.get(name) or t.Type("struct", name)


@dataclass(frozen=True, slots=True)
class Environment:
    """Which dialect: that of stored expressions (scheduling, everything known), or of new ones on a version."""

    version: tuple[int, int] = LATEST
    stored: bool = True
    list_types: bool = False  # DRAListTypeAttributes: attributes are dyn, lists are values
    consumable_capacity: bool = True  # DRAConsumableCapacity; only matters for new expressions

    @property
    def effective(self) -> tuple[int, int]:
        """New expressions may use what the version before knew, so that a roll-back can read them."""
        return self.version if self.stored else (self.version[0], self.version[1] - 1)

    @property
    def knows_includes(self) -> bool:
        return self.version >= (1, 36) and (self.stored or self.list_types)


STORED = Environment()


class Selector:
    """A compiled expression."""

    __slots__ = ("_list_types", "_locals", "_run", "expression", "reads", "terms")

    def __init__(self, expression: str, run: Closure, slots: int, reads: frozenset[str], *, list_types: bool) -> None:
        self.expression = expression
        self.reads = reads
        self._run = run
        self._locals = (None,) * (slots - FIRST_LOCAL)
        self._list_types = list_types

    def match(self, device: Device, driver: str) -> bool:
        """Whether the device is selected. Raises EvalError or BudgetExceeded where it cannot be told."""
        if device.attributes.schema.irregular:
            self._check_device(device)
        frame = [device, driver, COST_LIMIT]
        if self._locals:
            frame += self._locals
        try:
            value = self._run(frame)
        except RecursionError:
            raise BudgetExceeded from None
        if value is True or value is False:
            return value
        raise EvalError(f"CEL result of type {type_name(value)} could not be converted to bool")

    def value(self, device: Device, driver: str) -> object:
        """What the expression yields, of whatever type."""
        try:
            return self._run([device, driver, COST_LIMIT, *self._locals])
        except RecursionError:
            raise BudgetExceeded from None

    def _check_device(self, device: Device) -> None:
        schema = device.attributes.schema
        if schema.problem:
            raise EvalError(schema.problem)
        if schema.has_lists and not self._list_types:
            raise EvalError(_unsupported(device))


def _unsupported(device: Device) -> str:
    schema = device.attributes.schema
    name = next(n for n, kind in zip(schema.names, schema.kinds, strict=True) if kind in LIST_KINDS)
    return f"attribute {name}: unsupported attribute value"


def compile_selector(expression: str, environment: Environment = STORED) -> Selector:
    """Compile an expression that must yield a bool. Raises CompileError with every finding."""
    return _compile(expression, environment, must_be_bool=True)


def compile_value(expression: str, environment: Environment = STORED) -> Selector:
    """Compile an expression of any type; read its `value`. Raises CompileError."""
    return _compile(expression, environment, must_be_bool=False)


def _compile(expression: str, environment: Environment, *, must_be_bool: bool) -> Selector:
    try:
        tree = checked(expression, environment)
        if must_be_bool:
            _check_output(expression, tree, environment)
        compiler = Compiler(_TYPE_IDENTS)
        run = compiler.build(tree)
    except RecursionError:
        raise CompileError(expression, [], "compilation failed: the expression is nested too deeply") from None
    return Selector(
        expression, run, compiler.slots, frozenset(compiler.reads), list_types=environment.list_types
    )


def check_cost(expression: str, environment: Environment) -> None:
    """Refuse what the API server refuses on creation. Raises CompileError where the worst case is above the limit."""
    worst = estimate(checked(expression, environment))
    if worst > COST_LIMIT:
        factor = "without bound" if worst >= UNBOUNDED else f"{worst / COST_LIMIT:.1f} times the limit"
        raise CompileError(expression, [], f"too complex, exceeds cost limit: the worst case is {factor} of {COST_LIMIT}")


def checked(expression: str, environment: Environment = STORED) -> ast.Node:
    """The tree with types. Raises CompileError."""
    tree = parse(expression)
    functions, variables, fields = _declarations(environment)
    checker = Checker(functions, variables, fields)
    checker.check(tree)
    if checker.issues:
        raise CompileError(expression, checker.issues)
    checker.settle(tree)
    issues = literal_issues(tree)
    if issues:
        raise CompileError(expression, issues)
    return tree


def _check_output(expression: str, tree: ast.Node, environment: Environment) -> None:
    allowed = ("bool", "any", "dyn") if environment.list_types else ("bool", "any")
    shown = tree.type or t.ERROR
    if shown.kind not in allowed:
        raise CompileError(expression, [], f"must evaluate to bool or the unknown type, not {_shown(shown)}")


def _shown(type_: t.Type) -> str:
    return {"null": "null_type", "any": "google.protobuf.Any"}.get(type_.kind, str(type_))


@lru_cache(maxsize=16)
def _declarations(environment: Environment) -> tuple[Library, dict[str, t.Type], dict[str, dict[str, t.Type]]]:
    attribute = t.DYN if environment.list_types else t.ANY
    fields = {
        "driver": t.STRING,
        "attributes": t.map_of(t.STRING, t.map_of(t.STRING, attribute)),
        "capacity": t.map_of(t.STRING, t.map_of(t.STRING, t.QUANTITY)),
    }
    if environment.stored or (environment.consumable_capacity and environment.version >= (1, 34)):
        fields["allowMultipleAllocations"] = t.BOOL
    variables = {"device": t.DEVICE}
    for name in _TYPE_IDENTS:
        variables[name] = t.type_of(_ident_type(name))
    functions = library(environment.effective, includes=environment.knows_includes, all_versions=environment.stored)
    return functions, variables, {t.DEVICE.name: fields}
