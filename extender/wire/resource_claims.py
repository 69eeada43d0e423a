"""Decoding of ResourceClaims and DeviceClasses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import orjson
from cachetools import LRUCache

from extender.model import (
    ALLOCATOR_ANNOTATION,
    COMPUTE_DOMAIN_DRIVER,
    EXTENDED_CLAIM_ANNOTATION,
    GROUP_ANNOTATION,
    REASON_BYTES,
    Allocation,
    Claim,
    ClaimSpec,
    Config,
    Constraint,
    Consumer,
    DeviceClass,
    DeviceId,
    DeviceRequest,
    DeviceStatus,
    ObjectKey,
    PodGroup,
    Quantity,
    Request,
    Result,
    WireError,
    cut,
    decoded_bytes,
)
from extender.wire.fields import (
    Json,
    amounts,
    dumped,
    get,
    many,
    need,
    node_selector,
    quantities,
    strings,
    toleration,
)

T = TypeVar("T")
_SPEC_BYTES = 8 << 20  # estimated size of all specs in the cache: about 3,000 usual ones
_MOST_SPEC = 128 * 1024  # bytes of one spec as JSON: real ones have less than 10 KiB, but a tenant's may have 1.4 MB
_MOST_DECODED = 2 * _MOST_SPEC  # estimated size of one spec with its JSON; short texts take ten times as much decoded
_SPEC_OBJECT_BYTES = 2048  # estimated size of one decoded spec without its text
_MOST_FINALIZERS = 4096  # characters of all finalizers
_WORD_BYTES = 512  # of a UID, name or annotation that a tenant may write; a longer one is cut, so it names nothing
_REQUIRED_FIELDS = 4  # number of required fields of an allocation result; most results have no other


def decode_claim(obj: Json) -> Claim:
    """Decode a ResourceClaim. If spec or status is not readable, `problem` names the field.

    Raises WireError if the metadata is not readable.
    """
    metadata = get(obj, "metadata", dict, "", {})
    key = ObjectKey(get(metadata, "namespace", str, "metadata", ""), need(metadata, "name", "metadata"))
    uid = get(metadata, "uid", str, "metadata", "")
    try:
        return _claim(obj, metadata, key, uid)
    except WireError as error:
        version = get(metadata, "resourceVersion", str, "metadata", "")
        allocation, reserved_for = _held_devices(_inner(obj, "status"))
        return Claim(
            key,
            uid,
            version,
            allocation=allocation,
            reserved_for=reserved_for,
            deleting=metadata.get("deletionTimestamp") is not None,
            problem=cut(str(error), REASON_BYTES),
        )


def _held_devices(status: Json) -> tuple[Allocation | None, tuple[Consumer, ...]]:
    """The readable results and consumers of a claim with an unreadable field.

    The claim still holds its devices: another allocator may be able to read the field.
    """
    allocation = _inner(status, "allocation")
    results = _readable_items(_inner(allocation, "devices"), "results", _result_or_device)
    return (Allocation(results) if allocation else None), _readable_items(status, "reservedFor", _consumer)


def _inner(obj: Json, key: str) -> Json:
    value = obj.get(key)
    return value if type(value) is dict else {}


def _readable_items(obj: Json, key: str, read: Callable[[Json, str], T]) -> tuple[T, ...]:
    """The items of a list that `read` accepts."""
    items = obj.get(key)
    found: list[T] = []
    for item in items if type(items) is list else ():
        with suppress(WireError):
            found += many({key: [item]}, key, "", read)
    return tuple(found)


def _result_or_device(obj: Json, path: str) -> Result:
    """A result. If only its device is readable, the result holds the whole device."""
    try:
        return _result(obj, path)
    except WireError:
        return Result("", _device_id(obj, path))


def _claim(obj: Json, metadata: Json, key: ObjectKey, uid: str) -> Claim:
    status = get(obj, "status", dict, "", {})
    annotations = get(metadata, "annotations", dict, "metadata", {})
    return Claim(
        key,
        uid,
        get(metadata, "resourceVersion", str, "metadata", ""),
        spec=_SPECS.decode(dumped(get(obj, "spec", dict, "", {}), "spec", orjson.OPT_SORT_KEYS)),
        allocation=_allocation(status) if status.get("allocation") is not None else None,
        reserved_for=many(status, "reservedFor", "status", _consumer),
        devices=many(status, "devices", "status", _device_status),
        finalizers=_finalizers(metadata),
        deleting=metadata.get("deletionTimestamp") is not None,
        owner_pod_uid=_controller(metadata, "Pod").uid,
        owner_group=_controlling_group(metadata),
        allocator=cut(get(annotations, ALLOCATOR_ANNOTATION, str, "metadata.annotations", ""), _WORD_BYTES),
        group=cut(get(annotations, GROUP_ANNOTATION, str, "metadata.annotations", ""), _WORD_BYTES),
        extended=annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true",
    )


def _finalizers(metadata: Json) -> tuple[str, ...]:
    """All finalizers: Berth writes the list again with its own. Raises WireError if they are too long."""
    found = strings(metadata, "finalizers", "metadata")
    if sum(map(len, found)) + len(found) > _MOST_FINALIZERS:
        raise WireError("metadata.finalizers", f"has more than {_MOST_FINALIZERS} characters")
    return found


class SpecCache:
    """Decoded specs by JSON content. Thousands of claims from one template share one object.

    The estimated bytes of all specs are limited; a spec above the limit is decoded each time.
    """

    def __init__(self, limit_bytes: int = _SPEC_BYTES) -> None:
        self._known: LRUCache[bytes, ClaimSpec] = LRUCache(limit_bytes, getsizeof=_spec_bytes)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def content_bytes(self) -> int:
        """Bytes of the JSON content of all specs in the cache."""
        return sum(map(len, self._known))

    def decode(self, content: bytes) -> ClaimSpec:
        """The spec of this JSON text. Raises WireError, also if the text is too long."""
        if len(content) > _MOST_SPEC:
            raise WireError("spec", f"has {len(content)} bytes; Berth reads {_MOST_SPEC} bytes of a claim at most")
        known = self._known.get(content)
        if known is None:
            size = decoded_bytes(content)
            if size > _MOST_DECODED:
                raise WireError("spec", f"takes more than {_MOST_DECODED} bytes of memory: it has too many texts")
            known = replace(decode_claim_spec(orjson.loads(content), "spec"), content=content, estimated_bytes=size)
            if _spec_bytes(known) <= self._known.maxsize:
                self._known[content] = known
        return known


def _spec_bytes(spec: ClaimSpec) -> int:
    return spec.estimated_bytes + _SPEC_OBJECT_BYTES


_SPECS = SpecCache()


def _controller(metadata: Json, kind: str) -> Consumer:
    """UID and name of the controlling owner if it has this kind, else both ''."""
    for owner in get(metadata, "ownerReferences", list, "metadata", []):
        if isinstance(owner, dict) and owner.get("controller") and owner.get("kind") == kind:
            path = "metadata.ownerReferences"
            uid, name = get(owner, "uid", str, path, ""), get(owner, "name", str, path, "")
            return Consumer(cut(uid, _WORD_BYTES), cut(name, _WORD_BYTES))
    return Consumer("", "")


def _controlling_group(metadata: Json) -> Consumer | None:
    owner = _controller(metadata, "PodGroup")
    return PodGroup(owner.name, owner.uid).consumer if owner.uid else None


def decode_claim_spec(spec: Json, path: str) -> ClaimSpec:
    """Decode the spec of a ResourceClaim or ResourceClaimTemplate. Raises WireError."""
    devices = get(spec, "devices", dict, path, {})
    where = f"{path}.devices"
    return ClaimSpec(
        requests=many(devices, "requests", where, _request),
        constraints=many(devices, "constraints", where, _constraint),
        config=many(devices, "config", where, _config),
        compute_domain=_compute_domain(devices.get("config")),
    )


def _compute_domain(config: object) -> str:
    """The `domainID` that NVIDIA's driver reads from the parameters of a channel claim. Other drivers' are ignored."""
    for entry in config if type(config) is list else ():
        opaque = entry.get("opaque") if type(entry) is dict else None
        if type(opaque) is dict and opaque.get("driver") == COMPUTE_DOMAIN_DRIVER:
            parameters = opaque.get("parameters")
            found = parameters.get("domainID") if type(parameters) is dict else None
            if type(found) is str and found:
                return cut(found)
    return ""


def _request(obj: Json, path: str) -> Request:
    name = need(obj, "name", path)
    alternatives = many(obj, "firstAvailable", path, lambda item, where: _sub_request(item, where, name))
    if alternatives:
        return Request(name, alternatives, prioritized=True)
    exactly = get(obj, "exactly", dict, path, {})
    if not exactly:
        raise WireError(path, "needs `exactly` or `firstAvailable` (unsupported request type?)")
    return Request(name, (_device_request(exactly, f"{path}.exactly", name),))


def _sub_request(obj: Json, path: str, parent: str) -> DeviceRequest:
    return _device_request(obj, path, f"{parent}/{need(obj, 'name', path)}")


def _device_request(obj: Json, path: str, name: str) -> DeviceRequest:
    mode = get(obj, "allocationMode", str, path, "ExactCount") or "ExactCount"
    wanted = get(obj, "capacity", dict, path, {})
    return DeviceRequest(
        name,
        get(obj, "deviceClassName", str, path, ""),
        selectors=many(obj, "selectors", path, _selector),
        mode=mode,
        count=get(obj, "count", int, path, 1) or 1 if mode == "ExactCount" else 0,
        admin_access=get(obj, "adminAccess", bool, path, False),
        tolerations=many(obj, "tolerations", path, toleration),
        derived=many(obj, "derivedAttributes", path, _derived),
        capacity=None if obj.get("capacity") is None else _Frozen(amounts(wanted, "requests", f"{path}.capacity")),
    )


def _derived(obj: Json, path: str) -> tuple[str, str]:
    return need(obj, "name", path), need(obj, "expression", path)


class _Frozen(dict[str, Quantity]):
    """A hashable map of quantities. The code must not change it after decoding."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override] # dict declares None
        return hash(frozenset(self.items()))


def _selector(obj: Json, path: str) -> str:
    cel = get(obj, "cel", dict, path, {})
    expression = cel.get("expression")
    if type(expression) is not str:
        raise WireError(f"{path}.cel.expression", "must be a CEL expression (unsupported selector type?)")
    return expression


def _constraint(obj: Json, path: str) -> Constraint:
    requests = strings(obj, "requests", path)
    match, distinct = get(obj, "matchAttribute", str, path, ""), get(obj, "distinctAttribute", str, path, "")
    if match and distinct:
        return Constraint("both", requests=requests)
    return Constraint("match" if match else "distinct" if distinct else "", match or distinct, requests)


def _config(obj: Json, path: str) -> Config:
    opaque = obj.get("opaque")
    source = get(obj, "source", str, path, "")
    requests = strings(obj, "requests", path)
    if type(opaque) is not dict:
        return Config("", "", requests, source, known=False)
    parameters = dumped(opaque.get("parameters"), f"{path}.opaque.parameters").decode()
    return Config(get(opaque, "driver", str, path, ""), parameters, requests, source)


def _allocation(status: Json) -> Allocation:
    path = "status.allocation"
    allocation = get(status, "allocation", dict, "status", {})
    devices = get(allocation, "devices", dict, path, {})
    return Allocation(
        results=many(devices, "results", f"{path}.devices", _result),
        config=many(devices, "config", f"{path}.devices", _config),
        node_selector=node_selector(allocation, "nodeSelector", path),
        timestamp=get(allocation, "allocationTimestamp", str, path, ""),
    )


def _device_id(obj: Json, path: str) -> DeviceId:
    return DeviceId(need(obj, "driver", path), need(obj, "pool", path), need(obj, "device", path))


def _result(obj: Json, path: str) -> Result:
    if len(obj) == _REQUIRED_FIELDS:
        return Result(need(obj, "request", path), _device_id(obj, path))
    consumed = quantities(obj, "consumedCapacity", path)
    return Result(
        need(obj, "request", path),
        _device_id(obj, path),
        admin_access=get(obj, "adminAccess", bool, path, False),
        tolerations=many(obj, "tolerations", path, toleration),
        share_id=get(obj, "shareID", str, path, ""),
        consumed=consumed or None,
        binding_conditions=strings(obj, "bindingConditions", path),
        binding_failure_conditions=strings(obj, "bindingFailureConditions", path),
        skip_node_operations=strings(obj, "skipNodeOperations", path),
    )


def _consumer(obj: Json, path: str) -> Consumer:
    return Consumer(
        get(obj, "uid", str, path, ""),
        get(obj, "name", str, path, ""),
        get(obj, "resource", str, path, ""),
        get(obj, "apiGroup", str, path, ""),
    )


def _device_status(obj: Json, path: str) -> DeviceStatus:
    conditions = many(
        obj,
        "conditions",
        path,
        lambda c, _: (get(c, "type", str, path, ""), get(c, "status", str, path, "")),
    )
    return DeviceStatus(_device_id(obj, path), get(obj, "shareID", str, path, ""), conditions)


def decode_class(obj: Json) -> DeviceClass:
    """Decode a DeviceClass. If the spec is not readable, `problem` names the field. Raises WireError for metadata."""
    metadata = get(obj, "metadata", dict, "", {})
    name = need(metadata, "name", "metadata")
    created = get(metadata, "creationTimestamp", str, "metadata", "")
    spec = get(obj, "spec", dict, "", {})
    try:
        return DeviceClass(
            name,
            selectors=many(spec, "selectors", "spec", _selector),
            config=many(spec, "config", "spec", _config),
            extended_resource=get(spec, "extendedResourceName", str, "spec", ""),
            created=created,
        )
    except WireError as error:
        return DeviceClass(name, created=created, problem=cut(str(error), REASON_BYTES))
