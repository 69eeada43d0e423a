"""Whether Berth can read an object: the sandbox's validation of what a user writes."""

from __future__ import annotations

from collections.abc import Callable

from extender.model import WireError
from extender.sandbox.apiserver.registry import Resource
from extender.sandbox.apiserver.status_errors import invalid
from extender.sandbox.apiserver.versioned_store import Json
from extender.wire import (
    SliceDecoder,
    decode_claim_spec,
    decode_class,
    decode_node,
    decode_pod,
    get,
    need,
)


def _spec(obj: Json) -> Json:
    return get(obj, "spec", dict, "", {})


_DECODERS: dict[str, Callable[[Json], object]] = {
    "Pod": decode_pod,
    "Node": decode_node,
    "ResourceClaim": lambda obj: decode_claim_spec(_spec(obj), ".spec"),  # decode_claim marks what it cannot read
    "ResourceClaimTemplate": lambda obj: decode_claim_spec(get(_spec(obj), "spec", dict, ".spec", {}), ".spec.spec"),
    "DeviceClass": decode_class,
    "ResourceSlice": lambda obj: SliceDecoder().decode(obj),
}


def decode(obj: Json) -> None:
    """Decode an object as Berth does. Raises WireError that names the field."""
    need(get(obj, "metadata", dict, "", {}), "name", ".metadata")
    kind = obj.get("kind")
    if kind in _DECODERS:
        _DECODERS[kind](obj)


def check_readable(resource: Resource, obj: Json) -> None:
    """Raise ApiError if Berth cannot decode an object."""
    metadata = obj.get("metadata") or {}
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    try:
        decode({**obj, "kind": resource.kind, "metadata": {**metadata, "name": name}})
    except WireError as error:
        raise invalid(resource.kind, name, f"{error.path.lstrip('.')}: {error.problem}") from error
