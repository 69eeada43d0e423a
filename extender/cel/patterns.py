"""Regular expressions: RE2 compiles them, and the expression pays for the work, also where RE2 refuses a pattern."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import re2

from extender.cel.errors import EvalError

# 256 KiB holds every pattern of a 10 KiB expression but those with absurd repetitions such as (a{1000}){1000}.
_REGEX_MEMORY = 256 * 1024
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = _REGEX_MEMORY
_REMEMBERED, _REMEMBERED_LENGTH = 64, 256  # patterns, and characters of the longest one
# Units of 50 ns, measured with generated patterns.
_FLAT, _CHARACTER, _INSTRUCTION = 500, 50, 10
_CLASS_CHARACTER = 1250  # in a pattern with Unicode classes such as \pL, which have hundreds of ranges
_TOO_LARGE = 140_000  # RE2 fills its memory before it refuses the pattern


class _Pattern(NamedTuple):
    """RE2's answer: a program or an error, and the units that it took beside those for the length."""

    program: Any
    error: str
    units: int


def compiled(pattern: str, pay: Callable[[int], None]) -> Any:
    """The program of a pattern. `pay` takes the same units each time, so that no answer depends on what is remembered.

    Raises EvalError with the message of RE2, and what `pay` raises.
    """
    pay(_FLAT + len(pattern) * (_CLASS_CHARACTER if "\\p" in pattern or "\\P" in pattern else _CHARACTER))
    found = _known_pattern(pattern) if len(pattern) <= _REMEMBERED_LENGTH else _compiled_now(pattern)
    pay(found.units)
    if found.error:
        raise EvalError(found.error)
    return found.program


@lru_cache(maxsize=_REMEMBERED)
def _known_pattern(pattern: str) -> _Pattern:
    return _compiled_now(pattern)


def _compiled_now(pattern: str) -> _Pattern:
    try:
        program = re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        text = f"error parsing regexp: {error}"
        return _Pattern(None, text, _TOO_LARGE if "too large" in text else 0)
    re2.purge()  # its own cache would keep 128 patterns of any length
    return _Pattern(program, "", _INSTRUCTION * program.programsize)
