"""Gangs of pods over real HTTP against the sandbox: their objects, and what kube-scheduler asks about them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from extender.api.pod_groups import GroupKey, GroupSource
from extender.sandbox import carried_machines
from extender.sandbox.apiserver.registry import RESOURCES
from tests.worlds.eventually import eventually
from tests.worlds.running_berth import Berthing, Json, berthing, claim, pod

NODES = {f"n{i}": "a100-pcie-8-bridged" for i in range(3)}
INCOMPLETE = "waits until at least 3 pods of group job and their claims exist"
SIX_NODES = {f"n{i}": "a100-pcie-8-bridged" for i in range(6)}
UNREAD = "waits until Berth has read which pods of group job run"
RACK = "topology.kubernetes.io/rack"
LABEL = "scheduling.x-k8s.io/pod-group"
NO_ROOM = "no domain has room for all pods of group job together"


@asynccontextmanager
async def racks(layout: Mapping[str, int]) -> AsyncIterator[Berthing]:
    """Racks of so many nodes with 8 GPUs; node a0 is the first of rack a."""
    async with berthing({}) as b:
        for rack, nodes in layout.items():
            for i in range(nodes):
                b.cluster.add_node(f"{rack}{i}", carried_machines()["a100-pcie-8-bridged"], {RACK: rack})
        yield b


def member(b: Berthing, name: str, group: str = "job", minimum: int = 3, gpus: int = 8, **annotations: str) -> None:
    """Create a member of a gang, with a claim for `gpus` GPUs."""
    wanted = {"berth.dev/group": group, "berth.dev/group-min": str(minimum)}
    wanted |= {f"berth.dev/group-{key}": value for key, value in annotations.items()}
    claims = (f"{name}-gpus",) if gpus else ()
    for one in claims:
        b.cluster.apply(claim(one, gpus))
    b.cluster.apply(pod(name, *claims, annotations=wanted))


async def create_gang(
    b: Berthing, size: int, group: str = "job", *, minimum: int = 0, gpus: int = 8, prefix: str = "p", **notes: str
) -> list[str]:
    """Create the members p0, p1 and so on, and wait until Berth has them. Without `minimum`, the gang needs them all.

    Returns their names.
    """
    names = [f"{prefix}{i}" for i in range(size)]
    for name in names:
        member(b, name, group, minimum or size, gpus, **notes)
    await b.settled()
    return names


def delete(b: Berthing, resource: str, name: str) -> None:
    group = "resource.k8s.io" if resource == "resourceclaims" else ""
    b.cluster.api.registry.delete(RESOURCES[group, resource], ("default", name))


def die(b: Berthing, name: str, node: str) -> None:
    """The node is deleted, and a pod on it with its claim."""
    delete(b, "pods", name)
    delete(b, "resourceclaims", f"{name}-gpus")
    of_node = [one for one in b.cluster.store.all("resourceslices") if one["spec"].get("nodeName") == node]
    for one in of_node:
        b.cluster.api.registry.delete(RESOURCES["resource.k8s.io", "resourceslices"], ("", one["metadata"]["name"]))
    b.cluster.api.registry.delete(RESOURCES["", "nodes"], ("", node))


async def answer_once_read(b: Berthing, name: str) -> Json:
    """The answer of filter once Berth has read which pods of the group run."""

    async def found() -> Json | None:
        one = await b.filter(name)
        reasons = one["FailedAndUnresolvableNodes"].values()
        return None if any(reason.startswith(UNREAD[: UNREAD.index("job")]) for reason in reasons) else one

    return await eventually(found, "the bound pods are read")


async def reasons(b: Berthing, name: str) -> set[str]:
    """The reasons for which all nodes are unschedulable."""
    found = await b.filter(name)
    assert not found["NodeNames"]
    assert not found["Error"]
    return set(found["FailedAndUnresolvableNodes"].values())


async def planned(b: Berthing, *names: str) -> dict[str, str]:
    """The node that each member gets; every answer has exactly one."""
    found = {}
    for name in names:
        answer = await b.filter(name)
        assert len(answer["NodeNames"] or ()) == 1, answer
        found[name] = answer["NodeNames"][0]
    return found


@asynccontextmanager
async def requeues(b: Berthing, why: str) -> AsyncIterator[None]:
    """What happens inside makes kube-scheduler retry the pods that Berth rejected."""
    touches = b.app.service.requeuer.touches
    yield
    await eventually(lambda: b.app.service.requeuer.touches > touches, why)


async def gets_a_node(b: Berthing, name: str) -> bool:
    """A pod of a gang that runs in part first waits until Berth has read the bound pods."""
    return bool((await b.filter(name))["NodeNames"])


async def bind_all(b: Berthing, nodes: dict[str, str]) -> list[str]:
    return list(await asyncio.gather(*(b.bind(name, node) for name, node in nodes.items())))


async def bind_until_bound(b: Berthing, nodes: dict[str, str]) -> None:
    """Bind all at once, and again while a bind waits for the others longer than the policy allows."""

    async def bound(name: str, node: str) -> bool:
        error = await b.bind(name, node)
        assert not error or "waiting for the other pods" in error
        return not error

    await asyncio.gather(*(eventually(partial(bound, *one)) for one in nodes.items()))


async def two_binds_of_three(b: Berthing) -> tuple[dict[str, str], list[asyncio.Task[str]]]:
    """A planned gang of three: the nodes by pod, and the binds of p0 and p1, which wait for the bind of p2."""
    nodes = await planned(b, *await create_gang(b, 3))
    binds = [asyncio.create_task(b.bind(name, nodes[name])) for name in ("p0", "p1")]
    await eventually(lambda: len(next(iter(b.app.service.gangs.forming.values())).arrived) == 2, "two arrived")
    return nodes, binds


def key(name: str = "job", namespace: str = "default") -> GroupKey:
    return GroupKey(namespace, GroupSource.BERTH, name)


def pod_group(b: Berthing, minimum: int, name: str = "job") -> None:
    kind = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup"}
    b.cluster.apply({**kind, "metadata": {"name": name, "namespace": "default"}, "spec": {"minMember": minimum}})


def labelled(b: Berthing, name: str, group: str = "job", **spec: Any) -> None:
    b.cluster.apply(claim(f"{name}-gpus", 8))
    found = pod(name, f"{name}-gpus", **spec)
    found["metadata"]["labels"] = {LABEL: group}
    b.cluster.apply(found)


def say_unschedulable(b: Berthing, name: str, message: str, reason: str = "Unschedulable") -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    change: dict[str, Any] = {"status": {"conditions": [said]}}
    b.cluster.api.registry.patch(RESOURCES["", "pods"], ("default", name), change, "status", strategic=True)


def annotate(b: Berthing, name: str, notes: dict[str, str | None]) -> None:
    change = {"metadata": {"annotations": notes}}
    b.cluster.api.registry.patch(RESOURCES["", "pods"], ("default", name), change, "", strategic=False)


async def ended(b: Berthing) -> None:
    await eventually(lambda: not b.app.service.gangs.forming, "the plan ended")


def change(b: Berthing, name: str, part: str, kind: str = "pods", **values: Any) -> None:
    obj = b.cluster.store.get(kind, ("default", name))
    assert obj is not None
    b.cluster.store.put(kind, ("default", name), {**obj, part: {**obj.get(part, {}), **values}})


async def running(b: Berthing, *names: str) -> None:
    for name in names:
        member(b, name, minimum=4)
    await b.settled()
    assert await bind_all(b, await planned(b, *names)) == [""] * 4


async def create_again(b: Berthing) -> None:
    """The old pods terminate, and the new ones exist."""
    await running(b, *(f"old{i}" for i in range(4)))
    for i in range(4):
        change(b, f"old{i}", "metadata", deletionTimestamp="2026-11-23T23:00:00Z")
        member(b, f"new{i}", minimum=4)
    await b.settled()
