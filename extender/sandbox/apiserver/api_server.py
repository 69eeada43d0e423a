"""The sandbox's API server as ASGI: paths, lists in pages, watches with bookmarks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import orjson

from extender.sandbox.apiserver.registry import RESOURCES, Registry, Resource
from extender.sandbox.apiserver.status_errors import ApiError, gone
from extender.sandbox.apiserver.tokens import TOKEN_REVIEWS, TokenUser, review
from extender.sandbox.apiserver.versioned_store import Change, Json, Key, ObjectStore, Watcher

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Selector = Callable[[Json], bool]
Intercept = Callable[[str, str], Awaitable[ApiError | None]]

_BOOKMARK_SECONDS = 5.0
_STRATEGIC = b"application/strategic-merge-patch+json"


class ApiServer:
    """Serves one ObjectStore. Tests set `intercept(method, path)` to delay or reject requests, and `intercept_reply` to
    reject the reply of a request that took effect. A TokenReview knows the accounts in `tokens` only.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        bookmark_seconds: float = _BOOKMARK_SECONDS,
        tokens: Mapping[str, TokenUser] | None = None,
    ) -> None:
        self.store = store
        self.registry = Registry(store)
        self.intercept: Intercept | None = None
        self.intercept_reply: Intercept | None = None
        self._bookmark_seconds = bookmark_seconds
        self._tokens = tokens or {}
        self.requests: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        try:
            body = await _read(receive)
            await _met(self.intercept, method, path)
            await self._route(scope, body, send)
        except ApiError as error:
            await _respond(send, error.code, error.body())

    async def _route(self, scope: Scope, body: Json, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if path in ("/version", "/healthz", "/readyz", "/livez"):
            await _respond(send, 200, {"major": "1", "minor": "36", "gitVersion": "v1.36.0-sandbox"})
            return
        if path == TOKEN_REVIEWS and method == "POST":
            self.requests["POST tokenreviews"] = self.requests.get("POST tokenreviews", 0) + 1
            await _respond(send, 201, review(self._tokens, body))
            return
        resource, namespace, name, subresource = _parse(path)
        self.requests[f"{method} {resource.name}"] = self.requests.get(f"{method} {resource.name}", 0) + 1
        query = {key: values[-1] for key, values in parse_qs(scope["query_string"].decode()).items()}
        key = (namespace if resource.namespaced else "", name)
        if method == "GET" and not name:
            if query.get("watch") in ("1", "true"):
                await self._watch(resource, namespace, query, send)
            else:
                await _respond(send, 200, self._list(resource, namespace, query))
            return
        code, answer = self._act(method, resource, key, subresource, body, _content_type(scope))
        await _met(self.intercept_reply, method, path)
        await _respond(send, code, answer)

    def _act(
        self, method: str, resource: Resource, key: Key, subresource: str, body: Json, content: bytes
    ) -> tuple[int, Json]:
        registry = self.registry
        if method == "GET":
            return 200, registry.get(resource, key)
        if method == "POST" and subresource == "binding":
            registry.bind(key, body)
            return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if method == "POST" and not key[1]:
            return 201, registry.create(resource, key[0], body)
        if method == "PUT":
            return 200, registry.replace(resource, key, body, subresource)
        if method == "PATCH":
            return 200, registry.patch(resource, key, body, subresource, strategic=content.startswith(_STRATEGIC))
        if method == "DELETE":
            return 200, registry.delete(resource, key, body.get("preconditions"))
        raise ApiError(405, "MethodNotAllowed", f"{method} is not supported here")

    def _list(self, resource: Resource, namespace: str, query: dict[str, str]) -> Json:
        """Return one page. A continue token has the version of the first page, so that the watch starts there."""
        selects = _field_selector(query.get("fieldSelector", ""))
        items = [obj for obj in self.store.all(resource.name, namespace) if selects(obj)]
        version, start = str(self.store.version), 0
        if query.get("continue"):
            version, _, position = query["continue"].partition(".")
            start = int(position)
        limit = int(query.get("limit", "0")) or len(items)
        metadata = {"resourceVersion": version}
        if start + limit < len(items):
            metadata["continue"] = f"{version}.{start + limit}"
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": metadata,
            "items": items[start : start + limit],
        }

    async def _watch(self, resource: Resource, namespace: str, query: dict[str, str], send: Send) -> None:
        since = int(query.get("resourceVersion") or self.store.version)
        found = self.store.watch(resource.name, since)
        if found is None:
            raise gone(since)
        watcher, missed = found
        stream = _Stream(send, namespace, _field_selector(query.get("fieldSelector", "")))
        try:
            await stream.open()
            for change in missed:
                await stream.change(change)
            await self._follow(resource, watcher, stream, float(query.get("timeoutSeconds", "600")))
            await stream.close()
        except (OSError, asyncio.CancelledError):
            pass  # the client closed the connection
        finally:
            self.store.unwatch(watcher)

    async def _follow(self, resource: Resource, watcher: Watcher, stream: _Stream, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                async with asyncio.timeout(min(self._bookmark_seconds, left)):
                    change = await watcher.queue.get()
            except TimeoutError:
                # Everything up to here has been sent, because the queue was empty.
                await stream.bookmark(resource, self.store.version)
                continue
            if change is None:
                return
            await stream.change(change)


class _Stream:
    """The response to a watch: one JSON object per line."""

    def __init__(self, send: Send, namespace: str, selects: Selector) -> None:
        self._send = send
        self._namespace = namespace
        self._selects = selects

    async def open(self) -> None:
        headers = [(b"content-type", b"application/json")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def change(self, change: Change) -> None:
        if self._namespace and change.obj["metadata"].get("namespace") != self._namespace:
            return
        now = change.kind != "DELETED" and self._selects(change.obj)
        before = change.old is not None and self._selects(change.old)
        if now or before:
            kind = "MODIFIED" if before else "ADDED"
            if not now:
                kind = "DELETED"
            await self._line({"type": kind, "object": change.obj})

    async def bookmark(self, resource: Resource, version: int) -> None:
        obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {"resourceVersion": str(version)}}
        await self._line({"type": "BOOKMARK", "object": obj})

    async def _line(self, event: Json) -> None:
        await self._send({"type": "http.response.body", "body": orjson.dumps(event) + b"\n", "more_body": True})

    async def close(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _parse(path: str) -> tuple[Resource, str, str, str]:
    """Return (resource, namespace, name, subresource). Raises ApiError for a path that is not served."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:  # noqa: PLR2004 - /api/v1/resource
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:  # noqa: PLR2004 - /apis/group/version/resource
        group, rest = parts[1], parts[3:]
    else:
        raise ApiError(404, "NotFound", f"{path} is not served by the sandbox")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:  # noqa: PLR2004 - namespaces/name/resource
        namespace, rest = rest[1], rest[2:]
    resource = RESOURCES.get((group, rest[0]))
    if resource is None:
        raise ApiError(404, "NotFound", f"{path} is not served by the sandbox")
    return resource, namespace, rest[1] if len(rest) > 1 else "", rest[2] if len(rest) > 2 else ""  # noqa: PLR2004 - name, subresource


def _field_selector(text: str) -> Selector:
    """Return a predicate for a field selector: metadata.name=x, spec.nodeName= and the like, also !=, with commas."""
    terms = []
    for term in filter(None, text.split(",")):
        field, _, value = term.partition("=")
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


def _content_type(scope: Scope) -> bytes:
    return next((value for name, value in scope["headers"] if name == b"content-type"), b"")


async def _met(intercept: Intercept | None, method: str, path: str) -> None:
    rejected = await intercept(method, path) if intercept is not None else None
    if rejected is not None:
        raise rejected


async def _read(receive: Receive) -> Json:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if not body:
        return {}
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "BadRequest", f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ApiError(400, "BadRequest", "the body is not an object")
    return found


async def _respond(send: Send, status: int, body: Json) -> None:
    content = orjson.dumps(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
