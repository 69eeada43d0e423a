"""size, type and the conversions between types."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from decimal import Decimal

from extender.cel import types as t
from extender.cel.errors import EvalError, shown
from extender.cel.library.operators import timestamp
from extender.cel.library.time import format_duration, format_timestamp, parse_duration, parse_timestamp
from extender.cel.types import function, member, plain
from extender.cel.values import INT_MAX, INT_MIN, UINT_MAX, Duration, TypeValue, UInt, type_name

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_UNSIGNED = re.compile(r"\d+", re.ASCII)
# Numbers as Go's strconv.ParseFloat reads them; underscores stand between digits.
_DIGITS = r"(?:\d+(?:_\d+)*)"
_DOUBLE = re.compile(rf"[+-]?(?:{_DIGITS}(?:\.{_DIGITS}?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?", re.ASCII)
_HEX_DIGITS = r"(?:[0-9a-f]+(?:_[0-9a-f]+)*)"
_MANTISSA = rf"0x_?(?:{_HEX_DIGITS}(?:\.{_HEX_DIGITS}?)?|\.{_HEX_DIGITS})"
_HEX_DOUBLE = re.compile(rf"[+-]?{_MANTISSA}p[+-]?\d+", re.ASCII | re.IGNORECASE)
_NO_NUMBER = re.compile(r"[+-]?inf(?:inity)?|nan", re.ASCII | re.IGNORECASE)
_MIN_POWER, _MAX_POWER = -4, 6  # of ten, between which Go's %g with the shortest precision writes no exponent
_MAX_DIGITS = 64  # more than any 64-bit number has
_TRUE = frozenset({"true", "TRUE", "True", "T", "t", "1"})
_FALSE = frozenset({"false", "FALSE", "False", "F", "f", "0"})


def int_of_double(value: float) -> int:
    if not INT_MIN < value < INT_MAX:  # also for NaN
        raise EvalError("integer overflow")
    return int(value)


def int_of_string(text: str) -> int:
    if len(text) > _MAX_DIGITS or _INTEGER.fullmatch(text) is None or not INT_MIN <= int(text) <= INT_MAX:
        raise EvalError(f"type conversion error from 'string' to 'int': {shown(text)}")
    return int(text)


def _int_of_uint(value: int) -> int:
    if value > INT_MAX:
        raise EvalError("integer overflow")
    return int(value)


def _uint_of(value: float) -> UInt:
    if not 0 <= value <= UINT_MAX:  # also for NaN
        raise EvalError("unsigned integer overflow")
    return UInt(value)


def _uint_of_string(text: str) -> UInt:
    if len(text) > _MAX_DIGITS or _UNSIGNED.fullmatch(text) is None or int(text) > UINT_MAX:
        raise EvalError(f"type conversion error from 'string' to 'uint': {shown(text)}")
    return UInt(text)


def double_of_string(text: str) -> float:
    if _NO_NUMBER.fullmatch(text) is not None:
        return float(text)
    found = math.inf  # a text that is no number fails like a number that no double holds
    if _DOUBLE.fullmatch(text) is not None:
        found = float(text.replace("_", ""))
    elif _HEX_DOUBLE.fullmatch(text) is not None:
        with suppress(OverflowError):
            found = float.fromhex(text.replace("_", ""))
    if math.isinf(found):
        raise EvalError(f"type conversion error from 'string' to 'double': {shown(text)}")
    return found


def bool_of_string(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise EvalError(f"type conversion error from 'string' to 'bool': {shown(text)}")


def format_double(value: float) -> str:
    """As Go prints %g with the shortest digits that read back."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, power = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(power, int)
    shown = "".join(map(str, digits))
    exponent = len(shown) - 1 + power if value else 0
    minus = "-" if sign else ""
    if not _MIN_POWER <= exponent < _MAX_POWER:
        fraction = f".{shown[1:]}" if len(shown) > 1 else ""
        return f"{minus}{shown[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    return f"{Decimal(repr(value)).normalize():f}"


def string_of_bytes(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise EvalError("invalid UTF-8 in bytes, cannot convert to string") from error


def _identity(value: object) -> object:
    return value


_I, _U, _D, _S, _B = t.INT, t.UINT, t.DOUBLE, t.STRING, t.BOOL


def _no_duration(_: int) -> Duration:
    """The reference declares this conversion, and has no code for it."""
    raise EvalError("type conversion error from 'int' to 'google.protobuf.Duration'")


_SIZED = (_S, t.BYTES, t.list_of(t.A), t.map_of(t.A, t.B))
OVERLOADS = [
    *function(
        "int",
        plain((_I,), _I, _identity),
        plain((_U,), _I, _int_of_uint),
        plain((_D,), _I, int_of_double),
        plain((_S,), _I, int_of_string),
        plain((t.TIMESTAMP,), _I, lambda v: v.nanos // 10**9),
        plain((t.DURATION,), _I, lambda v: v.nanos),
        conversion=True,
    ),
    *function(
        "uint",
        plain((_U,), _U, _identity),
        plain((_I,), _U, _uint_of),
        plain((_D,), _U, _uint_of),
        plain((_S,), _U, _uint_of_string),
        conversion=True,
    ),
    *function(
        "double",
        plain((_D,), _D, _identity),
        plain((_I,), _D, float),
        plain((_U,), _D, float),
        plain((_S,), _D, double_of_string),
        conversion=True,
    ),
    *function("bool", plain((_B,), _B, _identity), plain((_S,), _B, bool_of_string), conversion=True),
    *function("bytes", plain((t.BYTES,), t.BYTES, _identity), plain((_S,), t.BYTES, str.encode), conversion=True),
    *function(
        "string",
        plain((_S,), _S, _identity),
        plain((_B,), _S, lambda v: "true" if v else "false"),
        plain((_I,), _S, str),
        plain((_U,), _S, lambda v: str(int(v))),
        plain((_D,), _S, format_double),
        plain((t.BYTES,), _S, string_of_bytes),
        plain((t.TIMESTAMP,), _S, format_timestamp),
        plain((t.DURATION,), _S, format_duration),
        conversion=True,
    ),
    *function(
        "duration",
        plain((t.DURATION,), t.DURATION, _identity),
        plain((_I,), t.DURATION, _no_duration),
        plain((_S,), t.DURATION, parse_duration),
        pure=True,
        conversion=True,
    ),
    *function(
        "timestamp",
        plain((t.TIMESTAMP,), t.TIMESTAMP, _identity),
        plain((_I,), t.TIMESTAMP, lambda v: timestamp(v * 10**9)),
        plain((_S,), t.TIMESTAMP, parse_timestamp),
        pure=True,
        conversion=True,
    ),
    *function("dyn", plain((t.A,), t.DYN, _identity), conversion=True),
    *function("type", plain((t.A,), t.type_of(t.A), lambda v: TypeValue(type_name(v))), conversion=True),
    *function("size", *(make((kind,), _I, len) for kind in _SIZED for make in (plain, member))),
]
