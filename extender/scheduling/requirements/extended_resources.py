"""Extended resources that a DeviceClass provides (KEP-5004), and the requests of the pod's special claim.

Source: the in-tree plugin, 1.36. The container index counts init containers first. Each long-lived container (regular
or sidecar) gets its own request. An init container that ends reuses the devices of later long-lived containers. If
several init containers need more devices than that, only the largest remainder becomes a request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from extender.allocation import Snapshot
from extender.api.claim_specs import ClaimSpec, DeviceRequest, Request
from extender.api.device_classes import IMPLICIT_RESOURCE_PREFIX
from extender.api.pods import Container, Pod


class RequestMapping(NamedTuple):
    """The request for one resource of one container (pod status, extendedResourceClaimStatus.requestMappings)."""

    container: str
    resource: str
    request: str


def special_claim(
    containers: tuple[Container, ...], classes: dict[str, str]
) -> tuple[ClaimSpec, tuple[RequestMapping, ...]]:
    """The spec of the special claim for `classes` (resource name to DeviceClass name), and its request mappings."""
    requests: list[DeviceRequest] = []
    mappings: list[RequestMapping] = []
    for resource in sorted(classes):
        made, mapped = _one_resource(containers, resource, classes[resource])
        requests += made
        mappings += mapped
    ordered = sorted(requests, key=lambda request: request.name)
    return ClaimSpec(tuple(Request(request.name, (request,)) for request in ordered)), tuple(mappings)


def _one_resource(
    containers: tuple[Container, ...], resource: str, class_name: str
) -> tuple[list[DeviceRequest], list[RequestMapping]]:
    long_lived: dict[int, DeviceRequest] = {}
    mappings: list[RequestMapping] = []
    for index, container in enumerate(containers):
        if container.init and not container.sidecar:
            continue
        count = dict(container.requests).get(resource, 0)
        if count:
            long_lived[index] = _request(index, container, resource, class_name, count)
            mappings.append(RequestMapping(container.name, resource, long_lived[index].name))
    init_requests, init_mappings = _init_requests(containers, resource, class_name, long_lived)
    return [*init_requests, *long_lived.values()], mappings + init_mappings


def _init_requests(
    containers: tuple[Container, ...], resource: str, class_name: str, long_lived: dict[int, DeviceRequest]
) -> tuple[list[DeviceRequest], list[RequestMapping]]:
    """The request and the mappings of the init containers that end."""
    remainders: list[DeviceRequest] = []
    mappings: list[RequestMapping] = []
    for index, container in enumerate(containers):
        wanted = dict(container.requests).get(resource, 0) if container.init and not container.sidecar else 0
        for later in sorted(i for i in long_lived if i >= index):
            if wanted <= 0:
                break
            mappings.append(RequestMapping(container.name, resource, long_lived[later].name))
            wanted -= long_lived[later].count
        if wanted > 0:
            remainders.append(_request(index, container, resource, class_name, wanted))
            mappings.append(RequestMapping(container.name, resource, remainders[-1].name))
    if not remainders:
        return [], mappings
    largest = max(remainders, key=lambda request: request.count)
    names = {request.name for request in remainders}
    return [largest], [
        mapping._replace(request=largest.name) if mapping.request in names else mapping for mapping in mappings
    ]


def _request(index: int, container: Container, resource: str, class_name: str, count: int) -> DeviceRequest:
    position = [name for name, _ in container.requests].index(resource)
    return DeviceRequest(f"container-{index}-request-{position}", class_name, count=count)


def class_of_resource(name: str, classes: Collection[str], resources: Mapping[str, str]) -> str | None:
    """The name of the DeviceClass that provides an extended resource, by its explicit or implicit name.

    `classes` are the names of all classes, `resources` those of the classes with an explicit name, by that name.
    """
    if name.startswith(IMPLICIT_RESOURCE_PREFIX):
        implicit = name.removeprefix(IMPLICIT_RESOURCE_PREFIX)
        return implicit if implicit in classes else None
    return resources.get(name)


def unprovided_resource(pod: Pod, snapshot: Snapshot) -> str:
    """The first resource of the pod that no node offers and no DeviceClass provides, such as a misspelt one; or ''.

    kube-scheduler refuses the pod before it asks Berth, unless its configuration leaves the resource to an extender.
    """
    asked = sorted({name for container in pod.containers for name, amount in container.requests if amount})
    unknown = [name for name in asked if class_of_resource(name, snapshot.classes, snapshot.extended_resources) is None]
    if not unknown:
        return ""  # as nearly always: no node is read
    offered = frozenset[str]().union(*(one.node.allocatable for one in snapshot.node_infos.values()))
    return next((name for name in unknown if name not in offered), "")
