"""Nodes with GPUs and NICs, and claims of these that pods share: helpers of tests."""

from __future__ import annotations

from collections.abc import Mapping

from extender.api.fields import Json
from tests.worlds.explain_worlds import held_claim
from tests.worlds.filled_caches import class_of_driver, device_slice
from tests.worlds.running_berth import status_in_use

DRIVERS = {"g": "gpu.example.com", "k": "nic.example.com"}


Fleet = Mapping[str, str]
"""Node to its devices, as in 'g0 g1 k0': g are GPUs and k are NICs."""


def fleet(nodes: Fleet) -> list[Json]:
    found = [class_of_driver(driver) for driver in DRIVERS.values()]
    for node, devices in nodes.items():
        found.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        for letter, driver in DRIVERS.items():
            found.append(device_slice(node, driver, [{"name": name} for name in devices.split() if name[0] == letter]))
    return found


def held(name: str, node: str, devices: str, *pods: str, asks: str = "") -> Json:
    """A claim that has these devices, for these pods; it asks for one device of each letter in `asks`."""
    results = [
        {"request": device[0], "driver": DRIVERS[device[0]], "pool": node, "device": device}
        for device in devices.split()
    ]
    found = held_claim(name, results)
    found["apiVersion"] = "resource.k8s.io/v1"
    found["spec"] = claim(name, *(asks or [one[0] for one in devices.split()]))["spec"]
    found["status"] = status_in_use(results, {one: f"uid-{one}" for one in pods}, node)
    return found


def claim(name: str, *asks: str) -> Json:
    requests = [
        {"name": f"{one}{number}", "exactly": {"deviceClassName": DRIVERS[one]}} for number, one in enumerate(asks)
    ]
    spec = {"devices": {"requests": requests}}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}
