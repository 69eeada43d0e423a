"""string.format: the clauses of cel-go's strings library, version 2, which formats numbers as en_US writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from extender.cel.errors import EvalError
from extender.cel.library.conversions import format_double
from extender.cel.library.time import format_duration, format_timestamp
from extender.cel.values import Duration, Timestamp, TypeValue, UInt, from_key, type_name

_CLAUSE = re.compile(r"%(?:(%)|(?:\.(\d+))?([a-zA-Z]))")
_LONGEST_PRECISION = 4  # digits of a precision; int() rejects thousands
_MAX_PRECISION = 100  # more than a double has; without a limit an expression could build megabytes
_WHOLE = 2.0**53  # a double from here on is a whole number
_DIGITS = 6  # Go's default precision
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}
_ASCII, _BASIC_PLANE = 0x7F, 0xFFFF
_NUMBER_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


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


def verbs_of(template: str) -> list[str]:
    """The verb of each value that a template takes. Raises EvalError for a clause that does not exist."""
    found: list[str] = []
    at = 0
    while (start := template.find("%", at)) >= 0:
        match = _CLAUSE.match(template, start)
        if match is None or (match.group(3) and match.group(3) not in _MAKERS and match.group(3) not in "fe"):
            raise EvalError(f"could not parse formatting clause: unrecognized formatting clause at {start}")
        if match.group(3):
            found.append(match.group(3))
        at = match.end()
    return found


def _clause(verb: str, precision: str | None, value: object) -> str:
    digits = _DIGITS if precision is None else int(precision[:_LONGEST_PRECISION])
    if digits > _MAX_PRECISION:
        raise EvalError(f"precision {digits} exceeds {_MAX_PRECISION}")
    if verb == "f":
        return _fixed(digits, value)
    if verb == "e":
        return _scientific(digits, value)
    make = _MAKERS.get(verb)
    if make is None:
        raise EvalError(f'unrecognized formatting clause "{verb}"')
    return make(value)


def _fixed(digits: int, value: object) -> str:
    number = _number("fixed-point", value)
    return _not_finite(number) or f"{number or 0.0:,.{digits}f}"


def _scientific(width: int, value: object) -> str:
    """As in the reference, the precision is the least width, and there are always six decimals."""
    number = _number("scientific", value)
    shown = _not_finite(number)
    if not shown:
        mantissa, power = f"{number or 0.0:.{_DIGITS}e}".split("e")
        shown = f"{mantissa}\N{MULTIPLICATION SIGN}10{power.lstrip('+').translate(_SUPERSCRIPT)}"
    return shown.rjust(width)


def _not_finite(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return ("∞" if number > 0 else "-∞") if math.isinf(number) else ""


def _number(clause: str, value: object) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, str) and value in _NUMBER_WORDS:
        return _NUMBER_WORDS[value]
    raise _wrong(clause, value)


def _wrong(clause: str, value: object) -> EvalError:
    return EvalError(f"error during formatting: {clause} clause cannot be used on {type_name(value)}")


def _decimal(value: object) -> str:
    if type(value) in (int, UInt):
        return str(int(value))  # type: ignore[call-overload] # an int
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
        return f"[{', '.join(map(_inner, value))}]"
    if isinstance(value, dict):
        entries = sorted((_map_key(from_key(key)), _inner(item)) for key, item in value.items())
        return f"{{{', '.join(f'{key}:{item}' for key, item in entries)}}}"
    raise _wrong("string", value)


def _inner(value: object) -> str:
    """A value in a list or map, as CEL writes it."""
    match value:
        case str():
            return _quoted(value)
        case bytes():
            return f"b{_quoted(_text(value))}"
        case float() if _WHOLE <= abs(value) < math.inf:
            return f"{int(value)}.{'0' * _DIGITS}"  # in a fifth of the time
        case float() if math.isfinite(value):
            return f"{value:.{_DIGITS}f}"
        case float():
            return f'"{format_double(value)}"'
        case Timestamp():
            return f'timestamp("{format_timestamp(value)}")'
        case Duration():
            return f'duration("{format_duration(value)}")'
    return _text(value)


def _map_key(key: object) -> str:
    if isinstance(key, str):
        return _quoted(key)
    if type(key) in (bool, int, UInt):
        return _text(key)
    raise EvalError(f"no formatting function for map key of type {type_name(key)}")


def _quoted(text: str) -> str:
    """As Go's %q."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in ESCAPES:
        return ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code <= _ASCII:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _BASIC_PLANE else f"\\U{code:08x}"


def _bytes_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise EvalError("invalid UTF-8 in bytes, cannot convert to string") from error


_TEXTS: dict[type, Callable[..., str]] = {
    str: str,
    bool: lambda v: "true" if v else "false",
    int: str,
    UInt: lambda v: str(int(v)),
    float: format_double,
    bytes: _bytes_text,
    type(None): lambda _: "null",
    Duration: format_duration,
    Timestamp: format_timestamp,
    TypeValue: lambda v: v.name,
}
_MAKERS: dict[str, Callable[[object], str]] = {
    "s": _text,
    "d": _decimal,
    "b": _binary,
    "o": _octal,
    "x": _hex,
    "X": lambda v: _hex(v).upper(),
}
