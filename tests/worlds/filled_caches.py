"""Caches with objects of the API, and pods that ask for claims."""

from __future__ import annotations

from typing import Any

from extender.allocation import Features
from extender.api.device_classes import decode_class
from extender.api.fields import Json
from extender.api.nodes import decode_node
from extender.api.object_meta import ObjectKey, decode_labels
from extender.api.pods import Pod
from extender.api.resource_claims import PodClaim, decode_claim
from extender.api.resource_slices import SliceDecoder
from extender.cache import ClusterCache
from extender.cel.dra import Masks
from extender.policy import Policy
from extender.sandbox import carried_machines, fabric_slice
from extender.sandbox.machines import Machine, gpu_slice, node_object
from extender.scheduling import EvaluationContext, PodRequirements, requirements_of
from extender.topology.agent_slices import read_fabric

_DRA = {"apiVersion": "resource.k8s.io/v1"}
_DECODER = SliceDecoder()
CLASS: Json = {"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
GPU_CLASS: Json = {"kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}, "spec": {}}
NODE: Json = {"kind": "Node", "metadata": {"name": "n"}}
ADMINS: Json = {
    "kind": "Namespace",
    "metadata": {"name": "x", "labels": {"resource.kubernetes.io/admin-access": "true"}},
}


def put(cache: ClusterCache, *objects: Json, now: float = 0.0) -> ClusterCache:
    """Apply these objects at `now` seconds; returns the cache."""
    for obj in objects:
        name = obj["metadata"]["name"]
        match obj["kind"]:
            case "DeviceClass":
                cache.apply_class(name, decode_class(obj))
            case "Namespace":
                cache.apply_namespace(name, decode_labels(obj))
            case "Node":
                cache.apply_node(name, decode_node(obj))
            case "ResourceSlice":
                cache.apply_slice(name, _DECODER.decode(obj), now)
            case "ResourceClaim":
                claim = decode_claim(obj)
                cache.apply_claim(claim.key, claim)
            case kind:
                raise ValueError(kind)
    return cache


def machine_nodes(**machines: str) -> ClusterCache:
    """Nodes with the GPUs of carried machines, and with the data of their agents."""
    cache = ClusterCache()
    for node, name in machines.items():
        add_machine(cache, node, carried_machines()[name])
    return cache


def add_machine(cache: ClusterCache, node: str, machine: Machine, **labels: str) -> None:
    """A node with the GPUs of a machine, and with the data of its agent."""
    put(cache, node_object(node, machine, labels), gpu_slice(node, machine), fabric_slice(node, machine))


def fabric_at(cache: ClusterCache, node: str = "n1") -> Any:
    """The fabric of a node; None if it has none."""
    return cache.snapshot().node_infos[node].fabric


def read_agent(obj: Json) -> tuple[Any, tuple[str, ...]]:
    """The fabric that the slice of an agent tells, if any, and the problems of the slice."""
    return read_fabric(_DECODER.decode(obj).devices)


def class_of_driver(driver: str, name: str = "") -> Json:
    """A class with the devices of a driver, whose name it has by default."""
    selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
    return {**_DRA, "kind": "DeviceClass", "metadata": {"name": name or driver}, "spec": {"selectors": selectors}}


def device_slice(node: str, driver: str, devices: list[Json], **spec: Any) -> Json:
    """A slice of a driver that has one pool per node."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices, **spec}
    return {**_DRA, "kind": "ResourceSlice", "metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def claim_for(*requests: Json, constraints: list[Json] | None = None, name: str = "c", namespace: str = "x") -> Json:
    devices = {"requests": list(requests), "constraints": constraints or []}
    metadata = {"namespace": namespace, "name": name, "uid": name}
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": devices}}


def pod_with(*claims: str) -> Pod:
    """A pod of namespace x with these claims."""
    return Pod(ObjectKey("x", "p"), "p", claims=tuple(PodClaim(name, name) for name in claims))


def required(pod: Pod, cache: ClusterCache, policy: Policy | None = None) -> PodRequirements:
    """What a pod needs that some node may have."""
    found = requirements_of(pod, cache.snapshot(), policy or Policy())
    assert isinstance(found, PodRequirements), found
    return found


def asked(
    cache: ClusterCache, *claims: Json, features: Features | None = None
) -> tuple[PodRequirements, EvaluationContext]:
    """What a pod with these claims asks, which the cache gets, and the context in which nodes are evaluated."""
    requirements = required(pod_with(*(claim["metadata"]["name"] for claim in claims)), put(cache, *claims))
    return requirements, EvaluationContext(Masks(), features or Features(), cache.snapshot().baseline)
