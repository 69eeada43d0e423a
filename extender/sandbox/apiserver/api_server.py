"""The sandbox's API server as ASGI: requests by path and selectors, lists in pages, watches with bookmarks.

Events have two forms, v1 and events.k8s.io/v1. The store keeps each as written; a v1 reader gets v1.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qs

import orjson

from extender.api.protobuf import PROTOBUF
from extender.api_schema import field_faults
from extender.base.text_limits import one_line
from extender.sandbox.apiserver.kubectl_documents import OPENAPI_V2, OPENAPI_V2_TYPE, document_at, table_of
from extender.sandbox.apiserver.object_rules import check_identity, check_object
from extender.sandbox.apiserver.registry import RESOURCES, ApiError, Check, Registry, Resource, gone, not_found
from extender.sandbox.apiserver.versioned_store import Change, Json, Key, ObjectStore, Watcher
from extender.web.asgi import Answer, Receive, Scope, Send

_FIELDS = {"regarding": "involvedObject", "note": "message", "reportingController": "reportingComponent"}


def in_version_of(resource: Resource, obj: Json) -> Json:
    """Return an Event of events.k8s.io/v1 as v1 if the resource is that of v1; any other object as it is."""
    if (resource.kind, resource.group) != ("Event", "") or obj["apiVersion"] == resource.api_version:
        return obj
    renamed = {_FIELDS.get(field, field): value for field, value in obj.items()}
    when = obj["metadata"].get("creationTimestamp")
    return {**renamed, "apiVersion": "v1", "firstTimestamp": when, "lastTimestamp": when, "count": 1}


_T = TypeVar("_T")
Intercept = Callable[[str, str], Awaitable[ApiError | None]]

_BOOKMARK_SECONDS = 5.0
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_JSON_PATCH = "application/json-patch+json"
_MERGE, _STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


class ApiServer:
    """Serves one ObjectStore. Tests set `intercept(method, path)` to delay or reject requests, and `intercept_reply` to
    reject the reply of a request that took effect.
    """

    def __init__(self, store: ObjectStore, *, bookmark_seconds: float = _BOOKMARK_SECONDS) -> None:
        self.store = store
        self.registry = Registry(store)
        self.intercept: Intercept | None = None
        self.intercept_reply: Intercept | None = None
        self._bookmark_seconds = bookmark_seconds
        self.requests: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        try:
            content = await _read(receive)
            await _require_passed(self.intercept, method, path)
            await self._route(scope, content, send)
        except ApiError as error:
            await _answer(error.code, error.body()).to(send)

    async def _route(self, scope: Scope, content: bytes, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if path in ("/version", "/healthz", "/readyz", "/livez"):
            await _answer(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.0-sandbox"}).to(send)
            return
        if path == "/openapi/v2" and method == "GET":
            await Answer(200, OPENAPI_V2, OPENAPI_V2_TYPE).to(send)
            return
        document = document_at(path.rstrip("/")) if method == "GET" else None
        if document is not None:
            await _answer(200, document).to(send)
            return
        request = request_of(scope)
        resource, counted = request.resource, f"{method} {request.resource.name}"
        self.requests[counted] = self.requests.get(counted, 0) + 1
        if method == "GET" and request.is_watch:
            await self._watch(request, send)
            return
        warnings: list[str] = []
        if method == "GET":
            code = 200
            answer = _shown(request, self.registry.get(resource, request.key)) if request.name else self._list(request)
        else:
            code, answer = self._write(request, content, warnings)
        await _require_passed(self.intercept_reply, method, path)
        await _answer(code, answer, warnings).to(send)

    def _write(self, request: Request, content: bytes, warnings: list[str]) -> tuple[int, Json]:
        """Write one object. A dry run writes to a copy of the store. The client's warnings go to `warnings`."""
        method, resource, key = request.method, request.resource, request.key
        check = self._check_of(request)
        if request.content_type == _JSON_PATCH and method == "PATCH" and "dryRun" not in request.query:
            changes = _json_in(content, list, "a list")
            return 200, self.registry.patch(resource, key, changes, request.subresource, strategic=False, check=check)
        strategic = method == "PATCH" and _is_strategic(request.content_type)
        body = self.body_of(request, content)
        is_dry_run = "dryRun" in request.query or bool(body.get("dryRun"))
        registry = Registry(self.store.copy()) if is_dry_run else self.registry
        if method in ("POST", "PUT", "PATCH") and not request.subresource:
            check_identity(resource, request.namespace, request.name, body)
            warnings += check_fields(resource, body, request.query, is_patch=method == "PATCH")
        is_of_user = request.query.get("fieldValidation") in ("Strict", "Warn")
        in_namespace = is_of_user and resource.namespaced and method == "POST"
        if in_namespace and self.store.get("namespaces", ("", key[0])) is None:
            raise not_found("namespaces", key[0])
        if in_namespace and resource.kind == "Pod" and not request.name:
            body = self._with_priority(body)
        if method == "POST" and request.subresource == "binding":
            registry.bind(key, body)
            return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if method == "POST" and not request.name:
            return 201, registry.create(resource, key[0], body, check)
        if method == "PUT":
            return 200, registry.replace(resource, key, body, request.subresource, check)
        if method == "PATCH":
            return 200, registry.patch(resource, key, body, request.subresource, strategic=strategic, check=check)
        if method == "DELETE" and request.name:
            return 200, registry.delete(resource, key, body.get("preconditions"))
        raise ApiError(405, "MethodNotAllowed", f"{method} is not supported here")

    def body_of(self, request: Request, content: bytes) -> Json:
        """The object of a write, or its patch. Raises ApiError."""
        if request.content_type.startswith(PROTOBUF):  # kubectl create namespace and the like
            ways = "write the object as YAML and apply it, or add --dry-run=client -o yaml | kubectl apply -f -"
            if request.method == "DELETE":  # kubectl drain
                ways = "use kubectl cordon NODE, and kubectl delete pod NAME"
            raise ApiError(415, "UnsupportedMediaType", f"the sandbox reads no protobuf: {ways}")
        return _json_in(content or b"{}", dict, "an object")

    def _with_priority(self, pod: Json) -> Json:
        """The pod with the priority of its class, as the admission plugin Priority makes it. Raises ApiError."""
        spec, name = pod.get("spec"), (pod.get("metadata") or {}).get("name") or ""
        if not isinstance(spec, dict) or not spec.get("priorityClassName"):
            return pod
        chosen = spec["priorityClassName"]
        found = self.store.get("priorityclasses", ("", str(chosen)))
        priority = found.get("value", 0) if found is not None else _SYSTEM_PRIORITIES.get(str(chosen))
        if priority is None:
            why = f"no PriorityClass with name {one_line(str(chosen))} was found"
            raise ApiError(403, "Forbidden", f'pods "{one_line(str(name))}" is forbidden: {why}')
        return {**pod, "spec": {**spec, "priority": priority}}

    def _check_of(self, request: Request) -> Check:
        """The check of an object that this request writes."""
        labels = self.registry.labels(request.key[0])
        return lambda old, new: check_object(request.resource, old, new, labels)

    def _list(self, request: Request) -> Json:
        """Return one page. A continue token has the version of the first page, so that the watch starts there."""
        query, resource, selects = request.query, request.resource, selector_of(request.query)
        found = (in_version_of(resource, o) for o in self.store.all(resource.table, request.namespace))
        items = [obj for obj in found if selects(obj)]
        version, start = str(self.store.version), 0
        if query.get("continue"):
            version, _, position = query["continue"].partition(".")
            start = int(position)
        limit = int(query.get("limit", "0")) or len(items)
        metadata = {"resourceVersion": version}
        if start + limit < len(items):
            metadata["continue"] = f"{version}.{start + limit}"
        return _page(request, items[start : start + limit], metadata)

    async def _watch(self, request: Request, send: Send) -> None:
        """Stream the changes after a version; without a version, first all objects as they are."""
        stream = _Stream(send, request)
        if "sendInitialEvents" in request.query:  # clients then list instead
            raise ApiError(422, "Invalid", "sendInitialEvents: Forbidden: the sandbox streams no lists")
        text = request.query.get("resourceVersion") or "0"
        since = self.store.version if text == "0" else int(text)
        found = self.store.watch(request.resource.table, since)
        if found is None:
            raise gone(since)
        watcher, missed = found
        if text == "0":
            objects = self.store.all(request.resource.table, request.namespace)
            missed = [Change(since, request.resource.table, "ADDED", obj, None) for obj in objects]
        try:
            await stream.open()
            for change in missed:
                await stream.change(change)
            await self._follow(watcher, stream, float(request.query.get("timeoutSeconds", "600")))
            await stream.close()
        except (OSError, asyncio.CancelledError):
            pass  # the client closed the connection
        finally:
            self.store.unwatch(watcher)

    async def _follow(self, watcher: Watcher, stream: _Stream, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                async with asyncio.timeout(min(self._bookmark_seconds, left)):
                    change = await watcher.queue.get()
            except TimeoutError:
                if watcher.queue.empty() and self.store.version >= watcher.since:  # all up to here has been sent
                    await stream.bookmark(self.store.version)
                continue
            if change is None:
                return
            await stream.change(change)


class _Stream:
    """The response to a watch: one JSON object per line."""

    def __init__(self, send: Send, request: Request) -> None:
        self._send = send
        self._request = request
        self._selects = selector_of(request.query)

    async def open(self) -> None:
        headers = [(b"content-type", b"application/json")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def change(self, change: Change) -> None:
        request = self._request
        if request.namespace and change.obj["metadata"].get("namespace") != request.namespace:
            return
        if request.name and change.obj["metadata"]["name"] != request.name:
            return
        now = change.kind != "DELETED" and self._selected(change.obj)
        before = change.old is not None and self._selected(change.old)
        if now or before:
            kind = "MODIFIED" if before else "ADDED"
            if not now:
                kind = "DELETED"
            await self._line({"type": kind, "object": _shown(request, change.obj)})

    def _selected(self, obj: Json) -> bool:
        return self._selects(in_version_of(self._request.resource, obj))

    async def bookmark(self, version: int) -> None:
        if self._request.query.get("allowWatchBookmarks") in ("1", "true"):
            resource, metadata = self._request.resource, {"resourceVersion": str(version)}
            obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
            await self._line({"type": "BOOKMARK", "object": _shown(self._request, obj)})

    async def _line(self, event: Json) -> None:
        await self._send({"type": "http.response.body", "body": orjson.dumps(event) + b"\n", "more_body": True})

    async def close(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _shown(request: Request, obj: Json) -> Json:
    """Return one object as the client wants it: a Table with one row, or the object in the version of the path."""
    obj = in_version_of(request.resource, obj)
    if not request.wants_table:
        return obj
    version = {"resourceVersion": obj["metadata"]["resourceVersion"]}
    return table_of(request.resource, [obj], version, request.query.get("includeObject", ""))


def _page(request: Request, objects: Sequence[Json], metadata: Json) -> Json:
    resource = request.resource
    if request.wants_table:
        return table_of(resource, objects, metadata, request.query.get("includeObject", ""))
    return {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata, "items": objects}


def _is_strategic(content_type: str) -> bool:
    """Whether a patch is a strategic merge patch; otherwise it is a merge patch. Raises ApiError for other types."""
    kind = content_type.partition(";")[0]
    if kind not in (_MERGE, _STRATEGIC):
        problem = f"the sandbox applies merge patches and strategic merge patches, not {kind or 'a patch of no type'}"
        hint = "; use kubectl apply without --server-side" if "apply-patch" in kind else ""
        raise ApiError(415, "UnsupportedMediaType", problem + hint)
    return kind == _STRATEGIC


async def _require_passed(intercept: Intercept | None, method: str, path: str) -> None:
    rejected = await intercept(method, path) if intercept is not None else None
    if rejected is not None:
        raise rejected


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


def _json_in(content: bytes, kind: type[_T], words: str) -> _T:
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "BadRequest", f"the body is not JSON: {error}") from error
    if not isinstance(found, kind):
        raise ApiError(400, "BadRequest", f"the body is not {words}")
    return found


def _answer(status: int, body: Json, warnings: Sequence[str] = ()) -> Answer:
    return Answer(status, orjson.dumps(body), more=tuple((b"warning", text.encode()) for text in warnings))


# -- one request: its resource, its selectors, unknown fields. Source of the last: pkg/endpoints/handlers ----

_OF_CONTAINERS = ("log", "exec", "attach", "portforward", "ephemeralcontainers")  # what only a node has of a pod
_NO_CONTAINERS = "the sandbox runs no containers, so a pod has no logs, no ports, and no process to run a command in"


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
        raise ApiError(405, "MethodNotAllowed", _NO_CONTAINERS)
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
    wrong = [f"{fault.where}: {fault.problem}" for fault in faults if not fault.is_unknown]
    if wrong:
        raise _refused(resource, ", ".join(wrong), is_patch=is_patch)
    unknown = [f"unknown field {_quoted(fault.where)}" for fault in faults]
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
    """A patch without its directives, and without null, which deletes a field."""
    if isinstance(value, list):
        return [_without_directives(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_directives(inner)
        for key, inner in value.items()
        if inner is not None and not key.startswith(_DIRECTIVE)
    }
