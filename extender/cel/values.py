"""The values of an evaluation, with equality and order as CEL defines them.

int, float, str, bytes, bool, None, list and dict stand for themselves; this module adds the types that Python lacks. A
bool is never an int here; a map holds its keys as `key_of` gives them.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from extender.api.quantity import Quantity
from extender.api.semver import Semver
from extender.cel.errors import EvalError

INT_MIN, INT_MAX, UINT_MAX = -(2**63), 2**63 - 1, 2**64 - 1
# The range of a timestamp: 0001-01-01T00:00:00 to the end of 9999, relative to the epoch.
FIRST_NANOS, LAST_NANOS = -62135596800 * 10**9, 253402300799 * 10**9 + 10**9 - 1


class UInt(int):
    """An unsigned 64-bit integer: an int of another type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """Nanoseconds."""

    nanos: int


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """Nanoseconds since 1970-01-01T00:00:00Z. `east` is the offset of its zone in seconds; only its text shows it."""

    nanos: int
    east: int = field(default=0, compare=False)

    def moment(self) -> datetime.datetime:
        """The time in UTC, in whole microseconds."""
        start = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return start + datetime.timedelta(microseconds=self.nanos // 1000)


@dataclass(frozen=True, slots=True)
class Optional:
    """optional.of(value), or optional.none() where `present` is false."""

    value: object = None
    present: bool = True


NONE = Optional(present=False)


@dataclass(frozen=True, slots=True)
class Empty:
    """google.protobuf.Empty{}."""


class List(list[Any]):
    """A list that an expression made. `weight` counts all values in it, a shared one each time it appears: a walk over
    the list visits so many."""

    __slots__ = ("weight",)
    weight: int


class Map(dict[Any, Any]):
    """A map that an expression made; see List."""

    __slots__ = ("weight",)
    weight: int


@dataclass(frozen=True, slots=True)
class TypeValue:
    """The value of type(x)."""

    name: str


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL; the parts as the accessors return them."""

    text: str
    scheme: str
    host: str
    hostname: str
    port: str
    path: str
    query: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Cidr:
    """An address with its prefix length; the address keeps its host bits."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    prefix: int

    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        return ipaddress.ip_network((self.address, self.prefix), strict=False)


@dataclass(frozen=True, slots=True)
class Format:
    """A named format, such as dns1123Label."""

    name: str


_ADDRESSES = (ipaddress.IPv4Address, ipaddress.IPv6Address)
_OPAQUE_EQUALITY = frozenset({Quantity, Semver, Url, Cidr, Format, *_ADDRESSES})
_UNHASHABLE = (bytes, Semver, Format)  # in Go
_TYPE_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    UInt: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    tuple: "list",
    List: "list",
    dict: "map",
    type(None): "null_type",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    Optional: "optional_type",
    TypeValue: "type",
    Quantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
    Url: "kubernetes.URL",
    ipaddress.IPv4Address: "net.IP",
    ipaddress.IPv6Address: "net.IP",
    Cidr: "net.CIDR",
    Format: "kubernetes.NamedFormat",
    Empty: "google.protobuf.Empty",
}
_NUMBERS = (int, UInt, float)
_MAX_KEY_CHARACTERS = 512  # characters of a key in a message


_MADE, _TEXTS, _PARSED_TEXTS = (List, Map), (str, bytes), (Semver, Url)
_WEIGHTLESS = frozenset({*_NUMBERS, bool, Duration, Timestamp, type(None), Quantity, Cidr, Format, *_ADDRESSES})


def weight(value: object) -> int:
    """The number of values that a walk over this one visits."""
    if isinstance(value, _TEXTS):
        return 1 + len(value) // 10
    if isinstance(value, _MADE):
        return value.weight
    if isinstance(value, Optional):
        return 1 + weight(value.value)
    if isinstance(value, _PARSED_TEXTS):
        return 1 + len(value.text) // 10
    return 1 + len(value) if isinstance(value, (list, tuple, dict)) else 1


def total_weight(values: Collection[object]) -> int:
    """The weights of many values together."""
    kinds = set(map(type, values))
    if kinds <= _WEIGHTLESS:
        return len(values)
    if kinds == {str}:
        return len(values) + sum(map(len, values)) // 10  # type: ignore[arg-type] # all are str
    return sum(map(weight, values))


def weighed(items: Collection[object]) -> List:
    """The items as a list with its weight."""
    made = List(items)
    made.weight = 1 + total_weight(items)
    return made


def type_name(value: object) -> str:
    """The CEL name of a value's type."""
    kind = type(value)
    return _TYPE_NAMES.get(kind) or ("map" if isinstance(value, dict) else kind.__name__)


def equal(left: object, right: object) -> bool:
    """CEL equality: numbers are equal by value, values of other types never. Raises EvalError for a value of a type of
    Kubernetes' library, such as a Quantity, with a value of another type other than null."""
    return left is right if left is None or right is None else _equal(left, right)


def _clash(a: type, b: type) -> bool:
    """Whether the values of a type of Kubernetes' library cannot be compared with those of the other type."""
    return a in _OPAQUE_EQUALITY and b is not a and not (a in _ADDRESSES and b in _ADDRESSES)


def _equal(left: object, right: object) -> bool:
    if _clash(type(left), type(right)):
        raise EvalError("no such overload")
    return _equal_values(left, right)


def _equal_values(left: object, right: object) -> bool:
    a, b = type(left), type(right)
    if a is b:
        if isinstance(left, list | tuple):
            return _equal_lists(left, right)  # type: ignore[arg-type] # same class
        if isinstance(left, dict):
            return _equal_maps(left, right)  # type: ignore[arg-type] # same class
        if a is Optional:
            return _equal_optionals(left, right)  # type: ignore[arg-type] # both are Optional
        return left == right
    if a in _NUMBERS and b in _NUMBERS:
        left, right = _comparable(left, right)
        return left == right
    if isinstance(left, dict) and isinstance(right, dict):
        return _equal_maps(left, right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return _equal_lists(left, right)
    return False


def _equal_lists(left: Sequence[object], right: Sequence[object]) -> bool:
    if len(left) != len(right):
        return False
    return all(map(_equal_items, left, right))


def _equal_maps(left: dict[object, object], right: dict[object, object]) -> bool:
    if len(left) != len(right):
        return False
    return all(key in right and _equal_items(value, right[key]) for key, value in left.items())


def _equal_items(left: object, right: object) -> bool:
    """As in the reference, items of lists and maps that cannot be compared are equal."""
    return _equal_unless_clash(left, right, otherwise=True)


def _equal_optionals(left: Optional, right: Optional) -> bool:
    if not (left.present and right.present):
        return left.present == right.present
    return _equal(left.value, right.value)


def same(left: object, right: object) -> bool:
    """Equality for != and inside of functions, such as `in` and `indexOf`: false where `equal` raises EvalError."""
    return _equal_unless_clash(left, right, otherwise=False)


def _equal_unless_clash(left: object, right: object, *, otherwise: bool) -> bool:
    """Raises no error for each item of a list, which would take several times as long."""
    if left is None or right is None:
        return left is right
    if _clash(type(left), type(right)):
        return otherwise
    try:
        return _equal_values(left, right)
    except EvalError:  # of values in optionals
        return otherwise


def _comparable(left: Any, right: Any) -> tuple[Any, Any]:
    """Two numbers as the reference compares them: beside a double, an integer is rounded to a double."""
    return (float(left), float(right)) if float in (type(left), type(right)) else (left, right)


def compare(left: object, right: object) -> int:
    """-1, 0 or 1. Raises EvalError for types without an order between them."""
    a, b = type(left), type(right)
    if a in _NUMBERS and b in _NUMBERS:
        if left != left or right != right:  # noqa: PLR0124 - NaN is the value that differs from itself
            raise EvalError("NaN values cannot be ordered")
        left, right = _comparable(left, right)
    elif a is not b or a not in (str, bytes, bool, Duration, Timestamp):
        raise EvalError("no such overload")
    return int(left > right) - int(left < right)  # type: ignore[operator] # checked above


def key_of(value: object) -> object:
    """A map key: numbers of one value are one key, true is not 1."""
    if type(value) is bool:
        return _TRUE if value else _FALSE
    if type(value) in _NUMBERS or type(value) is str:
        return value
    raise EvalError(f"unsupported key type: {type_name(value)}")


def literal_key(value: object) -> object:
    """A key in a map literal; there a Quantity is a key, too."""
    return value if isinstance(value, Quantity) else key_of(value)


def named(key: object) -> str:
    """A key or an index in a message about it. Of a text it is the start, of a list the type: they have any length."""
    if type(key) is str:
        return key if len(key) <= _MAX_KEY_CHARACTERS else key[:_MAX_KEY_CHARACTERS] + "…"
    return str(key) if key is None or type(key) in (bool, *_NUMBERS) else type_name(key)


def require_hash(value: object) -> None:
    """Raises EvalError for a value that the reference cannot look up by hash."""
    if type(value) in _UNHASHABLE:
        raise EvalError(f"internal error: hash of unhashable type {type_name(value)}")


class _BoolKey(NamedTuple):
    value: bool


_TRUE, _FALSE = _BoolKey(True), _BoolKey(False)


def from_key(key: object) -> object:
    """The value that a map key stands for."""
    return key.value if isinstance(key, _BoolKey) else key
