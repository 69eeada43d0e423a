"""The extender protocol (k8s.io/kube-scheduler/extender/v1). JSON keys are the Go field names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import orjson

from extender.api.fields import Json, dumped, get, inner, integer, many, need, string, wrong
from extender.api.node_names import NameOffsets, NodeNames, checked_names
from extender.api.object_meta import ObjectKey, is_subdomain
from extender.api.pod_groups import membership_of
from extender.api.pods import Pod, decode_pod, may_need_devices
from extender.base.berth_errors import WireError
from extender.base.text_limits import REASON_BYTES, cut, shown

_REASONS_BYTES = 8 * 1024 * 1024  # of all reasons in one reply; the reasons of up to 16,384 nodes are not shortened
_NAMES = b',"Nodes":null,"NodeNames":["'  # the bytes that Go writes between the pod and the names
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


@dataclass(frozen=True, slots=True)
class ExtenderBindingArgs:
    """The body of a bind request."""

    pod: ObjectKey
    pod_uid: str
    node: str


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


def decode_bind(body: bytes) -> ExtenderBindingArgs:
    """Decode a bind request. Raises WireError."""
    found = _object(body)
    key = ObjectKey(need(found, "PodNamespace", ""), need(found, "PodName", ""))
    for field, name in zip(("PodNamespace", "PodName"), key, strict=True):
        if not is_subdomain(name):
            raise WireError(field, f"{shown(name)} is not the name of an object")
    return ExtenderBindingArgs(key, need(found, "PodUID", ""), need(found, "Node", ""))


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
