"""Optional values (cel-go's optional types library)."""

from __future__ import annotations

from extender.cel import types as t
from extender.cel.errors import EvalError
from extender.cel.functions import member, plain
from extender.cel.values import NONE, Optional, UInt

_ONE = t.optional_of(t.A)


def _value(box: Optional) -> object:
    if box.present:
        return box.value
    raise EvalError("optional.none() dereference")


def _of_non_zero(value: object) -> Optional:
    zero = value is None or (type(value) in (bool, int, UInt, float, str, bytes, list, dict) and not value)
    return NONE if zero else Optional(value)


def _unwrap(boxes: list[Optional]) -> list[object]:
    return [box.value for box in boxes if box.present]


OVERLOADS = [
    plain("optional.of", (t.A,), _ONE, Optional),
    plain("optional.ofNonZeroValue", (t.A,), _ONE, _of_non_zero),
    plain("optional.none", (), _ONE, lambda: NONE),
    plain("optional.unwrap", (t.list_of(_ONE),), t.list_of(t.A), _unwrap),
    member("unwrapOpt", (t.list_of(_ONE),), t.list_of(t.A), _unwrap),
    member("hasValue", (_ONE,), t.BOOL, lambda box: box.present),
    member("value", (_ONE,), t.A, _value),
    # or and orValue evaluate their argument only when needed; compile treats them apart.
    member("or", (_ONE, _ONE), _ONE, lambda box, other: box if box.present else other),
    member("orValue", (_ONE, t.A), t.A, lambda box, other: box.value if box.present else other),
]
