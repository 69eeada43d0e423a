"""The resources that the sandbox serves, and the rules of writing that all of them share, with their patches."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from extender.api.fields import Json
from extender.api.object_meta import is_subdomain
from extender.api.pod_groups import GROUP_OBJECTS
from extender.api.resource_claims import SCHEDULING_GROUP
from extender.cluster import now_rfc3339
from extender.sandbox.apiserver import validation
from extender.sandbox.apiserver.status_errors import ApiError, conflict, invalid, not_found
from extender.sandbox.apiserver.versioned_store import Key, ObjectStore

_PREFIX_LENGTH = 58  # the API server cuts generateName so that five more letters fit
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # the API server's, without vowels


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object. `name` is the plural in the path, `short_names` are for kubectl."""

    name: str
    group: str
    version: str
    kind: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    own_table: str = ""  # the name of its table in the store, if another resource has the same name

    @property
    def table(self) -> str:
        """Its table in the store. Both resources called events share one, as in a real cluster."""
        return self.own_table or self.name

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified_kind(self) -> str:
        """As error messages have it: ResourceClaim.resource.k8s.io, Pod."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def qualified_name(self) -> str:
        """As error messages have it: resourceclaims.resource.k8s.io, pods."""
        return f"{self.name}.{self.group}" if self.group else self.name

    @property
    def root(self) -> str:
        """The path of the resource's group and version."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"


_DRA = "resource.k8s.io", "v1"
_CUSTOM_GROUPS = (
    Resource(of.plural, of.api, of.versions[0], of.kind, True, own_table=of.resource)
    for of in GROUP_OBJECTS
    if of.api != SCHEDULING_GROUP
)
RESOURCES = {
    (resource.group, resource.name): resource
    for resource in (
        Resource("pods", "", "v1", "Pod", True, ("po",)),
        Resource("nodes", "", "v1", "Node", False, ("no",)),
        Resource("namespaces", "", "v1", "Namespace", False, ("ns",)),
        Resource("jobs", "batch", "v1", "Job", True),
        Resource("priorityclasses", SCHEDULING_GROUP, "v1", "PriorityClass", False, ("pc",)),
        Resource("podgroups", SCHEDULING_GROUP, "v1beta1", "PodGroup", True),
        Resource("compositepodgroups", SCHEDULING_GROUP, "v1alpha3", "CompositePodGroup", True),
        *_CUSTOM_GROUPS,
        Resource("events", "", "v1", "Event", True, ("ev",)),
        Resource("events", "events.k8s.io", "v1", "Event", True),
        Resource("services", "", "v1", "Service", True, ("svc",)),
        Resource("configmaps", "", "v1", "ConfigMap", True, ("cm",)),
        Resource("resourceslices", *_DRA, "ResourceSlice", False),
        Resource("deviceclasses", *_DRA, "DeviceClass", False),
        Resource("devicetaintrules", "resource.k8s.io", "v1beta2", "DeviceTaintRule", False),
        Resource("resourceclaims", *_DRA, "ResourceClaim", True),
        Resource("resourceclaimtemplates", *_DRA, "ResourceClaimTemplate", True),
    )
}
_WITH_STATUS = ("pods", "resourceclaims", "jobs")  # only the subresource writes it
# The lists that a strategic merge patch merges, with the field that identifies an item (patchMergeKey in the Go types).
# A list of strings has none. All other lists are replaced.
_MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "finalizers": "",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "reservedFor": "uid",
    "resourceClaimStatuses": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "taints": "key",
    "topologySpreadConstraints": "topologyKey",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
Check = Callable[[Json | None, Json], None]  # of the object before a write, and of the one that it makes


def unchecked(_: Json | None, __: Json) -> None:
    """The check of the sandbox's own writes."""


_DELETED_STRINGS, _ORDER, _KEPT = "$deleteFromPrimitiveList/", "$setElementOrder/", "$retainKeys"


class Registry:
    """Creates, replaces, patches, deletes and binds objects. All methods raise ApiError."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._names = itertools.count(1)

    def create(self, resource: Resource, namespace: str, obj: Json, check: Check = unchecked) -> Json:
        metadata = dict(obj.get("metadata") or {})
        prefix = str(metadata.get("generateName") or "")
        if prefix and not is_subdomain(prefix.removesuffix("-")):
            raise invalid(
                resource.qualified_kind,
                prefix,
                f"metadata.generateName: Invalid value: {prefix!r}: a lowercase RFC 1123 subdomain is required",
            )
        name = metadata.get("name") or self._generated(prefix)
        if not name:
            problem = "metadata.name: Required value: name or generateName is required"
            raise invalid(resource.qualified_kind, "", problem)
        key = (namespace if resource.namespaced else "", name)
        if self.store.get(resource.table, key) is not None:
            raise ApiError(409, "AlreadyExists", f'{resource.qualified_name} "{name}" already exists')
        if resource.namespaced:
            metadata["namespace"] = namespace
        metadata |= {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": now_rfc3339(), "generation": 1}
        stored = {"apiVersion": resource.api_version, "kind": resource.kind, **obj, "metadata": metadata}
        check(None, stored)
        validation.check_spec(resource.name, stored)
        if resource.name in _WITH_STATUS:
            stored["status"] = {"phase": "Pending"} if resource.name == "pods" else {}
        return self.store.put(resource.table, key, stored)

    def get(self, resource: Resource, key: Key) -> Json:
        found = self.store.get(resource.table, key)
        if found is None:
            raise not_found(resource.qualified_name, key[1])
        return found

    def replace(self, resource: Resource, key: Key, obj: Json, subresource: str, check: Check = unchecked) -> Json:
        """PUT. A write to an object keeps its status, and a write to its status keeps the rest."""
        old = self.get(resource, key)
        self._guard(resource, old, obj.get("metadata") or {})
        return self._write(resource, key, old, obj, subresource, check)

    def patch(
        self,
        resource: Resource,
        key: Key,
        change: Json | list[Json],
        subresource: str,
        *,
        strategic: bool,
        check: Check = unchecked,
    ) -> Json:
        """PATCH, by merge patch, by strategic merge patch, or by JSON patch: a list of operations."""
        old = self.get(resource, key)
        new = patched(old, change, strategic=strategic)
        self._guard(resource, old, new.get("metadata") or {}, is_patch=True)
        return self._write(resource, key, old, new, subresource, check)

    def delete(self, resource: Resource, key: Key, preconditions: Json | None = None) -> Json:
        """Mark an object with finalizers as deleted; remove others. `preconditions` are a uid and a resourceVersion."""
        old = self.get(resource, key)
        self._guard(resource, old, preconditions or {})
        if old["metadata"].get("finalizers"):
            if old["metadata"].get("deletionTimestamp"):
                return old
            marked = {**old, "metadata": {**old["metadata"], "deletionTimestamp": now_rfc3339()}}
            return self.store.put(resource.table, key, marked)
        return self.store.remove(resource.table, key)

    def bind(self, key: Key, binding: Json) -> None:
        """Bind a pod that is not bound and not being deleted, by its UID. The pod gets the Binding's annotations."""
        pods = RESOURCES["", "pods"]
        pod = self.get(pods, key)
        metadata = binding.get("metadata") or {}
        if metadata.get("uid") and metadata["uid"] != pod["metadata"]["uid"]:
            uids = f"UID in precondition: {metadata['uid']}, UID in object meta: {pod['metadata']['uid']}"
            raise conflict("pods/binding", key[1], f"Precondition failed: {uids}")
        if pod["metadata"].get("deletionTimestamp"):
            raise conflict("pods/binding", key[1], f"pod {key[1]} is being deleted, cannot be assigned to a host")
        spec = pod.get("spec") or {}
        if spec.get("nodeName"):
            raise conflict("pods/binding", key[1], f'pod {key[1]} is already assigned to node "{spec["nodeName"]}"')
        if spec.get("schedulingGates"):
            raise conflict("pods/binding", key[1], f"pod {key[1]} has non-empty .spec.schedulingGates")
        node = (binding.get("target") or {}).get("name")
        if not node:
            raise invalid("Binding", key[1], "target.name: Required value")
        annotations = {**(pod["metadata"].get("annotations") or {}), **(metadata.get("annotations") or {})}
        bound = {**pod, "metadata": {**pod["metadata"], "annotations": annotations}, "spec": {**spec, "nodeName": node}}
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now_rfc3339()}
        where = {"reason": "Scheduled", "message": "The pod has a node. The sandbox has no kubelet that starts it."}
        bound["status"] = {**(pod.get("status") or {}), "conditions": [condition], **where}
        bound["status"].pop("nominatedNodeName", None)
        self.store.put("pods", key, bound)

    def _write(self, resource: Resource, key: Key, old: Json, new: Json, subresource: str, check: Check) -> Json:
        keep = {
            field: old["metadata"].get(field)
            for field in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")
        }
        metadata = {k: v for k, v in {**(new.get("metadata") or {}), **keep}.items() if v is not None}
        if subresource == "status":
            written = {**old, "status": new.get("status") or {}}
            if resource.name == "resourceclaims":
                validation.check_status(old, written, self._labels(key[0]))
        else:
            written = {**new, "metadata": metadata, "apiVersion": old["apiVersion"], "kind": old["kind"]}
            check(old, written)
            if "status" in old and resource.name in _WITH_STATUS:
                written["status"] = old["status"]
        if _same(written, old):
            return old
        if written["metadata"].get("deletionTimestamp") and not written["metadata"].get("finalizers"):
            return self.store.remove(resource.table, key)
        return self.store.put(resource.table, key, written)

    def _guard(self, resource: Resource, old: Json, metadata: Json, *, is_patch: bool = False) -> None:
        """Raise ApiError if the uid or the resourceVersion in `metadata` is not the current one.

        The uid of a PUT or DELETE is a precondition; that of a patch is a value that cannot be changed.
        """
        name, current = old["metadata"]["name"], old["metadata"]
        if metadata.get("resourceVersion") and metadata["resourceVersion"] != current["resourceVersion"]:
            raise conflict(
                resource.qualified_name,
                name,
                "the object has been modified; please apply your changes to the latest version and try again",
            )
        if metadata.get("uid") and metadata["uid"] != current["uid"]:
            if is_patch:
                why = f"metadata.uid: Invalid value: {json.dumps(metadata['uid'])}: field is immutable"
                raise invalid(resource.qualified_kind, name, why)
            raise conflict(resource.qualified_name, name, "Precondition failed: UID in precondition does not match")

    def _labels(self, namespace: str) -> dict[str, str]:
        found = self.store.get("namespaces", ("", namespace)) or {}
        return (found.get("metadata") or {}).get("labels") or {}

    def _generated(self, prefix: str) -> str:
        if not prefix:
            return ""
        number, suffix = next(self._names) * 7919 + 12345, ""  # spreads the names; they only need to differ
        for _ in range(5):
            number, digit = divmod(number, len(_SUFFIX_ALPHABET))
            suffix += _SUFFIX_ALPHABET[digit]
        return f"{prefix[:_PREFIX_LENGTH]}{suffix}"


def _same(new: Json, old: Json) -> bool:
    """Whether a write changes nothing; such a write makes no event."""

    def without_version(obj: Json) -> Json:
        metadata = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
        return {**obj, "metadata": metadata}

    return without_version(new) == without_version(old)


# -- merge patch, a part of JSON patch, and strategic merge patch --------------------------------------------


def patched(target: Json, change: Json | list[Json], *, strategic: bool) -> Json:
    """Return the target after a patch of any of the three forms. Raises ApiError."""
    if isinstance(change, list):
        return json_patch(target, change)
    found: Json = strategic_patch(target, change) if strategic else merge_patch(target, change)
    return found


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the target after a JSON merge patch (RFC 7396). As the API server's, it drops nulls within lists, too."""
    if not isinstance(patch, dict):
        return (
            [merge_patch(None, item) if item is not None else None for item in patch] if type(patch) is list else patch
        )
    base = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        else:
            base[key] = merge_patch(base.get(key), value)
    return base


def json_patch(target: Json, changes: list[Json]) -> Json:
    """Return the target after a JSON patch (RFC 6902) that sets members of objects. Raises ApiError for any other."""
    for change in changes:
        try:
            names = change["path"].split("/")[1:] if change["op"] in ("add", "replace") else ()
            target = _with(target, *names, value=change["value"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = "the sandbox applies JSON patches that add or replace members of objects"
            raise ApiError(415, "UnsupportedMediaType", problem) from error
    return target


def _with(target: Any, name: str, *names: str, value: Any) -> Any:
    return {**target, name: _with(target.get(name, {}), *names, value=value) if names else value}


def strategic_patch(target: Any, patch: Any) -> Any:
    """Return the target after a strategic merge patch. New items of a list come last."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    base = dict(target) if isinstance(target, dict) else {}
    if _KEPT in patch:
        base = {key: value for key, value in base.items() if key in patch[_KEPT]}
    for key, value in patch.items():
        if key.startswith(_DELETED_STRINGS):
            field = key.removeprefix(_DELETED_STRINGS)
            base[field] = [item for item in base.get(field) or [] if item not in value]
        elif key == _KEPT or key.startswith(_ORDER):
            continue
        elif value is None:
            base.pop(key, None)
        elif isinstance(value, list) and key in _MERGE_KEYS:
            base[key] = _merged_list(base.get(key) or [], value, _MERGE_KEYS[key])
        else:
            base[key] = strategic_patch(base.get(key), value)
    return base


def _merged_list(items: list[Any], changes: list[Any], merge_key: str) -> list[Any]:
    if not merge_key:
        return list(dict.fromkeys([*items, *changes]))
    if any(change.get("$patch") == "replace" for change in changes):
        return [change for change in changes if "$patch" not in change]
    found = {item.get(merge_key): item for item in items}
    for change in changes:
        identity = change.get(merge_key)
        if change.get("$patch") == "delete":
            found.pop(identity, None)
        else:
            found[identity] = strategic_patch(found.get(identity), change)
    return list(found.values())
