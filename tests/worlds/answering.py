"""The API server's successes, for fakes of ApiClient that store nothing."""

from __future__ import annotations

from typing import Any

from extender.api.resource_claims import FINALIZER
from tests.worlds.running_berth import claim

Json = dict[str, Any]
CONSUMER = {"resource": "pods", "name": "x", "uid": "uid"}


def metadata_in(body: Json | list[Json] | None) -> Json:
    """The metadata of an object, of a merge patch, or of a JSON patch."""
    if isinstance(body, list):
        operations = {one["path"]: one["value"] for one in body}
        return {path.removeprefix("/metadata/"): operations[path] for path in operations if "/metadata/" in path}
    found: Json = (body or {}).get("metadata") or {}
    return found


def success(path: str, body: Json | list[Json] | None = None, version: str = "8") -> Json:
    """The object that the path names, as an allocated claim of the next version; the Status of a Binding."""
    if path.endswith("/binding"):
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
    asked = metadata_in(body)
    parts = path.removesuffix("/status").split("/")
    namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
    found = claim(asked["generateName"] + "a" if "generateName" in asked else parts[-1])
    uid = asked.get("uid", "claim-uid")
    found["metadata"] |= {"namespace": namespace, "uid": uid, "resourceVersion": version, "finalizers": [FINALIZER]}
    found["status"] = {"allocation": {}, "reservedFor": [CONSUMER]}
    return found
