"""Timestamps and durations."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from collections.abc import Callable
from decimal import Decimal

from extender.cel import types as t
from extender.cel.errors import EvalError
from extender.cel.library.operators import timestamp
from extender.cel.overloads import Overload, function, member
from extender.cel.pricing import Price
from extender.cel.values import INT_MAX, INT_MIN, Duration, Timestamp

_UNIT_NANOS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_MAX_DURATION = 256  # characters; a duration without superfluous digits has at most thirty
_PART = re.compile(r"(\d*)(?:\.(\d*))?(ns|us|µs|μs|ms|s|m|h)")
# As Go's time.Parse reads RFC 3339: an hour may have one digit, a comma may stand for the point.
_STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d{1,2}):(\d\d):(\d\d)(?:[.,](\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_MOST_OFFSET = (24, 60)  # hours and minutes of the largest zone offset that Go accepts
_OFFSET = re.compile(r"([+-]?)(\d\d):(\d\d)", re.ASCII)


def parse_duration(text: str) -> Duration:
    """Go's duration syntax: '1h30m', '-1.5s', '0'."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if len(body) > _MAX_DURATION:
        raise EvalError("time: invalid duration")
    if body == "0":
        return Duration(0)
    total, at = 0, 0
    while at < len(body):
        match = _PART.match(body, at)
        if match is None or not (match.group(1) or match.group(2)):
            break
        whole, fraction, unit = match.groups()
        scale = _UNIT_NANOS[unit]
        total += int(whole or 0) * scale + int(fraction or 0) * scale // 10 ** len(fraction or "")
        at = match.end()
    if not body or at < len(body):
        raise EvalError(f"time: invalid duration {text!r}")
    total = -total if text.startswith("-") else total
    if not INT_MIN <= total <= INT_MAX:
        raise EvalError(f"time: invalid duration {text!r}")
    return Duration(total)


def parse_timestamp(text: str) -> Timestamp:
    """RFC 3339."""
    match = _STAMP.fullmatch(text)
    if match is None:
        raise EvalError(f"parsing time {text!r}: not RFC 3339")
    *numbers, fraction, zone = match.groups()
    try:
        moment = datetime.datetime(*map(int, numbers), tzinfo=datetime.UTC)  # type: ignore[arg-type,misc] # six ints
    except ValueError as error:
        raise EvalError(f"parsing time {text!r}: {error}") from error
    seconds = int((moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)).total_seconds())
    if zone != "Z":
        if int(zone[1:3]) > _MOST_OFFSET[0] or int(zone[4:6]) > _MOST_OFFSET[1]:
            raise EvalError(f"parsing time {text!r}: time zone offset out of range")
        seconds -= int(_offset(zone).total_seconds())
    return timestamp(seconds * 10**9 + int((fraction or "0").ljust(9, "0")))


def _offset(text: str) -> datetime.timedelta:
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise EvalError(f"unknown time zone {text}")
    delta = datetime.timedelta(hours=int(match.group(2)), minutes=int(match.group(3)))
    return -delta if match.group(1) == "-" else delta


def format_duration(value: Duration) -> str:
    """Seconds, rounded to a double as in the reference, with as many decimals as that has."""
    seconds, rest = divmod(abs(value.nanos), 10**9)
    rounded = Decimal(repr(seconds + rest / 1e9)).normalize()
    return f"{'-' if value.nanos < 0 else ''}{rounded:f}s"


def format_timestamp(value: Timestamp) -> str:
    return f"{value.moment():%Y-%m-%dT%H:%M:%S}{_fraction(value.nanos % 10**9)}Z"


def _fraction(nanos: int) -> str:
    return f".{nanos:09d}".rstrip("0") if nanos else ""


def _zone(name: str) -> datetime.tzinfo:
    if _OFFSET.fullmatch(name):
        return datetime.timezone(_offset(name))
    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise EvalError(f"unknown time zone {name}") from error


_FIELDS: dict[str, Callable[[datetime.datetime], int]] = {
    "getFullYear": lambda m: m.year,
    "getMonth": lambda m: m.month - 1,
    "getDayOfYear": lambda m: m.timetuple().tm_yday - 1,
    "getDayOfMonth": lambda m: m.day - 1,
    "getDate": lambda m: m.day,
    "getDayOfWeek": lambda m: m.isoweekday() % 7,
    "getHours": lambda m: m.hour,
    "getMinutes": lambda m: m.minute,
    "getSeconds": lambda m: m.second,
    "getMilliseconds": lambda m: m.microsecond // 1000,
}
_DURATION_FIELDS = {
    "getHours": 3600 * 10**9,
    "getMinutes": 60 * 10**9,
    "getSeconds": 10**9,
    "getMilliseconds": 10**6,
}


def _field(read: Callable[[datetime.datetime], int]) -> Callable[..., int]:
    return lambda stamp, zone="UTC": read(stamp.moment(_zone(zone)))


def _truncated(unit: int) -> Callable[[Duration], int]:
    return lambda value: abs(value.nanos) // unit * (1 if value.nanos >= 0 else -1)


def _getters() -> list[Overload]:
    """Reading a field of a moment looks up its time zone. The overhead pays for it."""
    found: list[Overload] = []
    for name, read in _FIELDS.items():
        signatures = [member((t.TIMESTAMP,), t.INT, _field(read)), member((t.TIMESTAMP, t.STRING), t.INT, _field(read))]
        if name in _DURATION_FIELDS:
            signatures.append(member((t.DURATION,), t.INT, _truncated(_DURATION_FIELDS[name])))
        found += function(name, *signatures, price=Price(overhead=60))
    return found


OVERLOADS = _getters()
