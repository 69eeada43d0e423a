"""Reading of JSON text within limits on its size, depth and numbers. Errors give line and column."""

from __future__ import annotations

import re
from typing import Any

import orjson

from extender.model import WireError, one_line

MOST_YAML = 8 * 1024 * 1024  # characters of YAML text; parsing this much takes some seconds
MOST_JSON = 256 * 1024 * 1024  # bytes of JSON text: `berth snapshot` of a large cluster
MOST_DEPTH = 100  # nested objects and lists; a manifest has about 20 levels
LEAST_INTEGER, MOST_INTEGER = -(1 << 63), (1 << 64) - 1

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEYS = re.compile(rf"{_STRING}(\s*:)?")
_KEYS_AND_BRACES = re.compile(rf"({_STRING})(\s*:)?|[{{}}]")
_STRINGS_AND_LONG_INTEGERS = re.compile(rf"{_STRING}|(?<![\w.+-])-?[0-9]{{19,}}(?![\w.])", re.ASCII)
_CHECKED = (dict, list, float)
_MOST_DIGITS = 20  # of a decimal integer of 64 bits, with its sign


def json_value(content: bytes, where: str) -> Any:
    """Parse a JSON text. Raises WireError."""
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise not_json(error, where) from error
    check_json(found, content.decode(), where)
    return found


def check_json(value: Any, text: str, where: str) -> None:
    """Raises WireError if `value`, parsed from `text`, breaks a limit.

    Of a key that occurs twice in an object, orjson takes the last. That is found in texts of at most MOST_YAML
    characters: longer ones are written by programs, and the search would take seconds.
    """
    keys, is_large = _measures(value, where)
    if is_large:
        _check_integers(text, where)
    if len(text) <= MOST_YAML and keys != sum(map(bool, _KEYS.findall(text))):
        raise fault(where, "a key occurs twice", *position(text[: _second_key(text)]))


def not_json(error: orjson.JSONDecodeError, where: str) -> WireError:
    return fault(where, f"is not JSON: {one_line(error.msg)}", error.lineno, error.colno)


def fault(where: str, problem: str, line: int, column: int) -> WireError:
    return WireError(where, f"{problem} (line {line}, column {column})")


def position(before: str) -> tuple[int, int]:
    """(line, column), counted from 1, of the character after the text."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _measures(value: Any, where: str) -> tuple[int, bool]:
    """(keys of all objects, whether it has a number beyond 64 bits, which orjson makes of a longer integer).

    Raises WireError if it is nested too deep.
    """
    level = [value] if isinstance(value, _CHECKED) else []
    keys, is_large = 0, False
    for _ in range(MOST_DEPTH + 1):
        numbers = [number for number in level if type(number) is float]
        is_large = is_large or any(not LEAST_INTEGER < number < MOST_INTEGER for number in numbers)
        if len(numbers) == len(level):
            return keys, is_large
        keys += sum(len(outer) for outer in level if type(outer) is dict)
        inside = (outer.values() if type(outer) is dict else outer for outer in level if not isinstance(outer, float))
        level = [inner for values in inside for inner in values if isinstance(inner, _CHECKED)]
    raise WireError(where, f"is nested deeper than {MOST_DEPTH} levels")


def _check_integers(text: str, where: str) -> None:
    """Raises WireError for an integer beyond 64 bits in a JSON text; 1e30 is no integer."""
    for match in _STRINGS_AND_LONG_INTEGERS.finditer(text):
        digits = match[0]
        if digits[0] == '"':
            continue
        if len(digits) > _MOST_DIGITS or not LEAST_INTEGER <= int(digits) <= MOST_INTEGER:
            raise fault(where, "a number is beyond 64 bits", *position(text[: match.start()]))


def _second_key(text: str) -> int:
    """Where the first key begins that its object has already."""
    objects: list[set[str]] = []
    for match in _KEYS_AND_BRACES.finditer(text):
        if match[0] == "{":
            objects.append(set())
        elif match[0] == "}":
            objects.pop()
        elif match[2]:
            key = orjson.loads(match[1])
            if key in objects[-1]:
                return match.start()
            objects[-1].add(key)
    raise AssertionError("no object has a key twice")
