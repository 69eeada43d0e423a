"""What kube-apiserver refuses in the metadata of every object: names, labels and the keys of annotations.

Source: apimachinery, pkg/api/validation/objectmeta.go and pkg/util/validation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from extender.api.fields import Json, get, string
from extender.api.object_meta import MAX_LABEL, MAX_SUBDOMAIN, is_label, is_label_value, is_subdomain
from extender.base.text_limits import cut

_WITH_LABELS_AS_NAMES = ("Namespace", "Service")
Faults = Iterator[tuple[str, str]]  # the field, and what is wrong with it


def quoted(value: object) -> str:
    """A value as the API's messages have it: as JSON, of bounded length."""
    return cut(json.dumps(value, ensure_ascii=False))


def invalid_value(value: object, why: str) -> str:
    """The words for a value that breaks a rule."""
    return f"Invalid value: {quoted(value)}: {why}"


def of_metadata(kind: str, metadata: Json, path: str = "metadata") -> Faults:
    """Yield the faults of an object's metadata. Raises WireError for a value of a wrong type."""
    name = string(metadata, "name", path)
    if name and kind in _WITH_LABELS_AS_NAMES:
        yield from of_label_name(name, f"{path}.name")
    elif name:
        yield from of_subdomain(name, f"{path}.name")
    yield from of_labels(get(metadata, "labels", dict, path, {}), f"{path}.labels")
    for key in get(metadata, "annotations", dict, path, {}):
        yield from of_label_key(key, f"{path}.annotations", key.lower())


def of_labels(labels: Json, path: str) -> Faults:
    """The faults of labels, or of a selector by labels."""
    for key, value in labels.items():
        yield from of_label_key(key, path)
        yield from of_label_value(value, path)


def of_label_key(key: str, path: str, checked: str | None = None) -> Faults:
    """The faults of a qualified name, as NAME or DOMAIN/NAME.

    `checked` stands for that of an annotation, of which case does not matter.
    """
    domain, slash, name = (key if checked is None else checked).rpartition("/")
    if "/" in domain:
        yield path, invalid_value(key, "a valid label key is NAME or DOMAIN/NAME")
    elif slash and not is_subdomain(domain):
        yield path, invalid_value(key, "prefix part must be a lowercase RFC 1123 subdomain")
    elif not name:
        yield path, invalid_value(key, "name part must be non-empty")
    elif len(name) > MAX_LABEL:
        yield path, invalid_value(key, f"name part must be no more than {MAX_LABEL} bytes")
    elif not is_label_value(name):
        why = "name part must consist of letters, digits, '-', '_' or '.', and start and end with a letter or digit"
        yield path, invalid_value(key, why)


def of_label_value(value: object, path: str) -> Faults:
    """The faults of a label's value; values of another type than text are the schema's."""
    if not isinstance(value, str) or not value:
        return
    if len(value) > MAX_LABEL:
        yield path, invalid_value(value, f"must be no more than {MAX_LABEL} bytes")
    elif not is_label_value(value):
        why = "a valid label must consist of letters, digits, '-', '_' or '.', and start and end with a letter or digit"
        yield path, invalid_value(value, why)


def of_label_name(name: str, path: str) -> Faults:
    """The faults of a name that must be a DNS label."""
    if len(name) > MAX_LABEL:
        yield path, invalid_value(name, f"must be no more than {MAX_LABEL} characters")
    elif not is_label(name):
        yield path, invalid_value(name, "a lowercase RFC 1123 label must have lower case letters, digits and '-' only")


def of_subdomain(name: str, path: str) -> Faults:
    """The faults of a name that must be a DNS subdomain."""
    if len(name) > MAX_SUBDOMAIN:
        yield path, invalid_value(name, f"must be no more than {MAX_SUBDOMAIN} characters")
    elif not is_subdomain(name):
        why = "a lowercase RFC 1123 subdomain must have lower case letters, digits, '-' and '.' only"
        yield path, invalid_value(name, why)
