"""Events have two forms, v1 and events.k8s.io/v1. The store keeps each as written; a v1 reader gets v1."""

from __future__ import annotations

from extender.sandbox.apiserver.registry import Resource
from extender.sandbox.apiserver.versioned_store import Json

_FIELDS = {"regarding": "involvedObject", "note": "message", "reportingController": "reportingComponent"}


def in_version_of(resource: Resource, obj: Json) -> Json:
    """Return an Event of events.k8s.io/v1 as v1 if the resource is that of v1; any other object as it is."""
    if (resource.kind, resource.group) != ("Event", "") or obj["apiVersion"] == resource.api_version:
        return obj
    renamed = {_FIELDS.get(field, field): value for field, value in obj.items()}
    when = obj["metadata"].get("creationTimestamp")
    return {**renamed, "apiVersion": "v1", "firstTimestamp": when, "lastTimestamp": when, "count": 1}
