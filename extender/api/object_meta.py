"""The metadata of objects of any kind (meta/v1)."""

from __future__ import annotations

import re
from sys import intern
from typing import NamedTuple

from extender.api.fields import Json, inner, need, string, string_map

# Names of RFC 1123, as the API server writes them in its messages.
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(rf"{LABEL.pattern}(\.{LABEL.pattern})*")
MAX_LABEL, MAX_SUBDOMAIN = 63, 253
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


class ObjectKey(NamedTuple):
    """Namespace and name of an object. The namespace is empty for cluster-scoped objects."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def is_label(name: str) -> bool:
    """Whether a name is a DNS label, as those of namespaces are."""
    return len(name) <= MAX_LABEL and LABEL.fullmatch(name) is not None


def is_subdomain(name: str) -> bool:
    """Whether a name is a DNS subdomain, as those of most objects are, so that it is safe in a path of the API."""
    return len(name) <= MAX_SUBDOMAIN and SUBDOMAIN.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Whether a text may be the value of a label and is not empty. The names in their keys have the same form."""
    return len(text) <= MAX_LABEL and _LABEL_VALUE.fullmatch(text) is not None


def key_of(metadata: Json) -> ObjectKey:
    """The key of an object with a namespace. Raises WireError."""
    return ObjectKey(intern(string(metadata, "namespace", "metadata")), need(metadata, "name", "metadata"))


def labels_of(metadata: Json) -> dict[str, str]:
    """The labels of an object. Raises WireError."""
    return dict(string_map(metadata, "labels", "metadata"))


def decode_labels(obj: Json) -> dict[str, str]:
    """The labels of an object of any kind. Raises WireError."""
    return labels_of(inner(obj, "metadata", ""))
