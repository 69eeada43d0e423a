"""Arithmetic, comparison, membership, indexing, optional values. The closures of && || and ?: are in closures.py."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from extender.cel import types as t
from extender.cel.errors import EvalError
from extender.cel.types import Overload, function, member, plain
from extender.cel.values import (
    FIRST_NANOS,
    INT_MAX,
    INT_MIN,
    LAST_NANOS,
    NONE,
    UINT_MAX,
    Duration,
    Empty,
    Map,
    Optional,
    Timestamp,
    UInt,
    compare,
    equal,
    key_of,
    named,
    require_hash,
    same,
)


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


def timestamp(nanos: int, east: int = 0) -> Timestamp:
    if FIRST_NANOS <= nanos <= LAST_NANOS:
        return Timestamp(nanos, east)
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
    if b == -1 and a == INT_MIN:
        raise EvalError("integer overflow")
    return abs(a) % abs(b) * (1 if a >= 0 else -1)


def _divide_double(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _order(test: Callable[[int, int], bool]) -> Callable[[object, object], bool]:
    return lambda a, b: test(compare(a, b), 0)


def _in_list(item: object, items: list[object]) -> bool:
    """Whether a list has the item. A value of another type is no error, unlike in `equal`."""
    return any(same(item, candidate) for candidate in items)


def _in_map(key: object, mapping: dict[object, object]) -> bool:
    if mapping and type(mapping) is Map:  # the maps of a device have text keys, for which the reference needs no hash
        require_hash(key)
    try:
        return key_of(key) in mapping
    except EvalError:
        return False


def _position(index: object) -> int | None:
    if isinstance(index, float):
        return int(index) if index.is_integer() else None
    return int(index) if type(index) in (int, UInt) else None  # type: ignore[call-overload] # an int


def index_list(items: Sequence[object], index: object) -> object:
    found = optional_list(items, index)
    if found is NONE:
        raise EvalError(f"index out of bounds: {named(index)}")
    return found.value


def index_map(mapping: dict[object, object], key: object) -> object:
    found = optional_map(mapping, key)
    if found is NONE:
        raise EvalError(f"no such key: {named(key)}")
    return found.value


def optional_map(mapping: dict[object, object], key: object) -> Optional:
    """A present Optional, or NONE. A mapping with a default value, such as the domains of a device, has every key."""
    hashed = key_of(key)
    try:
        return Optional(mapping[hashed])
    except KeyError:
        return NONE


def optional_list(items: Sequence[object], index: object) -> Optional:
    position = _position(index)
    if position is None:
        raise EvalError(f"unsupported index value: {named(index)}")
    return Optional(items[position]) if 0 <= position < len(items) else NONE


def index_any(value: object, key: object) -> object:
    """value[key] for a value whose type the checker does not know."""
    if type(value) is Optional:
        return optional_any(value, key)
    if isinstance(value, dict):
        return index_map(value, key)
    if isinstance(value, list | tuple):
        return index_list(value, key)
    raise EvalError(f"no such key: {named(key)}")


def optional_any(value: object, key: object) -> Optional:
    """value[?key] for a value whose type the checker does not know: a value without keys has no key. Raises EvalError
    for a key that no map can have."""
    if type(value) is Optional:
        return optional_any(value.value, key) if value.present else NONE
    if isinstance(value, dict):
        return optional_map(value, key)
    if isinstance(value, list | tuple):
        return optional_list(value, key)
    if isinstance(value, Empty):
        raise EvalError(f"no such field '{named(key)}'")
    key_of(key)
    return NONE


def _through(apply: Callable[[list[object], object], Optional]) -> Callable[[Optional, object], Optional]:
    """Indexing the value of an optional; none() stays none()."""

    def run(box: Optional, key: object) -> Optional:
        return apply(box.value, key) if box.present else NONE  # type: ignore[arg-type] # the overload checks the type

    return run


_I, _U, _D, _S = t.INT, t.UINT, t.DOUBLE, t.STRING
_DURATION, _TIMESTAMP = t.DURATION, t.TIMESTAMP
_ITEMS, _MAPPING = t.list_of(t.A), t.map_of(t.A, t.B)


def _arithmetic() -> list[Overload]:
    return [
        *function(
            "_+_",
            plain((_I, _I), _I, lambda a, b: int64(a + b)),
            plain((_U, _U), _U, lambda a, b: uint64(int(a) + int(b))),
            plain((_D, _D), _D, operator.add),
            plain((_S, _S), _S, operator.add),
            plain((t.BYTES, t.BYTES), t.BYTES, operator.add),
            plain((_ITEMS, _ITEMS), _ITEMS, lambda a, b: [*a, *b]),
            plain((_DURATION, _DURATION), _DURATION, lambda a, b: duration(a.nanos + b.nanos)),
            plain((_TIMESTAMP, _DURATION), _TIMESTAMP, lambda a, b: timestamp(a.nanos + b.nanos, a.east)),
            plain((_DURATION, _TIMESTAMP), _TIMESTAMP, lambda a, b: timestamp(a.nanos + b.nanos, b.east)),
        ),
        *function(
            "_-_",
            plain((_I, _I), _I, lambda a, b: int64(a - b)),
            plain((_U, _U), _U, lambda a, b: uint64(int(a) - int(b))),
            plain((_D, _D), _D, operator.sub),
            plain((_TIMESTAMP, _TIMESTAMP), _DURATION, lambda a, b: duration(a.nanos - b.nanos)),
            plain((_TIMESTAMP, _DURATION), _TIMESTAMP, lambda a, b: timestamp(a.nanos - b.nanos, a.east)),
            plain((_DURATION, _DURATION), _DURATION, lambda a, b: duration(a.nanos - b.nanos)),
        ),
        *function(
            "_*_",
            plain((_I, _I), _I, lambda a, b: int64(a * b)),
            plain((_U, _U), _U, lambda a, b: uint64(int(a) * int(b))),
            plain((_D, _D), _D, operator.mul),
        ),
        *function(
            "_/_",
            plain((_I, _I), _I, lambda a, b: int64(_divide(a, b))),
            plain((_U, _U), _U, lambda a, b: uint64(_divide(int(a), int(b)))),
            plain((_D, _D), _D, _divide_double),
        ),
        *function(
            "_%_",
            plain((_I, _I), _I, lambda a, b: int64(_modulo(a, b))),
            plain((_U, _U), _U, lambda a, b: uint64(_modulo(int(a), int(b)))),
        ),
        *function("-_", plain((_I,), _I, lambda a: int64(-a)), plain((_D,), _D, operator.neg)),
        *function("!_", plain((t.BOOL,), t.BOOL, operator.not_)),
    ]


def _comparison() -> list[Overload]:
    numbers = (_I, _U, _D)
    others = (t.BOOL, _S, t.BYTES, _TIMESTAMP, _DURATION)
    pairs = [(x, x) for x in others] + [(x, y) for x in numbers for y in numbers]
    found: list[Overload] = []
    for name, test in {"_<_": operator.lt, "_<=_": operator.le, "_>_": operator.gt, "_>=_": operator.ge}.items():
        found += function(name, *(plain(pair, t.BOOL, _order(test)) for pair in pairs))
    found += function("_==_", plain((t.A, t.A), t.BOOL, equal))
    found += function("_!=_", plain((t.A, t.A), t.BOOL, lambda a, b: not same(a, b)))
    return found


def _access() -> list[Overload]:
    one, value = t.optional_of(t.A), t.optional_of(t.B)
    maybe_list, maybe_map = t.optional_of(_ITEMS), t.optional_of(_MAPPING)
    through_list = plain((maybe_list, _I), one, _through(optional_list))
    through_map = plain((maybe_map, t.A), value, _through(optional_map))  # type: ignore[arg-type] # a map by its type
    return [
        *function("@in", plain((t.A, _ITEMS), t.BOOL, _in_list), plain((t.A, _MAPPING), t.BOOL, _in_map)),
        *function(
            "_[_]",
            plain((_ITEMS, _I), t.A, index_list),
            plain((_MAPPING, t.A), t.B, index_map),
            through_list,
            through_map,
        ),
        *function(
            "_[?_]",
            plain((_ITEMS, _I), one, optional_list),
            plain((_MAPPING, t.A), value, optional_map),
            through_list,
            through_map,
        ),
        *function("_?_:_", plain((t.BOOL, t.A, t.A), t.A, lambda c, a, b: a if c else b)),
        *function("_&&_", plain((t.BOOL, t.BOOL), t.BOOL, operator.and_)),
        *function("_||_", plain((t.BOOL, t.BOOL), t.BOOL, operator.or_)),
    ]


# -- optional values (cel-go's optional types library) --------------------------------------------------------------

_ONE = t.optional_of(t.A)
_WITH_ZERO = (int, float, str, bytes, list, tuple, dict)


def _value(box: Optional) -> object:
    if box.present:
        return box.value
    raise EvalError("optional.none() dereference")


def _of_non_zero(value: object) -> Optional:
    if isinstance(value, Duration | Timestamp):
        zero = value.nanos == (0 if isinstance(value, Duration) else FIRST_NANOS)
    else:
        zero = value is None or isinstance(value, Empty) or (isinstance(value, _WITH_ZERO) and not value)
    return NONE if zero else Optional(value)


def _unwrap(boxes: list[Optional]) -> list[object]:
    return [box.value for box in boxes if box.present]


_OPTIONALS = [
    *function("optional.of", plain((t.A,), _ONE, Optional)),
    *function("optional.ofNonZeroValue", plain((t.A,), _ONE, _of_non_zero)),
    *function("optional.none", plain((), _ONE, lambda: NONE)),
    *function("optional.unwrap", plain((t.list_of(_ONE),), t.list_of(t.A), _unwrap)),
    *function("unwrapOpt", member((t.list_of(_ONE),), t.list_of(t.A), _unwrap)),
    *function("hasValue", member((_ONE,), t.BOOL, lambda box: box.present)),
    *function("value", member((_ONE,), t.A, _value)),
    # The compiler evaluates the argument of these two only where it is needed.
    *function("or", member((_ONE, _ONE), _ONE, lambda box, other: box if box.present else other)),
    *function("orValue", member((_ONE, t.A), t.A, lambda box, other: box.value if box.present else other)),
]
OVERLOADS = [*_arithmetic(), *_comparison(), *_access(), *_OPTIONALS]
