"""The extender protocol (k8s.io/kube-scheduler/extender/v1): Go field names, verbatim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from extender.model.claim import ObjectKey, Pod
from extender.model.errors import WireError
from extender.wire.core import decode_pod
from extender.wire.fields import Json, get, need, strings, wrong


@dataclass(frozen=True, slots=True)
class Args:
    """ExtenderArgs. `nodes` holds whole Node objects by name where the scheduler sent those."""

    pod: Pod
    names: list[str]
    nodes: dict[str, Json] | None


@dataclass(frozen=True, slots=True)
class BindArgs:
    """ExtenderBindingArgs."""

    pod: ObjectKey
    pod_uid: str
    node: str


def _object(body: bytes) -> Json:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError("", f"the body is not JSON: {error}") from error
    if type(found) is not dict:
        raise wrong("body", dict, found)
    return found


def decode_args(body: bytes) -> Args:
    """The body of filter and prioritize. Raises WireError."""
    found = _object(body)
    pod = get(found, "Pod", dict, "", {})
    if not pod:
        raise WireError("Pod", "is missing")
    if found.get("NodeNames") is not None:
        return Args(decode_pod(pod), list(strings(found, "NodeNames", "")), None)
    if found.get("Nodes") is None:
        raise WireError("NodeNames", "neither NodeNames nor Nodes is given")
    listed = get(found, "Nodes", dict, "", {})
    nodes: dict[str, Json] = {}
    for position, item in enumerate(get(listed, "items", list, "Nodes", [])):
        path = f"Nodes.items[{position}]"
        if type(item) is not dict:
            raise wrong(path, dict, item)
        nodes[need(get(item, "metadata", dict, path, {}), "name", f"{path}.metadata")] = item
    return Args(decode_pod(pod), list(nodes), nodes)


def decode_bind(body: bytes) -> BindArgs:
    """The body of bind. Raises WireError."""
    found = _object(body)
    key = ObjectKey(need(found, "PodNamespace", ""), need(found, "PodName", ""))
    return BindArgs(key, need(found, "PodUID", ""), need(found, "Node", ""))


def encode_filter(args: Args, names: Iterable[str], failed: dict[str, str]) -> bytes:
    """ExtenderFilterResult in the form that was asked: names for names, nodes for nodes. Never null by accident."""
    kept = list(names)
    answer: dict[str, Any] = {
        "NodeNames": kept if args.nodes is None else None,
        "Nodes": None if args.nodes is None else {"metadata": {}, "items": [args.nodes[name] for name in kept]},
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": failed,
        "Error": "",
    }
    return orjson.dumps(answer)


def encode_filter_error(message: str) -> bytes:
    """A failure of ours: the scheduler backs off and asks again."""
    return orjson.dumps(
        {"NodeNames": None, "Nodes": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": message}
    )


def encode_scores(scores: Iterable[tuple[str, int]]) -> bytes:
    """HostPriorityList."""
    return orjson.dumps([{"Host": name, "Score": score} for name, score in scores])


def encode_bind(error: str) -> bytes:
    """ExtenderBindingResult."""
    return orjson.dumps({"Error": error})


def encode_preempt(body: bytes) -> bytes:
    """ExtenderPreemptionResult: Berth neither adds nor removes victims (see docs/limits.md)."""
    found = _object(body)
    victims = found.get("NodeNameToMetaVictims")
    if victims is None:
        full = get(found, "NodeNameToVictims", dict, "", {})
        victims = {name: _meta(value, f"NodeNameToVictims[{name}]") for name, value in full.items()}
    if type(victims) is not dict:
        raise wrong("NodeNameToMetaVictims", dict, victims)
    return orjson.dumps({"NodeNameToMetaVictims": victims})


def _meta(value: object, path: str) -> Json:
    if type(value) is not dict:
        raise wrong(path, dict, value)
    pods = get(value, "Pods", list, path, [])
    uids = [{"UID": get(get(p, "metadata", dict, path, {}), "uid", str, path, "")} for p in pods if isinstance(p, dict)]
    return {"Pods": uids, "NumPDBViolations": get(value, "NumPDBViolations", int, path, 0)}
