"""Timestamps and durations."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from functools import cache

from extender.cel import types as t
from extender.cel.errors import EvalError, shown
from extender.cel.library.operators import timestamp
from extender.cel.types import Overload, function, member
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
_MAX_OFFSET = (24, 60)  # hours and minutes of the largest zone offset that Go accepts
_ZONE_OFFSET = re.compile(r"([+-]?\d{1,19}):([+-]?\d{1,19})", re.ASCII)  # as cel-go reads it: also 1:5 and +25:00
_MAX_SECONDS = INT_MAX // 10**9  # Go's largest duration; there, a larger offset overflows
_UTC = ("", "UTC", "Local")  # a kube-scheduler in a container has no other local time
_FIRST = datetime.datetime(1, 1, 2, tzinfo=datetime.UTC)
_LAST = datetime.datetime(9999, 12, 30, tzinfo=datetime.UTC)
_WALL_CLOCK = datetime.datetime(1, 1, 1)  # noqa: DTZ001 - the time of any zone
_YEAR_ONE = -62_135_596_800  # 0001-01-01T00:00:00Z in seconds since 1970
_CYCLE_SECONDS = 146_097 * 86_400  # seconds of 400 years


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
        raise EvalError(f"time: invalid duration {shown(text)}")
    total = -total if text.startswith("-") else total
    if not INT_MIN <= total <= INT_MAX:
        raise EvalError(f"time: invalid duration {shown(text)}")
    return Duration(total)


def parse_timestamp(text: str) -> Timestamp:
    """RFC 3339."""
    match = _STAMP.fullmatch(text)
    if match is None:
        raise EvalError(f"parsing time {shown(text)}: not RFC 3339")
    *numbers, fraction, zone = match.groups()
    try:
        moment = datetime.datetime(*map(int, numbers), tzinfo=datetime.UTC)  # type: ignore[arg-type,misc] # six ints
    except ValueError as error:
        raise EvalError(f"parsing time {shown(text)}: {error}") from error
    seconds, east = int((moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)).total_seconds()), 0
    if zone != "Z":
        if int(zone[1:3]) > _MAX_OFFSET[0] or int(zone[4:6]) > _MAX_OFFSET[1]:
            raise EvalError(f"parsing time {shown(text)}: time zone offset out of range")
        east = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        east = -east if zone[0] == "-" else east
    return timestamp((seconds - east) * 10**9 + int((fraction or "0").ljust(9, "0")), east)


def format_duration(value: Duration) -> str:
    """Seconds, rounded to a double as in the reference, with as many decimals as that has."""
    seconds, rest = divmod(abs(value.nanos), 10**9)
    rounded = Decimal(repr(seconds + rest / 1e9)).normalize()
    return f"{'-' if value.nanos < 0 else ''}{rounded:f}s"


def format_timestamp(value: Timestamp) -> str:
    moment, cycles = _local(value, value.east)
    hours, rest = divmod(abs(value.east), 3600)
    zone = f"{'-' if value.east < 0 else '+'}{hours:02d}:{rest // 60:02d}" if value.east else "Z"
    return f"{_year(moment, cycles):04d}-{moment:%m-%dT%H:%M:%S}{_fraction(value.nanos % 10**9)}{zone}"


def _fraction(nanos: int) -> str:
    return f".{nanos:09d}".rstrip("0") if nanos else ""


def _local(stamp: Timestamp, east: int) -> tuple[datetime.datetime, int]:
    """The wall clock some seconds east of Greenwich, as (time in the years 1 to 400, number of 400-year cycles before).

    Years 0 and 10000 occur, because a zone may move the first or the last moment out of Python's range. The calendar
    repeats after 400 years, weekdays included.
    """
    seconds, nanos = divmod(stamp.nanos, 10**9)
    cycles, rest = divmod(seconds + east - _YEAR_ONE, _CYCLE_SECONDS)
    return _WALL_CLOCK + datetime.timedelta(seconds=rest, microseconds=nanos // 1000), cycles


def _seconds_east(stamp: Timestamp, zone: str) -> int:
    if zone in _UTC:
        return 0
    match = _ZONE_OFFSET.fullmatch(zone)
    if match is not None:
        sign = -1 if zone.startswith("-") else 1
        seconds = 60 * (int(match.group(1)) * 60 + sign * int(match.group(2)))
        if abs(seconds) > _MAX_SECONDS:
            raise EvalError(f"unknown time zone {shown(zone)}")
        return seconds
    if zone not in _zones():
        raise EvalError(f"unknown time zone {shown(zone)}")
    try:
        # The offset of a zone is less than a day, and Python's years end at 1 and 9999.
        moment = min(max(stamp.moment(), _FIRST), _LAST)
        offset = moment.astimezone(zoneinfo.ZoneInfo(zone)).utcoffset()
    except (KeyError, ValueError, OSError) as error:
        raise EvalError(f"unknown time zone {shown(zone)}") from error
    return int((offset or datetime.timedelta()).total_seconds())


@cache
def _zones() -> set[str]:
    """The names of all zones. A look-up of any other name would import a package for each part of the name."""
    return zoneinfo.available_timezones()


_FIELDS: dict[str, Callable[[datetime.datetime], int]] = {
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


def _year(moment: datetime.datetime, cycles: int) -> int:
    return moment.year + 400 * cycles


def _full_year(stamp: Timestamp, zone: str = "UTC") -> int:
    return _year(*_local(stamp, _seconds_east(stamp, zone)))


def _field(read: Callable[[datetime.datetime], int]) -> Callable[..., int]:
    return lambda stamp, zone="UTC": read(_local(stamp, _seconds_east(stamp, zone))[0])


def _truncated(unit: int) -> Callable[[Duration], int]:
    return lambda value: abs(value.nanos) // unit * (1 if value.nanos >= 0 else -1)


def _getters() -> list[Overload]:
    found: list[Overload] = []
    for name, run in [("getFullYear", _full_year), *((name, _field(read)) for name, read in _FIELDS.items())]:
        signatures = [member((t.TIMESTAMP,), t.INT, run), member((t.TIMESTAMP, t.STRING), t.INT, run)]
        if name in _DURATION_FIELDS:
            signatures.append(member((t.DURATION,), t.INT, _truncated(_DURATION_FIELDS[name])))
        found += function(name, *signatures)
    return found


OVERLOADS = _getters()
