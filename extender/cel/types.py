"""The static types of expressions."""

from __future__ import annotations

from dataclasses import dataclass, field

from extender.cel.errors import TooMuchWork

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
