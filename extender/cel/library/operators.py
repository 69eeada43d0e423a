"""Arithmetic, comparison, membership and indexing. && || and ?: are closures of their own (see compile)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from extender.cel import types as t
from extender.cel.errors import EvalError
from extender.cel.functions import Overload, plain
from extender.cel.values import (
    INT_MAX,
    INT_MIN,
    NONE,
    UINT_MAX,
    Duration,
    Optional,
    Timestamp,
    UInt,
    compare,
    equal,
    key_of,
    not_equal,
)

# Seconds of 0001-01-01 and 9999-12-31T23:59:59 relative to the epoch: the range of a CEL timestamp.
_FIRST, _LAST = -62135596800 * 10**9, 253402300799 * 10**9 + 10**9 - 1


def int64(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise EvalError("integer overflow")


def uint64(value: int) -> UInt:
    if 0 <= value <= UINT_MAX:
        return UInt(value)
    raise EvalError("unsigned integer overflow")


def duration(nanos: int) -> Duration:
    if INT_MIN <= nanos <= INT_MAX:
        return Duration(nanos)
    raise EvalError("duration overflow")


def timestamp(nanos: int) -> Timestamp:
    if _FIRST <= nanos <= _LAST:
        return Timestamp(nanos)
    raise EvalError("timestamp overflow")


def _divide(a: int, b: int) -> int:
    """Towards zero, as Go divides."""
    if b == 0:
        raise EvalError("division by zero")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _modulo(a: int, b: int) -> int:
    if b == 0:
        raise EvalError("modulus by zero")
    return abs(a) % abs(b) * (1 if a >= 0 else -1)


def _divide_double(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _times_double(a: float, b: float) -> float:
    return a * b


def _order(test: Callable[[int, int], bool]) -> Callable[[object, object], bool]:
    return lambda a, b: test(compare(a, b), 0)


def _in_list(item: object, items: list[object]) -> bool:
    error: EvalError | None = None
    for candidate in items:
        try:
            if equal(candidate, item):
                return True
        except EvalError as raised:
            error = raised
    if error is not None:
        raise error
    return False


def _in_map(key: object, mapping: dict[object, object]) -> bool:
    try:
        return key_of(key) in mapping
    except EvalError:
        return False


def _position(index: object) -> int | None:
    if isinstance(index, float):
        return int(index) if index.is_integer() else None
    return int(index) if type(index) in (int, UInt) else None  # type: ignore[call-overload] # an int


def index_list(items: list[object], index: object) -> object:
    position = _position(index)
    if position is None:
        raise EvalError(f"unsupported index value: {index}")
    if 0 <= position < len(items):
        return items[position]
    raise EvalError(f"index out of bounds: {position}")


def index_map(mapping: dict[object, object], key: object) -> object:
    found = _lookup(mapping, key)
    if found is NONE:
        raise EvalError(f"no such key: {key}")
    return found.value


def _lookup(mapping: dict[object, object], key: object) -> Optional:
    """A present Optional, or NONE. A mapping with a default (the domains of a device) always answers."""
    hashed = key_of(key)
    try:
        return Optional(mapping[hashed])
    except KeyError:
        return NONE


def optional_list(items: list[object], index: object) -> Optional:
    position = _position(index)
    if position is not None and 0 <= position < len(items):
        return Optional(items[position])
    return NONE


def optional_map(mapping: dict[object, object], key: object) -> Optional:
    return _lookup(mapping, key)


def _through(apply: Callable[[list[object], object], Optional]) -> Callable[[Optional, object], Optional]:
    """Index what an optional holds; nothing stays nothing."""
    return lambda box, key: apply(box.value, key) if box.present else NONE  # type: ignore[arg-type] # typed by the overload


def _arithmetic() -> list[Overload]:
    i, u, d, s = t.INT, t.UINT, t.DOUBLE, t.STRING
    dur, ts = t.DURATION, t.TIMESTAMP
    items = t.list_of(t.A)
    return [
        plain("_+_", (i, i), i, lambda a, b: int64(a + b)),
        plain("_+_", (u, u), u, lambda a, b: uint64(int(a) + int(b))),
        plain("_+_", (d, d), d, operator.add),
        plain("_+_", (s, s), s, operator.add),
        plain("_+_", (t.BYTES, t.BYTES), t.BYTES, operator.add),
        plain("_+_", (items, items), items, lambda a, b: [*a, *b]),
        plain("_+_", (dur, dur), dur, lambda a, b: duration(a.nanos + b.nanos)),
        plain("_+_", (ts, dur), ts, lambda a, b: timestamp(a.nanos + b.nanos)),
        plain("_+_", (dur, ts), ts, lambda a, b: timestamp(a.nanos + b.nanos)),
        plain("_-_", (i, i), i, lambda a, b: int64(a - b)),
        plain("_-_", (u, u), u, lambda a, b: uint64(int(a) - int(b))),
        plain("_-_", (d, d), d, operator.sub),
        plain("_-_", (ts, ts), dur, lambda a, b: duration(a.nanos - b.nanos)),
        plain("_-_", (ts, dur), ts, lambda a, b: timestamp(a.nanos - b.nanos)),
        plain("_-_", (dur, dur), dur, lambda a, b: duration(a.nanos - b.nanos)),
        plain("_*_", (i, i), i, lambda a, b: int64(a * b)),
        plain("_*_", (u, u), u, lambda a, b: uint64(int(a) * int(b))),
        plain("_*_", (d, d), d, _times_double),
        plain("_/_", (i, i), i, lambda a, b: int64(_divide(a, b))),
        plain("_/_", (u, u), u, lambda a, b: uint64(_divide(int(a), int(b)))),
        plain("_/_", (d, d), d, _divide_double),
        plain("_%_", (i, i), i, lambda a, b: int64(_modulo(a, b))),
        plain("_%_", (u, u), u, lambda a, b: uint64(_modulo(int(a), int(b)))),
        plain("-_", (i,), i, lambda a: int64(-a)),
        plain("-_", (d,), d, operator.neg),
        plain("!_", (t.BOOL,), t.BOOL, operator.not_),
    ]


def _comparison() -> list[Overload]:
    numbers = (t.INT, t.UINT, t.DOUBLE)
    same = (t.BOOL, t.STRING, t.BYTES, t.TIMESTAMP, t.DURATION)
    pairs = [(x, x) for x in same] + [(x, y) for x in numbers for y in numbers]
    tests = {"_<_": operator.lt, "_<=_": operator.le, "_>_": operator.gt, "_>=_": operator.ge}
    found = [plain(name, pair, t.BOOL, _order(test)) for name, test in tests.items() for pair in pairs]
    found.append(plain("_==_", (t.A, t.A), t.BOOL, equal))
    found.append(plain("_!=_", (t.A, t.A), t.BOOL, not_equal))
    return found


def _access() -> list[Overload]:
    items, mapping = t.list_of(t.A), t.map_of(t.A, t.B)
    one, value = t.optional_of(t.A), t.optional_of(t.B)
    maybe_list, maybe_map = t.optional_of(items), t.optional_of(mapping)
    return [
        plain("@in", (t.A, items), t.BOOL, _in_list),
        plain("@in", (t.A, mapping), t.BOOL, _in_map),
        plain("_[_]", (items, t.INT), t.A, index_list),
        plain("_[_]", (mapping, t.A), t.B, index_map),
        plain("_[_]", (maybe_list, t.INT), one, _through(optional_list)),
        plain("_[_]", (maybe_map, t.A), value, _through(optional_map)),  # type: ignore[arg-type] # a map by its overload
        plain("_[?_]", (items, t.INT), one, optional_list),
        plain("_[?_]", (mapping, t.A), value, optional_map),
        plain("_[?_]", (maybe_list, t.INT), one, _through(optional_list)),
        plain("_[?_]", (maybe_map, t.A), value, _through(optional_map)),  # type: ignore[arg-type] # a map by its overload
        plain("_?_:_", (t.BOOL, t.A, t.A), t.A, lambda c, a, b: a if c else b),
        plain("_&&_", (t.BOOL, t.BOOL), t.BOOL, operator.and_),
        plain("_||_", (t.BOOL, t.BOOL), t.BOOL, operator.or_),
    ]


OVERLOADS = [*_arithmetic(), *_comparison(), *_access()]
