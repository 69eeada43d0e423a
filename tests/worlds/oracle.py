"""Brute force over small worlds: the possible allocations, from the rules alone.

It shares no code with the search: a world is plain numbers, an assignment is a tuple of devices, and a rule is a line.
`python -m tests.worlds.oracle --worlds N` compares the two and stops at the first difference.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from extender.allocation import Allowed, Search, choose
from extender.base.berth_errors import InvalidClaim

DRIVER = "d.example.com"


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


def compare(seed: int) -> str:
    """'' where brute force, the search and the preferred order agree on this world."""
    from tests.worlds.oracle_worlds import problem  # it imports this module

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
