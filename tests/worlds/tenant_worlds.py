"""A tenant of a sandbox cluster: it writes everything in claims and pods of its namespaces but their status.

docs/threat-model.md names the files of tests that use this (tests/bind/test_tenant*.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from extender.cluster import Writer
from extender.sandbox import ApiError
from extender.sandbox.apiserver.registry import RESOURCES
from extender.serve.orphans import OrphanCollector
from tests.worlds.dra_worlds import CLAIMS, extended, place
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Berthing, Json, Serving, claim, one_node, pod, status_in_use

PODS = RESOURCES["", "pods"]
SPECIAL = "resource.kubernetes.io/extended-resource-claim"
PROTECTION = "resource.kubernetes.io/delete-protection"
ALLOCATOR = "berth.dev/allocator"
Intercept = Callable[[str, str], "ApiError | None"]


def uid_of(b: Serving, name: str) -> str:
    return str(b.pod(name)["metadata"]["uid"])


def stored(b: Serving, name: str, namespace: str = "default") -> Any:
    """The claim as JSON, None where it is gone."""
    return b.cluster.store.get("resourceclaims", (namespace, name))


def patch(b: Serving, name: str, change: Json, sub: str = "", namespace: str = "default") -> None:
    b.cluster.api.registry.patch(CLAIMS, (namespace, name), change, sub, strategic=False)


def forged(owner: str, owner_uid: str, *finalizers: str) -> Json:
    """Metadata that makes a claim look like the special claim of a pod."""
    reference = {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner_uid, "controller": True}
    notes = {SPECIAL: "true", ALLOCATOR: "berth-forged", "berth.dev/group": "g"}
    return {"annotations": notes, "ownerReferences": [reference], "finalizers": [PROTECTION, *finalizers]}


def allocated(b: Serving, name: str, device: str, *pods: str, writer: str = "berth-of-before") -> None:
    """The claim has a device of n1, reserved for the pods: a status that only schedulers write. An earlier allocation
    ends before."""
    if (stored(b, name).get("status") or {}).get("allocation"):
        patch(b, name, {"status": {"allocation": None, "reservedFor": None}}, "status")
    patch(b, name, {"metadata": {"annotations": {ALLOCATOR: writer}, "finalizers": [PROTECTION]}})
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": device}
    patch(b, name, {"status": status_in_use([result], {one: uid_of(b, one) for one in pods}, "n1")}, "status")


async def allocated_twice(b: Serving, *claims: str, writer: str = "berth-of-before", reserved: bool = True) -> None:
    """Claims of one pod each, `p-` and the name, that all have gpu-0 of n1; the writer is that of the last one."""
    await b.create(*(one for name in claims for one in (claim(name), pod(f"p-{name}", name))))
    for name in claims:
        last = name == claims[-1]
        pods = [f"p-{name}"] if reserved or not last else []
        allocated(b, name, "gpu-0", *pods, writer=writer if last else "berth-of-before")
        await b.settled()


def intercept(b: Serving, act: Intercept) -> None:
    async def hook(method: str, path: str) -> ApiError | None:
        return act(method, path)

    b.cluster.api.intercept = hook


def collector_without_grace(b: Serving) -> OrphanCollector:
    service = b.app.service
    writer, running = Writer(service.client), service.binder.running
    return OrphanCollector(service.cache, writer, service.clock, service.supervisor, running.__contains__, 0.0)


async def swept(b: Serving) -> OrphanCollector:
    """Such a collector after one sweep, whose releases have ended."""
    orphans = collector_without_grace(b)
    await orphans.sweep()
    await eventually(lambda: not orphans.busy)
    return orphans


@asynccontextmanager
async def in_use(name: str) -> AsyncIterator[Berthing]:
    """p2 runs on n1 with the devices of claim `name`; p1 waits for an extended resource."""
    async with one_node(claim(name), pod("p2", name), extended("p1")) as b:
        assert await place(b, "p2") == ""
        yield b


async def leftover(b: Serving, *finalizers: str, writer: str = "", suffix: str = "abcde", device: str = "gpu-0") -> str:
    """The special claim of p1 as a process that died after the allocation leaves it; returns its name.

    Without a writer it is kube-scheduler's, for whose bind Berth does not wait.
    """
    name = f"p1-extended-resources-{suffix}"
    b.cluster.apply(claim(name))
    allocated(b, name, device, "p1", writer=writer)
    notes = {SPECIAL: "true", ALLOCATOR: writer or None}
    patch(b, name, {"metadata": forged("p1", uid_of(b, "p1"), *finalizers) | {"annotations": notes}})
    await b.settled()
    return name
