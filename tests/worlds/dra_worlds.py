"""Pods and devices beyond whole GPUs: extended resources, devices of another driver and their conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from extender.sandbox import Cluster
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.filled_caches import class_of_driver, device_slice
from tests.worlds.running_berth import Serving, claim, pod

H100 = "hgx-h100-8"
CLAIMS = RESOURCES["resource.k8s.io", "resourceclaims"]


class _WithCluster(Protocol):
    cluster: Cluster


def extended(name: str, count: int = 1, **spec: Any) -> dict:
    """A pod that asks for GPUs as extended resources: its manifest is that of a device plugin's user."""
    resources = {"limits": {"nvidia.com/gpu": str(count)}, "requests": {"nvidia.com/gpu": str(count), "cpu": "1"}}
    return pod(name, containers=[{"name": "main", "image": "pause", "resources": resources}], **spec)


def custom(
    b: _WithCluster,
    devices: list[dict],
    counters: list[dict] | None = None,
    driver: str = "d.example.com",
    node: str = "n1",
) -> None:
    """A DeviceClass of a driver, and a node's pool with these devices."""
    count = 2 if counters else 1
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    published = device_slice(node, driver, devices, pool=pool)
    objects = [class_of_driver(driver), published]
    if counters:
        spec = {"driver": driver, "nodeName": node, "pool": pool, "sharedCounters": counters}
        objects.append({**published, "metadata": {"name": f"{node}-{driver}-counters"}, "spec": spec})
    for obj in objects:
        b.cluster.apply(obj)


def asks(name: str, **exactly: Any) -> dict:
    """A claim for devices of that class."""
    return claim(name, **{"deviceClassName": "d.example.com", **exactly})


async def place(b: Serving, name: str) -> str:
    """Filter and bind a pod; returns '' if it is bound, else the reason or error."""
    await b.settled()
    answer = await b.filter(name)
    if not answer["NodeNames"]:
        return str(next(iter((answer["FailedAndUnresolvableNodes"] or {}).values()), answer["Error"]))
    return await b.bind(name, answer["NodeNames"][0])


def report(b: Serving, name: str, condition: str) -> None:
    """The driver sets a condition of the claim's only device."""
    found = b.cluster.store["resourceclaims", ("default", name)]
    (result,) = found["status"]["allocation"]["devices"]["results"]
    device = {key: result[key] for key in ("driver", "pool", "device")}
    status = {"devices": [{**device, "conditions": [{"type": condition, "status": "True"}]}]}
    b.cluster.api.registry.patch(CLAIMS, ("default", name), {"status": status}, "status", strategic=False)


CONDITIONAL = {"name": "fabric-0", "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]}


def mig(name: str, slices: list[int], memory: int) -> dict:
    """A partition of gpu-0 that uses these memory slices and has so many GiB."""
    used = {f"memory-slice-{i}": {"value": "1"} for i in slices}
    return {
        "name": name,
        "attributes": {"profile": {"string": f"{len(slices)}g"}},
        "capacity": {"memory": {"value": f"{memory}Gi"}},
        "consumesCounters": [{"counterSet": "gpu-0", "counters": used}],
    }


def use_memory(*gpus: int, mib: int) -> Callable[[list[dict]], None]:
    """An edit of the devices of an agent's slice: so much memory of these GPUs is in use."""

    def edit(devices: list[dict]) -> None:
        for gpu in gpus:
            devices[gpu]["attributes"]["memoryFreeMiB"] = {
                "int": devices[gpu]["attributes"]["memoryTotalMiB"]["int"] - mib
            }
            devices[gpu]["attributes"]["memoryReservedMiB"] = {"int": 600}

    return edit
