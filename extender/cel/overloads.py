"""The functions of the language: their overloads with types and implementation; cost.py has their prices.

`function` declares one function as cel-go's cel.Function does: its name and properties once, then its overloads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from extender.cel.errors import EvalError
from extender.cel.types import Type
from extender.cel.values import Optional, type_name

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
