"""Kubernetes objects that people write: lists unfolded, and the fields that all objects share of the right type.

What lies deeper is checked where it is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extender.model import WireError
from extender.wire.documents import DocumentPart, values_of
from extender.wire.fields import Json, get, wrong


def objects_of_part(part: DocumentPart) -> Iterator[Json]:
    """The objects of one document of a text. Raises WireError naming the place."""
    for value in values_of(part):
        try:
            yield from objects_in(value)
        except WireError as error:
            separator = ": " if error.path else " "
            raise WireError(f"{part.where}{separator}{error.path}".rstrip(), error.problem) from error


def objects_in(value: Any) -> Iterator[Json]:
    """The objects that a value stands for: itself, the items of a list, or none where it is null. Raises WireError."""
    if value is None:
        return
    if type(value) is not dict:
        raise WireError("", f"holds a {type(value).__name__} where a Kubernetes object is expected")
    kind = value.get("kind")
    if type(kind) is not str or not kind:  # and nothing of it is shown: it may be any file
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
    """The object itself, once what all kinds share is seen to be right. Raises WireError."""
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
