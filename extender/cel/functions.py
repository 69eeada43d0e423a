"""What a function is: its overloads with types, implementation and the Kubernetes version that brought it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from extender.cel.types import Type
from extender.cel.values import type_name

Version = tuple[int, int]
OLDEST: Version = (1, 31)  # everything that old is in every environment Berth supports

_RUNTIME_NAMES = {
    "int": "int", "uint": "uint", "double": "double", "bool": "bool", "string": "string", "bytes": "bytes",
    "null": "null_type", "duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp",
    "list": "list", "map": "map", "type": "type",
}


@dataclass(frozen=True, slots=True, eq=False)
class Overload:
    """One signature. `member` says that the first argument stands before the dot."""

    function: str
    args: tuple[Type, ...]
    result: Type
    apply: Callable[..., object]
    member: bool = False
    since: Version = OLDEST

    def accepts(self, values: tuple[object, ...]) -> bool:
        """Whether these run-time values fit the signature; parameters of containers are judged by their first item."""
        return len(values) == len(self.args) and all(map(_fits, values, self.args))


def _fits(value: object, type_: Type) -> bool:
    kind = type_.kind
    if kind in ("dyn", "any", "var"):
        return True
    name = type_name(value)
    if kind == "list" and name == "list":
        return not value or _fits(value[0], type_.params[0])  # type: ignore[index] # named a list
    if kind in ("struct", "opaque"):
        return name == type_.name
    return name == _RUNTIME_NAMES.get(kind)


class Library:
    """Overloads by function name, in the order in which they are tried."""

    def __init__(self, overloads: Iterable[Overload]) -> None:
        self._by_name: dict[str, list[Overload]] = {}
        for overload in overloads:
            self._by_name.setdefault(overload.function, []).append(overload)

    def find(self, function: str) -> list[Overload]:
        return self._by_name.get(function, [])


def member(
    name: str, args: tuple[Type, ...], result: Type, apply: Callable[..., object], since: Version = OLDEST
) -> Overload:
    """An overload called as args[0].name(args[1:])."""
    return Overload(name, args, result, apply, member=True, since=since)


def plain(
    name: str, args: tuple[Type, ...], result: Type, apply: Callable[..., object], since: Version = OLDEST
) -> Overload:
    """An overload called as name(args)."""
    return Overload(name, args, result, apply, since=since)
