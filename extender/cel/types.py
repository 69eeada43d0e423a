"""The static types of expressions, and the overloads of functions with their types and implementation.

`function` declares one function as cel-go's cel.Function does: its name and properties once, then its overloads. Their
prices are in cost.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from extender.cel.errors import EvalError, TooMuchWork
from extender.cel.values import Optional, type_name

# A type that doubles with each macro, such as [{1: 1}].map(a, {a: a}).map(b, {b: b}), makes the check endless. 250
# lists in one another have 251 parts.
_MAX_PARTS = 256


@dataclass(frozen=True, slots=True)
class Type:
    """A type: `kind` is the family, `name` tells opaque types and type variables apart. Raises TooMuchWork."""

    kind: str
    name: str = ""
    params: tuple[Type, ...] = ()
    parts: int = field(init=False, repr=False, compare=False)  # the type and all that it is made of
    is_open: bool = field(init=False, repr=False, compare=False)  # it has a type variable
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = 1 + sum([param.parts for param in self.params])
        if parts > _MAX_PARTS:
            raise TooMuchWork(f"a type has more than {_MAX_PARTS} parts")
        put = object.__setattr__  # the class is frozen
        put(self, "parts", parts)
        put(self, "is_open", self.kind == "var" or any(param.is_open for param in self.params))
        put(self, "_hash", hash((self.kind, self.name, self.params)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        if self.kind == "opaque" and self.params:
            return f"{self.name}({', '.join(map(str, self.params))})"
        if self.kind in ("opaque", "struct", "var"):
            return self.name
        if self.params:
            return f"{self.kind}({', '.join(map(str, self.params))})"
        return _SHOWN.get(self.kind, self.kind)


_SHOWN = {"null": "null", "duration": "duration", "timestamp": "timestamp", "error": "!error!"}

INT, UINT, DOUBLE, BOOL = Type("int"), Type("uint"), Type("double"), Type("bool")
STRING, BYTES, NULL, DYN, ANY = Type("string"), Type("bytes"), Type("null"), Type("dyn"), Type("any")
DURATION, TIMESTAMP, ERROR = Type("duration"), Type("timestamp"), Type("error")
QUANTITY = Type("struct", "kubernetes.Quantity")
SEMVER = Type("struct", "kubernetes.Semver")
URL = Type("struct", "kubernetes.URL")
FORMAT = Type("struct", "kubernetes.NamedFormat")
IP = Type("opaque", "net.IP")
CIDR = Type("opaque", "net.CIDR")
A, B = Type("var", "A"), Type("var", "B")


def list_of(item: Type) -> Type:
    return Type("list", params=(item,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", params=(key, value))


def optional_of(item: Type) -> Type:
    return Type("opaque", "optional_type", (item,))


def type_of(item: Type) -> Type:
    return Type("type", params=(item,))


def wrapper_of(item: Type) -> Type:
    """A scalar that may be null, such as google.protobuf.Int32Value."""
    return Type("wrapper", params=(item,))


def with_dyn(type_: Type) -> Type:
    """The type with dyn in place of its variables."""
    if not type_.is_open:
        return type_
    return DYN if type_.kind == "var" else Type(type_.kind, type_.name, tuple(map(with_dyn, type_.params)))


def is_dynamic(type_: Type) -> bool:
    return type_.kind in ("dyn", "any", "error")


def leaves_open(have: Type, want: Type) -> bool:
    """Whether a value of the type `have` does not say what a part of `want` stands for: list(dyn) as
    list(list(A))."""
    if is_dynamic(have):
        return any(param.is_open for param in want.params)
    return any(map(leaves_open, have.params, want.params))


def unwrap_optional(type_: Type) -> Type | None:
    return type_.params[0] if type_.kind == "opaque" and type_.name == "optional_type" else None


# -- overloads --------------------------------------------------------------------------------------------------------

Version = tuple[int, int]
Library = Mapping[str, Sequence["Overload"]]
"""Overloads by function name, in the order in which the checker tries them."""
OLDEST: Version = (1, 31)  # every cluster that Berth supports has the functions of this version

_RUNTIME_NAMES = {
    "int": "int",
    "uint": "uint",
    "double": "double",
    "bool": "bool",
    "string": "string",
    "bytes": "bytes",
    "null": "null_type",
    "duration": "google.protobuf.Duration",
    "timestamp": "google.protobuf.Timestamp",
    "list": "list",
    "map": "map",
    "type": "type",
}


@dataclass(frozen=True, slots=True, eq=False)
class Overload:
    """One signature. `member` says that the first argument stands before the dot. All overloads of a function have the
    last four in common."""

    args: tuple[Type, ...]
    result: Type
    apply: Callable[..., object]
    member: bool = False
    since: Version = OLDEST
    function: str = ""
    pure: bool = False  # a call with literals is evaluated once, at compile time; an error stays a run-time error
    conversion: bool = False  # the reference folds a call with a constant: an error is a compile error
    pattern: bool = False  # the last argument is a regular expression: a bad constant is a compile error

    def accepts(self, values: tuple[object, ...]) -> bool:
        """Whether these run-time values fit the signature."""
        return len(values) == len(self.args) and all(map(fits, values, self.args))


def fits(value: object, type_: Type) -> bool:
    """Whether a run-time value has this type. The first item of a list decides for all its items.

    The items of a list of lists may be anything: only `flatten` takes one, and passes other items on.
    """
    kind = type_.kind
    if kind in ("dyn", "any", "var"):
        return True
    name = type_name(value)
    if kind == "list" and name == "list":
        item = type_.params[0]
        return not value or item.kind == "list" or fits(value[0], item)  # type: ignore[index] # type_name says list
    if isinstance(value, Optional) and value.present and type_.params:
        return name == type_.name and fits(value.value, type_.params[0])
    if kind in ("struct", "opaque"):
        return name == type_.name
    return name == _RUNTIME_NAMES.get(kind)


def function(
    name: str, *overloads: Overload, pure: bool = False, conversion: bool = False, pattern: bool = False
) -> list[Overload]:
    """The overloads of a function, with its name and properties."""
    return [replace(one, function=name, pure=pure, conversion=conversion, pattern=pattern) for one in overloads]


def member(args: tuple[Type, ...], result: Type, apply: Callable[..., object], since: Version = OLDEST) -> Overload:
    """An overload called as args[0].name(args[1:])."""
    return Overload(args, result, apply, member=True, since=since)


def plain(args: tuple[Type, ...], result: Type, apply: Callable[..., object], since: Version = OLDEST) -> Overload:
    """An overload called as name(args)."""
    return Overload(args, result, apply, since=since)


def succeeds(parse: Callable[..., object]) -> Callable[..., bool]:
    """Whether a function has a value for its arguments, such as isIP for ip."""

    def test(*args: object) -> bool:
        try:
            parse(*args)
        except EvalError:
            return False
        return True

    return test
