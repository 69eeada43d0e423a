"""Brute force over gangs on small clusters: the nearest level with a plan, by the rules and nothing else; and these
clusters as Kubernetes objects, the input of the planner.

The rules share no code with the planner: a cluster is plain numbers, and a rule is a line.
`python -m tests.worlds.gang_oracle --worlds N` compares the two and stops at the first difference.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest.mock import patch

from extender.gangs import gang_planner
from extender.gangs.gang_problem import GangPlan, GangProblem
from extender.gangs.member_limits import NodeLimit
from tests.worlds.filled_caches import class_of_driver, device_slice
from tests.worlds.gang_worlds import CLIQUE, RACK, GangWorld
from tests.worlds.running_berth import Json, status_in_use

GAVE_UP = "gave up"
Device = tuple[str, int]  # node or "net", and position
Use = frozenset[tuple[Device, int]]  # device and memory that is taken of it; 0 for an exclusive device
Limited = tuple[tuple[int, int], ...]  # shape and node of each member that has a limit, sorted


@dataclass
class GangCluster:
    """nodes: dicts of clique, rack, devices, budget; devices: dicts of kind, group, counters, memory, busy.

    `net` are devices that every node can use. members: dicts of options, same_group, net, shared, only, not_on, shape.
    `limits`: dicts of most, placed (position of the node to number), by shape.
    """

    nodes: list[dict]
    net: list[dict]
    members: list[dict]
    topology: str
    label: str  # the label that all members must have the same value of, or ''
    placed: dict[int, int] = field(default_factory=dict)  # position of the node to number of members
    limits: dict[int, dict] = field(default_factory=dict)


def random_cluster(rng: random.Random) -> GangCluster:
    nodes = [
        {
            "clique": rng.choice(["c1", "c1", "c1", "c2", "c2", None]),
            "rack": rng.choice(["r1", "r1", "r1", "r1", "r2", None]),
            "devices": [_device(rng) for _ in range(rng.choice([1, 2, 2, 3, 4]))],
            "budget": rng.randint(1, 6),
        }
        for _ in range(rng.choice([1, 2, 3, 4, 4, 5, 5]))
    ]
    net = [{"kind": "net"} for _ in range(rng.choice([0, 0, 0, 1, 2, 4]))]
    shapes = [_member(rng, shape, bool(net)) for shape in range(rng.choice([1, 1, 1, 2]))]
    members = [dict(rng.choice(shapes)) for _ in range(rng.choice([1, 2, 3, 3, 4, 4, 5]))]
    if len(members) > 1 and rng.random() < 0.1:
        members[0]["shared"] = True
        members[1] = dict(members[0])
    for member in members:
        if rng.random() < 0.1:
            member["only"] = frozenset(rng.sample(range(len(nodes)), rng.randint(1, len(nodes))))
        if rng.random() < 0.1:
            member["not_on"] = frozenset({rng.randrange(len(nodes))})
    if rng.random() < 0.15:
        for member in rng.sample(members, rng.randint(1, len(members))):
            member["only"] = frozenset({rng.randrange(min(len(nodes), 2))})
    found = GangCluster(
        nodes,
        net,
        members,
        rng.choice(["required", "preferred", "preferred", "preferred", "none"]),
        rng.choice(["", "", "", "rack"]),
    )
    if rng.random() < 0.2:
        found.placed = {rng.randrange(len(nodes)): 1}
    for shape in range(len(shapes)):
        if rng.random() < 0.3:
            there = {node: rng.randint(1, 2) for node in range(len(nodes)) if rng.random() < 0.2}
            found.limits[shape] = {"most": rng.choice([1, 1, 2, 2, 3]), "placed": there}
    return found


def _device(rng: random.Random) -> dict:
    return {
        "kind": rng.choice("ab"),
        "group": rng.randrange(2),
        "counters": rng.choice([0, 0, 0, 1, 2]),
        "memory": rng.choice([0, 0, 0, 80]),  # of a device that several claims can share; 0: exclusive
        "busy": rng.random() < 0.1,
    }


def _member(rng: random.Random, shape: int, net: bool) -> dict:
    options = [
        {"kind": rng.choice(["", "", "a", "b"]), "count": rng.choice([1, 1, 1, 2]), "memory": rng.choice([20, 40, 60])}
        for _ in range(rng.choice([1, 1, 1, 2, 3]))
    ]
    net = net and rng.random() < 0.5
    if net and rng.random() < 0.2:
        options = [{"kind": "", "count": 0, "memory": 0}]  # nothing of the node
    return {
        "shape": shape,
        "options": options,
        "same_group": rng.random() < 0.3,
        "net": net,
        "shared": False,
        "only": None,
        "not_on": frozenset(),
    }


# -- the rules -------------------------------------------------------------------------------------------------


def choices(cluster: GangCluster, member: dict, node: int, use: Use) -> Iterator[Use]:
    """Every way to give a member its devices on a node, as the new use."""
    if (member["only"] is not None and node not in member["only"]) or node in member["not_on"]:
        return
    devices = cluster.nodes[node]["devices"]
    for option in member["options"]:
        able = [i for i, d in enumerate(devices) if option["kind"] in ("", d["kind"])]
        for chosen in itertools.combinations(able, option["count"]):
            if member["same_group"] and len({devices[i]["group"] for i in chosen}) > 1:
                continue
            local = use | {((str(node), i), _share(devices[i], option, use, (str(node), i))) for i in chosen}
            if not _fits(cluster, node, use, local, [((str(node), i), devices[i], option) for i in chosen]):
                continue
            if not member["net"]:
                yield local
                continue
            for i in range(len(cluster.net)):
                if (("net", i), 0) not in use:
                    yield local | {(("net", i), 0)}


def _share(device: dict, option: dict, use: Use, key: Device) -> int:
    """The use of a device after the member takes its share; entries of one device replace each other."""
    return sum(amount for one, amount in use if one == key) + option["memory"] if device["memory"] else 0


def _fits(cluster: GangCluster, node: int, before: Use, after: Use, chosen: list[tuple[Device, dict, dict]]) -> bool:
    known = {key for key, _ in before}
    for key, device, option in chosen:
        if device["busy"] and not device["memory"]:
            return False
        if not device["memory"] and key in known:
            return False
        if device["memory"] and _amount(cluster, before, key) + option["memory"] > device["memory"]:
            return False
    devices = cluster.nodes[node]["devices"]
    used = {i for (where, i), _ in after if where == str(node)} | {i for i, d in enumerate(devices) if d["busy"]}
    newly = [device for key, device, _ in chosen if key not in known and not device["busy"]]
    total = sum(devices[i]["counters"] for i in used)
    start = {i for (where, i), _ in before if where == str(node)} | {i for i, d in enumerate(devices) if d["busy"]}
    overdrawn = sum(devices[i]["counters"] for i in start) > cluster.nodes[node]["budget"]
    consumes = any(device["counters"] for device in newly)
    return not consumes or (not overdrawn and total <= cluster.nodes[node]["budget"])


def _amount(cluster: GangCluster, use: Use, key: Device) -> int:
    return max((amount for one, amount in use if one == key), default=0)


def normal(use: Use) -> Use:
    """The largest amount of each device."""
    largest: dict[Device, int] = {}
    for key, amount in use:
        largest[key] = max(largest.get(key, 0), amount)
    return frozenset(largest.items())


def feasible(cluster: GangCluster, nodes: list[int]) -> bool:
    """Whether all members fit on these nodes."""
    shared = [m for m in cluster.members if m["shared"]]
    others = [m for m in cluster.members if not m["shared"]]
    # Members that share their claim use one allocation on one node.
    units = [shared] * bool(shared) + [[m] for m in others]
    reached: set[tuple[Use, Limited]] = {(frozenset(), ())}
    for unit in units:
        following: set[tuple[Use, Limited]] = set()
        for use, limited in reached:
            for node in nodes:
                more = tuple(sorted((*limited, *((m["shape"], node) for m in unit if m["shape"] in cluster.limits))))
                if all(_allowed(member, node) for member in unit) and _within_limits(cluster, more):
                    following |= {(normal(found), more) for found in choices(cluster, unit[0], node, use)}
        reached = following
    return bool(reached)


def _within_limits(cluster: GangCluster, limited: Limited) -> bool:
    return all(
        number + cluster.limits[shape]["placed"].get(node, 0) <= cluster.limits[shape]["most"]
        for (shape, node), number in Counter(limited).items()
    )


def _allowed(member: dict, node: int) -> bool:
    return (member["only"] is None or node in member["only"]) and node not in member["not_on"]


def groups(cluster: GangCluster, label: str, nodes: list[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for node in nodes:
        if cluster.nodes[node][label] is not None:
            found.setdefault(cluster.nodes[node][label], []).append(node)
    return found


def levels(cluster: GangCluster) -> Iterator[tuple[str, list[list[int]]]]:
    """The admissible sets of nodes, the nearest level first."""
    everything = list(range(len(cluster.nodes)))
    regions = list(_with_placed(cluster, "rack", groups(cluster, "rack", everything), strict=False).values())
    regions = regions if cluster.label else [everything]
    yield (
        "node",
        [
            [node]
            for region in regions
            for node in region
            if not cluster.placed or cluster.topology == "none" or set(cluster.placed) == {node}
        ],
    )
    between = {"required": ["clique"], "none": []}.get(
        cluster.topology, ["clique"] if cluster.label else ["clique", "rack"]
    )
    for level in between:
        strict = cluster.topology == "preferred"
        yield (
            level,
            [
                nodes
                for region in regions
                for nodes in _with_placed(cluster, level, groups(cluster, level, region), strict=strict).values()
            ],
        )
    if cluster.topology != "required":
        yield cluster.label, regions if cluster.label else [everything]


def _with_placed(cluster: GangCluster, label: str, found: dict, *, strict: bool) -> dict:
    """Only the domain of the members that are bound; with `strict`, nothing where they have no domain."""
    values = Counter(cluster.nodes[node][label] for node in cluster.placed)
    if not values:
        return found
    if list(values) == [None]:
        return {} if strict else found
    (value,) = [value for value in values if value is not None]
    return {value: found.get(value, [])}


def nearest(cluster: GangCluster) -> str | None:
    """The nearest level at which one domain holds the gang; None if none does."""
    for level, domains in levels(cluster):
        if any(feasible(cluster, nodes) for nodes in domains if nodes):
            return level
    return None


# -- as objects ------------------------------------------------------------------------------------------------

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
    specs = [{"devices": [_device_object(i, d) for i, d in enumerate(node["devices"])]}, {"sharedCounters": budget}]
    return [
        {"metadata": {"name": f"{name}-{i}"}, "spec": {"driver": DRIVER, "nodeName": name, "pool": pool, **spec}}
        for i, spec in enumerate(specs)
    ]


def _device_object(position: int, device: Json) -> Json:
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
        status = status_in_use(results, {})
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


# -- both --------------------------------------------------------------------------------------------------------


def compare(seed: int) -> str:
    """'' where brute force and the planner agree on this cluster."""
    cluster = random_cluster(random.Random(seed))
    expected, found = nearest(cluster), planned(cluster)
    if found == GAVE_UP and expected is None:
        return ""
    return "" if found == expected else f"seed {seed}: brute force {expected!r}, planner {found!r}: {cluster}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for number in range(args.worlds):
        if difference := compare(args.seed * 10_000_000 + number):
            raise SystemExit(difference)
    print(f"{args.worlds} clusters, no difference")


if __name__ == "__main__":
    main()
