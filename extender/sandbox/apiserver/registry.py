"""The resources that the sandbox serves, and the rules of writing that all of them share, with their patches.

Source of the rules about claims: pkg/apis/resource/validation.
"""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from extender.api.fields import Json
from extender.api.object_meta import MAX_LABEL, is_label, is_subdomain
from extender.api.pod_groups import GROUP_OBJECTS
from extender.api.resource_claims import SCHEDULING_GROUP
from extender.api_schema import refused_in, request_names
from extender.base.berth_errors import WireError
from extender.cluster import now_rfc3339
from extender.sandbox.apiserver.versioned_store import Key, ObjectStore
from extender.scheduling.requirements import ADMIN_LABEL


class ApiError(Exception):
    """An HTTP status with a Kubernetes Status body."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        super().__init__(message)

    def body(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def not_found(resource: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource} "{name}" not found')


def conflict(resource: str, name: str, why: str) -> ApiError:
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}')


def invalid(resource: str, name: str, why: str) -> ApiError:
    return ApiError(422, "Invalid", f'{resource} "{name}" is invalid: {why}')


def gone(version: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {version}")


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
            problem = f"Invalid value: {prefix!r}: a lowercase RFC 1123 subdomain is required"
            raise invalid(resource.qualified_kind, prefix, f"metadata.generateName: {problem}")
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
        _check_spec(resource.name, stored)
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
                _check_status(old, written, self.labels(key[0]))
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
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(resource.qualified_name, name, why)
        if metadata.get("uid") and metadata["uid"] != current["uid"]:
            if is_patch:
                why = f"metadata.uid: Invalid value: {json.dumps(metadata['uid'])}: field is immutable"
                raise invalid(resource.qualified_kind, name, why)
            raise conflict(resource.qualified_name, name, "Precondition failed: UID in precondition does not match")

    def labels(self, namespace: str) -> dict[str, str]:
        """The labels of a namespace."""
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


# -- what kube-apiserver 1.36 refuses in a new claim, or in the status of one --------------------------------------

_GROUP = "resource.k8s.io"
_MAX_RESERVED, _MAX_RESULTS, _MAX_CONFIG, _MAX_CONDITIONS = 256, 32, 64, 4
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def _check_spec(resource: str, obj: Json) -> None:
    """Raise ApiError if a new claim or template has a value that no API server accepts."""
    if resource not in ("resourceclaims", "resourceclaimtemplates"):
        return
    try:
        fault = next(refused_in(obj), None)
    except WireError as error:
        raise ApiError(400, "BadRequest", str(error)) from error
    if fault is not None:
        raise invalid(f"{obj['kind']}.{_GROUP}", obj["metadata"]["name"], f"{fault.where}: {fault.problem}")


def _check_status(old: Json, new: Json, namespace_labels: dict[str, str]) -> None:
    """Raise ApiError if a write to the status subresource is invalid."""
    before, after = old.get("status") or {}, new.get("status") or {}
    allocation = after.get("allocation")
    if before.get("allocation") is not None and allocation is not None and before["allocation"] != allocation:
        raise _bad(new, "status.allocation", f"Invalid value: {json.dumps(allocation)}: field is immutable")
    _check_reservations(new, before.get("reservedFor") or [], after)
    if allocation is not None and before.get("allocation") is None:
        _check_allocation(new, allocation, namespace_labels)


def _check_reservations(new: Json, before: list[Json], after: Json) -> None:
    reserved = after.get("reservedFor") or []
    if reserved and after.get("allocation") is None:
        raise _bad(new, "status.reservedFor", "may not be specified when `allocated` is not set")
    uids = [entry.get("uid") for entry in reserved]
    if len(set(uids)) < len(uids):
        raise _bad(new, "status.reservedFor", "duplicate uid")
    if len(uids) > _MAX_RESERVED:
        raise _bad(new, "status.reservedFor", f"must have at most {_MAX_RESERVED} items")
    for position, entry in enumerate(reserved):
        for field in ("uid", "name", "resource"):
            if not entry.get(field):
                raise _bad(new, f"status.reservedFor[{position}].{field}", "Required value")
    added = set(uids) - {entry.get("uid") for entry in before}
    if added and new["metadata"].get("deletionTimestamp"):
        raise _bad(new, "status.reservedFor", "new entries may not be added while `deletionTimestamp` is set")


def _check_allocation(new: Json, allocation: Json, namespace_labels: dict[str, str]) -> None:
    devices = allocation.get("devices") or {}
    results, config = devices.get("results") or [], devices.get("config") or []
    for field, items, most in (("results", results, _MAX_RESULTS), ("config", config, _MAX_CONFIG)):
        if len(items) > most:
            raise _bad(new, f"status.allocation.devices.{field}", f"must have at most {most} items")
    known = request_names((new.get("spec") or {}).get("devices") or {}, "")
    for position, result in enumerate(results):
        _check_result(new, f"status.allocation.devices.results[{position}]", result, known, namespace_labels)
    for position, entry in enumerate(config):
        path = f"status.allocation.devices.config[{position}]"
        if entry.get("source") not in ("FromClass", "FromClaim"):
            raise _bad(new, f"{path}.source", "Unsupported value")
        if not (entry.get("opaque") or {}).get("driver"):
            raise _bad(new, f"{path}.opaque", "Required value")


def _check_result(new: Json, path: str, result: Json, known: Collection[str], namespace_labels: dict[str, str]) -> None:
    if result.get("request") not in known:
        raise _bad(new, f"{path}.request", f"Invalid value: {result.get('request')!r}: must be a request of the claim")
    for field, is_valid in (("driver", is_subdomain), ("device", is_label)):
        value = str(result.get(field) or "")
        if not is_valid(value) or len(value) > MAX_LABEL:
            raise _bad(new, f"{path}.{field}", f"Invalid value: {value!r}")
    if not all(map(is_subdomain, str(result.get("pool") or "").split("/"))):
        raise _bad(new, f"{path}.pool", f"Invalid value: {result.get('pool')!r}")
    share = result.get("shareID")
    if share is not None and not _UUID.fullmatch(str(share)):
        raise _bad(new, f"{path}.shareID", f"Invalid value: {share!r}: must be a lowercase UUID")
    wanted, failing = result.get("bindingConditions") or [], result.get("bindingFailureConditions") or []
    if bool(wanted) != bool(failing) or max(len(wanted), len(failing)) > _MAX_CONDITIONS:
        raise _bad(new, f"{path}.bindingConditions", "binding and failure conditions come together, at most 4 each")
    if result.get("adminAccess") and namespace_labels.get(ADMIN_LABEL) != "true":
        why = f"admin access requires the `{ADMIN_LABEL}: true` label on the namespace"
        raise ApiError(403, "Forbidden", f"{path}.adminAccess: {why}")


def _bad(claim: Json, field: str, why: str) -> ApiError:
    return invalid(f"ResourceClaim.{_GROUP}", claim["metadata"]["name"], f"{field}: {why}")


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
        if type(patch) is not list:
            return patch
        return [merge_patch(None, item) if item is not None else None for item in patch]
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
