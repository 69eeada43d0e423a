"""The extender protocol (k8s.io/kube-scheduler/extender/v1): Go field names, verbatim."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from extender.model import REASON_BYTES, ObjectKey, Pod, WireError, cut
from extender.wire.core import decode_pod, may_need_devices
from extender.wire.fields import Json, dumped, get, many, need, wrong
from extender.wire.node_names import NameOffsets, NodeNames, checked_names

_REASONS_BYTES = 8 * 1024 * 1024  # of all reasons in one reply: 16,384 nodes get theirs in full
_NAMES = b',"Nodes":null,"NodeNames":["'  # as Go writes it, after the pod
_FEW_TEXTS = rb'(?:"\w+":"[^"\\]{0,300}",){0,8}?'  # fields of metadata; bounded, for bodies that are made to take long
_IDENTITY = re.compile(
    rb'{"Pod":{"metadata":{%b"uid":"([\w-]+)",%b"resourceVersion":"(\w+)"' % (_FEW_TEXTS, _FEW_TEXTS)
)


class ExtenderArgs:
    """ExtenderArgs. `nodes` holds whole Node objects by name where the scheduler sent those.

    Pod and names are read only when somebody looks: a pod that is not ours gets its names back as they came, and one that
    is known already need not be read again.
    """

    def __init__(self, head: Json | bytes, nodes: dict[str, Json] | None, names: Sequence[str]) -> None:
        """`head` is the object without names and nodes, read or not."""
        self._head = head
        self.nodes = nodes
        self.names = names

    @property
    def identity(self) -> tuple[str, str]:
        """UID and resourceVersion of the pod where they can be told before it is read; else empty."""
        found = _IDENTITY.match(self._head) if isinstance(self._head, bytes) else None
        return (found[1].decode(), found[2].decode()) if found is not None else ("", "")

    @cached_property
    def pod_json(self) -> Json:
        """The pod as it came. Raises WireError."""
        return _pod(_object(self._head) if isinstance(self._head, bytes) else self._head)

    @property
    def may_need_devices(self) -> bool:
        """False for a pod that surely asks for none. Raises WireError."""
        return may_need_devices(self.pod_json)

    @cached_property
    def pod(self) -> Pod:
        """The pod. Raises WireError."""
        return decode_pod(self.pod_json)


@dataclass(frozen=True, slots=True)
class ExtenderBindingArgs:
    """ExtenderBindingArgs."""

    pod: ObjectKey
    pod_uid: str
    node: str


def _parsed(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise WireError("", f"the body is not JSON: {error}") from error


def _object(body: bytes) -> Json:
    found = _parsed(body)
    if type(found) is not dict:
        raise wrong("body", dict, found)
    return found


def decode_args(body: bytes, offsets: NameOffsets | None = None) -> ExtenderArgs:
    """The body of filter and prioritize; `places` are what the bodies before it taught. Raises WireError."""
    parts = _parted(body)
    if parts is not None:
        head, names = parts
        return ExtenderArgs(head, None, NodeNames(body, names, offsets if offsets is not None else NameOffsets()))
    found = _object(body)
    _pod(found)
    if found.get("NodeNames") is not None:
        return ExtenderArgs(found, None, checked_names(found))
    if found.get("Nodes") is None:
        raise WireError("NodeNames", "neither NodeNames nor Nodes is given")
    listed = get(found, "Nodes", dict, "", {})
    nodes: dict[str, Json] = {}
    for position, item in enumerate(get(listed, "items", list, "Nodes", [])):
        path = f"Nodes.items[{position}]"
        if type(item) is not dict:
            raise wrong(path, dict, item)
        nodes[need(get(item, "metadata", dict, path, {}), "name", f"{path}.metadata")] = item
    return ExtenderArgs(found, nodes, list(nodes))


def _pod(head: Json) -> Json:
    found = get(head, "Pod", dict, "", {})
    if not found:
        raise WireError("Pod", "is missing")
    return found


def _parted(body: bytes) -> tuple[bytes, slice] | None:
    """The text of the object without its last fields, Nodes and NodeNames, and where that of the names is; None where the body
    is laid out otherwise. One brace is left after the names, so they are no part of the pod."""
    start, end = body.find(_NAMES), body.rfind(b"]")
    if start < 0 or body.find(b"]", start) != end or body[end + 1 :].strip() != b"}":
        return None
    return body[:start] + b"}", slice(start + len(_NAMES) - 2, end + 1)


def decode_bind(body: bytes) -> ExtenderBindingArgs:
    """The body of bind. Raises WireError."""
    found = _object(body)
    key = ObjectKey(need(found, "PodNamespace", ""), need(found, "PodName", ""))
    return ExtenderBindingArgs(key, need(found, "PodUID", ""), need(found, "Node", ""))


def encode_filter(args: ExtenderArgs, names: Iterable[str], failed: dict[str, str]) -> bytes:
    """ExtenderFilterResult in the form that was asked: names for names, nodes for nodes. Never null by accident."""
    if args.nodes is None:
        return _filter_result(orjson.dumps(list(names)), b"null", failed)
    return _filter_result(
        b"null", dumped({"metadata": {}, "items": [args.nodes[name] for name in names]}, "Nodes"), failed
    )


def encode_passed(args: ExtenderArgs) -> bytes:
    """ExtenderFilterResult where every node passes."""
    if isinstance(args.names, NodeNames):
        return _filter_result(args.names.text, b"null", {})
    return encode_filter(args, args.names, {})


def _filter_result(names: bytes | memoryview, nodes: bytes, failed: dict[str, str]) -> bytes:
    most = _REASONS_BYTES // len(failed) if failed else REASON_BYTES
    if most < REASON_BYTES:
        failed = {name: cut(text, most) for name, text in failed.items()}
    refused = b',"FailedNodes":{},"FailedAndUnresolvableNodes":%b,"Error":""}' % orjson.dumps(failed)
    return b"".join((b'{"NodeNames":', names, b',"Nodes":', nodes, refused))


def encode_filter_error(message: str) -> bytes:
    """A failure of ours: the scheduler backs off and asks again."""
    return orjson.dumps(
        {
            "NodeNames": None,
            "Nodes": None,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": cut(message, REASON_BYTES),
        }
    )


def encode_scores(scores: Iterable[tuple[str, int]]) -> bytes:
    """HostPriorityList."""
    return orjson.dumps([{"Host": name, "Score": score} for name, score in scores])


def encode_bind(error: str) -> bytes:
    """ExtenderBindingResult."""
    return orjson.dumps({"Error": cut(error, REASON_BYTES)})


def encode_preempt(body: bytes) -> bytes:
    """ExtenderPreemptionResult: Berth neither adds nor removes victims (see docs/limits.md). Raises WireError."""
    found = _object(body)
    meta = get(found, "NodeNameToMetaVictims", dict, "", None)
    if meta is not None:
        victims = {name: _victims(value, f"NodeNameToMetaVictims[{name}]", _uid) for name, value in meta.items()}
    else:
        full = get(found, "NodeNameToVictims", dict, "", {})
        victims = {name: _victims(value, f"NodeNameToVictims[{name}]", _uid_of_pod) for name, value in full.items()}
    return orjson.dumps({"NodeNameToMetaVictims": victims})


def _victims(value: object, path: str, uid: Callable[[Json, str], str]) -> Json:
    if type(value) is not dict:
        raise wrong(path, dict, value)
    uids = many(value, "Pods", path, uid)
    return {"Pods": [{"UID": one} for one in uids], "NumPDBViolations": get(value, "NumPDBViolations", int, path, 0)}


def _uid(obj: Json, path: str) -> str:
    return get(obj, "UID", str, path, "")


def _uid_of_pod(obj: Json, path: str) -> str:
    return get(get(obj, "metadata", dict, path, {}), "uid", str, f"{path}.metadata", "")
