"""Messages for values of a user that are not valid, in words that need no knowledge of pydantic."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import ValidationError

from extender.model import one_line, shown
from extender.wire import Positions

_MOST_FAULTS = 5  # faults in one message
_VALID = {"integer": "an integer", "dictionary": "an object"}
_WORDS = (
    (re.compile(r"Extra inputs are not permitted"), "is no known field"),
    (re.compile(r"Field required"), "is missing"),
    (re.compile(r"Unable to extract tag using discriminator '(\w+)'"), r"has no \1"),
    (
        re.compile(r"Input tag ('.*') found using '(\w+)' does not match any of the expected tags: (.*)", re.DOTALL),
        r"\2 must be one of \3, is \1",
    ),
    (re.compile(r"(?:Value error|Assertion failed), "), ""),
    (re.compile(r"Input should be greater than or equal to "), "must be at least "),
    (re.compile(r"Input should be less than or equal to "), "must be at most "),
    (re.compile(r"Input should be greater than "), "must be above "),
    (re.compile(r"Input should be less than "), "must be below "),
    (re.compile(r"Input should be "), "must be "),
    (re.compile(r"\b[A-Z]\w+ should have "), "must have "),
    (re.compile(r" after validation, not \d+"), ""),
)
_TYPE = re.compile(r"Input should be a valid (\w+).*")


def in_plain_words(problem: str) -> str:
    """A message of pydantic as Berth writes it."""
    problem = _TYPE.sub(lambda found: f"must be {_VALID.get(found[1], f'a {found[1]}')}", problem)
    for pattern, words in _WORDS:
        problem = pattern.sub(words, problem)
    return problem


def faults_of(error: ValidationError, positions: Positions) -> str:
    """The faults that pydantic found, on one line: field, problem, value, and line and column if known."""
    faults = error.errors(include_url=False, include_context=False)
    sentences = [_fault(fault["loc"], fault["msg"], _value(fault), positions) for fault in faults[:_MOST_FAULTS]]
    return "; ".join(sentences) + (f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else "")


def _fault(loc: tuple[int | str, ...], problem: str, value: str, positions: Positions) -> str:
    problem = in_plain_words(problem)
    line, column = positions.get(loc) or positions.get(loc[:-1]) or (0, 0)
    details = ", ".join(part for part in (value, f"line {line}, column {column}" if line else "") if part)
    return f"{one_line('.'.join(map(str, loc)))}: {problem}{f' ({details})' if details else ''}"


def _value(fault: Mapping[str, object]) -> str:
    """The wrong value as text; '' for a missing field, where pydantic gives the surrounding object."""
    return "" if fault["type"] == "missing" else f"is {shown(fault['input'])}"
