"""The errors of an expression, before and while it runs.

CelError
 ├─ CompileError   the expression is rejected; the error carries positions
 ├─ TooMuchWork    the compilation takes too long; `Compiling` makes a CompileError of it
 ├─ EvalError      the expression has no value for these inputs; && and || may absorb the error
 └─ BudgetExceeded an evaluation took more units than it may; nothing absorbs the error
"""

from __future__ import annotations

from typing import NamedTuple

from extender.base.berth_errors import BerthError

# Of one compile error: issues, characters of a message, and characters of the line around the place. An expression of
# 10 KiB may have thousands of issues in one line.
_ISSUES, _MESSAGE, _LINE = 32, 512, 200


class CelError(BerthError):
    """Root of all errors about expressions."""


class Issue(NamedTuple):
    """One mistake in an expression; `offset` counts characters from the start of the source."""

    offset: int
    message: str


class CompileError(CelError):
    """The expression is rejected.

    `issues` has the first 32 issues, with messages of 512 characters at most; it is empty where no single place is at
    fault.
    """

    def __init__(self, source: str, issues: list[Issue], summary: str = "") -> None:
        self.source = source
        self.issues = [Issue(issue.offset, issue.message[:_MESSAGE]) for issue in issues[:_ISSUES]]
        more = [f"and {len(issues) - _ISSUES} more issues"] if len(issues) > _ISSUES else []
        shown = [caret(source, issue) for issue in self.issues]
        super().__init__(summary or "compilation failed: " + "\n".join(shown + more))


class TooMuchWork(CelError):
    """The compilation of an expression takes too much work."""


class Compiling:
    """Around the work with an expression: raises CompileError where the work is too much, or Python's stack does not
    hold the tree."""

    __slots__ = ("_source",)

    def __init__(self, source: str) -> None:
        self._source = source

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, RecursionError):
            raise CompileError(self._source, [], "compilation failed: the expression is nested too deeply") from None
        if isinstance(error, TooMuchWork):
            raise CompileError(self._source, [], f"compilation failed: {error}") from None


class EvalError(CelError):
    """The expression has no value for these inputs."""


class BudgetExceeded(CelError):
    """The evaluation stopped: it reached the cost limit."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")


def shown(text: str) -> str:
    """A text in a message about it. A text that an expression makes may have any length."""
    return repr(text if len(text) <= _MESSAGE else text[:_MESSAGE] + "…")


def position(source: str, offset: int) -> tuple[int, int]:
    """Line and column of a character, both counted from 1."""
    line = source.count("\n", 0, offset)
    start = source.rfind("\n", 0, offset) + 1
    return line + 1, offset - start + 1


def caret(source: str, issue: Issue) -> str:
    """The issue with its line and a mark under the place, as the API server prints it; of a long line a part."""
    line, column = position(source, issue.offset)
    text, mark = source.split("\n")[line - 1], column - 1
    if len(text) > _LINE:
        begin = max(mark - _LINE // 2, 0)
        text, mark = text[begin : begin + _LINE], mark - begin
    return f"ERROR: <input>:{line}:{column}: {issue.message}\n | {text}\n | {'.' * mark}^"
