"""Brute force over small worlds: the possible allocations, from the rules alone; and the worlds as Kubernetes objects.

The rules share no code with the search: a world is plain numbers, an assignment is a tuple of devices, and a rule is a
line. `python -m tests.worlds.oracle --worlds N` compares the two and stops at the first difference.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from extender.allocation import Allowed, Features, Problem, Search, choose
from extender.allocation.what_if import problem_of, usage_of
from extender.api.device_classes import decode_class
from extender.api.nodes import decode_node
from extender.api.resource_claims import decode_claim
from extender.api.resource_slices import DeviceId, SliceDecoder
from extender.base.berth_errors import InvalidClaim
from extender.cel.dra import Masks
from tests.worlds.explain_worlds import held_claim
from tests.worlds.running_berth import pod

DRIVER, OTHER_DRIVER = "d.example.com", "n.example.com"


@dataclass
class World:
    """devices: dicts of kind, group, tainted, counters, memory, shared; requests: dicts of claim, kind, count, …"""

    devices: list[dict]
    requests: list[dict]
    constraints: list[dict]
    budget: int
    taken: set[int] = field(default_factory=set)
    used: dict[int, int] = field(default_factory=dict)


def random_world(rng: random.Random) -> World:
    devices = [
        {
            "kind": rng.choice("ab"),
            "group": rng.randrange(3),
            "tainted": rng.random() < 0.15,
            "counters": rng.choice([0, 0, 1, 2]),
            "memory": rng.choice([40, 80]),
            "shared": rng.random() < 0.25,
        }
        for _ in range(rng.randint(2, 7))
    ]
    claims = rng.choice([1, 1, 2])
    requests = []
    for claim in range(claims):
        for _ in range(rng.choice([1, 1, 2])):
            options = [
                {
                    "kind": rng.choice(["a", "", ""]),
                    "count": rng.choice([1, 1, 2, 3]),
                    "all": rng.random() < 0.1,
                    "memory": rng.choice([0, 0, 20, 60]),
                }
                for _ in range(rng.choice([1, 1, 1, 2]))
            ]
            requests.append({"claim": claim, "options": options, "tolerates": rng.random() < 0.3})
    constraints = [
        {"claim": rng.randrange(claims), "kind": rng.choice(["match", "distinct"])}
        for _ in range(rng.choice([0, 0, 1]))
    ]
    world = World(devices, requests, constraints, rng.randint(1, 8))
    for i, device in enumerate(devices):
        if rng.random() < 0.2:
            if device["shared"]:
                world.used[i] = rng.choice([10, 30])
            else:
                world.taken.add(i)
    return world


def selects(device: dict, option: dict) -> bool:
    return option["kind"] in ("", device["kind"])


def assignments(world: World, options: tuple[dict, ...]) -> Iterator[list[tuple[int, ...]]]:
    choices = []
    for option in options:
        able = [i for i, d in enumerate(world.devices) if selects(d, option)]
        if option["all"]:
            # Devices whose capacity is too small for the request are left out, as the reference does.
            able = [i for i in able if amount(world, i, option) + world.used.get(i, 0) <= world.devices[i]["memory"]]
            choices.append([tuple(able)] if able else [])
        else:
            choices.append(list(itertools.combinations(able, option["count"])))
    return map(list, itertools.product(*choices))


def amount(world: World, i: int, option: dict) -> int:
    return option["memory"] or world.devices[i]["memory"]


def valid(world: World, options: tuple[dict, ...], picks: list[tuple[int, ...]]) -> bool:
    exclusive: set[int] = set()
    memory = dict(world.used)
    charged: set[int] = set(world.used)
    counters = sum(world.devices[i]["counters"] for i in world.taken | set(world.used))
    for request, option, chosen in zip(world.requests, options, picks, strict=True):
        for i in chosen:
            device = world.devices[i]
            if i in world.taken or i in exclusive or (device["tainted"] and not request["tolerates"]):
                return False
            if device["shared"]:
                memory[i] = memory.get(i, 0) + amount(world, i, option)
                if memory[i] > device["memory"]:
                    return False
            else:
                exclusive.add(i)
                if option["memory"] > device["memory"]:
                    return False
            if i not in charged:
                charged.add(i)
                counters += device["counters"]
                if device["counters"] and counters > world.budget:
                    return False
    return all(holds(world, c, picks) for c in world.constraints)


def holds(world: World, constraint: dict, picks: list[tuple[int, ...]]) -> bool:
    groups = [
        world.devices[i]["group"]
        for r, chosen in zip(world.requests, picks, strict=True)
        if r["claim"] == constraint["claim"]
        for i in chosen
    ]
    return len(set(groups)) <= 1 if constraint["kind"] == "match" else len(set(groups)) == len(groups)


def brute_force(world: World) -> bool:
    overdrawn = sum(world.devices[i]["counters"] for i in world.taken | set(world.used)) > world.budget
    for options in itertools.product(*(request["options"] for request in world.requests)):
        for picks in assignments(world, options):
            consumes = any(world.devices[i]["counters"] for chosen in picks for i in chosen if i not in world.used)
            if not (overdrawn and consumes) and valid(world, options, picks):
                return True
    return False


# -- as objects: the input of the search, or a cluster with a pod that asks --------------------------------------


def slices(world: World, node: str = "n", name: str = "p") -> list[dict]:
    """The pool of each driver on a node. A device without `driver` is of DRIVER; one without `group` lacks it."""
    found = []
    for driver in dict.fromkeys(device.get("driver", DRIVER) for device in world.devices):
        own = [(i, d) for i, d in enumerate(world.devices) if d.get("driver", DRIVER) == driver]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 2}
        spec = {"driver": driver, "nodeName": node, "pool": pool}
        devices = [device_object(i, d) for i, d in own]
        counters = [{"name": "s", "counters": {"c": {"value": str(world.budget)}}}]
        found += [
            {"metadata": {"name": f"s1-{driver}-{node}"}, "spec": {**spec, "devices": devices}},
            {"metadata": {"name": f"s2-{driver}-{node}"}, "spec": {**spec, "sharedCounters": counters}},
        ]
    return found


def device_object(number: int, d: dict) -> dict:
    device = {
        "name": f"dev-{number}",
        "attributes": {"kind": {"string": d["kind"]}, "group": {"int": d["group"]}},
        "capacity": {
            "memory": {"value": str(d["memory"]), **({"requestPolicy": d["policy"]} if "policy" in d else {})}
        },
        "allowMultipleAllocations": d["shared"],
    }
    for name in ("kind", "group"):
        if d[name] is None:
            del device["attributes"][name]
    if d["tainted"]:
        device["taints"] = [{"key": "t", "effect": "NoSchedule"}]
    if d["counters"]:
        device["consumesCounters"] = [{"counterSet": "s", "counters": {"c": {"value": str(d["counters"])}}}]
    return device


def problem(world: World) -> Problem:
    claims = [decode_claim(claim_object(world, c)) for c in range(1 + max(r["claim"] for r in world.requests))]
    allocated_state = usage_of(
        decoded := [SliceDecoder().decode(s) for s in slices(world)],
        [DeviceId(DRIVER, "p", f"dev-{i}") for i in world.taken],
        {DeviceId(DRIVER, "p", f"dev-{i}"): {"memory": m * 10**9} for i, m in world.used.items()},
    )
    classes = {"any": decode_class({"metadata": {"name": "any"}, "spec": {}})}
    return problem_of(
        decode_node({"metadata": {"name": "n"}}),
        decoded,
        classes,
        [(str(c.key), c.spec) for c in claims],
        allocated_state,
        Features(),
        Masks(),
    )


def varied(world: World, rng: random.Random) -> World:
    """The world with devices of a second driver, devices without attributes, policies, and requests that err."""
    devices, requests = [dict(device) for device in world.devices], copy.deepcopy(world.requests)
    for device in devices:
        if rng.random() < 0.2:
            device["driver"] = OTHER_DRIVER
        if rng.random() < 0.2:
            device["group"] = None
        if rng.random() < 0.05:
            device["kind"] = None
        if device["shared"] and rng.random() < 0.6:
            steps = {"min": "10", "max": "30", "step": "10"}
            device["policy"] = {"default": "10", "validValues": ["10", "20", "80"]}
            if rng.random() < 0.5:
                device["policy"] = {"default": "10", "validRange": steps}
    for option in (option for request in requests for option in request["options"]):
        option["driver"] = rng.choice([DRIVER, DRIVER, DRIVER, DRIVER, OTHER_DRIVER, ""])
        option["capacity"] = "mem" if rng.random() < 0.05 else "memory"
    busy = rng.choice([0, 0, 0.6])
    taken = {i for i, device in enumerate(devices) if not device["shared"] and rng.random() < busy}
    return replace(world, devices=devices, requests=requests, taken=world.taken | taken)


def cluster_objects(world: World, rng: random.Random) -> list[dict]:
    """Nodes, class and slices, and what is taken and used as claims of one or two devices, each of a pod of its name.

    There may be a second node with the same devices, more of which are taken.
    """
    results: list[tuple[int, str, dict]] = [(i, "p", {}) for i in world.taken]
    results += [(i, "p", {"shareID": f"s{i}", "consumedCapacity": {"memory": str(m)}}) for i, m in world.used.items()]
    nodes = {"n": "p"}
    if rng.random() < 0.3:
        nodes["m"] = "q"
        results += [(i, "q", {}) for i, d in enumerate(world.devices) if not d["shared"] and rng.random() < 0.7]
    rng.shuffle(results)
    results.sort(key=lambda one: one[1])
    held = []
    while results:
        count = rng.choice([1, 1, 2])
        some = [one for one in results[:count] if one[1] == results[0][1]]
        held.append([device_result(world, i, pool, more) for i, pool, more in some])
        results = results[len(some) :]
    if rng.random() < 0.2:
        held.append([device_result(world, i, "p", {"adminAccess": True}) for i in range(len(world.devices))])
    found: list[dict] = [{"kind": "Node", "metadata": {"name": node}} for node in nodes]
    found += [{"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}]
    found += [{"kind": "ResourceSlice", **one} for node, pool in nodes.items() for one in slices(world, node, pool)]
    for number, own in enumerate(held):
        found.append(held_claim(f"held-{number}", own, "g" if rng.random() < 0.1 else ""))
    return [{"apiVersion": "v1" if one["kind"] == "Node" else "resource.k8s.io/v1", **one} for one in found]


def device_result(world: World, number: int, pool: str, more: dict) -> dict:
    driver = world.devices[number].get("driver", DRIVER)
    return {"request": "r", "driver": driver, "pool": pool, "device": f"dev-{number}", **more}


def asking_objects(world: World) -> list[dict]:
    """A pod that has the claims of the world."""
    claims = [claim_object(world, c) for c in range(1 + max(r["claim"] for r in world.requests))]
    made = []
    for claim in claims:
        metadata = {**claim["metadata"], "namespace": "default", "uid": f"uid-{claim['metadata']['name']}"}
        made.append({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim, "metadata": metadata})
    return [*made, pod("want", *(claim["metadata"]["name"] for claim in made))]


def claim_object(world: World, claim: int) -> dict:
    requests = []
    for number, request in enumerate(r for r in world.requests if r["claim"] == claim):
        forms = [device_request(option, request["tolerates"], f"o{i}") for i, option in enumerate(request["options"])]
        exactly = len(forms) == 1
        requests.append({"name": f"r{number}", **({"exactly": forms[0]} if exactly else {"firstAvailable": forms})})
    constraints = [{f"{c['kind']}Attribute": f"{DRIVER}/group"} for c in world.constraints if c["claim"] == claim]
    return {"metadata": {"name": f"c{claim}"}, "spec": {"devices": {"requests": requests, "constraints": constraints}}}


def device_request(option: dict, tolerates: bool, name: str) -> dict:
    form: dict = {"name": name, "deviceClassName": "any", "allocationMode": "All" if option["all"] else "ExactCount"}
    if not option["all"]:
        form["count"] = option["count"]
    if option.get("driver"):
        form["selectors"] = [{"cel": {"expression": f"device.driver == '{option['driver']}'"}}]
    if option["kind"]:
        expression = f"device.attributes['{option.get('driver') or DRIVER}'].kind == '{option['kind']}'"
        form.setdefault("selectors", []).append({"cel": {"expression": expression}})
    if option["memory"]:
        form["capacity"] = {"requests": {option.get("capacity", "memory"): str(option["memory"])}}
    if tolerates:
        form["tolerations"] = [{"operator": "Exists"}]
    return form


# -- both ----------------------------------------------------------------------------------------------------------


def compare(seed: int) -> str:
    """'' where brute force, the search and the preferred order agree on this world."""
    world = random_world(random.Random(seed))
    expected = brute_force(world)
    try:
        found = Search(problem(world), max_steps=500_000).run() is not None
        preferred = (
            choose(problem(world), lambda *_: [Allowed(0), Allowed(1), Allowed()], max_steps=500_000) is not None
        )
    except InvalidClaim:
        # 'All' that a constraint forbids is an error in the reference; brute force calls it impossible.
        return (
            "" if not expected or any(o["all"] for r in world.requests for o in r["options"]) else f"seed {seed}: error"
        )
    return (
        ""
        if found == preferred == expected
        else f"seed {seed}: brute force {expected}, search {found}, preferred {preferred}: {world}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for number in range(args.worlds):
        if difference := compare(args.seed * 10_000_000 + number):
            raise SystemExit(difference)
    print(f"{args.worlds} worlds, no difference")


if __name__ == "__main__":
    main()
