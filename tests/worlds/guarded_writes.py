"""Each write of Writer, with arguments and the preconditions that its requests must have; and successes of the API
server, for fakes of ApiClient that store nothing.
"""

from __future__ import annotations

from typing import Any

from extender.api.asked_subgroups import PodMark
from extender.api.claim_specs import ClaimSpec
from extender.api.object_meta import ObjectKey
from extender.api.pods import Pod
from extender.api.resource_claims import FINALIZER, Allocation, Claim, Consumer
from tests.worlds.running_berth import claim

Json = dict[str, Any]
KEY = ObjectKey("ns", "x")
POD = Pod(KEY, "pod-uid", resource_version="7")
CONSUMER = Consumer("pod-uid", "x")
RESERVED = {"resource": "pods", "name": "x", "uid": "uid"}
OPEN = Claim(KEY, "claim-uid", "7")
ALLOCATED = Claim(KEY, "claim-uid", "7", allocation=Allocation(), reserved_for=(CONSUMER,), finalizers=(FINALIZER,))
OF_CLAIM = {"uid": "claim-uid", "resourceVersion": "7"}
OF_POD = {"uid": "pod-uid", "resourceVersion": "7"}
AFTER = {"uid": "claim-uid", "resourceVersion": "8"}  # as the write before left it


GUARDS: dict[str, tuple[tuple[Any, ...], list[dict[str, str]]]] = {
    "add_finalizer": ((OPEN, PodMark("g")), [OF_CLAIM]),
    "take_over": ((ALLOCATED,), [OF_CLAIM]),
    "announce_release": ((ALLOCATED,), [OF_CLAIM]),
    "allocate": ((OPEN, Allocation(), CONSUMER), [OF_CLAIM]),
    "add_consumers": ((ALLOCATED, [Consumer("other", "y")]), [OF_CLAIM]),
    "deallocate": ((ALLOCATED,), [OF_CLAIM]),
    "remove_consumer": ((ALLOCATED, "pod-uid"), [OF_CLAIM]),
    "bind_pod": ((KEY, "pod-uid", "n", {}), [{"uid": "pod-uid"}]),
    "create_special_claim": ((POD, ClaimSpec()), [{}]),
    "map_special_claim": ((POD, ALLOCATED, ()), [OF_POD]),
    "delete_claim": ((ALLOCATED,), [OF_CLAIM, AFTER, AFTER]),
    "touch_class": (("berth.dev", "a", "v"), [{}]),
    "create_event": (("Pod", KEY, "pod-uid", "Reason", "note"), [{}]),
}


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
    found["status"] = {"allocation": {}, "reservedFor": [RESERVED]}
    return found
