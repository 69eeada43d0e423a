"""string.format: the clauses of cel-go's strings library."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable

from extender.cel.errors import EvalError
from extender.cel.library.conversions import format_double
from extender.cel.library.time import format_duration, format_timestamp
from extender.cel.values import Duration, Timestamp, TypeValue, UInt, from_key, type_name
from extender.model import Quantity, Semver

_CLAUSE = re.compile(r"%(?:(%)|(?:\.(\d+))?([a-zA-Z]))")
_MAX_PRECISION = 100  # more than a double has; without a limit an expression could build megabytes
VERBS = "sdfebxXo"


def format_string(template: str, values: list[object]) -> str:
    """Replace each clause by its value. Raises EvalError for a bad clause, a missing value or a wrong type."""
    pieces: list[str] = []
    at, used = 0, 0
    while (start := template.find("%", at)) >= 0:
        pieces.append(template[at:start])
        match = _CLAUSE.match(template, start)
        if match is None:
            raise EvalError(f"could not parse formatting clause at {start}")
        at = match.end()
        if match.group(1):
            pieces.append("%")
            continue
        if used >= len(values):
            raise EvalError(f"index {used} out of range")
        pieces.append(_clause(match.group(3), match.group(2), values[used]))
        used += 1
    pieces.append(template[at:])
    return "".join(pieces)


def clause_count(template: str) -> int:
    """How many values a template takes. Raises EvalError for a clause that does not exist."""
    count, at = 0, 0
    while (start := template.find("%", at)) >= 0:
        match = _CLAUSE.match(template, start)
        if match is None or (match.group(3) and match.group(3) not in VERBS):
            raise EvalError(f"could not parse formatting clause: unrecognized formatting clause at {start}")
        count += 0 if match.group(1) else 1
        at = match.end()
    return count


def _clause(verb: str, precision: str | None, value: object) -> str:
    digits = 6 if precision is None else int(precision)  # Go's default precision
    if digits > _MAX_PRECISION:
        raise EvalError(f"precision {digits} exceeds {_MAX_PRECISION}")
    if verb in ("f", "e"):
        return _real(verb, digits, value)
    make = _MAKERS.get(verb)
    if make is None:
        raise EvalError(f'unrecognized formatting clause "{verb}"')
    return make(value)


def _real(verb: str, digits: int, value: object) -> str:
    number = _number(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return f"{number:.{digits}{verb}}"


def _number(value: object) -> float:
    if type(value) in (int, UInt, float):
        return float(value)  # type: ignore[arg-type] # a number, checked above
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(str(value).replace("Infinity", "inf"))
    raise _wrong("fixed-point", value)


def _wrong(clause: str, value: object) -> EvalError:
    return EvalError(f"error during formatting: {clause} clause cannot be used on {type_name(value)}")


def _decimal(value: object) -> str:
    if type(value) in (int, UInt):
        return str(int(value))  # type: ignore[call-overload] # an int
    if isinstance(value, float) and (math.isnan(value) or math.isinf(value)):
        return _real("f", 0, value)
    raise _wrong("decimal", value)


def _binary(value: object) -> str:
    if type(value) in (int, UInt, bool):
        return f"{value:b}"
    raise _wrong("binary", value)


def _octal(value: object) -> str:
    if type(value) in (int, UInt):
        return f"{value:o}"
    raise _wrong("octal", value)


def _hex(value: object) -> str:
    if type(value) in (int, UInt):
        return f"{value:x}"
    if isinstance(value, str):
        return value.encode().hex()
    if isinstance(value, bytes):
        return value.hex()
    raise _wrong("hex", value)


def _text(value: object) -> str:
    simple = _TEXTS.get(type(value))
    if simple is not None:
        return simple(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, dict):
        entries = {_text(from_key(key)): _text(item) for key, item in value.items()}
        return "{" + ", ".join(f"{key}: {entries[key]}" for key in sorted(entries)) + "}"
    raise _wrong("string", value)


def _double_text(value: object) -> str:
    assert isinstance(value, float)
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return format_double(value)


_TEXTS: dict[type, Callable[..., str]] = {
    str: str,
    bool: lambda v: "true" if v else "false",
    int: str,
    UInt: lambda v: str(int(v)),
    float: _double_text,
    bytes: lambda v: v.decode("utf-8", "replace"),
    type(None): lambda _: "null",
    Duration: format_duration,
    Timestamp: format_timestamp,
    TypeValue: lambda v: v.name,
    Quantity: str,
    Semver: lambda v: v.text,
    ipaddress.IPv4Address: str,
    ipaddress.IPv6Address: str,
}
_MAKERS: dict[str, Callable[[object], str]] = {
    "s": _text,
    "d": _decimal,
    "b": _binary,
    "o": _octal,
    "x": _hex,
    "X": lambda v: _hex(v).upper(),
}
