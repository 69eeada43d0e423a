"""The JSON of API objects: parsed as Go parses it, and read field by field. Errors name the path of the field.

Kubernetes keeps some parts of an object as raw text: the opaque parameters of a claim or class, and the data of a
device's status. They may have bytes that are not UTF-8, lone surrogates, and more levels than orjson reads. A tenant
can write them, so one such object must not make a list or a watch fail: `lenient_loads` reads it.

The readers return a default for a field that is absent or null, and raise WireError for one of the wrong type.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import orjson

from extender.api.quantity import Quantity, parse_quantity
from extender.base.berth_errors import WireError
from extender.base.text_limits import REASON_BYTES, cut, literal, shown

T = TypeVar("T")
Json = dict[str, Any]
_NAMES = {str: "a string", int: "an integer", bool: "a boolean", dict: "an object", list: "a list"}
MAX_LEVELS = 512  # deeper values become null, unless they are flat; orjson reads 1,024 levels and writes 254
# Half of a surrogate pair without its other half, in a text whose backslashes are all escapes of another character.
_LONE_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
# What holds no list or object, or one that holds none. The engine steps over it: a tenant's object may have 100,000.
_FLAT = rb'"[^"]*"|[^"\[\]{}]++|[\[{](?:"[^"]*"|[^"\[\]{}]++)*+[\]}]'
# Brackets that open, and brackets that close, each after such values. The quote has no other half.
_BRACKETS = re.compile(rb"(?:" + _FLAT + rb")*+([\[{]*+)(?:" + _FLAT + rb')*+([\]}]*+)"?')


def lenient_loads(text: bytes) -> Any:
    """Parse a JSON text. Raises orjson.JSONDecodeError.

    Invalid UTF-8 and lone surrogates become U+FFFD, as in Go. If orjson cannot read the depth, values below
    MAX_LEVELS become null, unless they are flat. orjson cannot write the rest either, so a caller that encodes it gets
    an error.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # Backslashes and quotes get longer escapes. So no step needs a Python function for each escape: a tenant's
        # object may have a million of them.
        text = text.decode("utf-8", "replace").encode().replace(rb"\\", rb"\u005c").replace(rb"\"", rb"\u0022")
        text = _LONE_SURROGATE.sub(rb"\\ufffd", text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.loads(_limit_depth(text))


def _limit_depth(text: bytes) -> bytes:
    """The text with null in place of every object and list below MAX_LEVELS that is not flat."""
    parts: list[bytes] = []
    kept_to = depth = 0
    for found in _BRACKETS.finditer(text):
        (opens, opened), (closes, closed) = found.span(1), found.span(2)
        highest = depth + opened - opens
        lowest = highest - (closed - closes)
        if depth <= MAX_LEVELS < highest:
            parts += text[kept_to : opens + MAX_LEVELS - depth], b"null"
        if lowest <= MAX_LEVELS < highest:
            kept_to = closes + highest - MAX_LEVELS
        depth = lowest
    return b"".join((*parts, text[kept_to:])) if depth == 0 else text


def wrong(path: str, wanted: type, value: object) -> WireError:
    """The error for a value of the wrong type."""
    return WireError(path, f"must be {_NAMES[wanted]}, is {_shown(value)}")


def _shown(value: object) -> str:
    """The first 80 characters of a value. Objects and lists are abbreviated before they are written."""
    return reprlib.repr(value)[:80] if isinstance(value, dict | list) else literal(value)[:80]


def get(obj: Json, key: str, kind: type[T], path: str, default: T) -> T:
    """obj[key], or the default if it is absent or null. Raises WireError for a wrong type."""
    value = obj.get(key)
    if value is None:
        return default
    if type(value) is not kind:
        raise wrong(f"{path}.{key}", kind, value)
    return value


def string(obj: Json, key: str, path: str) -> str:
    """The string obj[key], or ''. Raises WireError."""
    value = obj.get(key)
    if type(value) is str:
        return value
    if value is None:
        return ""
    raise wrong(f"{path}.{key}", str, value)


def word(obj: Json, key: str, path: str, most: int) -> str:
    """The string obj[key] in at most `most` bytes, or ''. Raises WireError."""
    value = string(obj, key, path)
    return value if 4 * len(value) <= most else cut(value, most)  # a character has at most 4 bytes


def inner(obj: Json, key: str, path: str) -> Json:
    """The object obj[key], or an empty one. Raises WireError."""
    value = obj.get(key)
    if type(value) is dict:
        return value
    if value is None:
        return {}
    raise wrong(f"{path}.{key}", dict, value)


def integer(obj: Json, key: str, path: str) -> int:
    """The integer obj[key], or 0. Raises WireError."""
    return get(obj, key, int, path, 0)


def flag(obj: Json, key: str, path: str) -> bool:
    """The boolean obj[key], or False. Raises WireError."""
    return get(obj, key, bool, path, False)


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


def objects(obj: Json, key: str, path: str) -> list[tuple[Json, str]]:
    """The objects of the list obj[key], each with its path, without the items that are none. Raises WireError."""
    items = enumerate(get(obj, key, list, path, []))
    return [(item, f"{path}.{key}[{position}]") for position, item in items if type(item) is dict]


def strings(obj: Json, key: str, path: str) -> list[str]:
    """The list of strings obj[key], not a copy: it may be long. Raises WireError."""
    items: list[str] = get(obj, key, list, path, [])
    try:
        "".join(items)  # the fastest check that all items are strings
    except TypeError:
        position = next(i for i, item in enumerate(items) if type(item) is not str)
        raise wrong(f"{path}.{key}[{position}]", str, items[position]) from None
    return items


def string_map(obj: Json, key: str, path: str) -> dict[str, str]:
    """The map of strings obj[key], such as labels. Raises WireError."""
    items: dict[str, str] = inner(obj, key, path)
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


def amount(value: object, path: str) -> Quantity:
    """A quantity that is not negative. Raises WireError."""
    found = quantity(value, path)
    if found.nanos < 0:
        raise WireError(path, f"must not be negative, is {found}")
    return found


def quantities(
    obj: Json, key: str, path: str, read: Callable[[object, str], Quantity] = quantity
) -> dict[str, Quantity]:
    """The map of quantities obj[key], each decoded by `read`: `quantity` or `amount`. Raises WireError."""
    return {name: read(value, f"{path}.{key}[{name}]") for name, value in inner(obj, key, path).items()}


def decode_readable(items: Iterable[object], decode: Callable[[Json], T]) -> tuple[list[T], list[str]]:
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


@contextmanager
def naming(obj: Json) -> Iterator[None]:
    """A WireError of the block names the object."""
    try:
        yield
    except WireError as error:
        name = shown(inner(obj, "metadata", "").get("name")).strip("'")
        raise WireError(f"{obj.get('kind')} {name}: {error.path}", error.problem) from error


def present(fields: Json) -> Json:
    """The fields that say something: no empty text, list or object, neither false nor null."""
    return {name: value for name, value in fields.items() if value}


def dumped(value: object, path: str, option: int | None = None) -> bytes:
    """The value as JSON. Raises WireError if it is nested too deep for orjson."""
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError as error:
        raise WireError(path, f"cannot be written as JSON: {error}") from error
