"""Clusters of the gang oracle as Kubernetes objects, the input of the planner."""

from __future__ import annotations

from unittest.mock import patch

from extender.gangs import gang_planner
from extender.gangs.gang_problem import GangPlan, GangProblem
from extender.gangs.member_limits import NodeLimit
from tests.worlds.filled_caches import class_of_driver, device_slice
from tests.worlds.gang_oracle import GAVE_UP, GangCluster
from tests.worlds.gang_worlds import CLIQUE, RACK, GangWorld
from tests.worlds.running_berth import Json

DRIVER, NET = "d.example.com", "net.example.com"
LABELS = {"clique": CLIQUE, "rack": RACK}
_STEPS = 20_000  # ten times the planner's: at its own limit it may take a wider domain than brute force
NAMES = {"": "", "node": "node", CLIQUE: "clique", RACK: "rack"}


def planned(cluster: GangCluster) -> str | None:
    """The level of the plan; None for a shortage."""
    world = world_of(cluster)
    with patch.object(gang_planner, "MAX_STEPS", _STEPS):
        found = world.plan_problem(problem_of(cluster, world))
    if isinstance(found, GangPlan):
        return NAMES[found.level]
    return GAVE_UP if found.gave_up else None


def world_of(cluster: GangCluster) -> GangWorld:
    world = GangWorld()
    world.add_class(class_of_driver(DRIVER, "any"))
    world.add_class(class_of_driver(NET, "net"))
    for position, node in enumerate(cluster.nodes):
        labels = {label: node[name] for name, label in LABELS.items() if node[name] is not None}
        world.add_node(f"n{position}", labels=labels)
        for slice_ in _slices(f"n{position}", node):
            world.add_slice(slice_)
        _busy(world, f"n{position}", node["devices"])
    if cluster.net:
        world.add_slice(_net_slice(len(cluster.net)))
    for position, member in enumerate(cluster.members):
        name = "shared" if member["shared"] else f"m-{position}"
        world.add_claim({"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": _spec(member)}})
        world.add_pod(f"m-{position}", name)
    return world


def problem_of(cluster: GangCluster, world: GangWorld) -> GangProblem:
    limits = {
        shape: NodeLimit(limit["most"], {f"n{node}": number for node, number in limit["placed"].items()})
        for shape, limit in cluster.limits.items()
    }
    members = tuple(
        world.member(
            f"m-{position}",
            position,
            frozenset(f"n{i}" for i in member["only"]) if member["only"] is not None else None,
            frozenset(f"n{i}" for i in member["not_on"]),
            limits.get(member["shape"]),
        )
        for position, member in enumerate(cluster.members)
    )
    label = LABELS[cluster.label] if cluster.label else ""
    placed = {f"n{node}": number for node, number in cluster.placed.items()}
    return GangProblem(members, (CLIQUE, RACK), cluster.topology, label, placed)


def _slices(name: str, node: Json) -> list[Json]:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 2}
    budget = [{"name": "s", "counters": {"c": {"value": str(node["budget"])}}}]
    specs = [{"devices": [_device(i, d) for i, d in enumerate(node["devices"])]}, {"sharedCounters": budget}]
    return [
        {"metadata": {"name": f"{name}-{i}"}, "spec": {"driver": DRIVER, "nodeName": name, "pool": pool, **spec}}
        for i, spec in enumerate(specs)
    ]


def _device(position: int, device: Json) -> Json:
    found: Json = {
        "name": f"dev-{position}",
        "attributes": {"kind": {"string": device["kind"]}, "group": {"int": device["group"]}},
        # Exclusive devices have enough for every request.
        "capacity": {"memory": {"value": str(device["memory"] or 1000)}},
        "allowMultipleAllocations": bool(device["memory"]),
    }
    if device["counters"]:
        found["consumesCounters"] = [{"counterSet": "s", "counters": {"c": {"value": str(device["counters"])}}}]
    return found


def _busy(world: GangWorld, name: str, devices: list[Json]) -> None:
    """Devices in use. A device that claims can share has a share of nothing, which consumes its counters."""
    results = [
        {
            "request": "r",
            "driver": DRIVER,
            "pool": name,
            "device": f"dev-{i}",
            **({"shareID": f"share-{i}", "consumedCapacity": {"memory": "0"}} if device["memory"] else {}),
        }
        for i, device in enumerate(devices)
        if device["busy"]
    ]
    if results:
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any", "count": len(results)}}]}}
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": []}
        metadata = {"name": f"busy-{name}", "namespace": "default"}
        world.add_claim({"metadata": metadata, "spec": spec, "status": status})


def _net_slice(count: int) -> Json:
    return device_slice("net", NET, [{"name": f"net-{i}"} for i in range(count)], nodeName=None, allNodes=True)


def _spec(member: Json) -> Json:
    forms = [_request(option, f"o{i}") for i, option in enumerate(member["options"])]
    requests = [{"name": "r", **({"exactly": forms[0]} if len(forms) == 1 else {"firstAvailable": forms})}]
    constraints = [{"matchAttribute": f"{DRIVER}/group", "requests": ["r"]}] if member["same_group"] else []
    if not member["options"][0]["count"]:
        requests, constraints = [], []
    if member["net"]:
        requests.append({"name": "net", "exactly": {"deviceClassName": "net"}})
    return {"requests": requests, "constraints": constraints}


def _request(option: Json, name: str) -> Json:
    form: Json = {
        "name": name,
        "deviceClassName": "any",
        "allocationMode": "ExactCount",
        "count": option["count"],
        "capacity": {"requests": {"memory": str(option["memory"])}},
    }
    if option["kind"]:
        form["selectors"] = [{"cel": {"expression": f"device.attributes['{DRIVER}'].kind == '{option['kind']}'"}}]
    return form
