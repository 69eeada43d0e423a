"""What kube-apiserver 1.36 refuses in a new claim, or in the status of one, and whether Berth can read an object.

Source: pkg/apis/resource/validation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from extender.api.claim_specs import decode_claim_spec
from extender.api.device_classes import decode_class
from extender.api.fields import Json, inner, need
from extender.api.nodes import decode_node
from extender.api.object_meta import is_label, is_subdomain
from extender.api.pods import decode_pod
from extender.api.resource_slices import SliceDecoder
from extender.api_schema import refused_in, request_names
from extender.base.berth_errors import WireError
from extender.sandbox.apiserver.status_errors import ApiError, invalid
from extender.scheduling.requirements import ADMIN_LABEL

_GROUP = "resource.k8s.io"
_MAX_RESERVED, _MAX_RESULTS, _MAX_CONFIG, _MAX_CONDITIONS, _MAX_NAME = 256, 32, 64, 4, 63
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def check_spec(resource: str, obj: Json) -> None:
    """Raise ApiError if a new claim or template has a value that no API server accepts."""
    if resource not in ("resourceclaims", "resourceclaimtemplates"):
        return
    try:
        fault = next(refused_in(obj), None)
    except WireError as error:
        raise ApiError(400, "BadRequest", str(error)) from error
    if fault is not None:
        raise invalid(f"{obj['kind']}.{_GROUP}", obj["metadata"]["name"], f"{fault.where}: {fault.problem}")


def check_status(old: Json, new: Json, namespace_labels: dict[str, str]) -> None:
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
    if len(results) > _MAX_RESULTS:
        raise _bad(new, "status.allocation.devices.results", f"must have at most {_MAX_RESULTS} items")
    if len(config) > _MAX_CONFIG:
        raise _bad(new, "status.allocation.devices.config", f"must have at most {_MAX_CONFIG} items")
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
        if not is_valid(value) or len(value) > _MAX_NAME:
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
        raise ApiError(
            403,
            "Forbidden",
            f"{path}.adminAccess: admin access requires the `{ADMIN_LABEL}: true` label on the namespace",
        )


def _bad(claim: Json, field: str, why: str) -> ApiError:
    return invalid(f"ResourceClaim.{_GROUP}", claim["metadata"]["name"], f"{field}: {why}")


# -- whether Berth can read an object ------------------------------------------------------------------------


def _spec(obj: Json) -> Json:
    return inner(obj, "spec", "")


_DECODERS: dict[str, Callable[[Json], object]] = {
    "Pod": decode_pod,
    "Node": decode_node,
    "ResourceClaim": lambda obj: decode_claim_spec(_spec(obj), ".spec"),  # decode_claim marks what it cannot read
    "ResourceClaimTemplate": lambda obj: decode_claim_spec(inner(_spec(obj), "spec", ".spec"), ".spec.spec"),
    "DeviceClass": decode_class,
    "ResourceSlice": lambda obj: SliceDecoder().decode(obj),
}


def decode(obj: Json) -> None:
    """Decode an object as Berth does. Raises WireError that names the field."""
    need(inner(obj, "metadata", ""), "name", ".metadata")
    kind = obj.get("kind")
    if kind in _DECODERS:
        _DECODERS[kind](obj)


def unreadable(kind: str, obj: Json) -> tuple[str, str] | None:
    """Return (field, problem) if Berth cannot decode an object."""
    metadata = obj.get("metadata") or {}
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    try:
        decode({**obj, "kind": kind, "metadata": {**metadata, "name": name}})
    except WireError as error:
        return error.path.lstrip("."), error.problem
    return None
