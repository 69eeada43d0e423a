"""ResourceClaims (resource.k8s.io/v1): what is allocated and reserved, and the parts of a claim that Berth writes.

Thousands of claims from one template share one decoded spec, see SpecCache.

A claim whose spec or status has a field that Berth cannot read still holds its devices: it is decoded with a `problem`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from sys import intern
from typing import NamedTuple, TypeVar

import orjson
from cachetools import LRUCache

from extender.api.asked_subgroups import CPU_ANNOTATION, GROUP_PART_ANNOTATION, PodMark
from extender.api.claim_specs import ClaimSpec, Config, decode_claim_spec, decode_config, encode_config
from extender.api.fields import Json, dumped, flag, get, inner, many, need, present, quantities, string, strings, word
from extender.api.nodes import (
    NodeSelector,
    Toleration,
    decode_node_selector,
    decode_toleration,
    encode_node_selector,
    encode_toleration,
)
from extender.api.object_meta import ObjectKey, key_of
from extender.api.quantity import Quantity
from extender.api.resource_slices import DeviceId, own_name
from extender.base.berth_errors import WireError
from extender.base.text_limits import REASON_BYTES, cut, decoded_bytes

_T = TypeVar("_T")
MAX_RESULTS = 32  # resource.k8s.io AllocationResultsMaxSize
MAX_CONFIG = 64  # entries of an allocation; resource.k8s.io has no name for it
MAX_CONSUMERS = 256  # of one claim: ResourceClaimReservedForMaxSize of resource.k8s.io
FINALIZER = "resource.kubernetes.io/delete-protection"
RELEASE_SUFFIX = "/release"  # of the allocator while a process is about to release the allocation
ALLOCATOR_ANNOTATION = "berth.dev/allocator"  # on a claim: the Berth process that allocated it
GROUP_ANNOTATION = "berth.dev/group"  # names a pod's group; Berth writes it to the claims of all groups' pods
EXTENDED_CLAIM_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
SCHEDULING_GROUP = "scheduling.k8s.io"
GENERATED_PREFIX = 58  # characters of metadata.generateName that the API server keeps
_GENERATED_SUFFIX = 5  # characters that the API server appends
_CPU = re.compile(r"[0-9]{1,9}m")  # the value of CPU_ANNOTATION
_MAX_FINALIZERS = 4096  # characters of all finalizers
_WORD_BYTES = 512  # of a UID, name or annotation that a tenant may write; a longer one is cut, so it names nothing
_SPEC_BYTES = 8 << 20  # estimated size of all specs in the cache: about 3,000 usual ones
_MAX_SPEC = 128 * 1024  # bytes of one spec as JSON: real ones have less than 10 KiB, but a tenant's may have 1.4 MB
_MAX_DECODED = 2 * _MAX_SPEC  # estimated size of one spec with its JSON; short texts take ten times as much decoded
_SPEC_OBJECT_BYTES = 2048  # estimated size of one decoded spec without its text
_REQUIRED_FIELDS = 4  # number of required fields of an allocation result; most results have no other


class Result(NamedTuple):
    """One entry of status.allocation.devices.results of a claim."""

    request: str
    device: DeviceId
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    share_id: str = ""
    consumed: Mapping[str, Quantity] | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    skip_node_operations: tuple[str, ...] = ()

    @property
    def amounts(self) -> dict[str, int]:
        """The nanos that a share takes of each capacity, by own name. A stored amount below zero makes no room."""
        driver = self.device.driver
        return {own_name(name, driver): max(amount.nanos, 0) for name, amount in (self.consumed or {}).items()}


@dataclass(frozen=True, slots=True)
class Allocation:
    """status.allocation of a claim."""

    results: tuple[Result, ...] = ()
    config: tuple[Config, ...] = ()
    node_selector: NodeSelector | None = None
    timestamp: str = ""


@dataclass(frozen=True, slots=True)
class Consumer:
    """An entry of status.reservedFor."""

    uid: str
    name: str
    resource: str = "pods"
    api_group: str = ""

    @classmethod
    def of_pod_group(cls, uid: str, name: str) -> Consumer:
        """A PodGroup of scheduling.k8s.io, for the claims that its pods share."""
        return cls(uid, name, "podgroups", SCHEDULING_GROUP)


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """Conditions that a driver reported for one allocated device (status.devices)."""

    device: DeviceId
    share_id: str = ""
    conditions: tuple[tuple[str, str], ...] = ()  # (type, status)


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim, reduced to what allocation and writing need."""

    key: ObjectKey
    uid: str
    resource_version: str = ""
    spec: ClaimSpec = field(default_factory=ClaimSpec)
    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    owner_pod_uid: str = ""
    owner_group: Consumer | None = None  # the PodGroup that controls the claim, as status.reservedFor names it
    allocator: str = ""  # the Berth process that allocated it or took it over; '' for other allocators
    group: str = ""  # PodMark of the pod for which Berth allocated it
    group_part: str = ""
    cpu: int = 0
    extended: bool = False  # whether it is the special claim of a pod with extended resources
    problem: str = ""  # why Berth cannot use the object, with the field; '' if it can

    @property
    def mark(self) -> PodMark:
        """What Berth wrote about the pod for which it allocated the claim."""
        return PodMark(self.group, self.group_part, self.cpu)

    @property
    def is_of_berth(self) -> bool:
        """Whether a Berth process allocated it."""
        return bool(self.allocator)

    @property
    def is_being_released(self) -> bool:
        """Whether a Berth process has announced that it releases the allocation."""
        return self.allocator.endswith(RELEASE_SUFFIX)

    def is_reserved_for(self, pod_uid: str) -> bool:
        return any(consumer.uid == pod_uid for consumer in self.reserved_for)

    @property
    def reservations_left(self) -> int:
        """How many consumers it may still get."""
        return max(MAX_CONSUMERS - len(self.reserved_for), 0)

    @property
    def special_for(self) -> str:
        """UID of the pod whose special claim this is, or ''.

        A tenant can forge the annotation, the owner and the generated name. Only a scheduler can write
        status.reservedFor, so it must name exactly that pod.
        """
        if not self.extended or len(self.reserved_for) != 1:
            return ""
        (consumer,) = self.reserved_for
        generated = self.key.name[:-_GENERATED_SUFFIX] == special_claim_prefix(consumer.name)[:GENERATED_PREFIX]
        is_owner = consumer.resource == "pods" and consumer.uid == self.owner_pod_uid
        return consumer.uid if generated and is_owner else ""


def special_claim_prefix(pod_name: str) -> str:
    """metadata.generateName that kube-scheduler gives to the special claim of a pod."""
    return f"{pod_name}-extended-resources-"


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of spec.resourceClaims of a pod or PodGroup."""

    name: str
    claim_name: str = ""
    template_name: str = ""


class ReservationState(StrEnum):
    """The state of a claim's reservation."""

    NONE = "none"
    HELD = "held"
    BINDING = "binding"


class Reservation(NamedTuple):
    """The devices that a filter call holds for a claim, or that a bind writes into the claim."""

    pod_uid: str  # UID of the pod of the filter call or bind
    node: str
    results: tuple[Result, ...]
    deadline: float  # end of the hold, in seconds of the service's clock; infinite during a bind
    state: ReservationState = ReservationState.HELD


class SpecCache:
    """Decoded specs by JSON content. Their estimated bytes are limited; a spec above the limit is decoded each time."""

    def __init__(self) -> None:
        self._known: LRUCache[bytes, ClaimSpec] = LRUCache(_SPEC_BYTES, getsizeof=_spec_bytes)

    def __len__(self) -> int:
        return len(self._known)

    def decode(self, content: bytes) -> ClaimSpec:
        """The spec of this JSON text. Raises WireError, also if the text is too long."""
        if len(content) > _MAX_SPEC:
            raise WireError("spec", f"has {len(content)} bytes; Berth reads {_MAX_SPEC} bytes of a claim at most")
        known = self._known.get(content)
        if known is None:
            size = decoded_bytes(content)
            if size > _MAX_DECODED:
                raise WireError("spec", f"takes more than {_MAX_DECODED} bytes of memory: it has too many texts")
            known = replace(decode_claim_spec(orjson.loads(content), "spec"), content=content, estimated_bytes=size)
            if _spec_bytes(known) <= self._known.maxsize:
                self._known[content] = known
        return known


def _spec_bytes(spec: ClaimSpec) -> int:
    return spec.estimated_bytes + _SPEC_OBJECT_BYTES


SPECS = SpecCache()


def decode_claim(obj: Json) -> Claim:
    """Decode a ResourceClaim. If spec or status is not readable, `problem` names the field.

    Raises WireError if the metadata is not readable.
    """
    metadata = inner(obj, "metadata", "")
    key, uid = key_of(metadata), string(metadata, "uid", "metadata")
    try:
        return _claim(obj, metadata, key, uid)
    except WireError as error:
        allocation, reserved_for = _held_devices(_inner_or_empty(obj, "status"))
        return Claim(
            key,
            uid,
            string(metadata, "resourceVersion", "metadata"),
            allocation=allocation,
            reserved_for=reserved_for,
            deleting=metadata.get("deletionTimestamp") is not None,
            problem=cut(str(error), REASON_BYTES),
        )


def _held_devices(status: Json) -> tuple[Allocation | None, tuple[Consumer, ...]]:
    """The readable results and consumers of a claim with an unreadable field.

    The claim still holds its devices: another allocator may be able to read the field.
    """
    allocation = _inner_or_empty(status, "allocation")
    results = _readable_items(_inner_or_empty(allocation, "devices"), "results", _result_or_device)
    return (Allocation(results) if allocation else None), _readable_items(status, "reservedFor", _consumer)


def _inner_or_empty(obj: Json, key: str) -> Json:
    value = obj.get(key)
    return value if type(value) is dict else {}


def _readable_items(obj: Json, key: str, read: Callable[[Json, str], _T]) -> tuple[_T, ...]:
    """The items of a list that `read` accepts."""
    items = obj.get(key)
    found: list[_T] = []
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
    status, annotations = inner(obj, "status", ""), inner(metadata, "annotations", "metadata")
    finalizers = strings(metadata, "finalizers", "metadata")  # all of them: Berth writes the list again with its own
    if sum(map(len, finalizers)) + len(finalizers) > _MAX_FINALIZERS:
        raise WireError("metadata.finalizers", f"has more than {_MAX_FINALIZERS} characters")
    owner, owner_uid, owner_name = _controller(metadata)
    return Claim(
        key,
        uid,
        string(metadata, "resourceVersion", "metadata"),
        allocator=word(annotations, ALLOCATOR_ANNOTATION, "metadata.annotations", _WORD_BYTES),
        group=word(annotations, GROUP_ANNOTATION, "metadata.annotations", _WORD_BYTES),
        group_part=word(annotations, GROUP_PART_ANNOTATION, "metadata.annotations", _WORD_BYTES),
        cpu=_marked_cpu(annotations.get(CPU_ANNOTATION)),
        extended=annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true",
        finalizers=tuple(finalizers),
        deleting=metadata.get("deletionTimestamp") is not None,
        owner_pod_uid=owner_uid if owner == "Pod" else "",
        owner_group=Consumer.of_pod_group(owner_uid, owner_name) if owner == "PodGroup" and owner_uid else None,
        spec=SPECS.decode(dumped(inner(obj, "spec", ""), "spec", orjson.OPT_SORT_KEYS)),
        allocation=_allocation(status) if status.get("allocation") is not None else None,
        reserved_for=many(status, "reservedFor", "status", _consumer),
        devices=many(status, "devices", "status", _device_status),
    )


def _marked_cpu(text: object) -> int:
    """The value of CPU_ANNOTATION; 0 if it is not valid, because tenants can write it."""
    return int(text[:-1]) if type(text) is str and _CPU.fullmatch(text) else 0


def _controller(metadata: Json) -> tuple[str, str, str]:
    """Kind, UID and name of the controlling owner, each '' without one; of a pod or PodGroup only."""
    path = "metadata.ownerReferences"
    for owner in get(metadata, "ownerReferences", list, "metadata", []):
        if isinstance(owner, dict) and owner.get("controller") and owner.get("kind") in ("Pod", "PodGroup"):
            return owner["kind"], word(owner, "uid", path, _WORD_BYTES), word(owner, "name", path, _WORD_BYTES)
    return "", "", ""


def _allocation(status: Json) -> Allocation:
    path = "status.allocation"
    allocation = inner(status, "allocation", "status")
    devices = inner(allocation, "devices", path)
    return Allocation(
        results=many(devices, "results", f"{path}.devices", _result),
        config=many(devices, "config", f"{path}.devices", decode_config),
        node_selector=decode_node_selector(allocation, "nodeSelector", path),
        timestamp=string(allocation, "allocationTimestamp", path),
    )


def _device_id(obj: Json, path: str) -> DeviceId:
    return DeviceId(*(intern(need(obj, part, path)) for part in DeviceId._fields))


def _result(obj: Json, path: str) -> Result:
    if len(obj) == _REQUIRED_FIELDS:
        return Result(intern(need(obj, "request", path)), _device_id(obj, path))
    return Result(
        intern(need(obj, "request", path)),
        _device_id(obj, path),
        admin_access=flag(obj, "adminAccess", path),
        tolerations=many(obj, "tolerations", path, decode_toleration),
        share_id=string(obj, "shareID", path),
        consumed=quantities(obj, "consumedCapacity", path) or None,
        binding_conditions=tuple(strings(obj, "bindingConditions", path)),
        binding_failure_conditions=tuple(strings(obj, "bindingFailureConditions", path)),
        skip_node_operations=tuple(strings(obj, "skipNodeOperations", path)),
    )


def _consumer(obj: Json, path: str) -> Consumer:
    uid, name = string(obj, "uid", path), string(obj, "name", path)
    return Consumer(uid, name, intern(string(obj, "resource", path)), string(obj, "apiGroup", path))


def _device_status(obj: Json, path: str) -> DeviceStatus:
    conditions = many(obj, "conditions", path, lambda one, _: (string(one, "type", path), string(one, "status", path)))
    return DeviceStatus(_device_id(obj, path), string(obj, "shareID", path), conditions)


def decode_pod_claim(obj: Json, path: str) -> PodClaim:
    """An entry of spec.resourceClaims of a pod or PodGroup. Raises WireError."""
    return PodClaim(
        need(obj, "name", path),
        string(obj, "resourceClaimName", path),
        string(obj, "resourceClaimTemplateName", path),
    )


def encode_allocation(allocation: Allocation) -> Json:
    """status.allocation."""
    results = [_encode_result(result) for result in allocation.results]
    config = [encode_config(config) for config in allocation.config]
    selector = allocation.node_selector
    return {"devices": {"results": results} | present({"config": config})} | present(
        {
            "nodeSelector": None if selector is None else encode_node_selector(selector),
            "allocationTimestamp": allocation.timestamp,
        }
    )


def _encode_result(result: Result) -> Json:
    """One entry of status.allocation.devices.results."""
    driver, pool, device = result.device
    return {"request": result.request, "driver": driver, "pool": pool, "device": device} | present(
        {
            "adminAccess": result.admin_access,
            "tolerations": [encode_toleration(toleration) for toleration in result.tolerations],
            "shareID": result.share_id,
            "consumedCapacity": {name: str(amount) for name, amount in sorted((result.consumed or {}).items())},
            "bindingConditions": list(result.binding_conditions),
            "bindingFailureConditions": list(result.binding_failure_conditions),
            "skipNodeOperations": list(result.skip_node_operations),
        }
    )


def encode_consumer(consumer: Consumer) -> Json:
    """An entry of status.reservedFor."""
    found: Json = {"resource": consumer.resource, "name": consumer.name, "uid": consumer.uid}
    return found | present({"apiGroup": consumer.api_group})
