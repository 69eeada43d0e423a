"""What can go wrong with an expression, before and while it runs.

CelError
 ├─ CompileError   the expression is refused; carries positions
 ├─ EvalError      the expression failed on one device; && and || may absorb it
 └─ BudgetExceeded it did more work than one evaluation may; nothing absorbs it
"""

from __future__ import annotations

from typing import NamedTuple

from extender.model.errors import BerthError


class CelError(BerthError):
    """Root of all errors about expressions."""


class Issue(NamedTuple):
    """One finding of the compiler; `offset` counts characters from the start of the source."""

    offset: int
    message: str


class CompileError(CelError):
    """The expression cannot be used. `issues` may be empty where no single place is at fault."""

    def __init__(self, source: str, issues: list[Issue], summary: str = "") -> None:
        self.source = source
        self.issues = issues
        super().__init__(summary or "compilation failed: " + "\n".join(caret(source, issue) for issue in issues))


class EvalError(CelError):
    """The expression has no value for this device."""


class BudgetExceeded(CelError):
    """The expression was stopped: it reached the cost limit of one evaluation."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")


def position(source: str, offset: int) -> tuple[int, int]:
    """Line and column of a character, both counted from 1."""
    line = source.count("\n", 0, offset)
    start = source.rfind("\n", 0, offset) + 1
    return line + 1, offset - start + 1


def caret(source: str, issue: Issue) -> str:
    """The finding with its line and a mark under the place, as kubectl users know it."""
    line, column = position(source, issue.offset)
    text = source.split("\n")[line - 1]
    return f"ERROR: <input>:{line}:{column}: {issue.message}\n | {text}\n | {'.' * (column - 1)}^"
