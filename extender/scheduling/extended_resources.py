"""Extended resources that a DeviceClass stands for (KEP-5004): the requests of the pod's special claim.

Source: the in-tree plugin, 1.36. Containers are counted init containers first. Long-lived containers (regular ones and
sidecars) have a request each; init containers that end reuse the devices of later long-lived ones, and of what they
still lack only the largest becomes a request.
"""

from __future__ import annotations

from typing import NamedTuple

from extender.model import ClaimSpec, Container, DeviceRequest, Request


class RequestMapping(NamedTuple):
    """Which request serves a container's resource (pod status, extendedResourceClaimStatus.requestMappings)."""

    container: str
    resource: str
    request: str


def special_claim(
    containers: tuple[Container, ...], classes: dict[str, str]
) -> tuple[ClaimSpec, tuple[RequestMapping, ...]]:
    """The claim for these resources (resource name to class) and what its requests are for."""
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
    lasting: dict[int, DeviceRequest] = {}
    mappings: list[RequestMapping] = []
    for index, container in enumerate(containers):
        if container.init and not container.sidecar:
            continue
        count = dict(container.requests).get(resource, 0)
        if count:
            lasting[index] = _request(index, container, resource, class_name, count)
            mappings.append(RequestMapping(container.name, resource, lasting[index].name))
    extra, brief = _brief(containers, resource, class_name, lasting)
    return [*extra, *lasting.values()], mappings + brief


def _brief(
    containers: tuple[Container, ...], resource: str, class_name: str, lasting: dict[int, DeviceRequest]
) -> tuple[list[DeviceRequest], list[RequestMapping]]:
    """What init containers that end need beyond the devices that later containers bring."""
    own: list[DeviceRequest] = []
    mappings: list[RequestMapping] = []
    for index, container in enumerate(containers):
        wanted = dict(container.requests).get(resource, 0) if container.init and not container.sidecar else 0
        for later in sorted(i for i in lasting if i >= index):
            if wanted <= 0:
                break
            mappings.append(RequestMapping(container.name, resource, lasting[later].name))
            wanted -= lasting[later].count
        if wanted > 0:
            own.append(_request(index, container, resource, class_name, wanted))
            mappings.append(RequestMapping(container.name, resource, own[-1].name))
    if not own:
        return [], mappings
    largest = max(own, key=lambda request: request.count)
    names = {request.name for request in own}
    return [largest], [m._replace(request=largest.name) if m.request in names else m for m in mappings]


def _request(index: int, container: Container, resource: str, class_name: str, count: int) -> DeviceRequest:
    position = [name for name, _ in container.requests].index(resource)
    return DeviceRequest(f"container-{index}-request-{position}", class_name, count=count)
