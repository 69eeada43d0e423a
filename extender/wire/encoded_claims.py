"""Encoding of the claim fields that Berth writes, as JSON of resource.k8s.io/v1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from extender.model import Allocation, ClaimSpec, Config, Consumer, Quantity, Result, Toleration
from extender.wire.fields import (
    Json,
    encode_node_selector,
)


def encode_allocation(allocation: Allocation) -> Json:
    """status.allocation."""
    devices: Json = {"results": [encode_result(result) for result in allocation.results]}
    if allocation.config:
        devices["config"] = [encode_config(config) for config in allocation.config]
    found: Json = {"devices": devices}
    if allocation.node_selector is not None:
        found["nodeSelector"] = encode_node_selector(allocation.node_selector)
    if allocation.timestamp:
        found["allocationTimestamp"] = allocation.timestamp
    return found


def encode_result(result: Result) -> Json:
    """One entry of status.allocation.devices.results."""
    driver, pool, device = result.device
    found: Json = {"request": result.request, "driver": driver, "pool": pool, "device": device}
    if result.admin_access:
        found["adminAccess"] = True
    if result.tolerations:
        found["tolerations"] = [_encode_toleration(t) for t in result.tolerations]
    if result.share_id:
        found["shareID"] = result.share_id
    if result.consumed:
        found["consumedCapacity"] = encode_quantities(result.consumed)
    if result.binding_conditions:
        found["bindingConditions"] = list(result.binding_conditions)
    if result.binding_failure_conditions:
        found["bindingFailureConditions"] = list(result.binding_failure_conditions)
    if result.skip_node_operations:
        found["skipNodeOperations"] = list(result.skip_node_operations)
    return found


def encode_quantities(values: Mapping[str, Quantity]) -> dict[str, str]:
    """A map of quantities, sorted by name."""
    return {name: str(values[name]) for name in sorted(values)}


def _encode_toleration(toleration: Toleration) -> Json:
    fields: dict[str, Any] = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
        "tolerationSeconds": toleration.seconds,
    }
    return {name: value for name, value in fields.items() if value not in ("", None)}


def encode_config(config: Config) -> Json:
    """One entry of status.allocation.devices.config."""
    found: Json = {"source": config.source}
    if config.requests:
        found["requests"] = list(config.requests)
    if config.known:
        found["opaque"] = {"driver": config.driver, "parameters": orjson.loads(config.parameters)}
    return found


def encode_simple_spec(spec: ClaimSpec) -> Json:
    """The spec of a special claim: class, mode and count of each request."""
    requests = [
        {"name": r.name, "exactly": {"deviceClassName": a.class_name, "allocationMode": a.mode, "count": a.count}}
        for r in spec.requests
        for a in r.alternatives
    ]
    return {"devices": {"requests": requests}}


def encode_consumer(consumer: Consumer) -> Json:
    """An entry of status.reservedFor."""
    found: Json = {"resource": consumer.resource, "name": consumer.name, "uid": consumer.uid}
    if consumer.api_group:
        found["apiGroup"] = consumer.api_group
    return found
