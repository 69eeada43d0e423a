"""Kubernetes objects that people write: this module expands lists and checks the fields that all kinds share.

The decoders check all other fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extender.model import WireError
from extender.wire.documents import DocumentPart, values_of
from extender.wire.fields import Json, get, wrong


def objects_of_part(part: DocumentPart) -> Iterator[Json]:
    """The objects of one document. Raises WireError, which names the document."""
    for value in values_of(part):
        try:
            yield from objects_in(value)
        except WireError as error:
            separator = ": " if error.path else " "
            raise WireError(f"{part.where}{separator}{error.path}".rstrip(), error.problem) from error


def objects_in(value: Any) -> Iterator[Json]:
    """The value itself, the items if it is a List, or nothing if it is null. Raises WireError."""
    if value is None:
        return
    if type(value) is not dict:
        raise WireError("", f"holds a {type(value).__name__} where a Kubernetes object is expected")
    kind = value.get("kind")
    if type(kind) is not str or not kind:  # the message quotes nothing: the file may hold secrets
        raise WireError("kind", "is missing: this is no Kubernetes object")
    if not kind.endswith("List"):
        yield checked(value, "")
        return
    for position, item in enumerate(get(value, "items", list, "", [])):
        where = f".items[{position}]"
        if type(item) is not dict:
            raise wrong(where, dict, item)
        yield checked(item, where)


def checked(obj: Json, path: str) -> Json:
    """The object itself. Raises WireError if a field that all kinds share has the wrong type."""
    for name in ("kind", "apiVersion"):
        get(obj, name, str, path, "")
    for name in ("spec", "status"):
        get(obj, name, dict, path, {})
    metadata, where = get(obj, "metadata", dict, path, {}), f"{path}.metadata"
    for name in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        get(metadata, name, str, where, "")
    for name in ("labels", "annotations"):
        for key, value in get(metadata, name, dict, where, {}).items():
            if type(value) is not str:
                raise wrong(f"{where}.{name}[{key}]", str, value)
    return obj
