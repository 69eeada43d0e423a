"""CEL as Kubernetes speaks it: lexer, parser, type checker, cost estimate, library and closures.

This package is the language. `extender.cel.dra` binds it to the devices of Dynamic Resource Allocation; the language
never imports the binding. Other packages import from these two packages only. docs/cel.md describes the dialect.
"""

from extender.cel import types
from extender.cel.cost import UNBOUNDED, Size
from extender.cel.errors import BudgetExceeded, CelError, CompileError, EvalError, Issue, position
from extender.cel.library import kubernetes_library
from extender.cel.program import Checked, Environment, Program, check, compile, cost  # noqa: A004 - see program.compile

__all__ = [
    "UNBOUNDED",
    "BudgetExceeded",
    "CelError",
    "Checked",
    "CompileError",
    "Environment",
    "EvalError",
    "Issue",
    "Program",
    "Size",
    "check",
    "compile",
    "cost",
    "kubernetes_library",
    "position",
    "types",
]
