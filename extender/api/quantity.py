"""Kubernetes quantities as exact integers in units of 10^-9 (nanos).

Source: k8s.io/apimachinery/pkg/api/resource. Fractions of a nano are rounded away
from zero, as in that package ("the reference" below).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache

from extender.base.text_limits import REMEMBERED_TEXT, shown

NANO = 10**9  # nanos in 1; one nano is the smallest step of a quantity

_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_DECIMAL_EXPONENT = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SUFFIX_OF_EXPONENT = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENT.items()}
_FORM = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
MAX_INT64 = 2**63 - 1
_PYTHONS_BITS = 14_000  # of a number that surely has no more than 4,300 digits

BINARY_SI = "BinarySI"
DECIMAL_SI = "DecimalSI"
DECIMAL_EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An amount. `nanos` is the value times 10^9; `form` is the format in which it is printed.

    `scale` is the power of ten at which the reference stores the amount in 64 bits, or None if it uses a big decimal.
    Only CEL's asInteger depends on `scale`.
    """

    nanos: int
    form: str = field(default=DECIMAL_SI, compare=False)
    scale: int | None = field(default=0, compare=False)

    def __str__(self) -> str:
        return format_nanos(self.nanos, self.form)

    def int64(self) -> int | None:
        """The result of the reference's AsInt64, or None if AsInt64 fails."""
        if self.scale is None or self.scale < 0:
            return None
        value = self.nanos // NANO
        return value if -MAX_INT64 <= value <= MAX_INT64 else None

    def ceil(self) -> int:
        """The value rounded up to an integer, as the reference's Value() returns it."""
        return -(-self.nanos // NANO)


@lru_cache(maxsize=1024)  # thousands of devices have equal amounts, and then share the result
def whole_units(nanos: int) -> int:
    """The amount in whole units, rounded down, at most MAX_INT64: a larger number may not fit into a float."""
    return min(nanos // NANO, MAX_INT64)


def from_int(value: int) -> Quantity:
    """The quantity of a whole number of units."""
    return Quantity(value * NANO, DECIMAL_SI, 0)


def readable(nanos: int) -> str:
    """The amount as text for users: '79.6Gi', '1.5Gi', '100'. Rounded down, so that it never exceeds the amount."""
    value = nanos // NANO
    for suffix, unit in reversed(_BINARY.items()):
        if abs(value) >= unit:
            tenths = value * 10 // unit
            return f"{_digits(tenths // 10)}{f'.{tenths % 10}' if tenths % 10 else ''}{suffix}"
    return str(value)


def _digits(value: int) -> str:
    """str() of an integer of any length. Python's own raises ValueError above 4,300 digits."""
    return str(value) if value.bit_length() < _PYTHONS_BITS else f"{Decimal(value):f}"


def parse_quantity(text: str) -> Quantity:
    """Parse '80Gi', '1.5', '2e3' or '100m'. Raises ValueError, which quotes the text."""
    return _known_quantity(text) if len(text) <= REMEMBERED_TEXT else _parsed(text)


@lru_cache(maxsize=4096)
def _known_quantity(text: str) -> Quantity:
    return _parsed(text)


def _parsed(text: str) -> Quantity:
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{shown(text)} is not a quantity: use forms such as 80Gi, 500m or 1e9")
    sign, whole, fraction, suffix = match.groups()
    if not whole and not fraction:
        raise ValueError(f"{shown(text)} is not a quantity: it has no digits")
    suffix = suffix or ""
    digits = int((whole or "") + (fraction or "") or "0")
    nanos, form = _scale(digits, len(fraction or ""), suffix), _form_of(suffix)
    scale = _fast_scale((whole or "").lstrip("0"), fraction or "", suffix)
    if scale is None and form == BINARY_SI:
        nanos = min(nanos, MAX_INT64 * NANO)  # the reference limits large binary amounts
    return Quantity(-nanos if sign == "-" else nanos, form, scale)


def add(left: Quantity, right: Quantity) -> Quantity:
    """The exact sum, in the form of `left`."""
    total = left.nanos + right.nanos
    if left.scale is None or right.scale is None:
        return Quantity(total, left.form, None)
    scale = min((q.scale for q in (left, right) if q.nanos and q.scale is not None), default=left.scale)
    fits = abs(total) <= MAX_INT64 * 10 ** (9 + scale)
    return Quantity(total, left.form, scale if fits else None)


def _fast_scale(whole: str, fraction: str, suffix: str) -> int | None:
    """The power of ten that the reference's fast path stores, or None if the reference does not take that path."""
    if suffix in _BINARY:
        shift = _BINARY[suffix].bit_length() - 1
        return 0 if not fraction and 15 - len(whole) - int(shift * 3 / 10) - 1 >= 0 else None
    exponent = int(suffix[1:]) if _form_of(suffix) == DECIMAL_EXPONENT else _DECIMAL_EXPONENT[suffix]
    scale = exponent - len(fraction)
    digits_fit = len(whole) + len(fraction) <= 18  # noqa: PLR2004 - decimal digits that surely fit 64 bits
    return scale if digits_fit and scale >= -9 else None  # noqa: PLR2004 - nano


def _scale(digits: int, decimals: int, suffix: str) -> int:
    """digits / 10^decimals with its suffix, in nanos, rounded up."""
    if suffix in _BINARY:
        numerator, exponent = digits * _BINARY[suffix], 9 - decimals
    elif suffix[:1] in ("e", "E") and len(suffix) > 1:
        numerator, exponent = digits, 9 - decimals + _bounded(int(suffix[1:]))
    else:
        numerator, exponent = digits, 9 - decimals + _DECIMAL_EXPONENT[suffix]
    power: int = 10 ** abs(exponent)
    return numerator * power if exponent >= 0 else -(-numerator // power)


def _bounded(exponent: int) -> int:
    # No quantity needs an exponent above 400; without the limit, '1e999999999' would use up the memory.
    return max(-400, min(400, exponent))


def _form_of(suffix: str) -> str:
    if suffix in _BINARY:
        return BINARY_SI
    if suffix[:1] in ("e", "E") and len(suffix) > 1:
        return DECIMAL_EXPONENT
    return DECIMAL_SI


@lru_cache(1024)
def format_nanos(nanos: int, form: str) -> str:
    """The canonical text: an integer with the largest suffix that keeps the value exact."""
    sign, nanos = ("-", -nanos) if nanos < 0 else ("", nanos)
    if form == BINARY_SI and nanos % NANO == 0 and nanos // NANO >= 1024:  # noqa: PLR2004 - one Ki
        return sign + _format_binary(nanos // NANO)
    return sign + _format_decimal(nanos, form)


def _format_binary(value: int) -> str:
    suffix = ""
    for candidate in _BINARY:
        if value % 1024:
            break
        value //= 1024
        suffix = candidate
    return f"{_digits(value)}{suffix}"


def _format_decimal(nanos: int, form: str) -> str:
    if nanos == 0:
        return "0"
    exponent = -9
    while nanos % 1000 == 0 and exponent < 18:  # noqa: PLR2004 - E is the largest suffix
        nanos //= 1000
        exponent += 3
    if form == DECIMAL_EXPONENT:
        return f"{_digits(nanos)}e{exponent}" if exponent else _digits(nanos)
    return f"{_digits(nanos)}{_SUFFIX_OF_EXPONENT[exponent]}"
