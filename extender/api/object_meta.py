"""The metadata of objects of any kind (meta/v1)."""

from __future__ import annotations

import re
from sys import intern
from typing import NamedTuple

from extender.api.fields import Json, inner, need, string, string_map

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class ObjectKey(NamedTuple):
    """Namespace and name of an object. The namespace is empty for cluster-scoped objects."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def is_object_name(name: str) -> bool:
    """Whether an object may have this name, so that it is safe in a path of the API."""
    return _SUBDOMAIN.fullmatch(name) is not None


def key_of(metadata: Json) -> ObjectKey:
    """The key of an object with a namespace. Raises WireError."""
    return ObjectKey(intern(string(metadata, "namespace", "metadata")), need(metadata, "name", "metadata"))


def labels_of(metadata: Json) -> dict[str, str]:
    """The labels of an object. Raises WireError."""
    return dict(string_map(metadata, "labels", "metadata"))


def decode_labels(obj: Json) -> dict[str, str]:
    """The labels of an object of any kind. Raises WireError."""
    return labels_of(inner(obj, "metadata", ""))
