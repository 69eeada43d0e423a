"""Readers for fields of decoded JSON. Errors are WireErrors that name the path of the field."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import orjson

from extender.model import (
    REASON_BYTES,
    NodeSelector,
    Quantity,
    Requirement,
    Term,
    Toleration,
    WireError,
    cut,
    literal,
    parse_quantity,
)

T = TypeVar("T")
Json = dict[str, Any]

_NAMES = {str: "a string", int: "an integer", bool: "a boolean", dict: "an object", list: "a list"}


def wrong(path: str, wanted: type, value: object) -> WireError:
    """The error for a value of the wrong type."""
    return WireError(path, f"must be {_NAMES[wanted]}, is {_shown(value)}")


def _shown(value: object) -> str:
    """The first 80 characters of a value. Objects and lists are abbreviated before they are written."""
    return reprlib.repr(value)[:80] if isinstance(value, dict | list) else literal(value)[:80]


def dumped(value: object, path: str, option: int | None = None) -> bytes:
    """The value as JSON. Raises WireError if it is nested too deep for orjson."""
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError as error:
        raise WireError(path, f"cannot be written as JSON: {error}") from error


def get(obj: Json, key: str, kind: type[T], path: str, default: T) -> T:
    """obj[key], or the default if it is absent or null. Raises WireError for a wrong type."""
    value = obj.get(key)
    if value is None:
        return default
    if type(value) is not kind:
        raise wrong(f"{path}.{key}", kind, value)
    return value


def need(obj: Json, key: str, path: str) -> str:
    """The non-empty string obj[key]. Raises WireError if there is none."""
    value = obj.get(key)
    if value is None:
        raise WireError(f"{path}.{key}", "is missing")
    if type(value) is not str or not value:
        raise WireError(f"{path}.{key}", f"must be a non-empty string, is {_shown(value)}")
    return value


def many(obj: Json, key: str, path: str, read: Callable[[Json, str], T]) -> tuple[T, ...]:
    """The list of objects obj[key], each decoded by `read(item, path)`. Raises WireError."""
    items = get(obj, key, list, path, ())
    if not items:
        return ()
    found = []
    for position, item in enumerate(items):
        where = f"{path}.{key}[{position}]"
        if type(item) is not dict:
            raise wrong(where, dict, item)
        found.append(read(item, where))
    return tuple(found)


def readable(items: Iterable[object], decode: Callable[[Json], T]) -> tuple[list[T], list[str]]:
    """The objects of a list of the API server, and the problem of each one that `decode` rejects with a WireError."""
    found: list[T] = []
    problems: list[str] = []
    for item in items:
        try:
            if not isinstance(item, dict):
                raise wrong("item", dict, item)
            found.append(decode(item))
        except WireError as error:
            problems.append(cut(str(error), REASON_BYTES))
    return found, problems


def strings(obj: Json, key: str, path: str) -> tuple[str, ...]:
    """The list of strings obj[key]. Raises WireError."""
    return tuple(string_list(obj, key, path))


def string_list(obj: Json, key: str, path: str) -> list[str]:
    """The list of strings obj[key] without a copy, for long lists. Raises WireError."""
    items: list[str] = get(obj, key, list, path, [])
    try:
        "".join(items)  # the fastest check that all items are strings
    except TypeError:
        position = next(i for i, item in enumerate(items) if type(item) is not str)
        raise wrong(f"{path}.{key}[{position}]", str, items[position]) from None
    return items


def texts(obj: Json, key: str, path: str) -> dict[str, str]:
    """The map of strings obj[key], such as labels. Raises WireError."""
    items: dict[str, str] = get(obj, key, dict, path, {})
    for name, value in items.items():
        if type(value) is not str:
            raise wrong(f"{path}.{key}[{name}]", str, value)
    return items


def quantity(value: object, path: str) -> Quantity:
    """A quantity from a string or a number. Raises WireError."""
    if type(value) in (int, float):
        value = str(value)
    if type(value) is not str:
        raise WireError(path, f"must be a quantity, is {_shown(value)}")
    try:
        return parse_quantity(value)
    except ValueError as error:
        raise WireError(path, str(error)) from error


def quantities(obj: Json, key: str, path: str) -> dict[str, Quantity]:
    """The map of quantities obj[key]. Raises WireError."""
    items = get(obj, key, dict, path, {})
    return {name: quantity(value, f"{path}.{key}[{name}]") for name, value in items.items()}


def amount(value: object, path: str) -> Quantity:
    """A quantity that is not negative. Raises WireError."""
    found = quantity(value, path)
    if found.nanos < 0:
        raise WireError(path, f"must not be negative, is {found}")
    return found


def amounts(obj: Json, key: str, path: str) -> dict[str, Quantity]:
    """The map of quantities obj[key], none of them negative. Raises WireError."""
    items = get(obj, key, dict, path, {})
    return {name: amount(value, f"{path}.{key}[{name}]") for name, value in items.items()}


def node_selector(obj: Json, key: str, path: str) -> NodeSelector | None:
    """The core/v1 NodeSelector obj[key], or None if absent. Raises WireError."""
    if obj.get(key) is None:
        return None
    inner = get(obj, key, dict, path, {})
    return NodeSelector(many(inner, "nodeSelectorTerms", f"{path}.{key}", _term))


def _term(obj: Json, path: str) -> Term:
    return Term(
        many(obj, "matchExpressions", path, _requirement),
        many(obj, "matchFields", path, _requirement),
    )


def _requirement(obj: Json, path: str) -> Requirement:
    return Requirement(need(obj, "key", path), need(obj, "operator", path), strings(obj, "values", path))


def toleration(obj: Json, path: str) -> Toleration:
    """A toleration of taints of devices or nodes. Raises WireError."""
    seconds = obj.get("tolerationSeconds")
    return Toleration(
        get(obj, "key", str, path, ""),
        get(obj, "operator", str, path, ""),
        get(obj, "value", str, path, ""),
        get(obj, "effect", str, path, ""),
        seconds if isinstance(seconds, int) else None,
    )


def encode_node_selector(selector: NodeSelector) -> Json:
    """A core/v1 NodeSelector as JSON."""
    return {"nodeSelectorTerms": [_encode_term(term) for term in selector.terms]}


def _encode_term(term: Term) -> Json:
    found: Json = {}
    if term.expressions:
        found["matchExpressions"] = [_encode_requirement(r) for r in term.expressions]
    if term.fields:
        found["matchFields"] = [_encode_requirement(r) for r in term.fields]
    return found


def _encode_requirement(requirement: Requirement) -> Json:
    found: Json = {"key": requirement.key, "operator": requirement.operator}
    if requirement.values:
        found["values"] = list(requirement.values)
    return found
