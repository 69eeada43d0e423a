"""A sandbox that keeps opaque parameters, and data in the status of devices, as kube-apiserver does.

It keeps them byte for byte, compares them as bytes, and loses them by its own JSON.

Kubernetes' RawExtension has the text that a client sent. Go writes it into JSON without blanks and with `&`, `<` and
`>` escaped; protobuf has it unchanged. Of protobuf the sandbox has what Berth writes: the fields of a claim that a
scheduler changes have Kubernetes' numbers, and all others are JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from extender.api.fields import Json
from extender.api.protobuf import PROTOBUF, read_fields, write_fields
from extender.sandbox.apiserver.api_server import ApiServer, Request, request_of
from extender.sandbox.apiserver.registry import Check, Registry, Resource, invalid, patched, unchecked
from extender.sandbox.apiserver.versioned_store import Key
from extender.web.asgi import Answer, Scope, Send

_KEY = re.compile(r'"(?:parameters|data)"\s*:\s*')
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')
_ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "&<>\u2028\u2029"}
_LENGTH_DELIMITED = 2  # the wire type of all fields here
_MAGIC, _RAW = b"k8s\0", 2
_METADATA, _SPEC, _STATUS = 1, 2, 3
_TEXTS = {"name": 1, "namespace": 3, "uid": 5, "resourceVersion": 6}  # of the metadata
_ANNOTATION, _FINALIZER = 12, 14
_ALLOCATION, _CONSUMER = 1, 2
_TEXTS_OF_CONSUMER = {"apiGroup": 1, "resource": 3, "name": 4, "uid": 5}
_OTHERS = 1000  # the fields without a number here


class Parameters(dict[str, Any]):
    """The value of `opaque.parameters` or `status.devices[].data`. Two are equal if their texts are."""

    __slots__ = ("text",)
    __hash__ = None

    def __init__(self, value: Json = {}, text: str = "") -> None:  # noqa: B006 - for copy.deepcopy; it is not changed
        super().__init__(value)
        self.text = text

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Parameters) else dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def with_texts(obj: Json, content: bytes) -> Json:
    """The object of a JSON text, with the texts of its parameters and data."""
    text = content.decode()
    found: Json = _replaced(obj, _texts(text)) if _KEY.search(text) else obj
    return found


def _texts(content: str) -> Iterator[str]:
    decoder, at = json.JSONDecoder(), 0
    while found := _KEY.search(content, at):
        _, at = decoder.raw_decode(content, found.end())
        yield content[found.end() : at]


def _replaced(value: Any, texts: Iterator[str]) -> Any:
    if isinstance(value, list):
        return [_replaced(item, texts) for item in value]
    if not isinstance(value, dict):
        return value
    found = dict(value)
    for key, inner in value.items():
        if key not in ("parameters", "data"):
            found[key] = _replaced(inner, texts)
        elif (text := next(texts)) and isinstance(inner, dict) and "driver" in value:
            found[key] = Parameters(inner, text)
    return found


def through_json(value: Any) -> Any:
    """The object after kube-apiserver has written it as JSON and read it again, as it does for a patch."""
    if isinstance(value, Parameters):
        return Parameters(value, _TOKEN.sub(lambda found: found[1] or "", value.text).translate(_ESCAPED))
    if isinstance(value, list):
        return [through_json(item) for item in value]
    return {key: through_json(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def encode(claim: Json) -> bytes:
    """A claim as protobuf."""
    metadata, status = dict(claim["metadata"]), dict(claim.get("status") or {})
    fields = [(number, str(metadata.pop(name)).encode()) for name, number in _TEXTS.items()]
    for name, value in (metadata.pop("annotations", None) or {}).items():
        fields.append((_ANNOTATION, _message((1, name.encode()), (2, value.encode()))))
    fields += [(_FINALIZER, name.encode()) for name in metadata.pop("finalizers", None) or ()]
    states = [(_ALLOCATION, _dumped(status.pop("allocation", None)))]
    consumers = [[(_TEXTS_OF_CONSUMER[n], e[n].encode()) for n in e] for e in status.pop("reservedFor", None) or ()]
    states += [(_CONSUMER, _message(*consumer)) for consumer in consumers]
    raw = _message(
        (_METADATA, _message(*fields, (_OTHERS, orjson.dumps(metadata)))),
        (_SPEC, _dumped(claim["spec"])),
        (_STATUS, _message(*states, (_OTHERS, _dumped(status)))),
    )
    kind = _message((1, claim["apiVersion"].encode()), (2, claim["kind"].encode()))
    return _MAGIC + _message((1, kind), (_RAW, raw))


def decode(content: bytes) -> Json:
    """The claim of `encode`, after changes. Raises WireError."""
    claim = dict(_contents(dict(_contents(content.removeprefix(_MAGIC)))[_RAW]))
    metadata, status = _contents(claim[_METADATA]), _contents(claim[_STATUS])
    entries = [dict(_contents(found)) for number, found in metadata if number == _ANNOTATION]
    consumers = [dict(_contents(found)) for number, found in status if number == _CONSUMER]
    return {
        "metadata": {
            **orjson.loads(dict(metadata)[_OTHERS]),
            **_named(dict(metadata), _TEXTS),
            "annotations": {entry[1].decode(): entry[2].decode() for entry in entries},
            "finalizers": [found.decode() for number, found in metadata if number == _FINALIZER],
        },
        "spec": _loaded(claim[_SPEC]),
        "status": {
            **_loaded(dict(status)[_OTHERS]),
            "allocation": _loaded(dict(status)[_ALLOCATION]),
            "reservedFor": [_named(entry, _TEXTS_OF_CONSUMER) for entry in consumers],
        },
    }


def _message(*contents: tuple[int, bytes]) -> bytes:
    return write_fields((number, _LENGTH_DELIMITED, content) for number, content in contents)


def _contents(message: bytes) -> list[tuple[int, bytes]]:
    return [(number, content) for number, _, content in read_fields(message)]


def _named(message: dict[int, bytes], numbers: dict[str, int]) -> dict[str, str]:
    return {name: message[number].decode() for name, number in numbers.items() if number in message}


def _dumped(value: Any) -> bytes:
    """JSON with the texts of the parameters."""
    return orjson.dumps(value, lambda inner: orjson.Fragment(inner.text), orjson.OPT_PASSTHROUGH_SUBCLASS)


def _loaded(content: bytes) -> Any:
    value = orjson.loads(content)
    return with_texts(value, content) if value else value


# -- the server ----------------------------------------------------------------------------------------------------


class ServerOfBytes(ApiServer):
    """Reads and writes claims as protobuf, too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.registry = RegistryOfBytes(self.store)

    def body_of(self, request: Request, content: bytes) -> Json:
        if request.content_type == PROTOBUF and (request.method, request.resource.kind) == ("PUT", "ResourceClaim"):
            return decode(content)
        return with_texts(super().body_of(request, content), content)

    async def _route(self, scope: Scope, content: bytes, send: Send) -> None:
        if (b"accept", PROTOBUF.encode()) not in scope["headers"]:
            await super()._route(scope, content, send)
            return
        request = request_of(scope)
        claim = encode(self.registry.get(request.resource, request.key))
        await Answer(200, claim, PROTOBUF.encode()).to(send)


class RegistryOfBytes(Registry):
    """Compares parameters as bytes. The sandbox's own patches are not checked: they stand for writes as protobuf."""

    def patch(
        self,
        resource: Resource,
        key: Key,
        change: Json | list[Json],
        subresource: str,
        *,
        strategic: bool,
        check: Check = unchecked,
    ) -> Json:
        old = self.get(resource, key)
        new = patched(old if check is unchecked else through_json(old), change, strategic=strategic)
        self._guard(resource, old, new.get("metadata") or {}, is_patch=True)
        return self._write(resource, key, old, new, subresource, check)

    def _write(self, resource: Resource, key: Key, old: Json, new: Json, subresource: str, check: Check) -> Json:
        before, after = ((obj.get("status") or {}).get("devices") or [] for obj in (old, new))
        if subresource == "status" and before != after and orjson.dumps(before) == orjson.dumps(after):
            why = 'changing status.devices requires resource="resourceclaims/driver", verb="arbitrary-node:patch"'
            raise invalid(resource.qualified_kind, key[1], f"status.devices: Forbidden: {why} permission")
        return super()._write(resource, key, old, new, subresource, check)
