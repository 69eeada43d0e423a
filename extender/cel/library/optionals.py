"""Optional values (cel-go's optional types library)."""

from __future__ import annotations

from extender.cel import prices
from extender.cel import types as t
from extender.cel.errors import EvalError
from extender.cel.overloads import function, member, plain
from extender.cel.prices import Price
from extender.cel.values import FIRST_NANOS, NONE, Duration, Empty, Optional, Timestamp

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


_MADE = Price(work=prices.call)
_UNWRAP = Price(work=prices.walk_longest)
OVERLOADS = [
    *function("optional.of", plain((t.A,), _ONE, Optional), price=_MADE),
    *function("optional.ofNonZeroValue", plain((t.A,), _ONE, _of_non_zero), price=_MADE),
    *function("optional.none", plain((), _ONE, lambda: NONE)),
    *function("optional.unwrap", plain((t.list_of(_ONE),), t.list_of(t.A), _unwrap), price=_UNWRAP),
    *function("unwrapOpt", member((t.list_of(_ONE),), t.list_of(t.A), _unwrap), price=_UNWRAP),
    *function("hasValue", member((_ONE,), t.BOOL, lambda box: box.present)),
    *function("value", member((_ONE,), t.A, _value)),
    # The compiler evaluates the argument of these two only where it is needed.
    *function("or", member((_ONE, _ONE), _ONE, lambda box, other: box if box.present else other)),
    *function("orValue", member((_ONE, t.A), t.A, lambda box, other: box.value if box.present else other)),
]
