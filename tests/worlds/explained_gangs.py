"""Gangs and the pods in their way, made of API objects, and their explanation."""

from __future__ import annotations

from math import inf
from typing import Any

from extender.api.pod_groups import Membership
from extender.api.pods import decode_pod
from extender.api.resource_claims import Reservation, Result
from extender.base.deadline import NO_DEADLINE, Deadline
from extender.explain import GangExplanation, PlannerCaches, explain_gang, groups_named
from tests.worlds.filled_caches import device_slice
from tests.worlds.gang_worlds import CLIQUE, GPU, POLICY, RACK, GangWorld, key
from tests.worlds.running_berth import claim, pod, status_in_use

NIC = "nic.example.com"


def members(world: GangWorld, size: int, gpus: int = 8, minimum: int = 0, **notes: str) -> None:
    """Pods p0, p1, ... of the group job, with a claim each."""
    wanted = {"berth.dev/group": "job", "berth.dev/group-min": str(minimum or size)}
    wanted |= {f"berth.dev/group-{name}": value for name, value in notes.items()}
    for i in range(size):
        world.add_claim(claim(f"p{i}", gpus))
        apply(world, f"p{i}", f"p{i}", annotations=wanted)


def racked(*nodes: str) -> GangWorld:
    """A world with these nodes, see `racks`."""
    world = GangWorld()
    racks(world, *nodes)
    return world


def gang(size: int, *nodes: str, **options: Any) -> GangWorld:
    """A world with these nodes, and the pods of the group job, see `members`."""
    world = racked(*nodes)
    members(world, size, **options)
    return world


def apply(world: GangWorld, name: str, *claims: str, **fields: Any) -> None:
    """A pod without a node."""
    obj = pod(name, *claims, **fields)
    obj["metadata"]["uid"] = name
    world.cache.apply_pod(name, decode_pod(obj))


def occupy(
    world: GangWorld,
    name: str,
    node: str,
    first: int,
    count: int = 1,
    group: str = "",
    pods: tuple[str, ...] = (),
    claim_name: str = "",
    driver: str = GPU,
) -> None:
    """A pod of this name, or `pods` that share a claim, with devices of a node, from `first` on."""
    obj = claim(claim_name or f"{name}-gpus", count)
    obj["metadata"]["annotations"] = {"berth.dev/group": group} if group else {}
    devices = [f"{'gpu' if driver == GPU else 'nic'}-{i}" for i in range(first, first + count)]
    results = [{"request": "gpu", "driver": driver, "pool": node, "device": device} for device in devices]
    obj["status"] = status_in_use(results, {one: one for one in pods or (name,)})
    world.add_claim(obj)


def nics(world: GangWorld, node: str, count: int = 4) -> None:
    """Devices of another driver on a node."""
    world.add_slice(device_slice(node, NIC, [{"name": f"nic-{i}"} for i in range(count)]))


def hold(world: GangWorld, name: str, node: str, count: int, first: int = 0) -> None:
    """Hold devices of a node for the claim and pod of this name."""
    devices = world.cache.snapshot().node_infos[node].inventory.devices[first : first + count]
    results = tuple(Result("gpu", pool_device.id) for pool_device in devices)
    world.cache.hold({name: Reservation(name, node, results, inf)})


def free(world: GangWorld, name: str) -> None:
    world.cache.apply_claim(key(f"{name}-gpus"), None)


def explained(
    world: GangWorld, deadline: Deadline = NO_DEADLINE, bound_member: Membership | None = None, name: str = "job"
) -> GangExplanation:
    snapshot = world.cache.snapshot()
    ((group, pods),) = groups_named(snapshot, "default", name).items()
    context = world.evaluator.evaluation_context(snapshot, deadline)
    caches = PlannerCaches(world.rankings, world.memory)
    return explain_gang(group, pods, snapshot, POLICY, context, caches, bound_member)


def sentences(found: GangExplanation) -> tuple[str, ...]:
    return tuple(miss.sentence for miss in found.misses)


def racks(world: GangWorld, *nodes: str) -> None:
    """Nodes a1, a2, b1, ... of 8 GPUs: the letter is the rack."""
    for name in nodes:
        world.add_node(name, "a100-pcie-8-bridged", {RACK: f"rack-{name[0]}", CLIQUE: f"clique-{name[0]}"})
