"""Static types and their unification, by the rules of cel-go's checker."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import is_

from extender.cel.errors import CelError
from extender.cel.work import STEP, Work

# A type that doubles with each macro, such as [{1: 1}].map(a, {a: a}).map(b, {b: b}), makes the check endless. 250
# lists in one another have 251 parts.
_MOST_PARTS = 256
_STEPS_OF_A_TYPE = 4  # to make one


class TypesTooLarge(CelError):
    """A type of an expression has too many parts."""


@dataclass(frozen=True, slots=True)
class Type:
    """A type: `kind` is the family, `name` tells opaque types and type variables apart. Raises TypesTooLarge."""

    kind: str
    name: str = ""
    params: tuple[Type, ...] = ()
    parts: int = field(init=False, repr=False, compare=False)  # the type and all that it is made of
    is_open: bool = field(init=False, repr=False, compare=False)  # it has a type variable
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = 1 + sum([param.parts for param in self.params])
        if parts > _MOST_PARTS:
            raise TypesTooLarge(f"a type has more than {_MOST_PARTS} parts")
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

_SIMPLE = frozenset({"bool", "bytes", "double", "int", "string", "uint", "duration", "timestamp", "struct"})
_NULLABLE = frozenset({"opaque", "struct", "any", "duration", "timestamp", "null", "wrapper"})


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


def has_variable(type_: Type) -> bool:
    return type_.is_open


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
        return any(map(has_variable, want.params))
    return any(map(leaves_open, have.params, want.params))


def unwrap_optional(type_: Type) -> Type | None:
    return type_.params[0] if type_.kind == "opaque" and type_.name == "optional_type" else None


class Bindings:
    """The types that type variables stand for. A failed attempt changes nothing.

    All work with types takes steps. Every method raises TooMuchWork where an expression takes too many, and
    TypesTooLarge.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._known: dict[str, Type] = {}
        self._replaced: list[tuple[str, Type | None]] = []  # what the attempt under way has replaced
        self._fresh = 0

    def fresh(self) -> Type:
        self._fresh += 1
        return Type("var", f"_var{self._fresh}")

    def spend(self, steps: int) -> None:
        """Take steps for work that grows with the types."""
        self._work.spend(steps * STEP)

    def assignable(self, have: tuple[Type, ...], want: tuple[Type, ...]) -> bool:
        """Whether values of the types `have` fit the types `want`. On success the type variables are bound."""
        if len(have) != len(want):
            return False
        self._replaced.clear()
        if all(self._fits(h, w) for h, w in zip(have, want, strict=True)):
            return True
        for name, before in reversed(self._replaced):
            if before is None:
                del self._known[name]
            else:
                self._known[name] = before
        return False

    def _bind(self, variable: Type, type_: Type) -> None:
        self._replaced.append((variable.name, self._known.get(variable.name)))
        self._known[variable.name] = type_

    def resolve(self, type_: Type, *, free_is_dyn: bool = False) -> Type:
        """The type with its variables replaced; the same object where it has none."""
        if not type_.is_open:
            return type_
        self.spend(1)
        if type_.kind == "var":
            known = self._known.get(type_.name)
            if known is not None:
                return self.resolve(known, free_is_dyn=free_is_dyn)
            return DYN if free_is_dyn else type_
        params = tuple([self.resolve(p, free_is_dyn=free_is_dyn) for p in type_.params])
        if all(map(is_, params, type_.params)):
            return type_
        self.spend(_STEPS_OF_A_TYPE)
        return Type(type_.kind, type_.name, params)

    def _fits(self, have: Type, want: Type) -> bool:
        if have is want:
            return True
        self.spend(1)
        if want.kind == "var":
            valid, known = self._substitutes(have, want)
            if valid or known:
                return valid
        if have.kind == "var":
            return self._substitutes(want, have)[0]
        if is_dynamic(have) or is_dynamic(want):
            return True
        if "null" in (have.kind, want.kind):
            return have.kind in _NULLABLE and want.kind in _NULLABLE
        have, want = (type_.params[0] if type_.kind == "wrapper" else type_ for type_ in (have, want))
        if have.kind in _SIMPLE:
            return have == want
        if have.kind == "type":
            return want.kind == "type"
        return (have.kind, have.name, len(have.params)) == (want.kind, want.name, len(want.params)) and all(
            self._fits(h, w) for h, w in zip(have.params, want.params, strict=True)
        )

    def _substitutes(self, type_: Type, variable: Type) -> tuple[bool, bool]:
        """(the variable may stand for the type, the variable was bound before)."""
        if type_ == variable:
            return True, True
        known = self._known.get(variable.name)
        if known is None:
            if not self._occurs(variable, type_):
                self._bind(variable, type_)
                return True, False
            return False, False
        self.spend(known.parts)
        if type_ == known:
            return True, True
        if not self._fits(type_, known):
            return False, True
        general = more_general(type_, known)
        if not self._occurs(variable, general):
            self._bind(variable, general)
        return True, True

    def _occurs(self, variable: Type, within: Type) -> bool:
        if not within.is_open:
            return False
        self.spend(1)
        if within.kind == "var":
            if within.name == variable.name:
                return True
            known = self._known.get(within.name)
            return known is not None and self._occurs(variable, known)
        return any(self._occurs(variable, p) for p in within.params)


def more_general(left: Type, right: Type) -> Type:
    """The less specific of two types that agree."""
    return left if left is right or _less_specific(left, right) else right


def _less_specific(left: Type, right: Type) -> bool:
    if left.kind in ("dyn", "any", "var"):
        return True
    if right.kind in ("dyn", "any", "var") or left.kind != right.kind:
        return False
    if left.kind == "type":
        return True
    if left.name != right.name or len(left.params) != len(right.params):
        return False
    return all(_less_specific(a, b) for a, b in zip(left.params, right.params, strict=True))
