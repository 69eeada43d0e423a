"""One request: the resource that its path names, its query and the headers that matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from extender.sandbox.apiserver.registry import RESOURCES, Resource
from extender.sandbox.apiserver.status_errors import ApiError
from extender.sandbox.apiserver.versioned_store import Key

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
