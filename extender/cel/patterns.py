"""Regular expressions: RE2 compiles them, and the expression pays for the work, also where RE2 refuses a pattern.

RE2 keeps its program and the states that its searches made within `max_mem`, and beside them the parsed pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import re2

from extender.cel.errors import EvalError


def _options(max_mem: int) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = max_mem
    options.never_capture = True  # no function of CEL reads a group; groups make a search many times as long
    return options


# Most patterns fit into 32 KiB. 256 KiB holds every pattern of a 10 KiB expression but those with absurd repetitions
# such as (a{1000}){1000}.
_OPTIONS = _options(32 * 1024), _options(256 * 1024)
_REMEMBERED, _REMEMBERED_LENGTH = 64, 256  # patterns, and characters of the longest one
# Bytes of the parsed pattern for each character, measured; in a pattern with Unicode classes, and in any other.
_CLASS_CHARACTER_BYTES, _CHARACTER_BYTES = 2000, 100
# Units of 50 ns, measured with generated patterns.
_FLAT, _CHARACTER, _INSTRUCTION = 500, 50, 10
_CLASS_CHARACTER = 1250  # in a pattern with Unicode classes such as \pL, which have hundreds of ranges
_TOO_LARGE = 140_000  # RE2 fills its memory before it refuses the pattern
_ESCAPES = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.", re.DOTALL)  # Go does not have RE2's \C, a byte


class _Pattern(NamedTuple):
    """RE2's answer: a program or an error, and the units that it took beside those for the length."""

    program: Any
    error: str
    units: int


def compiled(pattern: str, pay: Callable[[int], None]) -> Any:
    """The program of a pattern. `pay` takes the same units each time, so that no answer depends on what is remembered.

    Raises EvalError with the message of RE2, and what `pay` raises.
    """
    pay(_FLAT + len(pattern) * (_CLASS_CHARACTER if _has_classes(pattern) else _CHARACTER))
    found = _known_pattern(pattern) if len(pattern) <= _REMEMBERED_LENGTH else _compiled_now(pattern)
    pay(found.units)
    if found.error:
        raise EvalError(found.error)
    return found.program


def bytes_of(program: Any) -> int:
    """The most bytes that a program takes, after any number of searches."""
    pattern = program.pattern
    tree = len(pattern) * (_CLASS_CHARACTER_BYTES if _has_classes(pattern) else _CHARACTER_BYTES)
    return int(program.options.max_mem) + tree


def _has_classes(pattern: str) -> bool:
    return "\\p" in pattern or "\\P" in pattern


@lru_cache(maxsize=_REMEMBERED)
def _known_pattern(pattern: str) -> _Pattern:
    return _compiled_now(pattern)


def _compiled_now(pattern: str) -> _Pattern:
    if "\\C" in (match.group() for match in _ESCAPES.finditer(pattern)):
        return _Pattern(None, "error parsing regexp: invalid escape sequence: `\\C`", 0)
    problem = ""
    for options in _OPTIONS:
        try:
            program = re2.compile(pattern, options)
        except re2.error as error:
            problem = f"error parsing regexp: {error.args[0].decode()}"
            if "too large" not in problem:
                return _Pattern(None, problem, 0)
        else:
            re2.purge()  # its own cache would keep 128 patterns of any length
            return _Pattern(program, "", _INSTRUCTION * program.programsize)
    return _Pattern(None, problem, _TOO_LARGE)
