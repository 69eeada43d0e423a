"""The extender protocol (k8s.io/kube-scheduler/extender/v1). JSON keys are the Go field names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import orjson

from extender.api.fields import Json, dumped, get, inner, integer, many, need, string, strings, wrong
from extender.api.object_meta import ObjectKey, is_subdomain
from extender.api.pod_groups import membership_of
from extender.api.pods import Pod, decode_pod, may_need_devices
from extender.base.berth_errors import WireError
from extender.base.text_limits import REASON_BYTES, cut, shown

_REASONS_BYTES = 8 * 1024 * 1024  # of all reasons in one reply; the reasons of up to 16,384 nodes are not shortened
_NAMES = b',"Nodes":null,"NodeNames":["'  # the bytes that Go writes between the pod and the names
_NEAR_BYTES = 8192  # bytes before and after the last offset of a name; kube-scheduler reorders some hundred names
MAX_NAMES = 200_000  # in one call; the largest known clusters have 130,000 nodes
_MAX_OFFSETS = 4096  # names whose offset is stored
_STRING_FIELDS = (
    rb'(?:"\w+":"[^"\\]{0,300}",){0,8}?'  # of metadata; bounded, because a hostile body must not make the match slow
)
_IDENTITY = re.compile(
    rb'{"Pod":{"metadata":{%b"uid":"([\w-]+)",%b"resourceVersion":"(\w+)"' % (_STRING_FIELDS, _STRING_FIELDS)
)


class ExtenderArgs:
    """The body of a filter or prioritize request. `nodes` maps name to Node object if the scheduler sent whole objects.

    Pod and names are decoded on first access. A pod that needs no devices gets its names back unparsed, and a pod
    that the cache already has is not decoded again.
    """

    def __init__(self, head: Json | bytes, nodes: dict[str, Json] | None, names: Sequence[str]) -> None:
        """`head` is the request without nodes and names, as JSON text or decoded."""
        self._head = head
        self.nodes = nodes
        self.names = names

    @property
    def identity(self) -> tuple[str, str]:
        """(UID, resourceVersion) of the pod if they can be read without decoding it, else ('', '')."""
        found = _IDENTITY.match(self._head) if isinstance(self._head, bytes) else None
        return (found[1].decode(), found[2].decode()) if found is not None else ("", "")

    @cached_property
    def pod_json(self) -> Json:
        """The pod as JSON. Raises WireError."""
        return _pod(_object(self._head) if isinstance(self._head, bytes) else self._head)

    @property
    def concerns_berth(self) -> bool:
        """False if the pod certainly needs no devices and names no group. Raises WireError."""
        pod = self.pod_json
        names_group = membership_of(inner(pod, "metadata", "Pod"), "") or "schedulingGroup" in inner(pod, "spec", "Pod")
        return may_need_devices(pod) or bool(names_group)

    @cached_property
    def pod(self) -> Pod:
        """The decoded pod. Raises WireError."""
        return decode_pod(self.pod_json)


def _object(body: bytes) -> Json:
    try:
        found: Json = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError("", f"the body is not JSON: {error}") from error
    if type(found) is not dict:
        raise wrong("body", dict, found)
    return found


def decode_args(body: bytes, offsets: NameOffsets | None = None) -> ExtenderArgs:
    """Decode a filter or prioritize request. `offsets` are name positions in earlier bodies. Raises WireError."""
    parts = _split_names(body)
    if parts is not None:
        head, names = parts
        return ExtenderArgs(head, None, NodeNames(body, names, offsets if offsets is not None else NameOffsets()))
    found = _object(body)
    _pod(found)
    if found.get("NodeNames") is not None:
        return ExtenderArgs(found, None, checked_names(found))
    if found.get("Nodes") is None:
        raise WireError("NodeNames", "neither NodeNames nor Nodes is given")
    listed = inner(found, "Nodes", "")
    nodes: dict[str, Json] = {}
    for position, item in enumerate(get(listed, "items", list, "Nodes", [])):
        path = f"Nodes.items[{position}]"
        if type(item) is not dict:
            raise wrong(path, dict, item)
        nodes[need(inner(item, "metadata", path), "name", f"{path}.metadata")] = item
    return ExtenderArgs(found, nodes, list(nodes))


def _pod(head: Json) -> Json:
    found = inner(head, "Pod", "")
    if not found:
        raise WireError("Pod", "is missing")
    return found


def _split_names(body: bytes) -> tuple[bytes, slice] | None:
    """Split a body that ends with Nodes and NodeNames, without parsing it: (the rest as JSON, position of the names).

    None if the body has another layout. Only one closing brace follows the names, so they are not inside the pod.
    """
    start, end = body.find(_NAMES), body.rfind(b"]")
    if start < 0 or body.find(b"]", start) != end or body[end + 1 :].strip() != b"}":
        return None
    return body[:start] + b"}", slice(start + len(_NAMES) - 2, end + 1)


def decode_bind(body: bytes) -> tuple[ObjectKey, str, str]:
    """Decode a bind request: key and UID of the pod, and the node. Raises WireError."""
    found = _object(body)
    key = ObjectKey(need(found, "PodNamespace", ""), need(found, "PodName", ""))
    for field, name in zip(("PodNamespace", "PodName"), key, strict=True):
        if not is_subdomain(name):
            raise WireError(field, f"{shown(name)} is not the name of an object")
    return key, need(found, "PodUID", ""), need(found, "Node", "")


def encode_filter(args: ExtenderArgs, names: Iterable[str], failed: dict[str, str]) -> bytes:
    """ExtenderFilterResult: NodeNames if the request had names, else Nodes. `failed` maps node name to reason."""
    if args.nodes is None:
        return _filter_result(orjson.dumps(list(names)), b"null", failed)
    nodes = {"metadata": {}, "items": [args.nodes[name] for name in names]}
    return _filter_result(b"null", dumped(nodes, "Nodes"), failed)


def encode_passed(args: ExtenderArgs) -> bytes:
    """ExtenderFilterResult in which every node passes."""
    if isinstance(args.names, NodeNames):
        return _filter_result(args.names.text, b"null", {})
    return encode_filter(args, args.names, {})


def _filter_result(names: bytes | memoryview, nodes: bytes, failed: dict[str, str]) -> bytes:
    most = _REASONS_BYTES // len(failed) if failed else REASON_BYTES
    if most < REASON_BYTES:
        failed = {name: cut(text, most) for name, text in failed.items()}
    rejected = b',"FailedNodes":{},"FailedAndUnresolvableNodes":%b,"Error":""}' % orjson.dumps(failed)
    return b"".join((b'{"NodeNames":', names, b',"Nodes":', nodes, rejected))


def encode_filter_error(message: str) -> bytes:
    """ExtenderFilterResult with an error: kube-scheduler backs off and retries."""
    empty: Json = {"NodeNames": None, "Nodes": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}}
    return orjson.dumps(empty | {"Error": cut(message, REASON_BYTES)})


def encode_scores(scores: Iterable[tuple[str, int]]) -> bytes:
    """HostPriorityList from (node name, score) pairs."""
    return orjson.dumps([{"Host": name, "Score": score} for name, score in scores])


def encode_bind(error: str) -> bytes:
    """ExtenderBindingResult. An empty error means success."""
    return orjson.dumps({"Error": cut(error, REASON_BYTES)})


def encode_preempt(body: bytes) -> bytes:
    """ExtenderPreemptionResult with the victims of the request unchanged (docs/limits.md). Raises WireError."""
    found = _object(body)
    meta = get(found, "NodeNameToMetaVictims", dict, "", None)
    if meta is not None:
        victims = {name: _victims(value, f"NodeNameToMetaVictims[{name}]", _uid) for name, value in meta.items()}
    else:
        full = inner(found, "NodeNameToVictims", "")
        victims = {name: _victims(value, f"NodeNameToVictims[{name}]", _uid_of_pod) for name, value in full.items()}
    return orjson.dumps({"NodeNameToMetaVictims": victims})


def _victims(value: object, path: str, uid: Callable[[Json, str], str]) -> Json:
    if type(value) is not dict:
        raise wrong(path, dict, value)
    uids = many(value, "Pods", path, uid)
    return {"Pods": [{"UID": one} for one in uids], "NumPDBViolations": integer(value, "NumPDBViolations", path)}


def _uid(obj: Json, path: str) -> str:
    return string(obj, "UID", path)


def _uid_of_pod(obj: Json, path: str) -> str:
    return string(inner(obj, "metadata", path), "uid", f"{path}.metadata")


# -- node names: kube-scheduler sends thousands with every call, and a filter call looks up a few ---------------


def checked_names(head: Json) -> list[str]:
    """The list NodeNames of a decoded request. Raises WireError, also if it has more than MAX_NAMES names."""
    names = strings(head, "NodeNames", "")
    if len(names) > MAX_NAMES:
        raise WireError("NodeNames", f"has {len(names)} names, of at most {MAX_NAMES}")
    return names


class NameOffsets:
    """Offsets of names in earlier requests. kube-scheduler sends the nodes in nearly the same order with each call."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, int]] = {}  # name to (name in quotes, offset from the start of the list)

    def __len__(self) -> int:
        """The number of names whose offset is stored."""
        return len(self._known)

    def has_all(self, body: bytes, text: slice, names: Iterable[str]) -> bool:
        """Whether the JSON list of names at `text` in the body has all of these names."""
        at, start = self._known, text.start
        for name in names:
            known = at.get(name)
            if (known is None or not body.startswith(known[0], start + known[1])) and not self._find(body, text, name):
                return False
        return True

    def _find(self, body: bytes, text: slice, name: str) -> bool:
        start, end = text.start, text.stop
        quoted, before = self._known.get(name) or (b'"%b"' % name.encode(), 0)
        found = body.find(quoted, start + max(before - _NEAR_BYTES, 0), min(start + before + _NEAR_BYTES, end))
        if found < 0:
            found = body.find(quoted, start, end)
        if found >= 0:
            if len(self._known) >= _MAX_OFFSETS:
                self._known.clear()
            self._known[name] = quoted, found - start
        return found >= 0


class NodeNames(Sequence[str]):
    """The list of names in a request body. It is parsed on the first access to an item, which may raise WireError."""

    def __init__(self, body: bytes, text: slice, offsets: NameOffsets) -> None:
        self._body = body
        self._text = text
        self._offsets = offsets

    @property
    def text(self) -> memoryview:
        """The list as JSON text of the request."""
        return memoryview(self._body)[self._text]

    def has_all(self, names: Iterable[str]) -> bool:
        """Whether the list has all of these names. The list is parsed only if it has a backslash escape."""
        if self._body.find(b"\\", self._text.start, self._text.stop) >= 0:
            return set(names).issubset(self._parsed)
        return self._offsets.has_all(self._body, self._text, names)

    @cached_property
    def _parsed(self) -> list[str]:
        try:
            found = orjson.loads(self.text)
        except orjson.JSONDecodeError as error:
            raise WireError("NodeNames", f"is not JSON: {error}") from error
        return checked_names({"NodeNames": found})

    def __len__(self) -> int:
        return len(self._parsed)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed)

    def __getitem__(self, index: Any) -> Any:
        return self._parsed[index]


def has_all(names: Sequence[str], wanted: Iterable[str]) -> bool:
    """Whether `names` has all `wanted` names."""
    return names.has_all(wanted) if isinstance(names, NodeNames) else set(wanted).issubset(names)
