"""The operations on an expression: check it in an environment, estimate its cost, compile it for a binding."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from extender.cel import ast
from extender.cel import types as t
from extender.cel.checker import Checker
from extender.cel.compiler import Binding, Compiler
from extender.cel.cost import Closure, Estimator, Sizes, Work
from extender.cel.errors import CompileError, Compiling
from extender.cel.folding import constant_issues
from extender.cel.messages import MESSAGES
from extender.cel.overloads import Library
from extender.cel.parser import parse

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
