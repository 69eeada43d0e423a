"""Small clusters for berth defrag: objects of running pods with owners, random ones, and an exhaustive search."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations
from math import inf
from typing import Any

from benchmarks.assess import pod as pod_objects
from extender.allocation import Features
from extender.api.pods import SCHEDULER
from extender.assess import (
    Movable,
    Shape,
    Terms,
    Wanted,
    facts_of,
    movable_pods,
    newest_time,
    reading_of,
    wanted_objects,
)
from extender.base.deadline import NO_DEADLINE, Deadline
from extender.defrag import WAIT_COST, Cluster, Restart, again
from extender.policy import Policy
from extender.scheduling import Evaluator
from tests.worlds.assessed_clusters import objects_of

Json = dict[str, Any]
NOW = "2026-03-01T12:00:00Z"


def running(
    name: str,
    node: str,
    gpus: Sequence[int],
    *,
    owner: str = "ReplicaSet",
    started: str = NOW,
    priority: int = 0,
    scheduler: str = SCHEDULER,
    labels: Json | None = None,
    group: str = "",
    minimum: str = "2",
    count: int = 0,
) -> list[Json]:
    """A pod with GPUs on a node and its claim; a waiting pod without a node, for `count` GPUs."""
    pod, claim = pod_objects(name, count or len(gpus), node, gpus)
    pod["metadata"] |= {"creationTimestamp": started, "labels": labels or {}}
    if group:
        pod["metadata"]["annotations"] = {"berth.dev/group": group, "berth.dev/group-min": minimum}
        if node:  # as Berth marks it
            claim["metadata"]["annotations"] = {"berth.dev/group": group}
    if owner:
        reference = {"apiVersion": "apps/v1", "kind": owner, "name": f"{name}-owner", "uid": "o", "controller": True}
        pod["metadata"]["ownerReferences"] = [reference]
    pod["spec"] |= {"schedulerName": scheduler, "priority": priority}
    pod["status"]["startTime"] = started
    return [pod, claim]


def budget(name: str, allowed: int, labels: Json) -> Json:
    """A PodDisruptionBudget."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }


def random_world(seed: int) -> tuple[list[Json], Shape]:
    """The objects of three nodes with at most seven restarts, and a shape that may need some of them."""
    rng = random.Random(seed)
    machine = rng.choice(("dgx1-v100", "hgx-h100-8", "a100-pcie-8-bridged", "gb200-nvl72-tray"))
    gpus = 4 if machine.startswith("gb200") else 8
    objects = objects_of({"nodes": {f"n{i}": machine for i in range(3)}})
    free = {f"n{i}": list(range(gpus)) for i in range(3)}
    for number in range(7):
        node, size = rng.choice(list(free)), rng.choice((1, 1, 2, 2, 4))
        if len(free[node]) >= size:
            own = rng.sample(free[node], size)
            free[node] = [one for one in free[node] if one not in own]
            started = f"2026-02-{rng.randint(27, 28)}T{rng.randint(0, 23):02}:00:00Z"
            group = rng.choice(("", "", "g")) if size < 3 else ""
            objects += running(
                f"p{number}", node, own, owner=rng.choice(("Job", "ReplicaSet")), started=started, group=group
            )
    for node, own in free.items():  # what is left of a node is mostly not free
        taken = own[: rng.choice((0, len(own) // 2, len(own) // 4))]
        if taken:
            objects += running(f"fixed-{node}", node, taken, owner="", started=NOW)
    pods = rng.choice((1, 1, 1, 2))
    return objects, Shape(rng.choice((4, gpus - 1, gpus)) if pods == 1 else rng.choice((2, 4)), pods)


def world_of(
    objects: Iterable[Json], shape: Shape, deadline: Deadline = NO_DEADLINE
) -> tuple[Cluster, Wanted, Movable]:
    """What `advise` takes."""
    reading = reading_of(objects, {}, "test")
    snapshot = reading.cache.snapshot()
    wanted = wanted_objects(shape.objects(), snapshot, shape.text)
    movable = movable_pods(facts_of(reading), snapshot, Terms(newest_time(reading), 0))
    context = Evaluator(Features()).evaluation_context(snapshot, deadline)
    return Cluster.of(snapshot, movable.left, Policy(), context), wanted, movable


def _subsets(found: Sequence[Restart]) -> Iterator[tuple[Restart, ...]]:
    yield from chain.from_iterable(combinations(found, size) for size in range(len(found) + 1))


def cheapest_by_force(cluster: Cluster, wanted: Wanted, movable: Movable) -> float:
    """The least cost over all sets of restarts, and all nodes on which the wanted pods may be; infinite if none helps.

    As in an advice, the wanted pods come first, then the restarted ones on other nodes, then what is left anywhere.
    """
    best = inf
    names = sorted(cluster.snapshot.node_infos)
    places = [frozenset(one) for size in range(1, len(names) + 1) for one in combinations(names, size)]
    for chosen in sorted(_subsets(movable.restarts), key=lambda one: sum(restart.cost for restart in one)):
        cost = sum(one.cost for one in chosen)
        if cost >= best:
            break
        freed = cluster.without(chosen)
        for nodes in places:
            placed = freed.place(wanted.asked, frozenset(names) - nodes)
            if placed is not None:
                now, left = placed.cluster, list(chosen)
                for barred in (frozenset(placed.nodes.values()), frozenset[str]()):
                    waiting = list[Restart]()
                    for one in sorted(left, key=lambda one: (-one.gpus, one.name)):
                        found = now.place(again(one), barred)
                        if found is None:
                            waiting.append(one)
                        else:
                            now = found.cluster
                    left = waiting
                best = min(best, cost + sum(WAIT_COST * one.gpus for one in left))
    return best


def objects_of_case(case: Json) -> list[Json]:
    """The objects of a case of tests/cases/defrag.yaml, which was read at 23:00 of the last of February."""
    found = objects_of({"nodes": case["nodes"]})
    for obj in found:
        if obj["kind"] == "Node":
            obj["status"]["conditions"] = [{"type": "Ready", "lastHeartbeatTime": "2026-02-28T23:00:00Z"}]
    for described in case["pods"]:
        found += _described(dict(described))
    return found + [budget(**one) for one in case.get("budgets", ())]


def _described(described: Json) -> list[Json]:
    hours, cpu = described.pop("hours", 0), described.pop("cpu", "1")
    name, node, gpus = described.pop("name"), described.pop("node", ""), described.pop("gpus", ())
    started = f"2026-02-{28 - hours // 24:02}T{23 - hours % 24:02}:00:00Z"
    pod, claim = running(name, node, gpus, started=started, **described)
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    if not claim["spec"]["devices"]["requests"][0]["exactly"]["count"]:
        del pod["spec"]["resourceClaims"]
        return [pod]
    return [pod, claim]
