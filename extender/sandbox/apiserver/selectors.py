"""Field selectors and label selectors of list and watch requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from extender.sandbox.apiserver.status_errors import ApiError
from extender.sandbox.apiserver.versioned_store import Json

Selector = Callable[[Json], bool]

_SET_TERM = re.compile(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)")
_COMMA = re.compile(r",(?![^(]*\))")  # not the commas of 'a in (b,c)'


def selector_of(query: Mapping[str, str]) -> Selector:
    """Return the predicate for the parameters fieldSelector and labelSelector. Raises ApiError."""
    by_field, by_label = _by_field(query.get("fieldSelector", "")), _by_label(query.get("labelSelector", ""))
    return lambda obj: by_field(obj) and by_label(obj["metadata"].get("labels") or {})


def _by_field(text: str) -> Selector:
    """metadata.name=x, spec.nodeName= and the like, also !=, with commas. An absent field equals ''."""
    terms = []
    for term in filter(None, text.split(",")):
        field, equals, value = term.partition("=")
        if not equals:
            raise ApiError(400, "BadRequest", f"invalid selector: {text!r}; can't understand {term!r}")
        terms.append((field.rstrip("!").split("."), value.lstrip("="), field.endswith("!")))

    def selects(obj: Json) -> bool:
        for path, value, negated in terms:
            found: Any = obj
            for part in path:
                found = (found or {}).get(part)
            if ((found or "") == value) == negated:
                return False
        return True

    return selects


def _by_label(text: str) -> Callable[[Mapping[str, str]], bool]:
    """a=b, a==b, a!=b, a in (b,c), a notin (b,c), a, !a, with commas."""
    terms = [_label_term(term.strip()) for term in _COMMA.split(text) if term.strip()]
    return lambda labels: all(term(labels) for term in terms)


def _label_term(term: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET_TERM.fullmatch(term):
        key, word, values = found[1], found[2], {value.strip() for value in found[3].split(",")}
        if word == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    key, equals, value = term.partition("=")
    key, value = key.strip(), value.removeprefix("=").strip()
    if equals and key.endswith("!"):
        return lambda labels: labels.get(key.rstrip("! ")) != value
    if equals:
        return lambda labels: labels.get(key) == value
    if key.startswith("!"):
        return lambda labels: key.lstrip("! ") not in labels
    return lambda labels: key in labels
