"""Kubernetes objects that users write: this module expands lists and checks the fields that all kinds share.

The decoders check all other fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from extender.api.documents import DocumentPart, values_of
from extender.api.fields import Json, get, inner, string, wrong
from extender.base.berth_errors import WireError

_NAMES = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list"}


def objects_of_part(part: DocumentPart) -> Iterator[Json]:
    """The objects of one document. Raises WireError, which names the document."""
    for found in _found(part, checked):
        if isinstance(found, WireError):
            raise found
        yield found


def objects_or_faults(part: DocumentPart) -> Iterator[Json | WireError]:
    """The objects of one document, and one fault for each value that is no Kubernetes object.

    Labels and annotations are not checked. Raises WireError if the document cannot be read.
    """
    return _found(part, _shaped)


def _found(part: DocumentPart, check: Callable[[Any, str], Json]) -> Iterator[Json | WireError]:
    for value in values_of(part):
        try:
            items = _items(value)
        except WireError as error:
            yield _in_part(part, error)
            continue
        for item, path in items:
            try:
                if not path:
                    _check_kind(item)
                yield check(item, path)
            except WireError as error:
                yield _in_part(part, error)


def _in_part(part: DocumentPart, error: WireError) -> WireError:
    separator = ": " if error.path else " "
    return WireError(f"{part.where}{separator}{error.path}".rstrip(), error.problem)


def _items(value: Any) -> list[tuple[Any, str]]:
    """(item, path) of the items of a List, (value, '') of any other value, nothing for null. Raises WireError."""
    kind = value.get("kind") if type(value) is dict else None
    if type(kind) is not str or not kind.endswith("List"):
        return [] if value is None else [(value, "")]
    return [(item, f".items[{position}]") for position, item in enumerate(get(value, "items", list, "", []))]


def _check_kind(value: Any) -> None:
    if type(value) is not dict:
        raise WireError("", f"holds {_NAMES[type(value)]} where a Kubernetes object is expected")
    if type(value.get("kind")) is not str or not value["kind"]:  # no content in it: the file may hold secrets
        raise WireError("kind", "is missing: this is no Kubernetes object")


def checked(obj: Any, path: str) -> Json:
    """The object itself. Raises WireError if a field that all kinds share has the wrong type."""
    found = _shaped(obj, path)
    for name in ("labels", "annotations"):
        for key, value in ((found.get("metadata") or {}).get(name) or {}).items():
            if type(value) is not str:
                raise wrong(f"{path}.metadata.{name}[{key}]", str, value)
    return found


def _shaped(obj: Any, path: str) -> Json:
    if type(obj) is not dict:
        raise wrong(path, dict, obj)
    for name in ("kind", "apiVersion"):
        string(obj, name, path)
    for name in ("spec", "status"):
        inner(obj, name, path)
    metadata, where = inner(obj, "metadata", path), f"{path}.metadata"
    for name in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        string(metadata, name, where)
    for name in ("labels", "annotations"):
        inner(metadata, name, where)
    found: Json = obj
    return found
