"""Discovery for clients such as kubectl: groups, versions and resources, and the smallest OpenAPI that they accept."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from extender.sandbox.apiserver.registry import RESOURCES, Resource
from extender.sandbox.apiserver.versioned_store import Json

# kubectl reads this document before it validates the items of a List, in protobuf only. It has the version "2.0" and no
# schemas, so kubectl leaves the validation of the items to the server too.
OPENAPI_V2, OPENAPI_V2_TYPE = b"\n\x032.0", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")


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
