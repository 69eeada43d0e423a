"""What kubectl alone asks for: discovery of resources, the smallest OpenAPI that it accepts, and Tables.

Source of the columns of a Table: pkg/printers/internalversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from extender.sandbox.apiserver.registry import RESOURCES, Resource
from extender.sandbox.apiserver.versioned_store import Json

# kubectl reads this document before it validates the items of a List, in protobuf only. It has the version "2.0" and no
# schemas, so kubectl leaves the validation of the items to the server too.
OPENAPI_V2, OPENAPI_V2_TYPE = b"\n\x032.0", b"application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400  # seconds
_NONE, _UNKNOWN = "<none>", "<unknown>"


def document_at(path: str) -> Json | None:
    """Return the discovery document at a path without a trailing slash; None if it is not a discovery path."""
    return _documents().get(path)


@cache
def _documents() -> dict[str, Json]:
    groups = {resource.group: _group(resource.group) for resource in RESOURCES.values() if resource.group}
    found: dict[str, Json] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(groups.values())},
        "/openapi/v3": {"paths": {}},
    }
    found |= {f"/apis/{name}": {"kind": "APIGroup", "apiVersion": "v1", **group} for name, group in groups.items()}
    for version in dict.fromkeys(resource.api_version for resource in RESOURCES.values()):
        resources = [resource for resource in RESOURCES.values() if resource.api_version == version]
        root = resources[0].root
        found[root] = _resource_list(version, resources)
        found[f"/openapi/v3{root}"] = _openapi(resources)
        found["/openapi/v3"]["paths"][root[1:]] = {"serverRelativeURL": f"/openapi/v3{root}?hash=sandbox"}
    return found


def _group(name: str) -> Json:
    versions = dict.fromkeys(resource.version for resource in RESOURCES.values() if resource.group == name)
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def _resource_list(version: str, resources: Iterable[Resource]) -> Json:
    entries = [
        {
            "name": resource.name,
            "singularName": resource.kind.lower(),
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": _VERBS,
            "shortNames": resource.short_names,
            "categories": ["all"] if resource.kind == "Pod" else [],
        }
        for resource in resources
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": entries}


def _openapi(resources: Iterable[Resource]) -> Json:
    """Tell that every kind takes the parameter fieldValidation: then kubectl leaves the validation to the server.

    Without schemas, kubectl computes strategic merge patches with the Go types that it contains.
    """
    field_validation = {"name": "fieldValidation", "in": "query"}
    paths = {
        f"{resource.root}/{resource.name}/{{name}}": {
            "patch": {
                "x-kubernetes-group-version-kind": {
                    "group": resource.group,
                    "version": resource.version,
                    "kind": resource.kind,
                },
                "parameters": [field_validation],
            }
        }
        for resource in resources
    }
    info = {"title": "Berth's sandbox", "version": "1"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}


# -- objects as rows of a Table ------------------------------------------------------------------------------


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


def _job_status(job: Json) -> str:
    conditions = (job.get("status") or {}).get("conditions") or []
    return next((c["type"] for c in conditions if c.get("status") == "True"), "Running")


def _job_completions(job: Json) -> str:
    spec, done = job.get("spec") or {}, (job.get("status") or {}).get("succeeded") or 0
    return f"{done}/{spec.get('completions') or 1}"


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
    "Job": (
        _Column("Status", _job_status),
        _Column("Completions", _job_completions),
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
