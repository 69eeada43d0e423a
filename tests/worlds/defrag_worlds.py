"""Small clusters for berth defrag: objects of running pods with owners, random ones, and an exhaustive search."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import chain, combinations, permutations, product
from math import inf
from typing import Any, TypeVar

from benchmarks.assess import pod as pod_objects
from extender.allocation import Features
from extender.api.pods import SCHEDULER
from extender.assess import (
    RestartAdvice,
    Terms,
    advise_restarts,
    facts_of,
    movable_pods,
    newest_time,
    reading_of,
)
from extender.assess.restart_advice import proved
from extender.assess.wanted_pods import Shape, wanted_objects
from extender.base.deadline import NO_DEADLINE, Deadline
from extender.defrag import WAIT_COST, Advice, AdviceKind, Cluster, Restart, gpus_of
from extender.defrag.restarts import cost_of, within
from extender.policy import Policy
from extender.scheduling import Evaluator
from tests.worlds.assessed_clusters import objects_of

Json = dict[str, Any]
_T = TypeVar("_T")
NOW = "2026-03-01T12:00:00Z"


def running(
    name: str,
    node: str,
    gpus: Sequence[int],
    *,
    owner: str = "ReplicaSet",
    owner_name: str = "",
    started: str = NOW,
    priority: int = 0,
    scheduler: str = SCHEDULER,
    labels: Json | None = None,
    group: str = "",
    minimum: str = "2",
    count: int = 0,
    tolerates: Json | None = None,
) -> list[Json]:
    """A pod with GPUs on a node and its claim; a waiting pod without a node, for `count` GPUs."""
    pod, claim = pod_objects(name, count or len(gpus), node, gpus)
    pod["metadata"] |= {"creationTimestamp": started, "labels": labels or {}}
    if group:
        pod["metadata"]["annotations"] = {"berth.dev/group": group, "berth.dev/group-min": minimum}
        if node:  # as Berth marks it
            claim["metadata"]["annotations"] = {"berth.dev/group": group}
    if owner:
        named = {"apiVersion": "apps/v1", "kind": owner, "name": owner_name or f"{name}-owner"}
        reference = {**named, "uid": "o", "controller": True}
        pod["metadata"]["ownerReferences"] = [reference]
    pod["spec"] |= {"schedulerName": scheduler, "priority": priority, "tolerations": [tolerates] if tolerates else []}
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


KINDS = ("one", "one", "one", "group", "job", "jobset", "shared", "two")
"""What is restarted together: one pod, pods of a group, a Job or a JobSet, pods with one claim, a pod with two."""
_LABELS = {"job": "batch.kubernetes.io/job-name", "jobset": "jobset.sigs.k8s.io/jobset-name"}


def random_world(seed: int) -> tuple[list[Json], Shape]:
    """The objects of three nodes with at most six restarts, and a shape that may need some of them."""
    rng = random.Random(seed)
    machine = rng.choice(("dgx1-v100", "hgx-h100-8", "a100-pcie-8-bridged", "gb200-nvl72-tray"))
    gpus = 4 if machine.startswith("gb200") else 8
    objects = objects_of({"nodes": {f"n{i}": machine for i in range(3)}})
    free = {f"n{i}": list(range(gpus)) for i in range(3)}
    for number in range(6):
        objects += _unit(rng, f"u{number}", free)
    for node, own in free.items():  # what is left of a node is mostly not free
        taken = own[: rng.choice((0, len(own) // 2, len(own) // 4))]
        if taken:
            objects += running(f"fixed-{node}", node, taken, owner="", started=NOW)
    pods = rng.choice((1, 1, 1, 2))
    return objects, Shape(rng.choice((2, 4, gpus - 1, gpus)) if pods == 1 else rng.choice((2, 4)), pods)


def crowded_world(seed: int) -> tuple[list[Json], Shape]:
    """The objects of a few equal nodes that are nearly full, so that restarted pods fit in some orders alone."""
    rng = random.Random(seed)
    nodes = [f"n{i}" for i in range(rng.choice((3, 3, 4)))]
    objects, free = objects_of({"nodes": dict.fromkeys(nodes, "hgx-h100-8")}), {name: list(range(8)) for name in nodes}
    least_free = rng.uniform(0.08, 0.4) * 8 * len(nodes)
    for number in range(9):
        if sum(map(len, free.values())) > least_free:
            objects += _unit(rng, f"u{number}", free, ("one", "one", "job", "job", "jobset"), (1, 1, 2, 2, 3, 4))
    objects += running("bare", nodes[0], free[nodes[0]][:1], owner="") if free[nodes[0]] else []
    return objects, Shape(*rng.choice(((8, 1), (6, 1), (5, 1), (4, 2), (4, 3), (8, 2))))


def _unit(
    rng: random.Random,
    name: str,
    free: dict[str, list[int]],
    kinds: Sequence[str] = KINDS,
    sizes: Sequence[int] = (1, 1, 2, 2, 4),
) -> list[Json]:
    """The objects of one of KINDS, on nodes that have as many free GPUs, which it takes out of `free`."""
    kind, size, objects = rng.choice(kinds), rng.choice(sizes), list[Json]()
    started = f"2026-02-{rng.randint(26, 28)}T{rng.randint(0, 23):02}:00:00Z"
    owner = rng.choice(("Job", "ReplicaSet", "StatefulSet"))
    labels = {_LABELS[kind]: name} if kind in _LABELS else {}
    for number in range(rng.choice((2, 2, 3)) if kind in (*_LABELS, "group") else 1):
        node = rng.choice(list(free))
        if len(free[node]) < size:
            continue
        own = rng.sample(free[node], size)
        free[node] = [one for one in free[node] if one not in own]
        group = name if kind == "group" else ""
        made = running(f"{name}-{number}", node, own, owner=owner, started=started, labels=labels, group=group)
        if kind == "shared":
            objects.append(sharing(made[0], made[1], f"{name}-other"))
        if kind == "two" and size > 1:
            objects.append(with_part_of_its_claim(made[0], made[1]))
        objects += made
    return objects


def sharing(pod: Json, claim: Json, name: str) -> Json:
    """Another pod that shares the claim of a pod, as which it is."""
    found: Json = json.loads(json.dumps(pod))
    found["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    claim["status"]["reservedFor"].append({"resource": "pods", "name": name, "uid": f"uid-{name}"})
    return found


def with_part_of_its_claim(pod: Json, claim: Json) -> Json:
    """Another claim of a pod, which has one of the GPUs that were those of its first."""
    found: Json = json.loads(json.dumps(claim))
    found["metadata"] |= {"name": f"{claim['metadata']['name']}-b", "uid": f"{claim['metadata']['uid']}-b"}
    pod["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": found["metadata"]["name"]})
    every = claim["status"]["allocation"]["devices"]["results"]
    for one, results in ((found, every[:1]), (claim, every[1:])):
        one["spec"]["devices"]["requests"][0]["exactly"]["count"] = len(results)
        one["status"]["allocation"]["devices"]["results"] = results
    return found


class DefragWorld:
    """A question about a cluster, its answer, and the least cost of all answers that the proof accepts."""

    def __init__(self, objects: Iterable[Json], shape: Shape) -> None:
        reading = reading_of(objects, {}, "test")
        self.shape = shape
        self.facts, self.snapshot = facts_of(reading), reading.cache.snapshot()
        self.wanted = wanted_objects(shape.objects(), self.snapshot, shape.text)
        self.movable = movable_pods(self.facts, self.snapshot, Terms(newest_time(reading, datetime.now(UTC)), 0))

    def cluster(self, deadline: Deadline = NO_DEADLINE) -> Cluster:
        """The cluster as it is."""
        context = Evaluator(Features()).evaluation_context(self.snapshot, deadline)
        return Cluster.of(self.snapshot, self.movable.left, Policy(), context)

    def advice(self) -> RestartAdvice:
        """The answer of berth defrag."""
        return advise_restarts(self.facts, self.wanted, self.movable, Policy(), NO_DEADLINE)

    def cheapest_by_force(self, below: float = inf, proofs: float = inf) -> float:
        """The least cost, if it is less than this, over all sets of restarts, their orders, and the nodes to reserve.

        Each is tried through the proof, the cheapest set first, until there were so many. Of a set come mixed orders.
        No set is tried after which so many GPUs must wait that it costs more. Infinite if there is none.
        """
        cluster, needed, best = self.cluster(), [pod.uid for pod in self.wanted.asked.pods], below
        names, rng = sorted(self.snapshot.node_infos), random.Random(1)
        for chosen in sorted(_subsets(self.movable.restarts), key=self._least_cost):
            if self._least_cost(chosen) >= best or proofs <= 0:
                break
            changed = frozenset[str]().union(*(one.nodes for one in chosen))
            reserved = [one for one in map(frozenset, _subsets(names)) if one & changed and len(one) < len(names)]
            ways = list(product(permutations(chosen), reserved)) if within(self.movable.budgets, chosen) else []
            for order, nodes in rng.sample(ways, min(len(ways), int(min(proofs, len(ways))))):
                advice = Advice(AdviceKind.ADVICE, order, reserved=nodes)
                found = proved(self.facts, cluster, self.wanted, advice, Policy())
                proofs -= 1
                if all(uid in found.proof.nodes for uid in needed):
                    best = min(best, found.cost)
        return best if best < below else inf

    def _least_cost(self, chosen: Sequence[Restart]) -> float:
        """The cost of these restarts if all pods are packed as well as numbers of GPUs allow."""
        infos = self.snapshot.node_infos.items()
        free = Counter({name: (info.inventory.gpus & ~info.busy).bit_count() for name, info in infos})
        for one in chosen:
            free.update(device.pool for device in {result.device for result in one.results})
        pods = sorted((_sizes(one) for one in chosen), reverse=True)
        wanted = [self.shape.gpus] * self.shape.pods
        waiting = (_least_waiting(left, tuple(pods)) for left in _packed(tuple(sorted(free.values())), tuple(wanted)))
        return cost_of(chosen) + WAIT_COST * min(waiting, default=inf)


def _sizes(restart: Restart) -> tuple[tuple[int, ...], bool]:
    """The GPUs of each claim, and whether all wait if one does."""
    return tuple(sorted(map(gpus_of, restart.claims), reverse=True)), restart.is_whole


@cache
def _least_waiting(free: tuple[int, ...], restarts: tuple[tuple[tuple[int, ...], bool], ...]) -> int:
    """The fewest GPUs that wait. `free` are the free GPUs of the nodes, sorted."""
    if not restarts:
        return 0
    (sizes, is_whole), *others = restarts
    found = sum(sizes) + _least_waiting(free, tuple(others))
    for number in range(1 if not is_whole else len(sizes), len(sizes) + 1):
        for placed in set(combinations(sizes, number)):
            rest = sum(sizes) - sum(placed)
            found = min([found, *(rest + _least_waiting(left, tuple(others)) for left in _packed(free, placed))])
    return found


@cache
def _packed(free: tuple[int, ...], sizes: tuple[int, ...]) -> frozenset[tuple[int, ...]]:
    """What is free, sorted, after these were placed in each possible way."""
    found = {free}
    for size in sizes:
        found = {
            tuple(sorted([*one[:node], one[node] - size, *one[node + 1 :]]))
            for one in found
            for node in range(len(one))
            if one[node] >= size
        }
    return frozenset(found)


def _subsets(found: Sequence[_T]) -> Iterator[tuple[_T, ...]]:
    yield from chain.from_iterable(combinations(found, size) for size in range(1, len(found) + 1))


def objects_of_case(case: Json) -> list[Json]:
    """The objects of a case of tests/cases/defrag.yaml, which was read at 23:00 of the last of February."""
    found = objects_of({"nodes": case["nodes"], "agent": case.get("agent")})
    for obj in found:
        if obj["kind"] == "Node":
            obj["status"]["conditions"] = [{"type": "Ready", "lastHeartbeatTime": "2026-02-28T23:00:00Z"}]
    for described in case["pods"]:
        found += _described(dict(described))
    return found + [budget(**one) for one in case.get("budgets", ())]


def _described(described: Json) -> list[Json]:
    hours, cpu = described.pop("hours", 0), described.pop("cpu", "1")
    others = described.pop("shared_with", ())
    name, node, gpus = described.pop("name"), described.pop("node", ""), described.pop("gpus", ())
    started = f"2026-02-{28 - hours // 24:02}T{23 - hours % 24:02}:00:00Z"
    notes = described.pop("notes", {})
    second, selects = described.pop("second", 0), described.pop("selects", {})
    phase, terminates = described.pop("phase", ""), described.pop("terminates", False)
    pod, claim = running(name, node, gpus, started=started, **described)
    pod["metadata"].setdefault("annotations", {}).update(notes)
    pod["status"] |= {"phase": phase} if phase else {}
    pod["metadata"] |= {"deletionTimestamp": "2026-02-28T23:00:00Z"} if terminates else {}
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    pod["spec"]["nodeSelector"] = selects
    if not claim["spec"]["devices"]["requests"][0]["exactly"]["count"]:
        del pod["spec"]["resourceClaims"]
        return [pod]
    if second:  # GPUs of another claim
        more = pod_objects(f"{name}-more", second)
        pod["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": f"{name}-more"})
        return [pod, claim, list(more)[1]]
    return [pod, *(sharing(pod, claim, other) for other in others), claim]
