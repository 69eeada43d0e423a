"""Objects as rows of a Table: the columns that kubectl prints. Source: pkg/printers/internalversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from extender.sandbox.apiserver.registry import Resource
from extender.sandbox.apiserver.versioned_store import Json

_MINUTE, _HOUR, _DAY = 60, 3600, 86400  # seconds
_NONE, _UNKNOWN = "<none>", "<unknown>"


@dataclass(frozen=True, slots=True)
class _Column:
    """kubectl prints a column that is `wide` only with -o wide."""

    name: str
    value: Callable[[Json], Any]
    wide: bool = False


def table_of(resource: Resource, objects: Sequence[Json], metadata: Json, include: str) -> Json:
    """Return a Table with one row per object. `include` is the parameter includeObject: None, Metadata or Object."""
    columns = _COLUMNS.get(resource.kind, ())
    if resource.kind != "Event":
        columns = (_NAME, *[c for c in columns if not c.wide], _AGE, *[c for c in columns if c.wide])
    rows = [{"cells": [column.value(obj) for column in columns], **_included(obj, include)} for obj in objects]
    definitions = [
        {
            "name": column.name,
            "type": "string",
            "format": "name" if column.name == "Name" else "",
            "description": "",
            "priority": int(column.wide),
        }
        for column in columns
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    }


def _included(obj: Json, include: str) -> Json:
    if include == "None":
        return {}
    if include == "Object":
        return {"object": obj}
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
    return {"object": partial}


def duration_text(seconds: float) -> str:
    """Return a duration as kubectl writes ages: 45s, 3m20s, 5h, 3d4h."""
    left = max(int(seconds), 0)
    if left < 2 * _MINUTE:
        return f"{left}s"
    if left < 10 * _MINUTE:
        return _two(left, _MINUTE, "m", 1, "s")
    if left < 3 * _HOUR:
        return f"{left // _MINUTE}m"
    if left < 8 * _HOUR:
        return _two(left, _HOUR, "h", _MINUTE, "m")
    if left < 2 * _DAY:
        return f"{left // _HOUR}h"
    return _two(left, _DAY, "d", _HOUR, "h") if left < 8 * _DAY else f"{left // _DAY}d"


def _two(seconds: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = seconds % large // small
    return f"{seconds // large}{large_name}" + (f"{rest}{small_name}" if rest else "")


def _since(*path: str) -> Callable[[Json], str]:
    """How long ago the time at a path was."""

    def value(obj: Json) -> str:
        text = _at(*path, default="")(obj)
        return duration_text((datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()) if text else _UNKNOWN

    return value


def _at(*path: str, default: str = _NONE) -> Callable[[Json], str]:
    def value(obj: Json) -> str:
        found: Any = obj
        for part in path:
            found = (found or {}).get(part)
        return str(found or default)

    return value


def _ready(pod: Json) -> str:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return f"{sum(bool(s.get('ready')) for s in statuses)}/{len((pod.get('spec') or {}).get('containers') or [])}"


def _pod_status(pod: Json) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = pod.get("status") or {}
    return str(status.get("reason") or status.get("phase") or _UNKNOWN)


def _node_status(node: Json) -> str:
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = next((c["status"] == "True" for c in conditions if c.get("type") == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready else "NotReady"]
    return ",".join(words + ["SchedulingDisabled"] * bool((node.get("spec") or {}).get("unschedulable")))


def _claim_state(claim: Json) -> str:
    status, deleted = claim.get("status") or {}, bool(claim["metadata"].get("deletionTimestamp"))
    words = ["deleted"] * deleted
    if status.get("allocation") is None:
        words += ["pending"] * (not deleted)
    else:
        words += ["allocated"] + ["reserved"] * bool(status.get("reservedFor"))
    return ",".join(words)


def _event_object(event: Json) -> str:
    about = event.get("involvedObject") or event.get("regarding") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


_NAME = _Column("Name", _at("metadata", "name"))
_AGE = _Column("Age", _since("metadata", "creationTimestamp"))
_COLUMNS = {
    "Pod": (
        _Column("Ready", _ready),
        _Column("Status", _pod_status),
        _Column("Restarts", lambda _: "0"),
        _Column("Node", _at("spec", "nodeName"), wide=True),
        _Column("Nominated Node", _at("status", "nominatedNodeName"), wide=True),
    ),
    "Node": (
        _Column("Status", _node_status),
        _Column("Version", _at("status", "nodeInfo", "kubeletVersion")),
        _Column("Machine", _at("metadata", "labels", "berth.dev/machine"), wide=True),
    ),
    "Namespace": (_Column("Status", _at("status", "phase", default="Active")),),
    "ConfigMap": (_Column("Data", lambda obj: str(len(obj.get("data") or {}))),),
    "ResourceClaim": (_Column("State", _claim_state),),
    "ResourceSlice": (
        _Column("Node", _at("spec", "nodeName")),
        _Column("Driver", _at("spec", "driver")),
        _Column("Pool", _at("spec", "pool", "name")),
    ),
    "Event": (
        _Column("Last Seen", _since("metadata", "creationTimestamp")),
        _Column("Type", _at("type")),
        _Column("Reason", _at("reason")),
        _Column("Object", _event_object),
        _Column("Message", lambda obj: str(obj.get("message") or obj.get("note") or "")),
        _Column("Name", _at("metadata", "name"), wide=True),
    ),
}
