"""quantity() and semver(), as k8s.io/apiserver's CEL libraries define them."""

from __future__ import annotations

import math
import re

from extender.api.quantity import Quantity, add, from_int, parse_quantity
from extender.api.semver import Semver, parse_semver
from extender.cel import types as t
from extender.cel.errors import EvalError
from extender.cel.overloads import function, member, plain, succeeds
from extender.cel.values import INT_MAX

_DIGITS = tuple("0123456789")
_NO_DIGITS = re.compile(r"^([+-]?)(?![-+0-9]|\.[0-9]|\.?[PE]i$)")


def quantity(text: str) -> Quantity:
    """As the reference parses it: a text without digits, such as 'Gi', is 0."""
    try:
        return parse_quantity(_NO_DIGITS.sub(r"\g<1>0", text) if text else text)
    except ValueError as error:
        raise EvalError(str(error)) from error


def _approximate(quantity: Quantity) -> float:
    """As the reference computes it: 0.3 gives 0.30000000000000004."""
    places = -9 if quantity.scale is None else quantity.scale
    try:
        return float(quantity.nanos // 10 ** (9 + places)) * 10.0**places
    except OverflowError:
        return math.inf if quantity.nanos > 0 else -math.inf


def _as_integer(value: Quantity) -> int:
    exact = value.int64()
    if exact is None:
        raise EvalError("cannot convert value to integer")
    return exact


def _sign(value: Quantity) -> int:
    return (value.nanos > 0) - (value.nanos < 0)


def _add(left: Quantity, right: Quantity | int) -> Quantity:
    return add(left, right if isinstance(right, Quantity) else from_int(right))


def _sub(left: Quantity, right: Quantity | int) -> Quantity:
    other = right if isinstance(right, Quantity) else from_int(right)
    return add(left, Quantity(-other.nanos, other.form, other.scale))


def _compare(left: Quantity | Semver, right: Quantity | Semver) -> int:
    return (left > right) - (left < right)  # type: ignore[operator] # both of one type, by the overload


def semver(text: str, normalize: bool = False) -> Semver:  # noqa: FBT001,FBT002 - positional in CEL
    try:
        return parse_semver(_normalized(text) if normalize else text)
    except ValueError as error:
        raise EvalError(str(error)) from error


def _without_zeros(part: str) -> str:
    """'02' to '2'; also '-rc' to '0-rc', as the reference does."""
    rest = part.lstrip("0")
    return part if len(part) < 2 else rest if rest.startswith(_DIGITS) else f"0{rest}"  # noqa: PLR2004 - '0' stays


def _normalized(text: str) -> str:
    """'v1.02' to '1.2.0': no v, no leading zeros, three numbers."""
    parts = [_without_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3 and ("-" in parts[-1] or "+" in parts[-1]):  # noqa: PLR2004 - major.minor.patch
        raise ValueError("short version cannot contain PreRelease/Build meta data")
    return ".".join([*parts, "0", "0"][: max(3, len(parts))])


def _int64(number: int) -> int:
    """As Go converts an unsigned number: from 2**63 on it becomes negative."""
    return number - (1 << 64) if number > INT_MAX else number


_Q, _V = _KINDS = t.QUANTITY, t.SEMVER
OVERLOADS = [
    *function("quantity", plain((t.STRING,), _Q, quantity), pure=True),
    *function("isQuantity", plain((t.STRING,), t.BOOL, succeeds(quantity)), pure=True),
    *function("sign", plain((_Q,), t.INT, _sign)),
    *function("isInteger", member((_Q,), t.BOOL, lambda q: q.int64() is not None)),
    *function("asInteger", member((_Q,), t.INT, _as_integer)),
    *function("asApproximateFloat", member((_Q,), t.DOUBLE, _approximate)),
    *function("add", member((_Q, _Q), _Q, _add), member((_Q, t.INT), _Q, _add)),
    *function("sub", member((_Q, _Q), _Q, _sub), member((_Q, t.INT), _Q, _sub)),
    *function("semver", plain((t.STRING,), _V, semver), plain((t.STRING, t.BOOL), _V, semver), pure=True),
    *function(
        "isSemver",
        plain((t.STRING,), t.BOOL, succeeds(semver)),
        plain((t.STRING, t.BOOL), t.BOOL, succeeds(semver)),
        pure=True,
    ),
    *function("major", member((_V,), t.INT, lambda v: _int64(v.major))),
    *function("minor", member((_V,), t.INT, lambda v: _int64(v.minor))),
    *function("patch", member((_V,), t.INT, lambda v: _int64(v.patch))),
    *function("isGreaterThan", *(member((k, k), t.BOOL, lambda a, b: a > b) for k in _KINDS)),
    *function("isLessThan", *(member((k, k), t.BOOL, lambda a, b: a < b) for k in _KINDS)),
    *function("compareTo", *(member((k, k), t.INT, _compare) for k in _KINDS)),
]
