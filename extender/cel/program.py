"""The public operations: check an expression, estimate its cost, compile it, evaluate it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from extender.cel import ast
from extender.cel import types as t
from extender.cel.checker import Checker
from extender.cel.compiler import Binding, Compiler
from extender.cel.environment import Environment
from extender.cel.errors import BudgetExceeded, CompileError, too_deep
from extender.cel.estimator import estimate
from extender.cel.folding import constant_issues
from extender.cel.frame import FIRST_INPUT, Closure
from extender.cel.parser import parse
from extender.cel.types import TypesTooLarge
from extender.cel.work import TooMuchWork, Work

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


class Program:
    """A compiled expression: the same inputs give the same answer.

    A binding that evaluates often may call `run` with a frame of its own: [budget, *inputs, *locals]. `most_bytes` is
    the most memory that the program takes, estimated.
    """

    __slots__ = ("_inputs", "budget", "expression", "locals", "most_bytes", "run")

    def __init__(self, checked: Checked, run: Closure, slots: int, nodes: int) -> None:
        self._inputs = checked.environment.inputs
        self.expression = checked.expression
        self.budget = checked.environment.budget
        text_bytes = _TEXT_BYTES * sys.getsizeof(checked.expression)
        self.most_bytes = _PROGRAM_BYTES + text_bytes + _NODE_BYTES * nodes + checked.pattern_bytes
        self.run = run
        self.locals = (None,) * (slots - FIRST_INPUT - len(self._inputs))

    def evaluate(self, activation: Mapping[str, object]) -> object:
        """The value of the expression. `activation` holds every input by name, as a CEL value (see values.py).

        Raises EvalError where the expression has no value, BudgetExceeded where it takes too many units.
        """
        try:
            return self.run([self.budget, *(activation[name] for name in self._inputs), *self.locals])
        except RecursionError:
            raise BudgetExceeded from None


def check(expression: str, environment: Environment, work: Work | None = None) -> Checked:
    """The tree of an expression with its types; `work` is what the check and the program may cost. Raises CompileError
    with every issue."""
    try:
        tree, pattern_bytes = _typed(expression, environment, work or Work())
        return Checked(expression, tree, environment, pattern_bytes)
    except RecursionError:
        raise too_deep(expression) from None
    except (TypesTooLarge, TooMuchWork) as error:
        raise CompileError(expression, [], f"compilation failed: {error}") from None


def _typed(expression: str, environment: Environment, work: Work) -> tuple[ast.Node, int]:
    tree = parse(expression, work)
    checker = Checker(environment.functions, environment.declarations, environment.structs, work)
    checker.visit(tree)
    if checker.issues:
        raise CompileError(expression, checker.issues)
    checker.settle(tree)
    issues, pattern_bytes = constant_issues(tree, work)
    if issues:
        raise CompileError(expression, issues)
    return tree, pattern_bytes


def cost(checked: Checked) -> int:
    """The worst case of an evaluation in units of the API server; UNBOUNDED where nothing bounds it. Raises
    CompileError where the expression is nested too deeply."""
    try:
        return estimate(checked.tree, checked.environment.sizes)
    except RecursionError:
        raise too_deep(checked.expression) from None


def build(checked: Checked, binding: Binding | None = None) -> Program:
    """The program of a checked expression. Raises CompileError where the expression is nested too deeply."""
    compiler = Compiler(checked.environment, binding)
    try:
        run = compiler.visit(checked.tree)
    except RecursionError:
        raise too_deep(checked.expression) from None
    return Program(checked, run, compiler.slots, compiler.nodes(checked.tree))


def compile(expression: str, environment: Environment) -> Program:  # noqa: A001 - the name of this step in every CEL
    """Check an expression and make its program. Raises CompileError with every issue."""
    return build(check(expression, environment))
