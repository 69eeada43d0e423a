"""Gangs whose pods have constraints on each other, and a brute force of what kube-scheduler accepts of them.

The rules are those of kube-scheduler's plugins InterPodAffinity and PodTopologySpread, for pods of one namespace. They
share no code with the planner.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from extender.api.pod_groups import GroupKey, GroupSource
from extender.api.pods import decode_pod
from extender.gangs.gang import Gang
from extender.gangs.gang_problem import GangMembers, GangPlan, GangProblem, gang_problem
from extender.scheduling import PodRequirements, requirements_of
from tests.worlds.gang_worlds import POLICY, GangWorld
from tests.worlds.running_berth import Json, claim

HOSTNAME = "kubernetes.io/hostname"
Nodes = Mapping[str, Mapping[str, str]]
"""The labels of each node."""


def world_of(nodes: Nodes, free: Mapping[str, int]) -> GangWorld:
    """Nodes of four GPUs, of which some are free."""
    world = GangWorld()
    for name, labels in nodes.items():
        world.add_node(name, "t4-4", {HOSTNAME: name, **labels}, 4 - free.get(name, 4))
    return world


def problem_of(
    world: GangWorld,
    pods: Sequence[Json],
    offered: frozenset[str] | None = None,
    placed: Mapping[str, int] | None = None,
) -> GangProblem:
    """The problem of a gang of pods: dicts of labels, spec and gpus. Pod i has the UID w-i."""
    waiting, requirements = [], {}
    for i, made in enumerate(pods):
        name = f"w-{i}"
        world.add_claim(claim(name, made.get("gpus", 1)))
        world.add_pod(name, name, group="g", group_min=str(len(pods)), **made.get("annotations", {}))
        world.pods[name]["metadata"]["labels"] = made.get("labels", {})
        world.pods[name]["spec"].update(made.get("spec", {}))
        pod = decode_pod(world.pods[name])
        found = requirements_of(pod, world.cache.snapshot(), POLICY)
        assert isinstance(found, PodRequirements), found
        waiting.append(pod)
        requirements[pod.uid] = found
    assert waiting[0].membership is not None
    asked = waiting[0].membership.topology
    key = GroupKey("default", GroupSource.BERTH, "g")
    gang = Gang(key, len(pods), tuple(waiting), Counter(placed or {}), asked, "", 0.0, has_subgroups=False)
    members = GangMembers(tuple(waiting), requirements)
    nodes = {pod.uid: offered for pod in waiting} if offered is not None else {}
    return gang_problem(gang, members, POLICY, world.cache.snapshot(), nodes, offered=offered)


def term(key: str, labels: Mapping[str, str], **fields: Any) -> Json:
    return {"topologyKey": key, "labelSelector": {"matchLabels": dict(labels)}, **fields}


def required(kind: str, *terms: Json) -> Json:
    """The affinity of a pod: kind is podAffinity or podAntiAffinity."""
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def preferred(kind: str, *terms: Json) -> Json:
    weighted = [{"weight": 10, "podAffinityTerm": one} for one in terms]
    return {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}}


def spread(key: str, labels: Mapping[str, str], skew: int = 1, when: str = "DoNotSchedule", **fields: Any) -> Json:
    entry = {**term(key, labels), "maxSkew": skew, "whenUnsatisfiable": when, **fields}
    return {"topologySpreadConstraints": [entry]}


# -- the rules -----------------------------------------------------------------------------------------------------


def accepts(nodes: Nodes, pods: Sequence[Json], chosen: Sequence[str]) -> bool:
    """Whether the required constraints hold once each pod is on its node."""
    placed = list(zip(pods, chosen, strict=True))
    return all(
        _apart(nodes, placed, i) and _together(nodes, placed, i) and _even(nodes, placed, i) for i in range(len(placed))
    )


def _value(nodes: Nodes, node: str, key: str) -> str | None:
    return node if key == HOSTNAME else nodes[node].get(key)


def _matches(one: Json, pod: Json) -> bool:
    return all(pod.get("labels", {}).get(name) == value for name, value in one["labelSelector"]["matchLabels"].items())


def _terms(pod: Json, kind: str) -> list[Json]:
    found: list[Json] = (
        pod.get("spec", {}).get("affinity", {}).get(kind, {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])
    )
    return found


def _near(nodes: Nodes, key: str, one: str, other: str) -> bool:
    return _value(nodes, one, key) is not None and _value(nodes, one, key) == _value(nodes, other, key)


def _apart(nodes: Nodes, placed: Sequence[tuple[Json, str]], i: int) -> bool:
    pod, node = placed[i]
    others = [entry for j, entry in enumerate(placed) if j != i]
    return not any(
        _matches(one, other) and _near(nodes, one["topologyKey"], node, there)
        for one in _terms(pod, "podAntiAffinity")
        for other, there in others
    )


def _together(nodes: Nodes, placed: Sequence[tuple[Json, str]], i: int) -> bool:
    """Every term of these worlds is of all pods and matches all pods."""
    pod, node = placed[i]
    return all(
        _near(nodes, one["topologyKey"], node, there) for one in _terms(pod, "podAffinity") for _, there in placed
    )


def _even(nodes: Nodes, placed: Sequence[tuple[Json, str]], i: int) -> bool:
    pod, node = placed[i]
    for one in pod.get("spec", {}).get("topologySpreadConstraints", []):
        if one["whenUnsatisfiable"] != "DoNotSchedule":
            continue
        key = one["topologyKey"]
        counts = Counter(_value(nodes, there, key) for other, there in placed if _matches(one, other))
        lowest = min(counts[value] for name in nodes if (value := _value(nodes, name, key)) is not None)
        own = _value(nodes, node, key)
        if own is not None and counts[own] - lowest > one["maxSkew"]:
            return False
    return True


def feasible(nodes: Nodes, free: Mapping[str, int], pods: Sequence[Json]) -> bool:
    """Whether some choice of nodes has the devices, and holds all constraints."""
    for chosen in itertools.product(nodes, repeat=len(pods)):
        used: Counter[str] = Counter()
        for pod, node in zip(pods, chosen, strict=True):
            used[node] += pod.get("gpus", 1)
        if all(number <= free[node] for node, number in used.items()) and accepts(nodes, pods, chosen):
            return True
    return False


def random_world(rng: random.Random) -> tuple[Nodes, dict[str, int], list[Json]]:
    """Nodes in zones, their free GPUs, and the pods of a gang of one or two kinds."""
    nodes = {f"n{i}": {"zone": rng.choice("abc")} for i in range(rng.choice([2, 3, 4, 5]))}
    free = {name: rng.choice([0, 1, 2, 4, 4]) for name in nodes}
    job, roles = {"job": "j"}, rng.choice([["worker"], ["worker"], ["leader", "worker"]])
    specs: dict[str, Json] = {role: {} for role in roles}
    skew = rng.choice([1, 1, 2])
    key, kind = rng.choice([HOSTNAME, "zone"]), rng.choice(["apart", "apart", "between", "even", "together"])
    for role in roles:
        match kind:
            case "apart":
                specs[role] = required("podAntiAffinity", term(key, rng.choice([job, {"role": role}])))
            case "between" if role == roles[0]:
                specs[role] = required("podAntiAffinity", term(key, {"role": roles[-1]}))
            case "even":
                specs[role] = spread(key, job, skew)
            case "together":
                specs[role] = required("podAffinity", term(key, job))
    pods = [
        {"labels": {**job, "role": role}, "spec": specs[role], "gpus": gpus}
        for role, gpus in zip(roles, (rng.choice([1, 1, 2]) for _ in roles), strict=True)
        for _ in range(rng.choice([1, 2, 2, 3, 4]) if role == "worker" else 1)
    ]
    return nodes, free, pods


def compare(seed: int) -> str:
    """'' if the planner finds a plan that kube-scheduler accepts, or if there is none."""
    nodes, free, pods = random_world(random.Random(seed))
    world = world_of(nodes, free)
    found = world.plan_problem(problem_of(world, pods))
    expected = feasible(nodes, free, pods)
    if not isinstance(found, GangPlan):
        return f"seed {seed}: no plan, but there is one: {nodes} {free} {pods}" if expected else ""
    chosen = [found.placements[f"w-{i}"][0] for i in range(len(pods))]
    return "" if accepts(nodes, pods, chosen) else f"seed {seed}: refused {chosen}: {nodes} {free} {pods}"


# -- preferences ---------------------------------------------------------------------------------------------------


def compare_preference(seed: int) -> str:
    """'' if, of all plans with the fewest nodes, the planner finds one that is the best for a preference.

    An even spread over zones of several nodes only must not be worse than without the preference: which nodes are the
    fewest depends on it, and not all choices are compared.
    """
    rng = random.Random(seed)
    nodes = {f"n{i}": {"zone": rng.choice("ab")} for i in range(rng.choice([3, 4, 5]))}
    free = {name: rng.choice([1, 2, 3, 4]) for name in nodes}
    size = rng.randint(5, 10)  # more than one node has room for
    key, kind = rng.choice([(HOSTNAME, "apart"), ("zone", "apart"), ("zone", "together")])
    preferences = {
        "apart": preferred("podAntiAffinity", term(key, {})),
        "together": preferred("podAffinity", term(key, {})),
    }
    world = world_of(nodes, free)
    found = world.plan_problem(problem_of(world, [{"spec": preferences[kind]}] * size))

    def most(counts: Mapping[str, int]) -> int:
        """The most members in one domain."""
        numbers: Counter[str | None] = Counter()
        for node, number in counts.items():
            numbers[_value(nodes, node, key)] += number
        return max(numbers.values())

    every = [
        {name: number for name, number in zip(nodes, counts, strict=True) if number}
        for counts in itertools.product(*(range(free[name] + 1) for name in nodes))
        if sum(counts) == size
    ]
    if not isinstance(found, GangPlan):
        return f"seed {seed}: no plan" if every else ""
    own = Counter(node for node, _ in found.placements.values())
    plain = world_of(nodes, free)
    without = plain.plan_problem(problem_of(plain, [{}] * size))
    assert isinstance(without, GangPlan)
    tight = [most(counts) for counts in every if len(counts) == min(map(len, every))]
    # A domain that cannot have all members counts for nothing.
    best = min(tight) if kind == "apart" else size if size in tight else most(own)
    if (kind, key) == ("apart", "zone"):
        best = min(most(own), most(Counter(node for node, _ in without.placements.values())))
    is_best = (len(own), most(own)) == (min(map(len, every)), best)
    return "" if is_best else f"seed {seed}: {kind} {key}, best {best}: {dict(own)} of {free} in {nodes}"
