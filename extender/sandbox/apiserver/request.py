"""One request: the resource that its path names, its query with its selectors, and the validation of fields.

Source of the validation: pkg/endpoints/handlers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import orjson

from extender.api_schema import field_faults
from extender.sandbox.apiserver.registry import RESOURCES, Resource
from extender.sandbox.apiserver.status_errors import ApiError
from extender.sandbox.apiserver.versioned_store import Json, Key

_NO_CONTAINERS = "the sandbox runs no containers, so a pod has no"
# Parts of a pod that only a node has, with the words for them.
_OF_CONTAINERS = {
    "log": f"{_NO_CONTAINERS} logs",
    "exec": f"{_NO_CONTAINERS} process to run a command in",
    "attach": f"{_NO_CONTAINERS} process to attach to",
    "portforward": f"{_NO_CONTAINERS} ports",
    "ephemeralcontainers": f"{_NO_CONTAINERS} process to debug",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a resource. `name` is empty for a list or a create, `content_type` and `accept` are headers."""

    method: str
    resource: Resource
    namespace: str
    name: str
    subresource: str
    query: dict[str, str]
    content_type: str
    accept: str

    @property
    def key(self) -> Key:
        """The key of the object in the store."""
        return self.namespace if self.resource.namespaced else "", self.name

    @property
    def wants_table(self) -> bool:
        """Whether the client wants a Table, as `kubectl get` does."""
        return "as=Table" in self.accept

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in ("1", "true")


def request_of(scope: dict[str, Any]) -> Request:
    """Return the request of an ASGI scope. Raises ApiError for a path that the sandbox does not serve."""
    path = scope["path"]
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:  # noqa: PLR2004 - /api/v1/resource
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:  # noqa: PLR2004 - /apis/group/version/resource
        group, rest = parts[1], parts[3:]
    else:
        raise _not_served(path)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and (group, rest[2]) in RESOURCES:  # noqa: PLR2004 - of a name
        namespace, rest = rest[1], rest[2:]
    resource = RESOURCES.get((group, rest[0]))
    if resource is None:
        raise _not_served(path)
    _, name, subresource = (*rest, "", "")[:3]
    _check_subresource(resource, subresource)
    headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
    query = {key: values[-1] for key, values in parse_qs(scope["query_string"].decode()).items()}
    content_type, accept = headers.get(b"content-type", ""), headers.get(b"accept", "")
    return Request(scope["method"], resource, namespace, name, subresource, query, content_type, accept)


def _check_subresource(resource: Resource, subresource: str) -> None:
    if resource.kind == "Pod" and subresource in _OF_CONTAINERS:
        raise ApiError(405, "MethodNotAllowed", _OF_CONTAINERS[subresource])
    if subresource not in ("", "status", "binding", "finalize"):
        raise ApiError(404, "NotFound", f"the sandbox does not serve {resource.name}/{subresource}")


def _not_served(path: str) -> ApiError:
    return ApiError(404, "NotFound", f"{path} is not served by the sandbox")


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


_DIRECTIVE = "$"  # begins the names of the directives of a strategic merge patch


def check_fields(resource: Resource, body: Json, query: Mapping[str, str], *, is_patch: bool) -> list[str]:
    """Return the warnings about unknown fields of an object or patch of it, as header values.

    Raises ApiError for a value of a wrong type, and for an unknown field if the client wants Strict.
    """
    wanted = query.get("fieldValidation")
    if wanted not in ("Strict", "Warn"):
        return []
    body = _without_directives(body) if is_patch else body
    faults = list(field_faults({**body, "apiVersion": resource.api_version, "kind": resource.kind}))
    wrong = [f"{fault.path}: {fault.problem}" for fault in faults if not fault.is_unknown]
    if wrong:
        raise _refused(resource, ", ".join(wrong), is_patch=is_patch)
    unknown = [f"unknown field {_quoted(fault.path)}" for fault in faults]
    if unknown and wanted == "Strict":
        raise _refused(resource, f"strict decoding error: {', '.join(unknown)}", is_patch=is_patch)
    return [f"299 - {_quoted(text)}" for text in unknown]


def _refused(resource: Resource, problem: str, *, is_patch: bool) -> ApiError:
    if is_patch:
        return ApiError(422, "Invalid", f' "" is invalid: patch: Invalid value: {problem}')
    decoded = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
    return ApiError(400, "BadRequest", f"{decoded}: {problem}")


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _without_directives(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_directives(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_directives(inner) for key, inner in value.items() if not key.startswith(_DIRECTIVE)}
